"""What code written for `ImageFolder` asks of a data set: targets, classes, a transform for pictures."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from brand import BrandDataset, BrandLoader, BrandSampler, pack
from brand.errors import NoLabelsError
from tests.torch.support import failure_of

CLASSES = ["animals", "documents", "markers", "outdoors", "tools"]


@pytest.fixture
def labelled(photos_set: Path) -> BrandDataset:
    """31 pictures in five classes, in ImageFolder's order."""
    return BrandDataset(photos_set, fields=("image", "label"))


def test_targets_are_the_labels_of_all_samples(labelled: BrandDataset) -> None:
    """By index, as `ImageFolder` lists them, and every sample agrees."""
    assert labelled.targets.dtype == np.int64
    assert labelled.targets.tolist() == [label for _, label in labelled]  # type: ignore[attr-defined]
    assert labelled.classes == CLASSES
    assert labelled.class_to_idx == dict(zip(CLASSES, range(5), strict=True))
    assert [CLASSES[label] for label in labelled.targets] == [key.split("/")[0] for key in keys(labelled)]


def keys(data_set: BrandDataset) -> list[str]:
    """Keys of all samples."""
    named = BrandDataset(data_set.path, fields=("key",))
    return [named[index][0] for index in range(len(named))]


def test_targets_take_no_memory_and_cannot_be_changed(labelled: BrandDataset) -> None:
    """They are the column on disk: nobody can relabel a data set by accident."""
    assert labelled.targets.base is not None
    with pytest.raises(ValueError, match="read-only"):
        labelled.targets[0] = 3
    again = pickle.loads(pickle.dumps(labelled))
    assert (again.targets == labelled.targets).all()


def test_what_is_done_with_targets_works(labelled: BrandDataset) -> None:
    """Counting, weights, a split by class, a tensor, an index: as with the list that `ImageFolder` has."""
    targets = labelled.targets
    counts = Counter(targets)
    assert sum(counts.values()) == len(targets) == len(labelled)
    assert counts[0] == np.bincount(targets)[0] == (targets == 0).sum()
    sampler = WeightedRandomSampler([1 / counts[t] for t in targets], 10)
    assert len(list(sampler)) == 10
    tools = Subset(labelled, [i for i, t in enumerate(targets) if t == labelled.class_to_idx["tools"]])
    assert {tools[number][1] for number in range(len(tools))} == {4}
    assert torch.tensor(targets).tolist() == targets.tolist() == list(targets)
    assert targets[labelled.targets.tolist().index(2)] == 2


def test_a_set_without_labels_says_so(tmp_path: Path) -> None:
    """As an AttributeError, so that `hasattr` and a default work as they do for any data set."""
    pack([{"x": 1, "label": "cat"}], tmp_path / "named", {"x": "int", "label": "str"}, jobs=1)
    data_set: Any = BrandDataset(tmp_path / "named")
    assert not hasattr(data_set, "targets")
    assert getattr(data_set, "class_to_idx", None) is None
    assert data_set.classes is None
    with pytest.raises(NoLabelsError, match="an 'int' field 'label', and this data set has x: int, label: str"):
        _ = data_set.targets


def test_labels_without_names(tmp_path: Path) -> None:
    """There are targets, and the message says how classes get their names."""
    pack([{"label": k} for k in range(3)], tmp_path / "set", {"label": "int"}, jobs=1)
    data_set = BrandDataset(tmp_path / "set")
    assert data_set.targets.tolist() == [0, 1, 2]
    with pytest.raises(NoLabelsError, match=r"brand.pack\(classes=...\) names them"):
        _ = data_set.class_to_idx


def picture_only(image: Any) -> torch.Tensor:
    """A transform of a picture, as `ImageFolder` takes it."""
    if isinstance(image, dict | tuple):
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(image)}")
    return torch.zeros(image.size)


def named_attribute(image: Any) -> Any:
    """Another: it fails by its own."""
    return image.resize((8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("transform", [picture_only, named_attribute])
@pytest.mark.parametrize(
    ("fields", "given"), [(None, "a dict of its fields"), (("label", "image"), "a tuple of label, image")]
)
def test_a_transform_in_imagefolder_style_is_told(
    photos_set: Path, transform: Any, fields: tuple[str, ...] | None, given: str
) -> None:
    """The error is the transform's own, and a note says what it was given and how it is written here."""
    data_set = BrandDataset(photos_set, transform=transform, fields=fields, memory=1.0)
    how = "for a function of one field write transform={'image': function}"
    hint = f"transform was given the whole sample, {given}; {how}"
    ways: list[Callable[[], Any]] = [
        lambda: data_set[3],
        lambda: next(iter(BrandLoader(data_set, 4))),
        lambda: next(iter(DataLoader(data_set, 4, sampler=BrandSampler(data_set)))),
    ]
    for read in ways:
        with pytest.raises((TypeError, AttributeError)) as failed:
            read()
        assert hint in failed.value.__notes__
    error = failure_of(DataLoader(data_set, 4, num_workers=1))
    assert isinstance(error, TypeError | AttributeError)
    assert "for a function of one field" in str(error)
    assert hint in str(error)


def test_the_same_transform_by_field_works(photos_set: Path) -> None:
    """As the note says."""
    data_set = BrandDataset(photos_set, transform={"image": picture_only}, fields=("image", "label"))
    assert data_set[0][0].dim() == 2
