"""Which reads do servers make for a sampler whose epochs are no plain shuffles? The server's own code decides, draw by
draw.

Such samplers draw a few orders at a time (weights), a part of the samples (a subset), or more samples than memory has
space for. The reads of several orders do not follow from each plan alone, as in `running`: the orders share the memory,
and one reads samples that others draw. Here ranks draw as a `BrandLoader` does: one request after the other, each of
some batches, in draws that take a small part of the memory. All ranks are at the same request. Each read ends at once,
a message to another node arrives at once, and a server reads as far ahead as its memory allows. So the reads of an
epoch are those of `ds.stats()`: without reads that the epoch before has made for it, and with those for the next epoch.
The clock counts a read when it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StorageFacts, StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import DrawAnswer, Instruction, MakePlan, MakeWindow, Read, Say
from brand.node.decide.state.members import ALONE, Members
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientRegisters,
    ClientReleases,
    KeptChosen,
    NodeSays,
    ReadEnded,
    Stimulus,
    StreamOpens,
)
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.node.setup.measure import lay_out, measure_pages
from brand.node.setup.memory import memory_bytes
from brand.node.setup.request_sizes import batches_ahead, most_at_once, next_request
from brand.node.wire.client_messages import Number
from brand.node.wire.drawing import Announcement, as_begun
from brand.node.wire.messages import UNTOLD
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.node.wire.peer_messages import Push, PushPart
from brand.orders.base.owners import drawer_of
from brand.orders.base.rank_rule import RankRule
from brand.orders.mixtures.mixed_order import MixedDraws
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.simulate.running import EpochWork, SimulatedRun
from brand.simulate.sampling import Sampling

_NAME: Final = "simulated"
_NEVER: Final = -1
_STEP_S: Final = 0.01
"""Time between two steps of the servers while draws wait."""


def work_of_draws(
    runs: Sequence[SimulatedRun], sampling: Sampling, epochs: range, shares: Sequence[float] = (1.0,)
) -> list[list[EpochWork]]:
    """Return the work of each node, for consecutive epochs. Raises `UsageError` if memory is too small.

    `runs`: those of the members of a mixture, which have servers of their own, or one run for all orders. `shares`: the
    fraction of the samples that is drawn of each. The works are those of the nodes of the first run, then those of the
    second one, and so on.
    """
    numbers = range(len(sampling.orders))
    serves = [numbers] if len(runs) == 1 else [numbers[number : number + 1] for number in numbers]
    ahead = _ahead(runs, shares)
    nodes = list[_PlayedNode]()
    for run, of_run in zip(runs, serves, strict=True):
        played = _PlayedRun(run, sampling, of_run, ahead)
        for epoch in epochs:
            played.play(epoch)
        nodes += played.nodes
    return [list(works) for works in zip(*(node.works() for node in nodes), strict=True)]


def _ahead(runs: Sequence[SimulatedRun], shares: Sequence[float]) -> int:
    """Return the batches that a loader prefetches by default."""
    means = [float(run.sizes.mean()) for run in runs]
    known = [
        memory_bytes(run.memory, int(len(run.sizes) * mean))
        for run, mean in zip(runs, means, strict=True)
        if run.memory is not None
    ]
    mean = float(np.average(means, weights=shares))
    return batches_ahead(sum(known) if len(known) == len(runs) else None, runs[0].batch * mean)


_Draw = tuple[int, int, NDArray[np.int64], NDArray[np.int64]]
"""An order, its epoch, positions, and the iteration that trains the sample of each."""


class _PlayedRun(Reprs, shows="nodes"):
    """The servers of a run, and their ranks. They serve some orders by number; a loader prefetches `ahead` batches."""

    def __init__(self, run: SimulatedRun, sampling: Sampling, serves: range, ahead: int) -> None:
        self._run, self._sampling, self._serves, self._ahead, self._now_s = run, sampling, serves, ahead, 0.0
        self.nodes = [_PlayedNode(run, sampling.orders, NodeNumber(node), self._say) for node in range(run.nodes)]
        for node in self.nodes:
            node.open_streams(self._now_s)
        self._node_of = [self.nodes[node] for node in drawer_of(np.arange(run.ranks), run.nodes, run.ranks).tolist()]
        """The node of each rank."""
        self._begun: dict[tuple[int, int], int] = {}
        """The last epoch that a rank has begun of an order."""
        self._part = most_at_once(self.nodes[0].memory_bytes, float(run.sizes.mean()))
        """The most samples of a draw."""

    def play(self, epoch: int) -> None:
        """Have the ranks draw an epoch."""
        run = self._run
        for node in self.nodes:
            node.begin_epoch()
        if not self._begun:
            self._begin(epoch)
        drawn = [self._sampling.of_rank(epoch, (rank, run.ranks), run.batch) for rank in range(run.ranks)]
        first, batches, most = 0, 1, max(len(ends) for _, ends in drawn)
        while first < most:
            self._request([self._draws_of(each, ends, range(first, first + batches)) for each, ends in drawn])
            first, batches = first + batches, next_request(batches, run.batch, self._ahead)

    def _begin(self, epoch: int) -> None:
        """Have all ranks begin all orders, before any of them draws."""
        several, ranks = self._run.nodes > 1, self._run.ranks
        for number, of, at in self._sampling.begins(epoch):
            if number not in self._serves:
                continue
            rule = self._sampling.rule(number, epoch, ranks) if several else None
            for rank, node in enumerate(self._node_of):
                division = (rank, ranks) if several else (0, 1)  # to a single server, all ranks are one
                node.begin(rank, number, Announcement(of, at, *division, processes=UNTOLD), self._now_s, rule)
                self._begun[rank, number] = of

    def _draws_of(self, drawn: MixedDraws, ends: NDArray[np.int64], batches: range) -> deque[_Draw]:
        """Return the draws of a request of some batches: of one order after the other, each in parts."""
        before, upto = np.concatenate([[0], ends])[np.minimum([batches.start, batches.stop], len(ends))].tolist()
        some = slice(before, upto)
        member, epoch, position = drawn.member[some], drawn.epoch[some], drawn.position[some]
        number_of = np.searchsorted(ends, np.arange(before, upto), side="right")
        per_epoch = self._run.iterations
        iteration = self.nodes[0].iterations - per_epoch + number_of * per_epoch // max(1, len(ends))
        found = deque[_Draw]()
        for number in self._serves:
            for each in np.unique(epoch[member == number]).tolist():
                at = np.flatnonzero((member == number) & (epoch == each))
                for part in np.split(at, range(self._part, len(at), self._part)):
                    found.append((number, each, position[part], iteration[part]))
        return found

    def _request(self, draws: list[deque[_Draw]]) -> None:
        """Have each rank draw its request. A rank draws when its last draw is answered."""
        waiting = set[int]()
        while waiting or any(draws):
            for rank, (node, coming) in enumerate(zip(self._node_of, draws, strict=True)):
                if coming and rank not in waiting:
                    number, epoch, positions, iterations = coming.popleft()
                    if epoch > self._begun[rank, number]:
                        node.begin(rank, number, as_begun(epoch), self._now_s)
                        self._begun[rank, number] = epoch
                    node.draw(rank, (number, epoch), positions, iterations, self._now_s)
                    waiting.add(rank)
            answered = {rank for node in self.nodes for rank in node.release(self._now_s)}
            waiting -= answered
            if not answered:
                self._now_s += _STEP_S
            self._rest()

    def _rest(self) -> None:
        """Have the servers do everything that they can do now."""
        while sum(node.step(self._now_s) for node in self.nodes):
            pass

    def _say(self, node: NodeNumber, said: Say) -> None:
        """Deliver a message of a node."""
        self.nodes[said.node].hear(NodeSays(node, said.message), self._now_s)


class _PlayedNode(Reprs, shows="_state"):
    """The decisions of one server, and counts of its reads. `say` delivers a message of the node."""

    def __init__(
        self, run: SimulatedRun, orders: Sequence[Order], node: NodeNumber, say: Callable[[NodeNumber, Say], None]
    ) -> None:
        members = Members(node, run.nodes) if run.nodes > 1 else ALONE
        layout = lay_out(*measure_pages(run.sizes), run.memory, run.peer_memory, members)
        pool = PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of)
        self._residents = Residents(pool, members.nodes)
        facts = StorageFacts(run.busy_bytes, run.gap_bytes)
        data = StoredChunks(_Sizes(run.sizes), run.order.chunk_size, facts)
        self._state = NodeState(data, self._residents, members, DEFAULT_DEPTH, layout.remote_pages)
        self._run, self._orders, self._members, self._say = run, orders, members, say
        self._clients: dict[tuple[int, int], tuple[ClientNumber, RunNumber]] = {}
        """The client of each rank and order, and the number of its run."""
        self._asked: dict[ClientNumber, tuple[int, NDArray[np.int64]]] = {}
        """The rank of each draw without an answer, and the iteration that trains the sample of each position."""
        self._choices: list[ChooseCached] = []
        """Choices that the planner has not made yet."""
        self._leases: list[DrawAnswer] = []
        """Answers to draws, until these are released."""
        self._reads: list[NDArray[np.int64]] = []
        """Bytes, pages, samples and loaded samples of the pieces of each read, each shape (4, pieces)."""
        self._pieces = 0
        self._piece_of = np.full(len(run.sizes), _NEVER, np.int64)
        """The piece that last loaded each sample, shape (samples,)."""
        self._due: list[NDArray[np.int64]] = []
        """Pieces, and the iteration that trains a sample of each, shape (2, pieces)."""
        self._costs = np.zeros((0, 4), np.int64)
        """Freed pages, received bytes, and bytes and number of direct reads of each iteration, shape (iterations, 4).
        """
        self._before: list[tuple[int, ...]] = []
        """The counts of `_counts` before each epoch."""
        self._said = False
        """Whether the last step has sent a message."""

    @property
    def memory_bytes(self) -> int:
        return self._residents.pool.allocator.bytes

    @property
    def iterations(self) -> int:
        """The iterations of all epochs so far."""
        return len(self._costs)

    def open_streams(self, now_s: float) -> None:
        """Open the streams to all other nodes, and from them."""
        for other in self._members.others:
            self._tell(StreamOpens(other, asks=True), now_s)
            self._tell(StreamOpens(other, asks=False), now_s)

    def begin_epoch(self) -> None:
        """Begin to count another epoch of the ranks."""
        self._before.append(self._counts())
        self._costs = np.concatenate([self._costs, np.zeros((self._run.iterations, 4), np.int64)])

    def begin(
        self, rank: int, number: int, announcement: Announcement, now_s: float, rule: RankRule | None = None
    ) -> None:
        """Have a rank begin an epoch of an order."""
        if (rank, number) not in self._clients:
            client = ClientNumber(1 + rank * len(self._orders) + number)
            registers = ClientRegisters(client, self._orders[number], _NAME, turn=number)
            (said,) = self._state.handle(registers, now_s)
            assert isinstance(said, Number)
            self._clients[rank, number] = client, said.run
        client, run = self._clients[rank, number]
        self._tell(ClientBegins(client, run, announcement, rule=rule), now_s)

    def draw(
        self,
        rank: int,
        key: tuple[int, int],
        positions: NDArray[np.int64],
        iterations: NDArray[np.int64],
        now_s: float,
    ) -> None:
        """Have a rank ask for positions. `key`: the order and its epoch."""
        number, epoch = key
        client, run = self._clients[rank, number]
        self._asked[client] = rank, iterations
        self._tell(ClientDraws(client, (run, epoch), positions), now_s)

    def release(self, now_s: float) -> list[int]:
        """Have the ranks that have got answers release their samples. Return these ranks."""
        allocator, ranks = self._residents.pool.allocator, list[int]()
        leases, self._leases = self._leases, []
        for answer in leases:
            lease = answer.lease
            rank, iterations = self._asked.pop(answer.client)
            direct = lease.state == 0
            pieces = self._piece_of[lease.places]
            self._due.append(np.array([pieces, iterations])[:, pieces != _NEVER])
            free = allocator.free
            self._tell(ClientReleases(answer.client, lease.number, checked=True), now_s)
            self._costs[iterations[0], 0] += allocator.free - free
            np.add.at(self._costs[:, 2], iterations[direct], self._run.sizes[lease.places[direct]].astype(np.int64))
            np.add.at(self._costs[:, 3], iterations[direct], 1)
            ranks.append(rank)
        return ranks

    def hear(self, said: NodeSays, now_s: float) -> None:
        """Take a message of another node."""
        if isinstance(said.message, Push | PushPart):
            at = min((iterations[0] for _, iterations in self._asked.values()), default=len(self._costs) - 1)
            self._costs[at, 1] += said.message.data.nbytes
        self._tell(said, now_s)

    def step(self, now_s: float) -> bool:
        """Do everything that the server can do now. Return whether that was anything.

        The first reads start while the planner chooses the cached samples.
        """
        before, choices = self._pieces, self._choices
        self._choices, self._said = [], False
        self._do(self._state.step(now_s, {}), now_s)
        for choice in choices:
            self._tell(KeptChosen(choice.number, choice.kept(self._residents.pages_of)), now_s)
        return self._pieces > before or bool(choices) or self._said or self._state.hurries

    def works(self) -> list[EpochWork]:
        """Return the work of each epoch that was played."""
        run, allocator = self._run, self._residents.pool.allocator
        due = np.full(self._pieces, len(self._costs))
        np.minimum.at(due, *np.concatenate([np.zeros((2, 0), np.int64), *self._due], axis=1))
        size, pages, span, samples = np.concatenate([np.zeros((4, 0), np.int64), *self._reads], axis=1)
        found, after = [], [*self._before[1:], self._counts()]
        for number, (counts, later) in enumerate(zip(self._before, after, strict=True)):
            kept, first, *_ = counts
            mine, begin = slice(first, later[1]), number * run.iterations
            freed, received_bytes, direct_bytes, direct = self._costs[begin : begin + run.iterations].T
            sent, sent_bytes, received = (now - then for now, then in zip(later[2:], counts[2:], strict=True))
            found.append(
                EpochWork(
                    read_sizes=size[mine],
                    read_pages=pages[mine],
                    from_cache=np.zeros(len(size[mine]), np.bool_),
                    due=due[mine] - begin,
                    freed_pages=freed,
                    received_bytes=received_bytes,
                    exact_bytes=direct_bytes,
                    exact_reads=direct,
                    room_pages=allocator.count - 1 - self._state.core.remote_pages,
                    memory_bytes=allocator.bytes,
                    kept_bytes=kept * allocator.page,
                    cached_bytes=0,
                    read_samples=int(span[mine].sum()),
                    buffered=int(samples[mine].sum()),
                    sent=sent,
                    sent_bytes=sent_bytes,
                    received=received,
                    requests=0,
                )
            )
        return found

    def _counts(self) -> tuple[int, ...]:
        """Return the pages of cached samples, pieces of all reads, samples sent, their bytes, and samples received."""
        nodes = self._state.core.counters.nodes
        return self._residents.kept_pages, self._pieces, nodes.sent, nodes.sent_bytes, nodes.received

    def _tell(self, stimulus: Stimulus, now_s: float) -> None:
        self._do(self._state.handle(stimulus, now_s), now_s)

    def _do(self, instructions: list[Instruction], now_s: float) -> None:
        for instruction in instructions:
            match instruction:
                case MakePlan():
                    self._tell(make_plan(instruction), now_s)
                case MakeWindow():
                    self._tell(make_window(instruction), now_s)
                case ChooseCached():
                    self._choices.append(instruction)
                case Read():
                    self._count(instruction)
                    self._tell(ReadEnded(instruction), now_s)
                case DrawAnswer():
                    self._leases.append(instruction)
                case Say():
                    self._said = True
                    self._say(self._members.node, instruction)
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
