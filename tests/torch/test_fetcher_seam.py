"""The paper replaces the module `datafetcher` of PyTorch (section 4.2); `__getitems__` is the place that it offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _DatasetKind

from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandSampler
from tests import places
from tests.torch.support import Record, make_samples, records, records_of

pytestmark = places.EVERYWHERE

SAMPLES = records(make_samples(75, 1500))
"""The samples of `small`."""


class Plain(Dataset[Record]):
    """A map-style data set in memory."""

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, index: int) -> Record:
        return SAMPLES[index]


class BatchesOnly(BrandDataset):
    """A data set that refuses to return samples one by one."""

    def __getitem__(self, index: int) -> Any:
        """Fail: a fetcher that calls this makes a request for each sample."""
        raise AssertionError(f"sample {index} was fetched alone")


def fetched(data_set: Dataset[Any], indices: list[int], collate: Any) -> Any:
    """One batch, by the object that a DataLoader, or its worker, makes for itself."""
    fetcher = _DatasetKind.create_fetcher(_DatasetKind.Map, data_set, True, collate, False)
    assert type(fetcher) is _MapDatasetFetcher
    return fetcher.fetch(indices)


def test_pytorchs_fetcher_asks_for_a_whole_batch(small: Path) -> None:
    """`_MapDatasetFetcher` calls `__getitems__`, and collates what a plain data set returns sample by sample."""
    indices = [74, 0, 9, 9, 31]
    assert records(fetched(BatchesOnly(small), indices, list)) == fetched(Plain(), indices, list)


@pytest.mark.slow
def test_workers_with_a_sampler_fetch_batches_only(small: Path) -> None:
    """An unmodified DataLoader: each sample once in an epoch, with the values of the plain data set."""
    with running_server(small, memory=0.5) as server:
        data_set = BatchesOnly(small, server=server.address)
        loader = DataLoader(data_set, batch_size=8, sampler=BrandSampler(data_set, seed=3), num_workers=2)
        epochs = [records_of(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [SAMPLES, SAMPLES]
    assert epochs[0] != epochs[1]
