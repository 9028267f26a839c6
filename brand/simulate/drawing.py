"""Which reads does a server make for a sampler with a subset or weights? The server's own code decides, draw by draw.

Such a sampler draws a few orders at a time (`brand.node.setup.weighted`). They share the memory, and one reads samples
that others draw, so the reads do not follow from each plan alone, as in `running`. Here the ranks draw one batch after
the other. Each read ends at once, and the server reads as far ahead as its memory allows. So the reads of an epoch are
those of `ds.stats()`: without reads that the epoch before has made for it, and with those for the next epoch. The clock
counts a read when it is needed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StorageFacts, StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import DrawAnswer, Instruction, MakePlan, MakeWindow, Read
from brand.node.decide.state.members import ALONE
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientRegisters,
    ClientReleases,
    KeptChosen,
    ReadEnded,
    Stimulus,
)
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.node.setup.measure import lay_out, measure_pages
from brand.node.wire.client_messages import Number
from brand.node.wire.draw_messages import Lease
from brand.node.wire.drawing import Announcement, as_begun
from brand.node.wire.messages import UNTOLD
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.simulate.running import EpochWork, SimulatedRun

_CLIENT: Final = ClientNumber(1)
_NAME: Final = "simulated"
_NEVER: Final = -1
_STEP_S: Final = 0.01
"""Time between two steps of a server while a draw waits."""


def work_of_draws(run: SimulatedRun, order: MixedOrder, epochs: range) -> list[list[EpochWork]]:
    """Return the work of the one node of a run, for consecutive epochs. Raises `UsageError` if memory is too small."""
    server = _PlayedServer(run, order)
    for epoch in epochs:
        server.play(epoch)
    return [[work] for work in server.works()]


class _PlayedServer(Reprs, shows="_state"):
    """The decisions of one server, whose ranks draw one batch after the other, and counts of its reads."""

    def __init__(self, run: SimulatedRun, order: MixedOrder) -> None:
        layout = lay_out(*measure_pages(run.sizes), run.memory, None, ALONE)
        self._residents = Residents(PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of))
        facts = StorageFacts(run.busy_bytes, run.gap_bytes)
        data = StoredChunks(_Sizes(run.sizes), run.order.chunk_size, facts)
        self._state = NodeState(data, self._residents, ALONE, DEFAULT_DEPTH)
        self._run, self._order, self._now_s = run, order, 0.0
        self._runs = [self._register(each) for each in order.orders if isinstance(each, Order)]
        self._begun = [_NEVER] * len(self._runs)
        """The last epoch of each order that has begun."""
        self._choices: list[ChooseCached] = []
        """Choices that the planner has not made yet."""
        self._leases: list[Lease] = []
        """Answers to draws, until these are released."""
        self._reads: list[NDArray[np.int64]] = []
        """Bytes, pages, samples and loaded samples of the pieces of each read, each shape (4, pieces)."""
        self._pieces = 0
        self._piece_of = np.full(len(run.sizes), _NEVER, np.int64)
        """The piece that last loaded each sample, shape (samples,)."""
        self._due: list[tuple[int, NDArray[np.int64]]] = []
        """Iterations, and the pieces whose samples each of them draws."""
        self._draws = np.zeros((0, 3), np.int64)
        """Freed pages, bytes of direct reads and direct reads of each iteration, shape (iterations, 3)."""
        self._kept: list[int] = []
        """Pages of the cached samples before each epoch."""
        self._read_before: list[int] = []
        """Pieces of reads before each epoch."""

    def play(self, epoch: int) -> None:
        """Have the ranks draw an epoch."""
        run, begin = self._run, len(self._draws)
        self._kept.append(self._residents.kept_pages)
        self._read_before.append(self._pieces)
        drawn = self._order.draws(epoch, np.arange(self._order.samples))
        if self._begun[0] == _NEVER:
            counts = self._order.counts(epoch, 0)
            for number, (count, size) in enumerate(zip(counts, self._order.sizes, strict=True)):
                self._begin(number, Announcement(*divmod(count, size), processes=UNTOLD))
        self._draws = np.concatenate([self._draws, np.zeros((run.iterations, 3), np.int64)])
        for iteration, first in enumerate(range(0, self._order.samples, run.batch * run.ranks), begin):
            some = slice(first, first + run.batch * run.ranks)
            self._draw(iteration, drawn.member[some], drawn.epoch[some], drawn.position[some])

    def works(self) -> list[EpochWork]:
        """Return the work of each epoch that was played."""
        run, allocator = self._run, self._residents.pool.allocator
        page, none = allocator.page, np.zeros(run.iterations, np.int64)
        reads = np.diff(self._read_before, append=self._pieces)
        due, found = np.full(self._pieces, len(self._draws)), []
        for iteration, pieces in reversed(self._due):
            due[pieces] = iteration
        size, pages, span, samples = np.concatenate([np.zeros((4, 0), np.int64), *self._reads], axis=1)
        for number, (kept, first, count) in enumerate(zip(self._kept, self._read_before, reads.tolist(), strict=True)):
            begin, mine = number * run.iterations, slice(first, first + count)
            freed, direct_bytes, direct = self._draws[begin : begin + run.iterations].T
            found.append(
                EpochWork(
                    read_sizes=size[mine],
                    read_pages=pages[mine],
                    from_cache=np.zeros(count, np.bool_),
                    due=due[mine] - begin,
                    freed_pages=freed,
                    received_bytes=none,
                    exact_bytes=direct_bytes,
                    exact_reads=direct,
                    room_pages=allocator.count - 1,
                    memory_bytes=allocator.bytes,
                    kept_bytes=kept * page,
                    cached_bytes=0,
                    read_samples=int(span[mine].sum()),
                    buffered=int(samples[mine].sum()),
                    sent=0,
                    sent_bytes=0,
                    received=0,
                    requests=0,
                )
            )
        return found

    def _register(self, order: Order) -> RunNumber:
        (said,) = self._state.handle(ClientRegisters(_CLIENT, order, _NAME), 0.0)
        assert isinstance(said, Number)
        return said.run

    def _begin(self, number: int, announcement: Announcement) -> None:
        self._tell(ClientBegins(_CLIENT, self._runs[number], announcement))
        self._begun[number] = announcement.epoch

    def _draw(
        self, iteration: int, member: NDArray[np.int16], epoch: NDArray[np.int64], position: NDArray[np.int64]
    ) -> None:
        """Draw a batch of each rank: one draw of each order, and one more if an epoch of the order ends."""
        for number in np.unique(member).tolist():
            for each in np.unique(epoch[member == number]).tolist():
                if each > self._begun[number]:
                    self._begin(number, as_begun(each))
                asked = position[(member == number) & (epoch == each)]
                answered = len(self._leases)
                self._tell(ClientDraws(_CLIENT, (self._runs[number], each), asked))
                while len(self._leases) == answered:
                    self._now_s += _STEP_S
                    self._step()
        allocator, costs = self._residents.pool.allocator, self._draws[iteration]
        for lease in self._leases:
            absent = lease.places[lease.state == 0]
            pieces = np.unique(self._piece_of[lease.places])
            self._due.append((iteration, pieces[pieces != _NEVER]))
            free = allocator.free
            self._tell(ClientReleases(_CLIENT, lease.number, checked=True))
            costs += [allocator.free - free, self._run.sizes[absent].sum(dtype=np.int64), len(absent)]
        self._leases.clear()
        while self._step() or self._state.hurries:
            pass

    def _step(self) -> bool:
        """Do everything that the server can do now. Return whether that was anything.

        The first reads start while the planner chooses the cached samples.
        """
        before, choices = self._pieces, self._choices
        self._choices = []
        self._do(self._state.step(self._now_s, {}))
        for choice in choices:
            self._tell(KeptChosen(choice.number, choice.kept(self._residents.pages_of)))
        return self._pieces > before or bool(choices)

    def _tell(self, stimulus: Stimulus) -> None:
        self._do(self._state.handle(stimulus, self._now_s))

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case MakePlan():
                    self._tell(make_plan(instruction))
                case MakeWindow():
                    self._tell(make_window(instruction))
                case ChooseCached():
                    self._choices.append(instruction)
                case Read():
                    self._count(instruction)
                    self._tell(ReadEnded(instruction))
                case DrawAnswer():
                    self._leases.append(instruction.lease)
                case _:
                    pass

    def _count(self, read: Read) -> None:
        pieces = read.pieces
        samples = pieces["samples"].astype(np.int64)
        pages = np.add.reduceat(self._residents.pages_of[read.places], np.cumsum(samples) - samples, dtype=np.int64)
        self._reads.append(np.array([pieces["size"], pages, pieces["span"], samples], np.int64))
        self._piece_of[read.places] = np.repeat(np.arange(len(pieces)) + self._pieces, samples)
        self._pieces += len(pieces)


class _Sizes:
    """An index that knows sizes only."""

    def __init__(self, sizes: NDArray[np.uint32]) -> None:
        self._sizes = sizes

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        return self.rows_at(np.arange(first, end))

    def rows_at(self, places: NDArray[Any]) -> NDArray[np.void]:
        found = np.zeros(len(places), ROW)
        found["size"] = self._sizes[places]
        return found
