"""Looking at callers keeps nothing of a training loop alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from brand import BrandDataset, BrandLoader, BrandSampler
from tests.torch.support import make_set, sized_samples


def last_batch_is_gone(loader: Any) -> bool:
    """Whether the last batch of an epoch is gone in the next one. Its memory is otherwise used for an epoch more."""
    for batch in loader:
        last = weakref.ref(batch["index"])
    loader.sampler.set_epoch(1)
    for number, batch in enumerate(loader):  # noqa: B007 - the loop gives it another object
        if number == 1:
            return last() is None
    return False


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: BrandLoader(ds, 16, num_workers=1),
        lambda ds: DataLoader(ds, 16, sampler=BrandSampler(ds)),
    ],
    ids=["BrandLoader", "DataLoader"],
)
def test_a_last_batch_is_not_kept(tmp_path: Path, make: Callable[[BrandDataset], Any]) -> None:
    data = BrandDataset(make_set(tmp_path / "set.brand", sized_samples([10] * 48), 16), memory=0.5)
    assert last_batch_is_gone(make(data))
