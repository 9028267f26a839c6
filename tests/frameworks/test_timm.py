"""timm's loaders: states inside an epoch count the trained batches, and `create_loader` names what to write instead.

timm needs torchvision, which needs another version of PyTorch than the development environment has. In an environment
with it: `pip install timm torchvision`, then `pytest -m frameworks tests/frameworks/test_timm.py`.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

import pytest
import torch

from brand import BrandDataset, Mixture
from brand.errors import UsageError
from tests.frameworks.pages import program
from tests.frameworks.wrapped import Make, check_states, fixed_size, planned
from tests.test_docs import fashion_mnist

pytest.importorskip("timm", reason="timm is not installed: pip install timm torchvision")
pytestmark = pytest.mark.frameworks

from timm.data import create_loader, create_transform  # noqa: E402 - after the check that it is there
from timm.data.loader import PrefetchLoader, fast_collate  # noqa: E402

CPU = torch.device("cpu")


class Batches(PrefetchLoader):  # type: ignore[misc]
    """A `PrefetchLoader` whose batches are no images."""

    def __init__(self, loader: object) -> None:
        super().__init__(loader, device=CPU)
        self.mean, self.std = torch.zeros(1), torch.ones(1)


@pytest.fixture(scope="module")
def photos() -> Path:
    """3,000 images of 28 x 28 pixels."""
    return fashion_mnist() / "train.brand"


@pytest.mark.parametrize("make", [fixed_size, planned])
def test_a_state_counts_the_batches_that_were_trained(numbers: Path, make: Make) -> None:
    """Not the batch that `PrefetchLoader` has taken ahead."""
    check_states(numbers, make, Batches)


@pytest.mark.parametrize("training", [True, False])
def test_create_loader_is_refused_with_its_parts(photos: Path, training: bool) -> None:
    """For a `Mixture`, too: it would ignore the transform. Anybody else may assign one."""
    data = BrandDataset(photos, fields=("image", "label"))
    for given in (data, Mixture({data: 1.0})):
        with pytest.raises(UsageError, match=r"PrefetchLoader\(BrandLoader\(dataset, .*more-frameworks"):
            create_loader(given, (3, 32, 32), 64, is_training=training, num_workers=0, device=CPU)
    data.transform = {"image": create_transform((3, 32, 32), use_prefetcher=True)}
    images, labels = fast_collate([data[0], data[1]])
    assert images.shape == (2, 3, 32, 32)
    assert labels.tolist() == [data.targets[0], data.targets[1]]


def test_the_page_trains_as_it_says(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cure of the refusal, word for word."""
    shutil.copytree(photos, tmp_path / "train.brand")
    monkeypatch.chdir(tmp_path)
    code, output = program("guides/more-frameworks.md", "timm")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "page", "exec"), {"__name__": "page"})
    assert printed.getvalue() == output
