"""What does each node of a run read, cache and send, epoch by epoch? The server's own decisions, without any bytes.

Each node is a `NodeState`, as in a server. Its ranks begin the epoch, the plan is made, the cached samples are chosen;
no read may start (`depth` 0). The epoch's queue of reads is then the list of reads that a server would do. So the
counts are those of `ds.stats()` after a run without failures. From the second epoch on, a read whose samples are all in
the cache folder does not use the storage. If misses read whole units for the folder, they do so in the first epoch: the
first miss of a unit with a place in the folder reads all of it. The other samples are read from the folder when they
are due, or are in memory, if it caches them. Servers that are alone go through each epoch (`alone`), since their memory
and folders change with what their ranks draw. Three things depend on time, and are left out:

- At the end of an epoch a server reads ahead for the next one. A read whose samples are all still in memory is left
  out there, so with stripes of one or two samples a run may read a little less.
- A draw that waits long for another node asks for its samples again (`on_demand`).
- The first reads of a training begin before the contents of the cache folder are chosen, and no unit is read as a whole
  while the folder's disk is behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.cache.caching import CacheStart, FolderStart
from brand.node.decide.node_state import NodeState
from brand.node.decide.reads.operations import StorageFacts, StoredChunks
from brand.node.decide.state.choosing import ChooseCached, Placement
from brand.node.decide.state.epoch import Epoch, to_read
from brand.node.decide.state.instructions import MakePlan
from brand.node.decide.state.members import ALONE, Members
from brand.node.decide.state.states import GONE
from brand.node.decide.stimuli import ClientBegins, ClientRegisters, KeptChosen, NodeSays, PlanMade, StreamOpens
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.measure import lay_out, measure_pages
from brand.node.setup.memory import Memory
from brand.node.wire.client_messages import Number
from brand.node.wire.drawing import Announcement, Begin, Drawing
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.node.wire.peer_messages import EpochAnnounced
from brand.orders.base.dtypes import Mask
from brand.orders.base.owners import drawer_of
from brand.orders.base.placement import unit_at
from brand.orders.base.plan import EpochPlan, read_of_sample
from brand.orders.base.random import blocks
from brand.orders.order import Order
from brand.simulate.alone import FetchedEpochs

_NAME = "simulated"


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run to simulate."""

    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes, shape (samples,)."""
    order: Order
    memory: Memory
    """Memory of each node, in the form of `memory=` of a data set."""
    peer_memory: Memory = None
    """Memory that other nodes may fill."""
    nodes: int = 1
    ranks: int = 1
    """Ranks on all nodes together, the same number on each."""
    batch: int = 256
    """Samples of a batch of each rank."""
    cache_bytes: int = 0
    """Capacity of each node's cache folder. The first epoch fills it."""
    whole_unit: int = 1
    """Samples that the storage reads faster at once than one by one (`choose_whole_unit`)."""
    busy_bytes: int = 0
    """Bytes in flight that keep the storage busy (`brand.storage.profile.profile.busy_bytes`)."""
    gap_bytes: int = 1 << 40
    """Larger gaps between the samples of a subset are not read (`brand.storage.profile.profile.gap_bytes`)."""
    connected: bool = True
    """Whether the servers of the nodes are connected. If not, each of them reads what its own ranks draw."""
    placement: Placement = "auto"
    """Placement of the cache folders."""
    epochs: int | None = None
    """Epochs of the run. The placement `frequency` needs them."""
    num_samples: int | None = None
    """Draws of an epoch of a sampler with a subset or weights (`brand.simulate.drawing`). None: each sample once."""

    @property
    def draws(self) -> int:
        return len(self.sizes) if self.num_samples is None else self.num_samples

    @property
    def iterations(self) -> int:
        return -(-self.draws // (self.batch * self.ranks))

    def ranks_of(self, node: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(drawer_of(np.arange(self.ranks), self.nodes, self.ranks) == node).tolist())


@dataclass(frozen=True, slots=True)
class EpochWork:
    """The work of one node for one epoch. Arrays by read are in the order in which the reads start."""

    read_sizes: NDArray[np.int64]
    """Bytes of each read, shape (reads,)."""
    read_pages: NDArray[np.int64]
    """Pages that each read takes, shape (reads,)."""
    from_cache: Mask
    """Whether each read is a read of the cache folder, shape (reads,)."""
    due: NDArray[np.int64]
    """The iteration that first needs each read, shape (reads,). Those of a later epoch follow those of this one."""
    freed_pages: NDArray[np.int64]
    """Pages of samples of this epoch that the draws of each iteration free, shape (iterations,)."""
    received_bytes: NDArray[np.int64]
    """Bytes that other nodes send for each iteration, shape (iterations,)."""
    exact_bytes: NDArray[np.int64]
    """Bytes of direct reads of clients for each iteration, shape (iterations,)."""
    exact_reads: NDArray[np.int64]
    """Samples that clients read one by one for each iteration, shape (iterations,)."""
    room_pages: int
    """Pages for the samples that the node reads, cached samples included."""
    memory_bytes: int
    """Memory of the node."""
    kept_bytes: int
    """Memory of the samples that the node has cached before the epoch."""
    cached_bytes: int
    """Bytes in the cache folder before the epoch, without samples that memory caches."""
    read_samples: int
    """Samples that large reads read from the storage."""
    buffered: int
    """Samples of these reads that are stored in memory."""
    sent: int
    """Samples that the node sends to other nodes."""
    sent_bytes: int
    received: int
    """Samples that other nodes send."""
    requests: int
    """Samples for which the node asks their owners, according to the plan of `slots`."""

    @property
    def reads(self) -> int:
        return len(self.read_sizes) - self.cache_reads

    @property
    def read_bytes(self) -> int:
        return int(self.read_sizes.sum()) - self.cache_bytes

    @property
    def cache_reads(self) -> int:
        return int(self.from_cache.sum())

    @property
    def cache_bytes(self) -> int:
        return int(self.read_sizes[self.from_cache].sum())

    @property
    def direct(self) -> int:
        return int(self.exact_reads.sum())


def work_of(run: SimulatedRun, epochs: Iterable[int]) -> Iterator[list[EpochWork]]:
    """Yield the work of each node, for consecutive epochs. Raises `UsageError` if the memory is too small."""
    nodes = [_Node(run, NodeNumber(node)) for node in range(run.nodes)]
    for epoch in epochs:
        for node in nodes:
            node.begin(epoch, nodes)
        yield _work(run, nodes, epoch)


def _work(run: SimulatedRun, nodes: list[_Node], epoch: int) -> list[EpochWork]:
    """Return the work of each node for an epoch that has begun. A plan is released before the next one is made."""
    plan = run.order.plan(epoch)
    read_of = read_of_sample(plan)
    return [node.work(plan, read_of, epoch) for node in nodes]


class _Node:
    def __init__(self, run: SimulatedRun, node: NodeNumber) -> None:
        members = Members(node, run.nodes) if run.connected else ALONE
        self._node = node
        layout = lay_out(*measure_pages(run.sizes), run.memory, run.peer_memory, members)
        self._run, self._members, self._page = run, members, layout.allocator.page
        pool = PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of)
        self._residents = Residents(pool, members.nodes)
        cache, held = None, np.zeros(len(run.sizes), np.bool_)
        if run.cache_bytes:
            folder = FolderStart("", held, run.cache_bytes)
            whole_unit = run.whole_unit if run.connected else 1
            cache = CacheStart((folder,), run.sizes, run.placement, run.epochs, whole_unit)
        data = StoredChunks(_NoIndex(), run.order.chunk_size, StorageFacts(run.busy_bytes))
        self._state = NodeState(data, self._residents, members, 0, layout.remote_pages, cache)
        for other in members.others:
            self._state.handle(StreamOpens(other, asks=True), 0.0)
        self._number = RunNumber(0)
        self._fetched = FetchedEpochs(self._state)
        self._unsettled = False
        """Whether a server that is alone does not know all its ranks yet (`brand.node.decide.cache.keeping`)."""
        self._placed = held
        """Whether each sample has a place in the cache folder, shape (samples,)."""
        self._cached: Mask | None = None
        """Whether the folder holds each sample and memory does not. None without a folder, or while it is empty."""
        for rank in run.ranks_of(node):
            (said,) = self._state.handle(ClientRegisters(ClientNumber(rank + 1), run.order, _NAME, turn=0), 0.0)
            assert isinstance(said, Number)
            self._number = said.run

    def begin(self, epoch: int, nodes: list[_Node]) -> None:
        for rank in self._run.ranks_of(self._node):
            announcement = Announcement(epoch, 0, rank, self._run.ranks)
            self._state.handle(ClientBegins(ClientNumber(rank + 1), self._number, announcement), 0.0)
        others = [node for node in nodes if node is not self] if self._run.connected else []
        for said in (node.announce(epoch) for node in others):
            self._state.handle(said, 0.0)

    def announce(self, epoch: int) -> NodeSays:
        run, here = self._run, self._members.node
        largest = self._state.core.epochs.limits.largest_sent(here)
        begin = Begin(0, run.ranks, run.ranks_of(here), node=here, largest=largest)
        drawing = Drawing(_NAME, 0, run.order, epoch, begin, epoch + 1)
        return NodeSays(here, EpochAnnounced(drawing, run.order.policy.foreseen is not None))

    def work(self, plan: EpochPlan, read_of: NDArray[Any], number: int) -> EpochWork:
        """Return the work of the node for an epoch whose plan is made. Afterwards its cached samples are in memory."""
        kept_pages, caching = self._residents.kept_pages, self._state.core.caching
        self._step(plan, read_of, number)  # the plan is made
        while self._state.hurries:  # the epoch begins, in several steps
            self._step(plan, read_of, number)
        self._step(plan, read_of, number)  # the cached samples are chosen
        live = self._state.core.epochs.get((self._number, number))
        assert live is not None, "all ranks have begun the epoch, and its plan is made"
        if not self._run.connected:
            self._fetched.hold_present(live.epoch)
            self._cached = (caching.holds(np.arange(len(self._run.sizes))) > 0) & ~self._residents.kept()
        work = self._count(live.epoch, plan, read_of, kept_pages)
        if not self._run.connected:
            self._fetch(live.epoch, plan, read_of, number)
            return work
        self._fill(live.epoch)
        if self._cached is None and self._run.cache_bytes:
            self._cached = self._placed & ~self._residents.kept()
        return work

    def _step(self, plan: EpochPlan, read_of: NDArray[Any], epoch: int) -> bool:
        """Do the work of a server's planner. There is nothing to read and no node to notify.

        Return whether there was any work. `plan` is that of `epoch`.
        """
        instructions = self._state.step(0.0, {})
        for instruction in instructions:
            match instruction:
                case MakePlan(key) if key[1] == epoch:
                    self._state.handle(PlanMade(key, plan, read_of), 0.0)
                case MakePlan(key):
                    later = self._run.order.plan(key[1])
                    self._state.handle(PlanMade(key, later, read_of_sample(later)), 0.0)
                case ChooseCached(number):
                    kept = instruction.kept(self._residents.pages_of)
                    cached, since = instruction.cached(kept), instruction.since
                    self._state.handle(KeptChosen(number, kept, cached, since, instruction.whole_unit), 0.0)
                    self._placed = self._placed if cached is None else cached > 0
                    self._unsettled = instruction.follow is not None and instruction.follow.way == "coming"
        if not self._run.connected:
            self._fetched.write(instructions)
        return bool(instructions)

    def _fetch(self, epoch: Epoch, plan: EpochPlan, read_of: NDArray[Any], number: int) -> None:
        """End the epoch of a server that is alone: its ranks have drawn their samples.

        In the middle of the first epoch the server settles its ranks, and the next epoch begins to be read ahead.
        """
        mine = plan.sample_of[self._drawn_here(np.arange(len(plan.sample_of)))]
        half = -(-len(mine) // 2) if self._unsettled else 0
        self._fetched.fetch(epoch, mine[:half])
        if half:
            self._state.core.epochs.want((self._number, number + 1))
            while self._step(plan, read_of, number) or self._state.hurries:
                pass
            for rank in epoch.here:
                positions = epoch.division.positions(rank)
                some = positions[: -(-len(positions) // 2)]
                epoch.progress.add_drawn(rank, some, len(some))
            while self._step(plan, read_of, number):
                pass
        self._fetched.fetch(epoch, mine[half:])

    def _fill(self, epoch: Epoch) -> None:
        """End the epoch: the samples that it has read and was to cache are now in memory."""
        residents = self._residents
        for part in blocks(len(self._run.sizes)):
            places = np.arange(part.start, part.stop)
            new = places[residents.to_keep(places) & ~residents.present(places) & epoch.states.due(part)]
            if len(new):
                heads, _ = residents.pool.take(new)
                residents.put(new, heads)
                residents.let_go(new)

    def _count(self, epoch: Epoch, plan: EpochPlan, read_of: NDArray[Any], kept_pages: int) -> EpochWork:
        run, allocator = self._run, self._residents.pool.allocator
        draws, reads = self._draws(epoch, plan), self._reads(epoch, plan, read_of)
        sent = self._sent(epoch, plan)
        return EpochWork(
            read_sizes=reads.sizes,
            read_pages=reads.pages,
            from_cache=reads.from_cache,
            due=np.minimum(reads.deadlines // (run.batch * run.ranks), run.iterations - 1),
            freed_pages=draws.freed_pages,
            received_bytes=draws.received_pages * self._page,
            exact_bytes=draws.exact_bytes,
            exact_reads=draws.exact_reads,
            room_pages=allocator.count - 1 - self._state.core.remote_pages,
            memory_bytes=allocator.bytes,
            kept_bytes=kept_pages * self._page,
            cached_bytes=0 if self._cached is None else int(run.sizes[self._cached].sum(dtype=np.int64)),
            read_samples=int(reads.spans[~reads.from_cache].sum()),
            buffered=int(reads.samples[~reads.from_cache].sum()),
            sent=len(sent),
            sent_bytes=int(self._residents.pages_of[sent].sum(dtype=np.int64)) * self._page,
            received=int(draws.received.sum()),
            requests=0 if epoch.requests is None else int(self._drawn_here(epoch.requests.positions).sum()),
        )

    def _reads(self, epoch: Epoch, plan: EpochPlan, read_of: NDArray[Any]) -> WholeReads:
        pages, (held, cached) = np.zeros(plan.read_count, np.int64), np.zeros((2, plan.read_count), np.int32)
        for part in blocks(len(self._run.sizes)):  # the samples of each read that are stored in memory
            due = to_read(epoch, np.arange(part.start, part.stop))
            read = read_of[part][due]
            np.add.at(pages, read, self._residents.pages_of[part][due].astype(np.int64))
            np.add.at(held, read, 1)
            if self._cached is not None:
                np.add.at(cached, read, self._cached[part][due])
        numbers = epoch.reads.rest()
        numbers = numbers[held[numbers] > 0]  # all samples of the other reads are in memory by now
        table, from_cache = plan.reads_at(numbers), (cached == held)[numbers]
        spans = table["count"].astype(np.int64)
        ends = np.concatenate(([0], np.cumsum(self._run.sizes, dtype=np.int64)))
        first = table["chunk"].astype(np.int64) * self._run.order.chunk_size + table["first"]
        sizes = ends[first + spans] - ends[first]
        found = WholeReads(sizes, pages[numbers], spans, held[numbers], table["deadline"], from_cache)
        unit = self._state.core.caching.whole_unit
        if unit == 1 or self._cached is not None:
            return found
        places = plan.sample_of[numbers]
        keeps = self._residents.to_keep(places)
        return first_reads(found, unit_at(plan.mapping, unit, places), self._placed[places], keeps)

    def _draws(self, epoch: Epoch, plan: EpochPlan) -> _Draws:
        """Return the pages and bytes that the draws of the plan free, receive and read directly."""
        run, residents, kept = self._run, self._residents, self._residents.kept()
        found = _Draws(*np.zeros((5, run.iterations), np.int64))
        for part in blocks(len(run.sizes)):
            positions, places = np.arange(part.start, part.stop), plan.sample_of[part]
            pages, iteration = residents.pages_of[places].astype(np.int64), positions // (run.batch * run.ranks)
            due, mine = epoch.states.due(places), epoch.owner_of(places) == self._members.node
            np.add.at(found.freed_pages, iteration, np.where(mine & due & ~residents.to_keep(places), pages, 0))
            drawn = self._drawn_here(positions)
            gone = epoch.states.are(GONE, places)
            comes, alone = drawn & ~mine & due, drawn & gone & ~(mine & kept[places])
            np.add.at(found.received, iteration, comes)
            np.add.at(found.received_pages, iteration, np.where(comes, pages, 0))
            np.add.at(found.exact_reads, iteration, alone)
            np.add.at(found.exact_bytes, iteration, np.where(alone, run.sizes[places], 0))
        return found

    def _sent(self, epoch: Epoch, plan: EpochPlan) -> NDArray[Any]:
        positions = np.concatenate([np.arange(0), *(epoch.to_send(node) for node in self._members.others)])
        places = plan.sample_of[positions]
        found: NDArray[Any] = places[~self._state.core.epochs.limits.never_held()[places]]
        return found

    def _drawn_here(self, positions: NDArray[Any]) -> Mask:
        here: Mask = drawer_of(positions, self._run.nodes, self._run.ranks) == self._node
        return here


@dataclass(frozen=True, slots=True)
class _Draws:
    """The costs of draws. Arrays have the shape (iterations,)."""

    freed_pages: NDArray[np.int64]
    received: NDArray[np.int64]
    received_pages: NDArray[np.int64]
    exact_bytes: NDArray[np.int64]
    exact_reads: NDArray[np.int64]


class _NoIndex:
    """An index without rows: no read starts, so none is needed."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        raise AssertionError(f"rows {first} to {end}")

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        raise AssertionError(f"rows {places}")


@dataclass(frozen=True, slots=True)
class WholeReads:
    """Large reads in the order in which they start. Arrays have the shape (reads,)."""

    sizes: NDArray[np.int64]
    """In bytes."""
    pages: NDArray[np.int64]
    """Pages that each read takes."""
    spans: NDArray[np.int64]
    """Samples that are read."""
    samples: NDArray[np.int32]
    """Samples of these reads that are stored in memory."""
    deadlines: NDArray[np.int64]
    from_cache: Mask

    def of(self, which: Mask) -> WholeReads:
        return WholeReads(*(getattr(self, name)[which] for name in self.__slots__))


def first_reads(alone: WholeReads, unit_of: NDArray[Any], placed: Mask, keeps: Mask) -> WholeReads:
    """Return the reads of a first epoch, made of reads of single samples, all of which are due.

    All arrays are by read: its unit, whether its sample has a place in the folder, and whether memory caches it.
    """
    has_place = np.isin(unit_of, unit_of[placed])
    whole = np.flatnonzero(has_place & (placed | keeps))
    units, first, number = np.unique(unit_of[whole], return_index=True, return_inverse=True)
    lead = whole[first]
    early = np.setdiff1d(whole, lead, assume_unique=True)
    from_cache = alone.from_cache.copy()
    from_cache[early] = True

    def together(each: NDArray[Any]) -> NDArray[Any]:
        found = each.copy()
        found[lead] = np.bincount(number, each[whole], len(units))
        return found

    sizes, pages, spans, samples = (together(each) for each in (alone.sizes, alone.pages, alone.spans, alone.samples))
    in_memory = np.zeros(len(unit_of), np.bool_)
    in_memory[early] = keeps[early]
    return WholeReads(sizes, pages, spans, samples, alone.deadlines, from_cache).of(~in_memory)
