"""The simulated reads of samplers whose epochs are no plain shuffles are those of real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.long_tail import make
from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.simulate.pace import Machine
from brand.simulate.storages import BUILT_IN
from brand.simulate.whatif import Case, Planned, Prediction, answer, answer_mixture, data_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.several_nodes.support import all_open
from tests.support import wait_until
from tests.tools.cluster import running_cluster
from tests.torch.support import Openings

pytestmark = pytest.mark.slow

SAMPLES, SIZE, EPOCHS, BATCH = 20_000, 5_000, 3, 256
LENGTHS = np.random.default_rng(0).integers(1, 200, SAMPLES)
STEP_S = 0.01
NEAR_BYTES, NEAR_READS = 0.02, 0.03
MOVED = 0.06
"""The ends of reads decide which epoch reads a sample that two orders need. So a busy machine moves some from one epoch
to the next, and the sum of all epochs is the same.
"""


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand classes, whose sizes follow Zipf's law."""
    folder = tmp_path_factory.mktemp("drawing") / "long-tail.brand"
    make(folder, SAMPLES, SIZE)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fewer and larger samples."""
    folder = tmp_path_factory.mktemp("drawing") / "other.brand"
    make(folder, SAMPLES // 4, 2 * SIZE)
    return folder


def case_of(memory: float, **more: Any) -> Case:
    return Case(Machine(BUILT_IN["nas"]), memory, **{"batch": BATCH, "epochs": EPOCHS, **more})


def predicted(path: Path, memory: float, **more: Any) -> Prediction:
    return answer(data_of(StoredDataSet(path)), case_of(memory, **more))


def mixture_predicted(paths: Sequence[Path], weights: Sequence[float], memory: float, **more: Any) -> Prediction:
    members = [(data_of(StoredDataSet(path)), weight) for path, weight in zip(paths, weights, strict=True)]
    return answer_mixture(members, case_of(memory, **more))


def measured(stats: Callable[[], list[dict[str, Any]]], loaders: Sequence[BrandLoader]) -> list[list[int]]:
    """Reads, their bytes, and direct reads of each epoch, from its beginning until the servers have read ahead.

    The loaders are those of ranks, which train in step. `stats` returns the statistics of all servers.
    """
    counters, barrier = [[0, 0, 0]], threading.Barrier(len(loaders))

    def count() -> list[int]:
        every = stats()
        return [sum(each[name] for each in every) for name in ("reading", "reads", "read_bytes", "direct")]

    def rests() -> bool:
        before = count()
        return before[0] == 0 and count() == before

    def train(loader: BrandLoader) -> None:
        for _ in loader:
            time.sleep(STEP_S)  # a training that is slower than the storage
            barrier.wait()

    with ThreadPoolExecutor(len(loaders)) as ranks:
        for _ in range(EPOCHS):
            list(ranks.map(train, loaders))
            wait_until(rests, "the servers have read ahead")
            counters.append(count()[1:])
    found: list[list[int]] = np.diff(counters, axis=0).tolist()
    return found


def check(found: Prediction, epochs: list[list[int]], first: int = 0) -> None:
    """Compare each epoch from the `first` one on, and the sum of these."""
    pairs = list(zip(found.counts, epochs, strict=True))[first:]
    for counts, (reads, read_bytes, _) in pairs:
        assert counts.reads == pytest.approx(reads, rel=MOVED, abs=DEFAULT_DEPTH)
        assert counts.read_bytes == pytest.approx(read_bytes, rel=MOVED, abs=DEFAULT_DEPTH * read_bytes / reads)
    reads, read_bytes, direct = np.sum([measured for _, measured in pairs], axis=0).tolist()
    assert sum(counts.reads for counts, _ in pairs) == pytest.approx(reads, rel=NEAR_READS, abs=DEFAULT_DEPTH)
    assert sum(counts.read_bytes for counts, _ in pairs) == pytest.approx(read_bytes, rel=NEAR_BYTES)
    assert sum(counts.direct for counts, _ in pairs) == pytest.approx(direct, rel=NEAR_READS)


@pytest.mark.parametrize(
    ("memory", "batch", "sampler"),
    [
        (0.25, BATCH, {"weights": "balanced"}),
        (0.5, BATCH, {"weights": "balanced"}),
        (0.1, 2 * BATCH, {"weights": "balanced"}),
        (0.25, BATCH, {"weights": "balanced", "subset": "label < 300", "num_samples": 9_000}),
        (0.5, BATCH, {"weights": np.arange(SAMPLES) % 7}),
        (0.25, BATCH, {"subset": "label < 10"}),
        (0.03, BATCH, {}),
    ],
    ids=["a quarter", "all repeats", "large batches", "of a subset", "by sample", "subset", "little memory"],
)
def test_a_real_server_reads_what_is_predicted(
    long_tail: Path, memory: float, batch: int, sampler: dict[str, Any]
) -> None:
    """In each epoch. Half of the memory holds all samples that repeat in an epoch of balanced classes.

    Large batches are a quarter of the memory. Little memory has no space for a chunk: direct reads are counted, too.
    """
    with closing(Openings()) as opened:
        data = opened(long_tail, memory=memory, fields=("index", "label"))
        loader = BrandLoader(data, batch, sampler=BrandSampler(data, **sampler))
        epochs = measured(lambda: [data.stats()], [loader])
    check(predicted(long_tail, memory, batch=batch, **sampler), epochs)


@pytest.mark.parametrize(
    ("memory", "limits", "planned"),
    [
        (0.25, {"batch_size": BATCH}, Planned(LENGTHS, size=BATCH)),
        (0.6, {"batch_length": 20_000}, Planned(LENGTHS, most=20_000)),
        (0.1, {"tokens_per_row": 500, "rows_per_batch": 12}, Planned(LENGTHS, row=500, rows=12)),
    ],
    ids=["batch size", "batch length", "packed"],
)
def test_planned_batches(long_tail: Path, memory: float, limits: dict[str, Any], planned: Planned) -> None:
    """The bucketing window takes memory from the cached samples."""
    with closing(Openings()) as opened:
        data = opened(long_tail, memory=memory, fields=("index", "label"))
        kind: Any = PackedBatchSampler if planned.row else LengthBatchSampler
        epochs = measured(lambda: [data.stats()], [BrandLoader(data, batch_sampler=kind(data, LENGTHS, **limits))])
    check(predicted(long_tail, memory, planned=planned), epochs)


@pytest.mark.parametrize("samples", [None, 9_000])
def test_a_mixture(long_tail: Path, other: Path, samples: int | None) -> None:
    """Each member has its own server. A short epoch goes on with the epochs of the members."""
    with closing(Openings()) as opened:
        members = [opened(path, memory=0.25, fields=("index", "label")) for path in (long_tail, other)]
        mixture = Mixture(dict(zip(members, (3, 1), strict=True)), samples=samples)
        loader = BrandLoader(mixture, BATCH, sampler=BrandSampler(mixture))
        epochs = measured(lambda: [member.stats() for member in members], [loader])
    check(mixture_predicted((long_tail, other), (3, 1), 0.25, num_samples=samples), epochs)


def ranks_of(make_data: Callable[[int], Any], ranks: int, **sampler: Any) -> list[BrandLoader]:
    """The loader of each rank, whose data set `make_data` opens."""
    found = []
    for rank in range(ranks):
        data = make_data(rank)
        own = BrandSampler(data, num_replicas=ranks, rank=rank, drop_last=True, **sampler)
        found.append(BrandLoader(data, BATCH, sampler=own, num_workers=1, prefetch_batches=1))
    return found


def test_ranks_of_a_group(long_tail: Path) -> None:
    """Their server reads once for a group. In the first epoch ranks begin one after the other, so it reads more."""
    with running_server(long_tail, memory=0.25) as server:
        opened = partial(BrandDataset, long_tail, fields=("index",), server=server.address, job="groups")
        epochs = measured(lambda: [server.facts()], ranks_of(lambda _: opened(), 4, replication=2))
    check(predicted(long_tail, 0.25, ranks=4, replication=2), epochs, first=1)


@pytest.mark.parametrize("kind", ["mixture", "subset"])
def test_two_nodes(long_tail: Path, other: Path, kind: str) -> None:
    """They send each other what the ranks of the other node draw.

    The reads of weights depend on how fast nodes are: several orders share the memory for samples of the other node.
    """
    paths, memory = [long_tail, other] if kind == "mixture" else [long_tail], 0.3
    sampler = {"mixture": {}, "subset": {"subset": "label < 100"}}[kind]
    with ExitStack() as stack:
        clusters = [stack.enter_context(running_cluster(path, nodes=2, memory=memory)) for path in paths]
        for cluster in clusters:
            wait_until(partial(all_open, cluster), "all nodes can be reached")

        def opened(rank: int) -> Any:
            members = [
                BrandDataset(path, fields=("index", "label"), server=cluster.addresses[rank], job="nodes")
                for path, cluster in zip(paths, clusters, strict=True)
            ]
            return Mixture(dict(zip(members, (3, 1), strict=True))) if kind == "mixture" else members[0]

        def facts() -> list[dict[str, Any]]:
            return [cluster.facts(node) for cluster in clusters for node in range(2)]

        epochs = measured(facts, ranks_of(opened, 2, **sampler))
    if kind == "mixture":
        check(mixture_predicted(paths, (3, 1), memory, nodes=2), epochs)
    else:
        check(predicted(long_tail, memory, nodes=2, **sampler), epochs)
