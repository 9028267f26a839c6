"""An evaluation counts every sample once, on any number of ranks, and may read in the order of the chunks.

`even=False` gives every position to one rank. `order="storage"` has the same order in every epoch.
"""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

import brand
from brand.errors import UsageError
from brand.formats.constants import ROW
from brand.storage.dataset import indexes
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.profile.profile import Profile
from brand.testing.node import running_server
from brand.testing.storage import CountedStorage, SlowStorage
from brand.torch import BrandDataset, BrandLoader, BrandSampler, Mixture
from brand.torch.order import index_order
from brand.torch.order.index_order import cost_of_indices
from tests.rounds import examples
from tests.support import LIMIT_S
from tests.torch.support import MANY_WORKERS, Openings, indices_of, make_samples, make_set

COUNT = 601
"""A prime number: no number of ranks divides it."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 samples in chunks of 16."""
    return make_set(tmp_path_factory.mktemp("sets") / "odd.brand", make_samples(COUNT, 300), 16)


def places_of(path: Path) -> list[int]:
    """The indices of all samples in the order of the chunks."""
    found: list[int] = StoredDataSet(path).indices(np.arange(COUNT)).tolist()
    return found


def together(loaders: list[Any]) -> list[list[int]]:
    """The indices that each rank gets in an epoch; the ranks take batches in turn."""
    seen: list[list[int]] = [[] for _ in loaders]
    for turn in itertools.zip_longest(*loaders):
        for rank, batch in enumerate(turn):
            if batch is not None:
                seen[rank] += indices_of([batch])
    return seen


@pytest.mark.parametrize("order", ["storage", "uniform"])
def test_reads_of_one_chunk_read_its_table_once(odd: Path, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads read from it at the same time. A NAS allows some hundred operations a second."""
    monkeypatch.setattr(indexes, "AWAIT_S", LIMIT_S)
    storage = CountedStorage(SlowStorage(longest_s=0.005))
    with running_server(odd, memory=0.3, storage=storage, depth=16) as server:
        data = BrandDataset(odd, fields=("index",), server=server.address, order=order)
        assert sorted(indices_of(BrandLoader(data, 16))) == list(range(COUNT))
    table = 16 * ROW.itemsize
    chunks = [call.chunk for call in storage.reads if call.exact and call.size == table]
    assert sorted(chunks) == list(range(COUNT // 16))  # the table of the last chunk is smaller


def test_a_table_that_a_lost_thread_compares_is_compared_again(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be forked while another thread compares it."""
    monkeypatch.setattr(indexes, "AWAIT_S", 0.01)
    data, lost = StoredDataSet(odd), threading.Lock()
    lost.acquire()
    tables: Any = data._index.tables
    tables._under_way[0] = lost
    data.check_tables(np.arange(16))
    assert tables._same[0]


# -- every sample once -------------------------------------------------------------------------------------------------


@examples(40)
@given(ranks=st.integers(1, 9), start=st.integers(0, COUNT))
def test_ranks_have_all_samples_once(odd: Path, ranks: int, start: int) -> None:
    """From any position on, nothing is repeated and nothing is left out; ranks differ by one at most."""
    data_set = BrandDataset(odd, server="none")
    parts = []
    for rank in range(ranks):
        sampler = BrandSampler(data_set, num_replicas=ranks, rank=rank, shuffle=False, even=False)
        if not start:
            assert len(sampler) == len(list(sampler))
        sampler.load_state_dict(sampler.state_dict() | {"epoch": 0, "position": start})
        parts.append(list(sampler))
        assert sampler.state_dict()["epoch"] == (2 if start == COUNT else 1)
    found = [index for turn in itertools.zip_longest(*parts) for index in turn if index is not None]
    assert found == list(range(start % COUNT, COUNT))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def brand_loader(data_set: BrandDataset, sampler: BrandSampler) -> Any:
    return BrandLoader(data_set, 7, sampler=sampler)


def with_workers(data_set: BrandDataset, sampler: BrandSampler) -> Any:
    return DataLoader(data_set, 7, sampler=sampler, num_workers=2)


def with_batches(data_set: BrandDataset, sampler: BrandSampler) -> Any:
    return DataLoader(data_set, batch_sampler=BatchSampler(sampler, 7, drop_last=False))


@MANY_WORKERS
@pytest.mark.slow
@pytest.mark.parametrize("order", ["storage", "stripes"])
@pytest.mark.parametrize("make", [brand_loader, with_workers, with_batches])
def test_the_server_agrees(odd: Path, opened: Openings, make: Any, order: Any) -> None:
    """Three epochs on each number of ranks; `len` is right, and the server misses nothing and warns of nothing."""
    data_set = opened(odd, order=order, memory=1.0)  # the loaders of all ranks prefetch in one process
    for ranks in (2, 3, 4):
        samplers = [BrandSampler(data_set, num_replicas=ranks, rank=rank, even=False) for rank in range(ranks)]
        loaders = [make(data_set, sampler) for sampler in samplers]
        for _ in range(3):
            seen = together(loaders)
            assert sorted(itertools.chain(*seen)) == list(range(COUNT))
            assert [len(part) for part in seen] == [len(sampler) for sampler in samplers]
            assert [-(-len(part) // 7) for part in seen] == [len(loader) for loader in loaders]
    assert data_set.stats()["recent_warnings"] == []


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1)])
def test_a_stop_inside_an_epoch(odd: Path, opened: Openings, before: int, after: int) -> None:
    """Other ranks continue with the samples that are left."""
    data_set = opened(odd, order="storage")

    def loaders(ranks: int) -> list[BrandLoader]:
        samplers = [BrandSampler(data_set, num_replicas=ranks, rank=rank, even=False) for rank in range(ranks)]
        return [BrandLoader(data_set, 10, sampler=sampler) for sampler in samplers]

    first = loaders(before)
    seen = together([itertools.islice(loader, 15) for loader in first])
    state = first[0].state_dict()
    assert state["position"] == 150 * before if before < 4 else state["epoch"] == 0
    rest = loaders(after)
    for loader in rest:
        loader.load_state_dict(state)
    seen += together(rest)
    assert sorted(itertools.chain(*seen)) == list(range(COUNT))
    assert sorted(itertools.chain(*together(rest))) == list(range(COUNT))


def test_more_ranks_than_samples(smaller: Path, opened: Openings) -> None:
    """A rank without a sample has no batch, in each epoch."""
    data_set = opened(smaller)
    samplers = [BrandSampler(data_set, num_replicas=40, rank=rank, even=False) for rank in range(40)]
    loaders = [BrandLoader(data_set, 4, sampler=sampler) for sampler in samplers]
    assert [len(loader) for loader in loaders] == [1] * 30 + [0] * 10
    for _ in range(2):
        seen = together(loaders)
        assert [len(part) for part in seen] == [1] * 30 + [0] * 10
        assert sorted(itertools.chain(*seen)) == list(range(30))


def test_a_mixture(smaller: Path, small: Path, opened: Openings) -> None:
    """Its rounds are divided in another way; each position of the epoch goes to one rank there, too."""
    mixture = Mixture({opened(smaller): 1.0, opened(small): 1.0}, samples=101)
    for epoch in range(3):
        parts = []
        for rank in range(4):
            sampler = BrandSampler(mixture, num_replicas=4, rank=rank, even=False)
            sampler.set_epoch(epoch)
            parts.append(list(sampler))
            assert len(sampler) == len(parts[-1])
        whole = BrandSampler(mixture)
        whole.set_epoch(epoch)
        assert sorted(itertools.chain(*parts)) == sorted(whole)


def test_two_rules_for_the_rest_are_refused(smaller: Path, opened: Openings) -> None:
    """One of them drops samples, the other one does not."""
    with pytest.raises(UsageError, match="drop_last=True drops some samples"):
        BrandSampler(opened(smaller), even=False, drop_last=True)


# -- the order of the chunks -------------------------------------------------------------------------------------------


def test_each_epoch_has_the_order_of_the_chunks(odd: Path, opened: Openings) -> None:
    """For any seed and ranks; in large reads, each sample once while memory does not hold it."""
    data_set, expected = opened(odd, order="storage", memory=0.2), places_of(odd)
    for seed in (0, 5):
        loader = BrandLoader(data_set, 50, sampler=BrandSampler(data_set, seed=seed))
        assert [indices_of(loader) for _ in range(2)] == [expected] * 2
    stats = data_set.stats()
    assert stats["read_samples"] <= 4 * COUNT
    assert stats["reads"] * 8 <= stats["read_samples"]
    ranks = [BrandSampler(data_set, num_replicas=3, rank=rank, even=False) for rank in range(3)]
    seen = together([BrandLoader(data_set, 10, sampler=sampler) for sampler in ranks])
    assert seen == [expected[rank::3] for rank in range(3)]


def test_samples_of_a_subset(odd: Path, opened: Openings) -> None:
    """They keep the order."""
    data_set = opened(odd, order="storage")
    loader = BrandLoader(data_set, 50, sampler=BrandSampler(data_set, subset="index < 100"))
    assert indices_of(loader) == [index for index in places_of(odd) if index < 100]


def test_a_validation_leaves_the_training_alone(odd: Path, opened: Openings) -> None:
    """In the middle of an epoch: the training has the order and the reads of one without a validation."""

    def train(*, validates: bool) -> tuple[list[list[int]], dict[str, Any]]:
        training, validation = opened(odd, memory=0.5), opened(odd, memory=0.3, order="storage")
        loader, other = BrandLoader(training, 10), BrandLoader(validation, 50)
        epochs = []
        for _ in range(3):
            batches = []
            for step, batch in enumerate(loader):
                batches += indices_of([batch])
                if validates and step % 25 == 24:
                    assert indices_of(other) == places_of(odd)
            epochs.append(batches)
        stats = training.stats()
        return epochs, {name: stats[name] for name in ("fetched", "read_samples", "read_bytes", "direct")}

    assert train(validates=True) == train(validates=False)


def test_a_validation_on_the_server_of_the_training(odd: Path) -> None:
    """It shares the memory, so that samples may be read again. The training has its order, and each sample once."""

    def train(*, validates: bool) -> list[list[int]]:
        with running_server(odd, memory=0.5) as server:
            training = BrandDataset(odd, server=server.address, job="train", fields=("index",))
            validation = BrandDataset(odd, server=server.address, job="validate", order="storage", fields=("index",))
            loader, other, epochs = BrandLoader(training, 10), BrandLoader(validation, 50), []
            for _ in range(3):
                batches = []
                for step, batch in enumerate(loader):
                    batches += indices_of([batch])
                    if step % 25 == 24 and validates:
                        assert indices_of(other) == places_of(odd)
                epochs.append(batches)
            return epochs

    assert train(validates=True) == train(validates=False)


def test_a_state_continues_the_order(odd: Path, opened: Openings) -> None:
    """Also in a data set whose own order is another one: the state has the order."""
    loader = BrandLoader(opened(odd, order="storage"), 50)
    for _ in itertools.islice(loader, 4):
        pass
    again = BrandLoader(opened(odd), 50)
    again.load_state_dict(loader.state_dict())
    assert indices_of(again) == places_of(odd)[200:]


# -- the order of the indices ------------------------------------------------------------------------------------------

SLOW = Profile("a disk", (1 << 12, 1 << 20), (1,), ((400e3, 100e6),), 100e6)
"""100 reads of 4 KiB a second, or 100 MB/s."""


def test_what_the_order_of_the_indices_costs() -> None:
    """It is said if an epoch takes seconds longer, or if nothing is known of the storage and there are many samples."""
    assert cost_of_indices(SLOW, 4096, 100) == ""
    assert cost_of_indices(SLOW, 4096, 10_000).startswith("at most 98 samples/s from this storage, which has 24,414 in")
    assert cost_of_indices(SLOW, 1 << 20, 10_000) == ""
    assert cost_of_indices(None, 4096, 100) == ""
    assert "brand profile" in cost_of_indices(None, 4096, 10_000)


def test_the_cost_is_said_once(
    odd: Path, opened: Openings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the order that is faster; the order of the indices stays as it is."""
    monkeypatch.setattr(index_order, "MANY", COUNT)
    monkeypatch.setattr(index_order, "_said", set())
    data_set = opened(odd)
    with caplog.at_level(logging.WARNING, "brand"):
        for _ in range(2):
            assert indices_of(BrandLoader(data_set, 50, shuffle=False)) == list(range(COUNT))
    (record,) = [record for record in caplog.records if "shuffle=False" in record.getMessage()]
    assert f"shuffle=False reads {COUNT} samples of" in record.getMessage()
    assert 'order="storage"' in record.getMessage()
    assert brand.BrandDataset(odd, order="storage") is not None
