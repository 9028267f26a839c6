"""What will a run cost with another memory, storage, order or number of nodes? One answer for each case.

A case becomes the order that Brand would choose for it, the order becomes the work of each node (`running`), and a
clock turns the work into time (`pace`). For a data set of more than `MOST` samples whose sizes are not known, a section
is simulated: with equal numbers of nodes, ranks and samples per chunk, and equal fractions of memory and of the chunks
of a pool. Its figures are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.node.decide.state.choosing import Placement
from brand.node.setup.choose import Facts, Nodes, choose_order, choose_room, choose_whole_unit, facts_of, samples_held
from brand.node.setup.lengths import SetLengths, lengths_of, planned_limits
from brand.node.setup.measure import stored_sizes
from brand.node.setup.memory import Memory, memory_bytes
from brand.node.setup.request_sizes import PART_SHARE
from brand.node.setup.weighted import as_subset, of_subset, weighted_order
from brand.orders.baselines import Pool
from brand.orders.batch_ranks import SampleLengths
from brand.orders.mixtures.mixed_order import MixedOrder, seed_of_member
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.simulate.drawing import work_of_draws
from brand.simulate.pace import EpochTimes, Machine, pace
from brand.simulate.running import EpochWork, SimulatedRun, work_of
from brand.simulate.sampling import MixedSampling, PlannedSampling
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
class Planned:
    """The batches of a `LengthBatchSampler` or a `PackedBatchSampler`."""

    length: Any
    """As the sampler takes it."""
    size: int | None = None
    """`batch_size`."""
    most: float | None = None
    """`batch_length`."""
    row: int | None = None
    """`tokens_per_row`."""
    rows: int | None = None
    """`rows_per_batch`."""

    @property
    def sizes(self) -> dict[str, Any]:
        """The fields of `BatchLimits`."""
        return {name: getattr(self, name) for name in ("size", "most", "row", "rows")}


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
    replication: int = 1
    """Consecutive ranks that fetch the same samples, as in `BrandSampler(replication=...)`."""
    batch: int = 256
    epochs: int = 3
    seed: int = 0
    subset: str | None = None
    """The samples that a `BrandSampler(subset=...)` fetches. They, weights and lengths need a data set."""
    weights: Any = None
    """As `BrandSampler(weights=...)` takes them."""
    num_samples: int | None = None
    """Samples of an epoch with weights, or of a mixture."""
    planned: Planned | None = None
    """The batches that are planned from lengths, in place of those of `batch` samples."""

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

    order: Order | MixedOrder
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
    _check(case)
    order_of, epochs = _orders(data, case, case.seed), range(case.epochs)
    order = order_of(1)
    sampling = _sampling(data, case, order, order_of)
    if isinstance(sampling, PlannedSampling):
        case = replace(case, batch=sampling.mean_samples)
    run = _run(data, case, order, sampling)
    works = list(work_of(run, epochs)) if sampling is None else work_of_draws([run], sampling, epochs)
    return _prediction(run, order, works, case, data.parts)


def answer_mixture(members: Sequence[tuple[Data, float]], case: Case) -> Prediction:
    """Return the costs of a `Mixture` of data sets with these weights. Raises `UsageError`.

    Each member has a server of its own on each node, with the memory of the case.
    """
    _check(case)
    orders = [_orders(data, case, seed_of_member(case.seed, n))(1) for n, (data, _) in enumerate(members)]
    samples, weights = case.num_samples or sum(data.samples for data, _ in members), [weight for _, weight in members]
    try:
        sampling = MixedSampling(MixedOrder.of(orders, samples, case.seed, weights))
    except ValueError as error:
        raise UsageError(f"this is no mixture: {error}") from None
    runs = [_run(data, case, order, sampling) for (data, _), order in zip(members, orders, strict=True)]
    return _prediction(runs[0], sampling.order, work_of_draws(runs, sampling, range(case.epochs), weights), case, 1.0)


def _check(case: Case) -> None:
    if case.epochs < 2:
        raise UsageError("at least two epochs are simulated: the first one and a later one differ")
    if case.ranks % case.replication:
        raise UsageError(
            f"groups of {case.replication} ranks, and {counted(case.ranks, 'rank')} on each node: a group is on one "
            "node, so give a number of ranks that is a multiple of the replication"
        )


def _groups(case: Case) -> int:
    """Return the ranks that fetch other samples: one of each group, because a server reads once for ranks in step."""
    return case.nodes * case.ranks // case.replication


def _facts(data: Data, case: Case) -> Facts:
    return replace(data.facts, read_bytes=case.machine.storage.stripe_bytes)


def _orders(data: Data, case: Case, seed: int) -> Callable[[int], Order]:
    """Return a function that returns the order of a case, for a number of orders that are drawn at a time."""
    option, groups = case.order, _groups(case)
    if isinstance(option, Pool):
        option = Pool(max(1, round(option.chunks / data.parts)))
    cluster = Nodes(case.nodes if case.connected else 1, groups, case.peer_memory)
    return partial(choose_order, _facts(data, case), seed, option, None, _of_part(case.memory, data), cluster)


def _run(data: Data, case: Case, order: Order, sampling: MixedSampling | PlannedSampling | None) -> SimulatedRun:
    return SimulatedRun(
        data.sizes,
        order,
        *(_of_part(case.memory, data), case.peer_memory),
        *(case.nodes, _groups(case), case.batch),
        _cache_bytes(data, case, order),
        _whole_unit(_facts(data, case), case),
        busy_bytes=case.machine.storage.busy_bytes,
        connected=case.connected,
        placement=case.placement,
        epochs=case.epochs,
        gap_bytes=case.machine.storage.gap_bytes(data.facts.mean_bytes),
        num_samples=None if sampling is None else sampling.draws,
    )


def _prediction(
    run: SimulatedRun, order: Order | MixedOrder, works: list[list[EpochWork]], case: Case, parts: float
) -> Prediction:
    """Return the costs of the work of all servers, epoch by epoch. `parts`: sections of the data that it stands for."""
    machine = replace(case.machine, decode_s=case.machine.decode_s * case.replication)
    counts = [_sum(epoch) for epoch in works]
    later = counts[-1] if case.connected else _mean(counts[1:])
    return Prediction(
        order,
        round(parts * sum(work.memory_bytes for work in works[0]) / case.nodes),
        round(parts * sum(work.kept_bytes for work in works[-1])),
        round(parts * sum(work.cached_bytes for work in works[-1])),
        [each.times(parts) for each in counts],
        [_times(each, parts) for each in pace(run, works, machine)],
        later.times(parts),
    )


def _is_short(order: Order, held: float) -> bool:
    """Return whether a memory of `held` samples may lack space for the shuffle buffer and a draw (`PART_SHARE`)."""
    return held * (1 - 1 / PART_SHARE) < order.policy.held(order.mapping)


def _sampling(
    data: Data, case: Case, order: Order, order_of: Callable[[int], Order]
) -> MixedSampling | PlannedSampling | None:
    """Return the draws of a sampler with a subset, weights or lengths, and of any sampler if memory is short.

    Returns None if the epochs are plain shuffles.
    """
    stored, memory = data.stored, _of_part(case.memory, data)
    part = order if stored is None else of_subset(order, as_subset(stored, case.subset))
    if stored is not None and case.planned is not None:
        possible = "an `int` or `float` field, or an array of all lengths by index"
        lengths = SampleLengths(lengths_of(stored, case.planned.length, possible))
        cluster = Nodes(case.nodes, _groups(case), case.peer_memory)
        room = choose_room(_facts(data, case), part, None, memory, cluster)
        planned = SetLengths(stored, part, case.planned.length, lengths)
        return PlannedSampling(part, planned_limits([planned], None, case.planned.sizes, part.draws, room), lengths)
    if stored is not None and case.weights is not None:
        return MixedSampling(weighted_order(stored, part, case.weights, case.num_samples, order_of)[0])
    short = case.connected and not case.cache and _is_short(order, samples_held(_facts(data, case), None, memory))
    if case.subset is not None or short:
        return MixedSampling(MixedOrder.of([part], part.draws, case.seed, [1.0]))
    return None


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
