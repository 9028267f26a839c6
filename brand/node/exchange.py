"""How do the server's decisions become messages to other nodes, and their messages events for its decisions?

Between `Core` and `Network`: it says what is new, sends as fast as streams take it what is to be sent, checks what
comes.
A node that says what it should not is hung up on; one that cannot be reached is done without, and one that draws
something else under the same name is a reason not to begin at all.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError, UsageError
from brand.node import peer_messages as wire
from brand.node.core import Core
from brand.node.epochs import Key
from brand.node.fetches import Fetches, Outcome
from brand.node.members import Members
from brand.node.messages import ProtocolError
from brand.node.network import MAX_UNSENT, Closed, Network, Opened, Received, Stream
from brand.node.peer_messages import PeerKind
from brand.node.remote import Push
from brand.node.runs import Drawing
from brand.protocol.order import Order

MAX_READS: Final = 64
"""Fetches of one node that are read at a time."""

log = logging.getLogger("brand.node")

Watch = Callable[[Opened | Closed], None]
"""Is told of a stream that opens, ends, or cannot be opened."""


@dataclass(frozen=True, slots=True)
class ReadFor:
    """Samples to read exactly for another node."""

    node: int
    number: int
    """Of its question."""
    places: NDArray[np.int64]


class Exchange:
    """All that a server has to do with the other nodes."""

    def __init__(self, core: Core, network: Network, members: Members, page: int, fetches: Fetches) -> None:
        self._core, self._network, self._members, self._page = core, network, members, page
        self._fetches = fetches
        self._open: set[Stream] = set()
        self._met: set[Stream] = set()
        """Streams that were ever open."""
        self._drawings: dict[Key, Drawing] = {}
        self._seen_changes = -1
        self._told: dict[int, dict[Key, tuple[Drawing, bool]]] = {node: {} for node in members.others}
        """What each node knows of what is drawn here."""
        self._theirs: dict[tuple[int, int], Key] = {}
        """Epochs that other nodes draw, by node and their number."""
        self._numbers: dict[tuple[int, Key], int] = {}
        """The same the other way round; 0: it cannot take samples yet."""
        self._backlog: dict[int, deque[bytes]] = {node: deque() for node in members.others}
        """Parts of what nodes have fetched."""
        self._reading = dict.fromkeys(members.others, 0)
        self._reads: list[ReadFor] = []
        self._wrong: dict[int | None, str] = {}
        """Why a run cannot go on, or any (None): nodes disagree."""
        self.watch: Watch | None = None

    @property
    def wake(self) -> int:
        """Can be read while there is something to do."""
        return self._network.wake

    def reachable(self, node: int) -> bool:
        """Whether a node can be asked."""
        return Stream(node, asks=True) in self._open

    @property
    def complete(self) -> bool:
        """Whether this node and each other one have reached each other, at some time."""
        return len(self._met) == 2 * len(self._members.others)

    @property
    def asked(self) -> bool:
        """Whether any node has a stream on which it can ask this one."""
        return any(not stream.asks for stream in self._open)

    def facts(self) -> dict[str, object]:
        """For statistics."""
        return {
            "node": self._members.node,
            "nodes": self._members.nodes,
            "reachable": [node for node in self._members.others if self.reachable(node)],
        }

    def take_events(self, now_s: float) -> None:
        """What the network has to tell."""
        for event in self._network.events():
            if self.watch is not None and not isinstance(event, Received):
                self.watch(event)
            match event:
                case Opened(stream):
                    self._opened(stream, now_s)
                case Closed(stream, reason, refused):
                    self._closed(stream, reason, refused=refused)
                case Received(stream, message):
                    try:
                        self._take(stream, message, now_s)
                    except (ProtocolError, UsageError, FormatError) as error:  # FormatError: of our own index
                        log.warning("node %d is hung up on: %s", stream.node, error)
                        self._network.hang_up(stream, str(error))

    def _take(self, stream: Stream, message: bytes, now_s: float) -> None:
        """Raises `ProtocolError`, `UsageError`."""
        if stream.asks:
            self._take_answer(stream, message, now_s)
        else:
            self._take_question(stream, message)

    def step(self, now_s: float) -> list[ReadFor]:
        """Send what can be sent.

        Returns what is to be read for other nodes; `have_read` takes the result.
        """
        if self._core.epochs.changes != self._seen_changes:
            self._seen_changes = self._core.epochs.changes
            self._drawings = self._core.epochs.drawings()
            for node in self._members.others:
                self._tell(node)
            self._wrong |= self._core.epochs.conflicts()
        for request in self._core.remote.requests(self.reachable):
            room = self._core.remote.room_for(request.node, now=True)
            self._ask(request.node, wire.pack_request(request.number, room or 0, request.positions))
        for node in self._members.others:
            if Stream(node, asks=True) in self._open:
                room = self._core.remote.room_for(node)
                if room is not None:
                    self._ask(node, wire.pack_room(room))
                for question in self._fetches.questions(node):
                    self._ask(node, wire.pack_fetch(*question))
            self._send_to(node)
        self._fetches.give_up(now_s, self.reachable)
        reads, self._reads = self._reads, []
        return reads

    def have_read(self, node: int, number: int, data: bytes) -> None:
        """Samples that a node has fetched are here, as `pack_samples` makes them."""
        self._reading[node] -= 1
        view = memoryview(data)
        for start in range(0, max(1, len(view)), wire.PART):
            self._backlog[node].append(wire.pack_fetched(number, len(view), start, view[start : start + wire.PART]))

    def outcomes(self) -> list[Outcome]:
        """What clients are told: those who fetched get their samples, or why they cannot have them.

        A client that draws what nodes disagree about is told so at once, and again until it has gone.
        """
        told = self._fetches.done()
        for run, reason in self._wrong.items():
            told += [(client, UsageError(reason)) for client in self._core.epochs.runs.clients(run) if client >= 0]
        return told

    def _ask(self, node: int, message: bytes) -> None:
        self._network.send(Stream(node, asks=True), message)

    def _send_to(self, node: int) -> None:
        """Answers and samples for a node, as much as its stream takes."""
        stream = Stream(node, asks=False)
        if stream not in self._open:
            return
        backlog = self._backlog[node]
        while self._network.unsent(stream) < MAX_UNSENT:
            if backlog:
                self._network.send(stream, backlog.popleft())
                continue
            push = self._core.remote.next_push(node, stuck=self._core.stuck)
            if push is None:
                return
            number = self._numbers.get((node, push.key), 0)
            self._network.send(stream, wire.pack_push(number, push.places, push.missed, push.data))

    def _tell(self, node: int) -> None:
        """Say what is drawn here, as far as a node does not know it."""
        if not self.reachable(node):
            return
        told = self._told[node]
        for key in [key for key in told if key not in self._drawings]:
            drawing, _ = told.pop(key)
            alive = any(other[0] == key[0] for other in self._drawings)
            self._ask(node, wire.pack_forget(drawing, run=not alive))
        for key, drawing in self._drawings.items():
            epoch = self._core.epochs.get(key)
            asks = epoch is not None and epoch.requests is not None and node not in epoch.lost
            if told.get(key) != (drawing, asks):
                told[key] = drawing, asks
                front = 0 if epoch is None else epoch.front()
                self._ask(node, wire.pack_drawing(drawing, front, asks=asks))

    # -- streams -----------------------------------------------------------------------------------------------------

    def _opened(self, stream: Stream, now_s: float) -> None:
        self._open.add(stream)
        self._met.add(stream)
        if stream.asks:
            self._wrong.pop(None, None)
            self._told[stream.node].clear()
            self._core.remote.opened(stream.node, now_s)
            self._tell(stream.node)
        else:
            self._core.remote.greeted(stream.node)

    def _closed(self, stream: Stream, reason: str, *, refused: bool) -> None:
        node, was_open = stream.node, stream in self._open
        self._open.discard(stream)
        if refused:
            if None not in self._wrong:
                log.warning("%s", reason)
            self._wrong[None] = reason
        if not was_open:
            return
        level = logging.WARNING if self._drawings else logging.INFO  # where nobody draws, all is over
        log.log(level, "node %d %s: %s", node, "cannot be asked" if stream.asks else "asks no more", reason)
        if stream.asks:
            self._core.remote.lost(node)
            self._fetches.lost(node)
            return
        self._backlog[node].clear()
        for (other, key), number in list(self._numbers.items()):
            if other == node:
                del self._numbers[other, key]
                self._theirs.pop((node, number), None)
                self._core.forget(_client(node), key, node)
        self._core.left(_client(node))

    # -- as the owner ------------------------------------------------------------------------------------------------

    def _take_question(self, stream: Stream, message: bytes) -> None:
        """Raises `ProtocolError`, `UsageError`."""
        node = stream.node
        kind, body = wire.kind_of(message)
        match kind:
            case PeerKind.DRAWING:
                self._take_drawing(stream, wire.unpack_drawing(body, node))
            case PeerKind.FORGET:
                forgotten = wire.unpack_forget(body)
                self._forget(node, forgotten)
            case PeerKind.ROOM:
                self._core.remote.allow(node, wire.unpack_room(body))
            case PeerKind.REQUEST:
                number, room, positions = wire.unpack_request(body)
                self._core.remote.allow(node, room)
                key = self._theirs.get((node, number))
                if key is not None:
                    if positions.min() < 0 or positions.max() >= self._core.epochs.order(key[0]).samples:
                        raise ProtocolError("positions that the data set does not have")
                    self._core.epochs.ask(key, node, positions)
            case PeerKind.FETCH:
                number, places = wire.unpack_fetch(body)
                self._fetches.check(places, self._members.node)
                if self._reading[node] >= MAX_READS:
                    raise ProtocolError(f"more than {MAX_READS} questions at a time")
                self._reading[node] += 1
                self._reads.append(ReadFor(node, number, places))
            case _:
                raise ProtocolError(f"{kind.name} is not for owners")

    def _take_drawing(self, stream: Stream, told: wire.Told) -> None:
        node, drawing = stream.node, told.drawing
        wrong = self._disagreement(node, drawing)
        if wrong is not None:
            self._network.send(stream, wire.pack_refused(drawing, wrong))
            same = (drawing.name, drawing.turn)
            self._wrong |= {key[0]: wrong for key, d in self._drawings.items() if (d.name, d.turn) == same}
            return
        run = self._core.epochs.runs.register(_client(node), drawing.order, drawing.name, None, drawing.turn)
        key = run, drawing.epoch
        before = self._numbers.get((node, key), 0)
        if before not in (0, drawing.number):  # it has begun the epoch anew
            self._theirs.pop((node, before), None)
            self._core.forget(_client(node), key, node)
        self._numbers[node, key] = drawing.number
        self._core.begin_elsewhere(_client(node), key, drawing.begin)
        if drawing.number:
            self._theirs[node, drawing.number] = key
            self._core.epochs.take(key, node, drawing.begin.front, asks=told.asks)

    def _disagreement(self, node: int, drawing: Drawing) -> str | None:
        """Why a node's run is not the one of the same name that goes on here."""
        me = self._members.node
        for here in self._drawings.values():
            if here.name != drawing.name:
                continue
            if here.order != drawing.order:
                if here.turn is None or here.turn != drawing.turn:
                    continue
                differences = _differences(me, here.order, node, drawing.order)
                return f"nodes {me} and {node} disagree: {differences}"
            reason = here.begin.conflict(here.epoch, drawing.begin) if here.epoch == drawing.epoch else None
            if reason is not None:
                return reason
        return None

    def _forget(self, node: int, forgotten: wire.Forgotten) -> None:
        run = self._core.epochs.runs.number_of(forgotten.name, forgotten.order)
        for other, key in list(self._numbers):
            if other == node and key[0] == run and forgotten.epoch in (None, key[1]):
                self._theirs.pop((node, self._numbers.pop((node, key))), None)
                self._core.forget(_client(node), key, node)
        if forgotten.epoch is None and run is not None:
            self._core.left_run(_client(node), run)

    # -- as one who draws --------------------------------------------------------------------------------------------

    def _take_answer(self, stream: Stream, message: bytes, now_s: float) -> None:
        """Raises `ProtocolError`."""
        node = stream.node
        kind, body = wire.kind_of(message)
        match kind:
            case PeerKind.PUSH:
                number, places, missed, data = wire.unpack_push(body, self._page)
                found = [(key, epoch) for key, epoch in self._core.epochs if epoch.number == number]
                key, epoch = found[0] if found else ((0, 0), None)
                self._core.remote.came(node, epoch, Push(key, places, missed, data), now_s)
            case PeerKind.FETCHED:
                self._fetches.came(node, *wire.unpack_fetched(body))
            case PeerKind.REFUSED:
                about, reason = wire.unpack_refused(body)
                run = self._core.epochs.runs.number_of(about.name, about.order)
                if run is not None:
                    self._wrong[run] = reason
            case _:
                raise ProtocolError(f"{kind.name} is not for those who ask")


def _client(node: int) -> int:
    """Another node as a client: numbers below those of this node's."""
    return -1 - node


def _differences(here: int, ours: Order, there: int, theirs: Order) -> str:
    """What two orders do not have in common."""
    mine, other = ours.to_json(), theirs.to_json()
    parts = [
        f"{name} is {mine.get(name, 'absent')} on node {here} and {other.get(name, 'absent')} on node {there}"
        for name in mine | other
        if mine.get(name) != other.get(name)
    ]
    if mine["group_chunks"] != other["group_chunks"]:
        parts.append("group_chunks follows from the memory: give all nodes the same --memory (in Python: memory=)")
    return "; ".join(parts)
