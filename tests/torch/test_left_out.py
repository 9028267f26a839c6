"""A use that leaves out part of an epoch is refused, whoever causes it; leaving an epoch early is not."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset

from brand.errors import BrandError
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.data import set_source
from tests.torch.support import MANY_WORKERS, Openings, failure_of, indices_of

pytestmark = [MANY_WORKERS, pytest.mark.slow]
BATCH = 5


class _EverySecond(BatchSampler):
    """Shards what is sharded already."""

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(super().__iter__()):
            if number % 2 == 0:
                yield batch


class _Skipped(BatchSampler):
    """Skips batches to resume."""

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(super().__iter__()):
            if number >= 6:
                yield batch


class _InAnotherOrder(BatchSampler):
    """Samples of each of three pools in an order of its own, as one that sorts by length may do."""

    def __iter__(self) -> Iterator[list[int]]:
        drawn = [ticket for batch in super().__iter__() for ticket in batch]
        for first in range(0, 75, 25):
            pool = drawn[first : first + 25][::-1]
            yield from ([*pool[start::BATCH]] for start in range(BATCH))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [_EverySecond, _Skipped])
def test_leaving_out_batches_is_refused(
    small: Path, opened: Openings, workers: int, batches: type[BatchSampler]
) -> None:
    """75 samples in 15 batches: refused in the epoch where it happens, with counts, and what to read."""
    data_set = opened(small)
    loader = DataLoader(
        data_set, batch_sampler=batches(BrandSampler(data_set), BATCH, drop_last=False), num_workers=workers
    )
    error = failure_of(loader)
    assert isinstance(error, BrandError)
    assert re.search(r"epoch 0 left out \d+ of the .* docs/guides/frameworks.md", str(error))


@pytest.mark.parametrize("workers", [0, 2])
def test_another_order_of_the_batches_is_not_refused(small: Path, opened: Openings, workers: int) -> None:
    """Nor is leaving it early: all may still come."""
    data_set = opened(small)
    batches = _InAnotherOrder(BrandSampler(data_set), BATCH, drop_last=False)
    loader = DataLoader(data_set, batch_sampler=batches, num_workers=workers)
    for _ in loader:
        break
    assert sorted(indices_of(loader)) == list(range(75))


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_an_epoch_that_is_left_early_is_not_refused(small: Path, opened: Openings, workers: int) -> None:
    """At each step."""
    data_set = opened(small)
    sampler = BrandSampler(data_set)
    loader = DataLoader(data_set, BATCH, sampler=sampler, num_workers=workers)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for step, _ in enumerate(loader):
            if step == epoch:
                break
    assert len(indices_of(loader)) == 75


def test_a_loader_that_is_left_early_is_not_refused(small: Path, opened: Openings) -> None:
    """At each step."""
    loader = BrandLoader(opened(small), BATCH)
    for epoch in range(6):
        loader.set_epoch(epoch)
        for step, _ in enumerate(loader):
            if step == epoch:
                break
    assert len(indices_of(loader)) == 75


def test_beginning_again_is_allowed(small: Path, opened: Openings) -> None:
    """In a notebook, the mistake is mended and the loop run again."""
    data_set = opened(small)
    sampler = BrandSampler(data_set)
    wrong = DataLoader(data_set, batch_sampler=_EverySecond(sampler, BATCH, drop_last=False))
    with pytest.raises(BrandError, match="left out"):
        indices_of(wrong)
    sampler.set_epoch(0)
    assert len(indices_of(DataLoader(data_set, BATCH, sampler=sampler))) == 75


class _Wrapper(Dataset[Any]):
    """As users write it: it passes on what it was asked for."""

    def __init__(self, data_set: BrandDataset) -> None:
        self._data_set = data_set

    def __len__(self) -> int:
        return len(self._data_set)

    def __getitem__(self, index: int) -> Any:
        return self._data_set[index]


def test_a_wrapper_that_draws_one_by_one_is_told_of_transforms(
    small: Path, opened: Openings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, in the log; what it draws is right."""
    monkeypatch.setattr(set_source, "_said", bytearray(2))
    data_set = opened(small)
    sampler = BrandSampler(data_set)
    loader = DataLoader(_Wrapper(data_set), BATCH, sampler=sampler)
    with caplog.at_level(logging.WARNING, "brand"):
        for _ in range(6):
            assert sorted(indices_of(loader)) == list(range(75))
    assert [record.getMessage().count("transform=") for record in caplog.records] == [1]
