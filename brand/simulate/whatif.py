"""What will a run cost with another memory, storage, order or number of nodes? One answer for each case.

A case becomes the order that Brand would choose for it, the order becomes the work of each node (`running`), and a
clock turns the work into time (`pace`). For a data set of more than `MOST` samples whose sizes are not known, a section
is simulated: with equal numbers of nodes, ranks and samples per chunk, and equal fractions of memory and of the chunks
of a pool. Its figures are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.state.choosing import Placement
from brand.node.setup.choose import Facts, Nodes, choose_order, choose_whole_unit, facts_of
from brand.node.setup.measure import stored_sizes
from brand.node.setup.memory import Memory, memory_bytes
from brand.node.setup.weighted import as_subset, of_subset, weighted_order
from brand.orders.baselines import Pool
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.simulate.drawing import work_of_draws
from brand.simulate.pace import EpochTimes, Machine, pace
from brand.simulate.running import EpochWork, SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet

Servers = Literal["connected", "alone"]
"""Whether the servers of several nodes send each other samples. If not, each reads what its own ranks draw."""
MOVES: Final = ("next", "frequency")
"""Placements that follow the draws of a node's ranks."""
MOST: Final = 1 << 25
"""The most samples that are planned one by one, if all count as the mean size."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set that exists, or an imagined one."""

    facts: Facts
    sizes: NDArray[np.uint32]
    """Stored sizes by place, shape (samples,)."""
    samples: int
    """Samples of the data set. If it has more than `sizes`, these represent equal sections of it."""
    stored: StoredDataSet | None = None
    """The data set. None if it is imagined."""

    @property
    def parts(self) -> float:
        return self.samples / len(self.sizes)

    @property
    def stored_bytes(self) -> int:
        return round(self.parts * int(self.sizes.sum(dtype=np.int64)))


def data_of(stored: StoredDataSet) -> Data:
    """Return the facts of a data set. Raises `FormatError`, and `UsageError` if it is the partition of one node."""
    if stored.share is not None:
        whole = "simulate the whole data set with as many nodes, or describe it by --samples and --mean-bytes"
        raise UsageError(f"{stored.name} is the partition of node {stored.share.node} of {stored.share.nodes}: {whole}")
    return Data(facts_of(stored), stored_sizes(stored), len(stored), stored)


def imagine(samples: int, mean_bytes: float, sigma: float, chunk_size: int) -> Data:
    """Return an imagined data set: sizes around a mean, with the standard deviation `sigma` (both in bytes).

    Sizes are normal and at least 1. With `sigma` 0 all are equal, and a large data set is one of several equal
    sections.
    """
    parts = -(-samples // MOST) if not sigma else 1
    here = -(-samples // parts)
    sizes = np.full(here, round(mean_bytes), np.uint32)
    if sigma:
        rng = np.random.default_rng(0)
        for first in range(0, here, 1 << 20):
            part = sizes[first : first + (1 << 20)]
            part[:] = np.clip(rng.normal(mean_bytes, sigma, len(part)), 1, np.iinfo(np.uint32).max)
    mean = float(sizes.mean(dtype=np.float64))
    return Data(Facts("0" * 32, here, min(chunk_size, here), mean, 0), sizes, samples)


@dataclass(frozen=True, slots=True)
class Case:
    """One set of choices."""

    machine: Machine
    memory: Memory = None
    """Memory of each node."""
    peer_memory: Memory = None
    cache: Memory = None
    """Capacity of each node's cache folder, in stored bytes or as a fraction of the data; None: no folder."""
    order: OrderOption = "stripes"
    nodes: int = 1
    servers: Servers = "connected"
    placement: Placement = "auto"
    """Placement of the cache folders. `frequency` counts the draws of all `epochs`."""
    ranks: int = 1
    """Ranks of each node."""
    batch: int = 256
    epochs: int = 3
    seed: int = 0
    subset: str | None = None
    """The samples that a `BrandSampler(subset=...)` fetches. They, and weights, need a data set, and one node."""
    weights: Any = None
    """As `BrandSampler(weights=...)` takes them."""
    num_samples: int | None = None
    """Samples of an epoch with weights."""

    @property
    def connected(self) -> bool:
        """Whether to simulate the servers as one cluster: they are connected, or one server reads everything."""
        if self.nodes == 1:
            return self.placement not in MOVES
        return self.servers == "connected"


@dataclass(frozen=True, slots=True)
class Counts:
    """The work of all nodes together for one epoch."""

    reads: int
    """Large reads from the storage."""
    read_bytes: int
    cache_reads: int
    """Large reads from the cache folders."""
    cache_bytes: int
    read_samples: int
    buffered: int
    direct: int
    """Samples that clients read one by one."""
    sent: int
    """Samples that nodes send each other."""
    sent_bytes: int
    requests: int

    def times(self, parts: float) -> Counts:
        return Counts(*(round(parts * getattr(self, name)) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The costs of a case, epoch by epoch."""

    order: Order
    memory_bytes: int
    """Memory of each node."""
    kept_bytes: int
    """Bytes that all nodes together cache in memory after the first epoch."""
    cached_bytes: int
    """Bytes in their cache folders after the first epoch."""
    counts: list[Counts]
    paces: list[EpochTimes]
    later_counts: Counts
    """The work of a later epoch: the last one. The mean if servers are alone, since their epochs differ."""

    @property
    def later(self) -> EpochTimes:
        """The mean of all epochs but the first."""
        rest = self.paces[1:]
        names = ("seconds", "storage", "cache", "network", "decoding", "training")
        return EpochTimes(**{name: sum(getattr(each, name) for each in rest) / len(rest) for name in names})

    def cost(self, price: Price, nodes: int) -> float:
        """Return the price of a later epoch."""
        counts, hours = self.later_counts, self.later.seconds / 3600
        operations = (counts.reads + counts.direct) / 1000
        return operations * price.thousand_reads + counts.read_bytes / 1e9 * price.gigabyte + hours * nodes * price.hour


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in one currency."""

    thousand_reads: float = 0.0
    gigabyte: float = 0.0
    """Price of 1e9 bytes read."""
    hour: float = 0.0
    """Price of an hour of one node."""

    @property
    def known(self) -> bool:
        return any((self.thousand_reads, self.gigabyte, self.hour))


def answer(data: Data, case: Case) -> Prediction:
    """Return the costs of a case for a data set. Raises `UsageError` if the case is impossible."""
    if case.epochs < 2:
        raise UsageError("at least two epochs are simulated: the first one and a later one differ")
    ranks = case.nodes * case.ranks
    facts = replace(data.facts, read_bytes=case.machine.storage.stripe_bytes)
    memory = _of_part(case.memory, data)
    option = case.order
    if isinstance(option, Pool):
        option = Pool(max(1, round(option.chunks / data.parts)))
    cluster = Nodes(case.nodes if case.connected else 1, ranks, case.peer_memory)

    def order_of(at_a_time: int) -> Order:
        return choose_order(facts, case.seed, option, None, memory, cluster, at_a_time)

    order = order_of(1)
    mixed = None if data.stored is None else _mixed(data.stored, case, order, order_of)
    cache_bytes, whole_unit = _cache_bytes(data, case, order), _whole_unit(facts, case)
    memories, nodes = (memory, case.peer_memory), (case.nodes, ranks)
    run = SimulatedRun(
        data.sizes,
        order,
        *memories,
        *nodes,
        case.batch,
        cache_bytes,
        whole_unit,
        busy_bytes=case.machine.storage.busy_bytes,
        connected=case.connected,
        placement=case.placement,
        epochs=case.epochs,
        gap_bytes=case.machine.storage.gap_bytes(facts.mean_bytes),
        num_samples=None if mixed is None else mixed.samples,
    )
    epochs = range(case.epochs)
    works = list(work_of(run, epochs)) if mixed is None else work_of_draws(run, mixed, epochs)
    paces = [_times(each, data.parts) for each in pace(run, works, case.machine)]
    counts = [_sum(epoch) for epoch in works]
    later = counts[-1] if case.connected else _mean(counts[1:])
    return Prediction(
        order,
        round(data.parts * works[0][0].memory_bytes),
        round(data.parts * sum(work.kept_bytes for work in works[-1])),
        round(data.parts * sum(work.cached_bytes for work in works[-1])),
        [each.times(data.parts) for each in counts],
        paces,
        later.times(data.parts),
    )


def _mixed(stored: StoredDataSet, case: Case, order: Order, order_of: Callable[[int], Order]) -> MixedOrder | None:
    """Return the orders of a sampler with a subset or weights. None if it fetches each sample once."""
    if case.subset is None and case.weights is None:
        return None
    part = of_subset(order, as_subset(stored, case.subset))
    if case.weights is None:
        return MixedOrder.of([part], part.draws, case.seed, [1.0])
    return weighted_order(stored, part, case.weights, case.num_samples, order_of)[0]


def _cache_bytes(data: Data, case: Case, order: Order) -> int:
    """Return the capacity of a node's cache folder for a section of the data; 0 if it is no faster than the storage."""
    if case.cache is None:
        return 0
    unit = order.policy.kept_unit or order.chunk_size
    size, operations = np.array([unit * data.facts.mean_bytes]), np.ones(1)
    from_cache = case.machine.cache.seconds(size / case.nodes, operations / case.nodes)
    if from_cache >= case.machine.storage.seconds(size, operations):
        return 0
    return memory_bytes(_of_part(case.cache, data), int(data.sizes.sum(dtype=np.int64)))


def _whole_unit(facts: Facts, case: Case) -> int:
    """Return the samples that the storage reads faster at once than one by one."""

    def seconds(size: float, reads: int) -> float:
        return float(case.machine.storage.seconds(np.array([size]), np.array([float(reads)]))[0])

    return choose_whole_unit(facts.read_bytes, facts.mean_bytes, facts.chunk_size, seconds)


def _of_part(memory: Memory, data: Data) -> Memory:
    """Return the memory for one section of the data. A fraction of the data is the same fraction of a section."""
    if data.parts == 1 or isinstance(memory, float):
        return memory
    return max(1, round(memory_bytes(memory, data.stored_bytes) / data.parts))


def _sum(works: list[EpochWork]) -> Counts:
    return Counts(*(sum(getattr(work, name) for work in works) for name in Counts.__slots__))


def _mean(counts: list[Counts]) -> Counts:
    return Counts(*(round(sum(getattr(each, name) for each in counts) / len(counts)) for name in Counts.__slots__))


def _times(one: EpochTimes, parts: float) -> EpochTimes:
    return EpochTimes(*(parts * getattr(one, name) for name in one.__slots__))
