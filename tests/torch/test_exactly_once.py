"""Every sample comes exactly once an epoch, whole and under its own name, whoever draws it, with any memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from brand.node.memory.pages import arena_bytes
from brand.node.setup.measure import measure_pages, stored_sizes
from brand.node.setup.memory import Memory, memory_bytes
from brand.orders import Slots, Stripes
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.rounds import examples
from tests.torch.support import (
    MANY_WORKERS,
    Openings,
    Record,
    make_samples,
    make_set,
    planned,
    records,
    records_of,
    served,
    sized_samples,
)
from tests.torch.training import run_ranks, two_ranks

pytestmark = places.EVERYWHERE

EPOCHS = 5
PROTOCOLS: list[OrderOption] = ["stripes", "slots", Stripes(length=3, buffer=0.2), Slots(refill="random")]
SAMPLES = make_samples(75, 1500)


def each_once(batches: Any, samples: list[Record]) -> bool:
    """Whether these are all samples, each once, in whatever order."""
    return sorted(records_of(batches)) == samples


def enough(path: Path, memory: Memory) -> Memory:
    """This memory, or the least that a server of this data set takes, where that is more."""
    page, pages_of = measure_pages(stored_sizes(StoredDataSet(path)))
    return max(2 * page, memory_bytes(memory, arena_bytes(pages_of, page)))


# -- any data set, in this process -----------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([0, 1, 60, 61, 62, 63, 64, 188, 1000, 5000, 40_000]), min_size=1, max_size=40)
MEMORIES = st.one_of(
    st.floats(0.01, 1.0), st.integers(1, 300_000), st.sampled_from(["1B", "4kB", "0.1MB", "1GiB"]), st.just(1.0)
)


@pytest.mark.slow
@examples(40, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(
    sizes=SIZES,
    chunk_size=st.integers(1, 12),
    memory=MEMORIES,
    order=st.sampled_from(PROTOCOLS),
    batch=st.integers(1, 50),
    seed=st.integers(0, 2**128 - 1),
    threads=st.integers(0, 3),
)
def test_any_data_set_in_any_memory(
    sizes: list[int],
    chunk_size: int,
    memory: Memory,
    order: OrderOption,
    batch: int,
    seed: int,
    threads: int,
) -> None:
    """Five epochs of a `DataLoader` (0 threads) or of a `BrandLoader`."""
    samples = sized_samples(sizes)
    if isinstance(order, Stripes):
        order = Stripes(min(3, chunk_size), order.buffer)
    with tempfile.TemporaryDirectory() as folder:
        path = make_set(Path(folder) / "set", samples, chunk_size)
        with served(path, memory=enough(path, memory), fields=None, order=order) as data_set:
            sampler = BrandSampler(data_set, seed=seed)
            loader: Any = DataLoader(data_set, batch, sampler=sampler)
            if threads:
                loader = BrandLoader(data_set, batch, sampler=sampler, num_workers=threads)
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                assert each_once(loader, records(samples))


EDGES = {
    "one sample": (1, 8),
    "fewer than a chunk": (5, 8),
    "one chunk": (8, 8),
    "a chunk and a sample": (9, 8),
    "chunks of one": (20, 1),
    "a short last chunk and group": (61, 8),
    "no short chunk": (64, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "order"), [(0, "slots"), (2, "stripes")])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_sizes(tmp_path: Path, edge: str, order: OrderOption, threads: int) -> None:
    """Five epochs of each."""
    count, chunk_size = EDGES[edge]
    samples = make_samples(count, 300)
    path = make_set(tmp_path / "set", samples, chunk_size)
    with served(path, memory=enough(path, 0.3), fields=None, order=order) as data_set:
        loader: Any = DataLoader(data_set, 4, sampler=BrandSampler(data_set))
        if threads:
            loader = BrandLoader(data_set, 4, num_workers=threads)
        for _ in range(EPOCHS):
            assert each_once(loader, records(samples))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "memory"),
    [
        ("stripes", 600),
        ("slots", 4000),
        ("stripes", "4kB"),
        ("slots", "0.01MiB"),
        ("stripes", "30KiB"),
        ("slots", 0.02),
        ("stripes", 0.1),
        ("slots", 0.5),
        ("stripes", 1.0),
        ("slots", 10**12),
        ("stripes", "1TB"),
    ],
)
def test_memory_however_it_is_given(small: Path, order: OrderOption, memory: Memory) -> None:
    """From less than the largest sample and less than a chunk to all of it: bytes, texts, fractions."""
    with served(small, memory=memory, fields=None, order=order) as data_set:
        loader = BrandLoader(data_set, 10)
        for _ in range(EPOCHS):
            assert each_once(loader, records(SAMPLES))
        facts = data_set.stats()
        assert facts["memory"]["used"] <= facts["memory"]["limit"] <= 75 * 2000


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "slots"])
@pytest.mark.parametrize("memory", ["20kB", 1.0])
def test_samples_from_nothing_to_more_than_the_memory(tmp_path: Path, order: OrderOption, memory: Memory) -> None:
    """Sizes around a page and up to many pages; one sample is larger than all of the memory."""
    sizes = [0, 1, 2, *range(50, 80), *range(180, 200), 1000, 4096, 100_000, 0, 0, 12_000]
    path = make_set(tmp_path / "set", samples := sized_samples(sizes), 7)
    with served(path, memory=memory, fields=None, order=order) as data_set:
        for _ in range(EPOCHS):
            assert each_once(DataLoader(data_set, 9, sampler=BrandSampler(data_set)), records(samples))
            assert each_once(BrandLoader(data_set, 9, num_workers=2), records(samples))


def test_two_epochs_at_once(small: Path) -> None:
    """Two loaders of one data set, each in an epoch of its own: both give all."""
    with served(small, fields=None) as data_set:
        samplers = [BrandSampler(data_set, seed=1) for _ in range(2)]
        samplers[1].set_epoch(1)
        loaders = [BrandLoader(data_set, 8, sampler=sampler) for sampler in samplers]
        pairs = list(zip(*loaders, strict=True))
        for side in range(2):
            assert [r[0] for r in records_of(pair[side] for pair in pairs)] == planned(small, samplers[0].order, side)
            assert each_once((pair[side] for pair in pairs), records(SAMPLES))


@pytest.mark.parametrize("count", [1, 3])
def test_a_fraction_of_a_tiny_data_set_is_enough(tmp_path: Path, count: int) -> None:
    """As a quick try with ten samples has it, with the options of the real run."""
    path = make_set(tmp_path / "set", samples := make_samples(count, 100), 8)
    with served(path, memory=0.1, fields=None) as data_set:
        assert each_once(BrandLoader(data_set, 2), records(samples))


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@MANY_WORKERS
@pytest.mark.parametrize(
    ("context", "workers", "persistent", "order"),
    [
        ("fork", 4, False, "slots"),
        ("spawn", 1, True, "stripes"),
        ("forkserver", 2, True, "slots"),
    ],
)
def test_workers(
    small: Path, opened: Openings, context: str, workers: int, persistent: bool, order: OrderOption
) -> None:
    """Five epochs, in the order of the plan, from a server that started by itself."""
    data_set = opened(small, fields=None, order=order, memory="30kB")
    sampler = BrandSampler(data_set, seed=5)
    loader = DataLoader(
        data_set,
        8,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
    )
    every = records(SAMPLES)
    for epoch in range(EPOCHS):
        found = records_of(loader)
        assert found == [every[index] for index in planned(small, sampler.order, epoch)]
        assert sorted(found) == every


@pytest.fixture
def drawn_before(small: Path, opened: Openings) -> BrandDataset:
    """A data set that this process has drawn from."""
    data_set = opened(small, fields=None)
    assert each_once(BrandLoader(data_set, 20), records(SAMPLES))
    return data_set


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_was_used_before_its_workers_started(drawn_before: BrandDataset, workers: int) -> None:
    """Its connections stay this process's own."""
    loader = DataLoader(drawn_before, 8, sampler=BrandSampler(drawn_before), num_workers=workers)
    for _ in range(2):
        assert each_once(loader, records(SAMPLES))
        assert each_once(BrandLoader(drawn_before, 20), records(SAMPLES))


@pytest.mark.slow
def test_two_ranks_share_a_server(small: Path, tmp_path: Path) -> None:
    """Two processes, as torchrun starts them: one server, and together every sample once an epoch."""
    told = run_ranks(2, small, tmp_path, "--loader", "DataLoader", "--order", "slots", "--epochs", str(EPOCHS))
    assert len({rank["server"] for rank in told}) == 1
    every = [(index, key, data.hex(), number) for index, key, data, number in records(SAMPLES)]
    for epoch in range(EPOCHS):
        parts = [[tuple(record) for record in rank["epochs"][epoch]] for rank in told]
        assert [len(part) for part in parts] == [38, 38]
        together = np.array([[r[0] for r in part] for part in parts]).T.ravel().tolist()
        order = planned(small, BrandSampler(BrandDataset(small, memory=0.3, order="slots")).order, epoch)
        assert together == [*order, order[0]]
        assert sorted({record for part in parts for record in part}) == every


@pytest.mark.slow
@places.IN_A_FOLDER
@pytest.mark.parametrize("order", ["uniform", "slots"])
def test_ranks_with_other_memory_draw_one_order(small: Path, order: str) -> None:
    """They have a server each. If memory decides the order, no server sees that each would draw half of another one."""
    told = two_ranks(RANK, small, order)
    drawn = [index for _, out, _ in told for index in json.loads(out)]
    if order == "uniform":
        assert len(drawn) == 76
        assert set(drawn) == set(range(75))
    else:
        assert any("two ranks of one job disagree: " in errors for _, _, errors in told)
        assert len(drawn) == len(set(drawn))


@pytest.mark.slow
@places.IN_A_FOLDER
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("place", ["epoch", "position"])
def test_ranks_must_begin_at_the_same_place(small: Path, nodes: int, place: str) -> None:
    """A rank that has loaded no checkpoint would train its part of an epoch in which no other rank is."""
    told = two_ranks(BEGINNING, small, place, nodes)
    refused = [errors for _, _, errors in told if "two ranks of one job disagree: " in errors]
    assert len(refused) == 1
    other = {"epoch": "epoch 1, position 0", "position": "epoch 0, position 10"}[place]
    assert other in refused[0]
    assert "epoch 0, position 0" in refused[0]


BEGINNING = """
import os, sys
path, place, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = int(os.environ["RANK"])
os.environ |= {"GROUP_WORLD_SIZE": str(nodes), "GROUP_RANK": str(rank % nodes)}
import torch.distributed as dist
from brand import BrandDataset, BrandLoader
from brand.torch.job import discovery

discovery.LIMIT_S = 2.0
dist.init_process_group("gloo")
try:
    loader = BrandLoader(BrandDataset(path, fields=("index",), memory=0.5), 5)
    if rank == 1 and place == "epoch":
        loader.set_epoch(1)
    elif rank == 1:
        loader.load_state_dict(loader.state_dict() | {"position": 10})
    next(iter(loader))
except Exception as error:
    print(error, file=sys.stderr)
dist.barrier()
"""
RANK = """
import json, sys
import torch.distributed as dist
from brand import BrandDataset, BrandLoader

dist.init_process_group("gloo")
drawn = []
try:
    data_set = BrandDataset(sys.argv[1], fields=("index",), order=sys.argv[2], memory=0.5 + dist.get_rank() / 2)
    for (indices,) in BrandLoader(data_set, 5):
        drawn += indices.tolist()
except Exception as error:
    print(error, file=sys.stderr)
print(json.dumps(drawn))
dist.barrier()
"""
