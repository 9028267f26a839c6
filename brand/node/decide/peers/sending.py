"""Which samples does this node send to other nodes, as their owner, and in which order?

`Sending` sends the samples that ranks of other nodes will draw, in the order of their draws. `FetchAnswers` answers
direct reads: other nodes ask for samples by place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.peers.parts import DepartingSamples, message_pages
from brand.node.decide.peers.peers import Peer
from brand.node.decide.state.connected import MAX_ASKED
from brand.node.decide.state.counters import NodeCounters
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import ReadFor
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber, RunNumber
from brand.node.wire.peer_messages import Fetch, FetchReply, Push, PushPart
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.plan import PeerRequests
from brand.reprs import Reprs

LOOK: Final = 1024
"""Limit on the positions that `next` returns."""
MAX_QUESTIONS: Final = 64
"""Limit on the open questions of one node."""
MAX_READ: Final = 16 << 20
"""An owner starts no read for a node that has not taken this many bytes of its answers."""
PART: Final = 1 << 20
"""Largest piece of an answer, in bytes."""


_OPEN, _ALONG, _ASKED = range(3)
"""Stages of a position: the node may request it; it will be sent along; it was requested or sent."""


class Outgoing:
    """A queue for one node: its `positions` (ascending, all different) from `front` on.

    `requests` is the plan's table if the node has to request samples. None if all samples are sent without requests.
    """

    def __init__(self, positions: NDArray[np.int64], requests: PeerRequests | None, front: int = 0) -> None:
        positions = positions.astype(index_dtype(int(positions.max(initial=0))))
        ahead, nothing = positions[np.searchsorted(positions, front) :], positions[:0]
        self._requests = requests
        self._known: NDArray[Any] = nothing if requests is None else positions
        """Positions that the node can request, ascending; none if it sends no requests."""
        self._stage = np.full(len(self._known), _OPEN, np.uint8)
        """The stage of each known position."""
        self._first = ahead if requests is None else nothing
        self._second = nothing
        """Positions that are sent along with answers, after those in `_first`."""
        self.urgent = 0
        """Number of the next positions for which the node waits."""
        self._missed = np.arange(0)
        """Places of which the node has to be told that they will not be sent."""

    def ask(self, positions: NDArray[Any]) -> None:
        """Queue the positions of a draw whose samples the node lacks, ahead of all other positions.

        If the node has to request samples, other samples are sent along with each request that the plan foresees. An
        unforeseen request is answered alone. Positions that were requested or sent before, or not drawn, are left out.
        """
        if self._requests is None:
            urgent, rest = self._first[: self.urgent], self._first[self.urgent :]
            waits = np.isin(rest, positions)
            self._first = np.concatenate((urgent, rest[waits], rest[~waits]))
            self.urgent += int(waits.sum())
            return
        asked = self._move_to(positions, _ASKED)
        self._first = np.concatenate((self._first, asked))
        self.urgent = len(self._first)
        table = self._requests
        at = np.searchsorted(table.positions, asked)
        foreseen = at < len(table.positions)
        foreseen[foreseen] = table.positions[at[foreseen]] == asked[foreseen]
        along = np.concatenate((asked[:0], *(table.sent_with(number) for number in at[foreseen].tolist())))
        second = self._second[~np.isin(self._second, asked)]
        self._second = np.sort(np.concatenate((second, self._move_to(along, _ALONG))))  # in the order of the draws

    def add(self, positions: NDArray[np.int64]) -> None:
        """Add positions after all others. The node sends no requests for the order."""
        self._first = np.concatenate((self._first, positions))

    def miss(self, places: NDArray[Any]) -> None:
        """Tell the node that these samples will not be sent."""
        self._missed = np.union1d(self._missed, places).astype(np.int64)

    def withdraw(self, positions: NDArray[Any], places: NDArray[Any]) -> None:
        """Tell the node that the samples at these positions will not be sent. It sends no requests for the order."""
        gone = np.isin(self._first, positions)
        self.urgent -= int(gone[: self.urgent].sum())
        self._first = self._first[~gone]
        self.miss(places)

    def pop_missed(self) -> NDArray[np.int64]:
        """Return samples of which the node has to be told that they will not be sent, at most `LOOK`, once."""
        missed, self._missed = self._missed[:LOOK], self._missed[LOOK:]
        return missed

    @property
    def unanswered(self) -> NDArray[Any]:
        """Positions that the node has requested and whose samples were not sent."""
        return self._first[: self.urgent]

    def next(self) -> NDArray[Any]:
        """Return the positions to send next, at most `LOOK`."""
        return self._first[:LOOK] if len(self._first) else self._second[:LOOK]

    def advance(self, count: int) -> None:
        """Remove the first `count` positions of `next`, which were sent or never will be."""
        if len(self._first):
            self._first = self._first[count:]
            self.urgent = max(0, self.urgent - count)
        else:
            self._move_to(self._second[:count], _ASKED)
            self._second = self._second[count:]

    def left(self) -> NDArray[Any]:
        """Return the positions that are queued, or that the node can still request."""
        return np.concatenate((self._first, self._second, self._known[self._stage == _OPEN]))

    def front(self, end: int) -> int:
        """Return the position before which nothing more will be sent; `end` if nothing known will be sent."""
        if self._requests is not None:
            return 0
        return int(self._first.min(initial=end))

    def _move_to(self, positions: NDArray[Any], stage: int) -> NDArray[Any]:
        """Move positions to a stage. Return the positions that were at an earlier stage, ascending, all different."""
        at = np.searchsorted(self._known, positions)
        known = at < len(self._known)
        known[known] = self._known[at[known]] == positions[known]
        found = np.unique(at[known])
        found = found[self._stage[found] < stage]
        self._stage[found] = stage
        return self._known[found]


def queue_to(epoch: Epoch, node: NodeNumber) -> Outgoing:
    """Return the queue of an epoch to a node that can take its samples."""
    queue = epoch.outgoing[node]
    assert isinstance(queue, Outgoing)
    return queue


@dataclass(frozen=True, slots=True)
class Taker:
    """A node that can take samples of an epoch."""

    node: NodeNumber
    front: int
    """The node takes samples from this position on."""
    asks: bool
    """Whether the node requests samples. If not, they are sent without requests."""
    asked: list[NDArray[np.int64]] = field(default_factory=list)
    """Positions that the node requested before the plan was made."""

    def start(self, epoch: Epoch) -> None:
        """Begin to send the samples that the node's ranks draw of an active epoch."""
        before = queue_to(epoch, self.node) if self.node in epoch.outgoing else None
        queue = Outgoing(epoch.to_send(self.node), epoch.plan.requests if self.asks else None, self.front)
        epoch.outgoing[self.node] = queue
        if before is not None:  # more of its ranks draw than were announced before; it does not repeat its requests
            epoch.ask(self.node, before.unanswered)
        for positions in self.asked:
            epoch.ask(self.node, positions)
        self.asked.clear()

    def ask(self, epoch: Epoch | None, positions: NDArray[np.int64]) -> None:
        """Queue the positions that the node requests. Before the plan is made, keep up to `MAX_ASKED` of them."""
        if epoch is not None and self.node in epoch.outgoing:
            epoch.ask(self.node, positions)
        elif sum(map(len, self.asked)) + len(positions) <= MAX_ASKED:
            self.asked.append(positions)


class Sending(Feature, Reprs, shows="waited_for"):
    """Chooses the samples to send to other nodes. A sample that was sent is not held any more (`Epoch.deliver`).

    With `stripes`, it sends all samples that the other node's ranks will draw, without requests. With `slots`, it sends
    the samples that the other node requests, and then the samples that are sent along with them (section 3.4 of the
    paper). A position is queued at most once, even if the other node requests it twice: if a sample were taken out of
    memory twice, its pages would be freed twice.

    A sample that is larger than a message is sent in parts, and nothing else in between. `number_of` returns the number
    that a node gave an epoch.
    """

    def __init__(
        self,
        residents: Residents,
        epochs: Epochs,
        counters: NodeCounters,
        number_of: Callable[[NodeNumber, Key], int],
    ) -> None:
        self._residents, self._epochs, self._counters, self._number_of = residents, epochs, counters, number_of
        self.departing = DepartingSamples(residents)

    @property
    def waited_for(self) -> bool:
        live_epochs = [live.epoch for _, live in self._epochs.lives.live()]
        return any(queue_to(epoch, node).urgent for epoch in live_epochs for node in epoch.outgoing)

    @property
    def waits_for_reads(self) -> bool:
        live_epochs = [live.epoch for _, live in self._epochs.lives.live()]
        queues = [(epoch, queue_to(epoch, node)) for epoch in live_epochs for node in epoch.outgoing]
        return any(queue.urgent and epoch.waits_for_reads(queue.unanswered) for epoch, queue in queues)

    def next(self, peer: Peer, *, stuck: bool) -> Push | PushPart | None:
        """Return the samples to send to a node now, or None if there are none or the node has no capacity for them.

        `stuck`: this node cannot read anything at present. If a node then waits for a sample whose read has not
        started, this node reports that the sample will not be sent.
        """
        part = self.departing.next(peer.node)
        if part is not None:
            return part
        queues = [(key, live.epoch) for key, live in self._epochs.lives.live() if peer.node in live.epoch.outgoing]
        for key, epoch in queues:
            missed = queue_to(epoch, peer.node).pop_missed()
            if len(missed):
                return Push(self._number_of(peer.node, key), missed[:0], missed, self._residents.contents(missed[:0]))
        if len(queues) > 1:
            queues = self._by_lead(peer.node, queues)
        urgent = [(key, epoch) for key, epoch in queues if queue_to(epoch, peer.node).urgent]
        blocked: set[RunNumber] = set()
        for key, epoch in urgent or queues:  # if the node waits for samples, only these are sent
            outgoing = queue_to(epoch, peer.node)
            positions = outgoing.next()
            if not len(positions) or key[0] in blocked:
                continue
            if stuck and outgoing.urgent:
                due = positions[: outgoing.urgent]
                due = due[epoch.states.due(epoch.plan.sample_of[due])]
                epoch.deliver(peer.node, epoch.plan.sample_of[due])
                due = due[epoch.states.due(epoch.plan.sample_of[due])]  # other nodes of a group wait for these
                if len(due):
                    outgoing.withdraw(due, epoch.plan.sample_of[due])
                    return self.next(peer, stuck=stuck)
            push = self._take(peer, key, epoch, positions)
            if push is not None:
                return push
            blocked.add(key[0])  # samples of the run's next epoch must not take its capacity
        return None

    def _by_lead(self, node: NodeNumber, queues: list[tuple[Key, Epoch]]) -> list[tuple[Key, Epoch]]:
        """Return these epochs, first those of the run whose next samples the node's ranks draw soonest.

        Runs that share are sent the same samples at the same time, or one of them would fill the capacity of both.
        """
        leads: dict[RunNumber, int] = {}
        for key, epoch in queues:
            front = epoch.progress.elsewhere.get(node)
            if front is not None:
                leads.setdefault(key[0], epoch.outgoing[node].front(epoch.known.stop) - front)
        return sorted(queues, key=lambda queue: (leads.get(queue[0][0], 0), queue[0]))

    def _take(self, peer: Peer, key: Key, epoch: Epoch, positions: NDArray[np.int64]) -> Push | PushPart | None:
        """Return as many of these positions as fit, up to the first whose sample is still missing.

        If the first sample is larger than a message, returns its first part.
        """
        places = epoch.plan.sample_of[positions].astype(np.int64)
        waited_for = epoch.states.waited_for(places)
        if waited_for.any():
            places = places[: int(waited_for.argmax())]
        present = self._residents.present(places)
        pages = np.cumsum(np.where(present, self._residents.pages_of[places], 0), dtype=np.int64)
        message = message_pages(self._residents.pool.allocator.page)
        fit = int(np.searchsorted(pages, min(peer.may_send, message), side="right"))
        in_parts = not fit and len(pages) > 0 and message < pages[0] <= peer.may_send
        if not fit and not in_parts:
            return None
        places, present = places[: max(1, fit)], present[: max(1, fit)]
        here, number = places[present], self._number_of(peer.node, key)
        push = None if in_parts else Push(number, here, places[~present], self._residents.contents(here))
        held = epoch.deliver(peer.node, here)
        if in_parts:
            self._residents.refer(here[~held])
            self.departing.begin(peer.node, number, int(here[0]))  # with the reference that the epoch held
        else:
            self._residents.let_go(here[held])
        queue_to(epoch, peer.node).advance(len(places))
        epoch.progress.add_sent(len(places))
        self._epochs.runs[key[0]].add_served(len(places))
        sent = int(pages[len(places) - 1])
        peer.add_sent(sent)
        self._counters.add_sent(len(here), sent * self._residents.pool.allocator.page)
        return self.departing.next(peer.node) if push is None else push


@dataclass(slots=True)
class _AskingNode:
    """The questions of one other node."""

    opening: int = 0
    questions: deque[tuple[Fetch, int]] = field(default_factory=deque)
    """Questions whose samples are not read yet, each with the bytes of its answer."""
    reading: int = 0
    """Number of questions of this opening whose samples are being read."""
    unsent: int = 0
    """Bytes of answers that are being read or wait to be sent."""
    answers: deque[FetchReply] = field(default_factory=deque)

    def start_next(self) -> tuple[Fetch, int]:
        """Start the read for the next question. Return the question and the bytes of its answer."""
        fetch, size = self.questions.popleft()
        self.reading += 1
        self.unsent += size
        return fetch, size

    def add_answer(self, number: int, data: bytes, size: int) -> None:
        """Queue the answer to a question whose read has ended. The answer was expected to have `size` bytes."""
        view = memoryview(data)
        self.reading -= 1
        self.unsent += len(view) - size
        for start in range(0, max(1, len(view)), PART):
            self.answers.append(FetchReply(number, len(view), start, view[start : start + PART]))

    def pop_part(self) -> FetchReply:
        part = self.answers.popleft()
        self.unsent -= len(part.part)
        return part

    @property
    def open_questions(self) -> int:
        """Number of questions whose answers were not sent completely."""
        return len(self.questions) + self.reading + len({part.number for part in self.answers})


class FetchAnswers(Reprs, shows="on_the_way _asking"):
    """Questions of other nodes, from their arrival until their answers are sent.

    The owner queues the question, reads the samples, and sends them in pieces, as fast as the asking node's stream
    takes them. Three limits hold for each asking node: the number of its open questions, the bytes of its unsent
    answers (no read starts above that limit), and the stream, because an answer is sent only on the stream of its
    question. Reads for other nodes count towards the reads of the owner (`depth`).
    """

    def __init__(self, nodes: list[NodeNumber], depth: int) -> None:
        self._asking = {node: _AskingNode() for node in nodes}
        self._most = max(1, depth // 2)
        """Limit on simultaneous reads for all other nodes. The rest of `depth` is for this node's clients."""
        self.on_the_way = 0
        """Number of reads under way."""

    def reset(self, node: NodeNumber, opening: int) -> None:
        """Forget the earlier questions of a node after it has opened a stream: they get no answer."""
        self._asking[node] = _AskingNode(opening)

    def ask(self, node: NodeNumber, fetch: Fetch, size: int) -> None:
        """Queue a node's question for `size` stored bytes. Raises `ProtocolError` if it has too many open questions."""
        asking = self._asking[node]
        if asking.open_questions >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} open questions")
        asking.questions.append((fetch, size))

    def start_reads(self, free: int) -> Iterator[ReadFor]:
        """Start up to `free` reads, and yield them. Nodes take turns."""
        free = min(free, self._most - self.on_the_way)
        ready = deque(node for node, asking in self._asking.items() if asking.questions)
        while ready and free > 0:
            node = ready.popleft()
            asking = self._asking[node]
            if asking.unsent >= MAX_READ:
                continue
            fetch, size = asking.start_next()
            self.on_the_way += 1
            free -= 1
            yield ReadFor(node, fetch.number, asking.opening, fetch.places, size)
            if asking.questions:
                ready.append(node)

    def on_read(self, read: ReadFor, data: bytes) -> None:
        """Take the result of a read that has ended. `data` is the result of `pack_samples`."""
        self.on_the_way -= 1
        asking = self._asking[read.node]
        if read.opening == asking.opening:  # if not, the stream of the question has ended
            asking.add_answer(read.number, data, read.size)

    def pop_part(self, node: NodeNumber) -> FetchReply | None:
        """Return the piece of an answer to send to a node now, or None if there is none."""
        asking = self._asking[node]
        return asking.pop_part() if asking.answers else None
