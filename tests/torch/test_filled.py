"""A `Mixture` of data sets with different fields: samples get the value of `fill` for those that their member lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, Mixture
from brand.errors import SchemaError, UsageError

FILL = {"caption": "none", "year": -1, "score": 0.5, "vector": np.array([1.0, 2.0], np.float32)}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """40 samples with all fields, 25 with the label only, and 15 with a label and a year."""
    folder, found = tmp_path_factory.mktemp("filled"), []
    schema = {"label": "int", "caption": "str", "year": "int", "score": "float", "vector": "ndarray"}
    for name, size, names in (("all", 40, list(schema)), ("labels", 25, ["label"]), ("years", 15, ["label", "year"])):
        samples = ({k: v for k, v in whole(n).items() if k in names} for n in range(size))
        brand.pack(samples, folder / f"{name}.brand", {k: schema[k] for k in names}, chunk_size=8, jobs=1)
        found.append(folder / f"{name}.brand")
    return found


def whole(n: int) -> dict[str, Any]:
    vector = np.array([n, n], np.float32)
    return {"label": n, "caption": f"caption {n}", "year": 1900 + n, "score": n / 8, "vector": vector}


def loaders(mixture: Mixture) -> Iterator[Any]:
    """Every way to make batches."""
    yield BrandLoader(mixture, 10)
    for workers in (0, 2):
        yield DataLoader(mixture, 10, sampler=BrandSampler(mixture), num_workers=workers)


def has(member: int) -> set[str]:
    return [{"label", *FILL}, {"label"}, {"label", "year"}][member]


def test_samples_get_the_values_of_the_fields_that_they_lack(sets: list[Path]) -> None:
    """In every loader; those of other members are their own."""
    mixture = Mixture({BrandDataset(path, memory=0.5): 1 for path in sets}, samples=120, fill=FILL)
    for loader in loaders(mixture):
        counts = [0, 0, 0]
        for batch in loader:
            for n, (member, label) in enumerate(zip(batch["member"].tolist(), batch["label"].tolist(), strict=True)):
                counts[member] += 1
                expected: dict[str, Any] = {
                    k: v if k in has(member) else FILL[k] for k, v in whole(label).items() if k != "label"
                }
                assert batch["caption"][n] == expected["caption"]
                assert batch["year"][n] == expected["year"]
                assert batch["score"][n] == expected["score"]
                assert batch["vector"][n].tolist() == expected["vector"].tolist()
            assert batch["vector"].numpy().dtype == np.float32
            assert batch["year"].dtype == batch["label"].dtype
        assert counts == [40, 40, 40]


def test_a_transform_sees_the_filled_fields(sets: list[Path]) -> None:
    """That of each member is called with whole samples."""
    members = [BrandDataset(path, memory=0.5, transform=lambda s: (s["label"], s["caption"])) for path in sets[:2]]
    mixture = Mixture(dict.fromkeys(members, 1), samples=80, fill=FILL)
    found = {caption for _, captions in BrandLoader(mixture, 8, num_workers=1) for caption in captions}
    assert found == {"none", *(f"caption {n}" for n in range(40))}


def test_a_transform_changes_the_value_of_its_own_sample_only(sets: list[Path]) -> None:
    """An array that is filled in may be changed in place."""

    def double(sample: dict[str, Any]) -> dict[str, Any]:
        sample["vector"] *= 2
        return sample

    members = [BrandDataset(path, memory=0.5, transform=double) for path in sets[:2]]
    mixture = Mixture(dict.fromkeys(members, 1), samples=80, fill=FILL)
    found = [v.tolist() for b in BrandLoader(mixture, 8) for v, m in zip(b["vector"], b["member"], strict=True) if m]
    assert found == [[2.0, 4.0]] * 40


def test_what_does_not_fit_is_refused(sets: list[Path]) -> None:
    """By name, with what to do."""
    members = {BrandDataset(path, memory=0.5): 1 for path in sets[:2]}
    with pytest.raises(SchemaError, match=r"have the same fields.*fill=\{'NAME': \.\.\.\}"):
        Mixture(members)
    with pytest.raises(SchemaError, match=r"have the same fields"):
        Mixture(members, fill={"caption": ""})
    with pytest.raises(SchemaError, match=r"fill=\{'year': ...\}.*'old'|year.*'old'"):
        Mixture(members, fill=FILL | {"year": "old"})
    for wrong, why in (
        (FILL | {"label": 1}, "fill= names 'label', which every member has"),
        (FILL | {"colour": 1}, "fill= names 'colour', which no member has"),
        ([1], "fill= is a list: give a dict"),
    ):
        with pytest.raises(UsageError, match=why):
            Mixture(members, fill=wrong)  # type: ignore[arg-type]
    named = {BrandDataset(path, memory=0.5, fields=("label",)): 1 for path in sets[:2]}
    with pytest.raises(UsageError, match="leave out fields= of the members"):
        Mixture(named, fill=FILL)


def test_a_missing_image_is_not_filled(sets: list[Path], photos_set: Path) -> None:
    """A file of an image has no value that fits a batch."""
    images = BrandDataset(photos_set, memory=0.5)
    other = BrandDataset(sets[1], memory=0.5)
    with pytest.raises(UsageError, match=r"fill= names 'image', a field of image files"):
        Mixture({images: 1, other: 1}, fill={"image": None, "path": ""})
