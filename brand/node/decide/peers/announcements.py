"""How do nodes know that their ranks draw the same orders? Each node announces its epochs to the others.

A node tells every other node which epochs its ranks draw, and from which position on. Two nodes that draw different
orders under the same name disagree: they refuse the run before they answer its first draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from brand.errors import UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.peers.peers import PeerTable
from brand.node.decide.peers.sending import Taker
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.runs import Run, Runs
from brand.node.wire.drawing import Begin, Drawing
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.node.wire.peer_messages import EpochAnnounced, EpochReleased, Refused
from brand.orders.order import Order
from brand.reprs import Reprs

REMEMBER_S: Final = 2.0
"""Time that a run is refused after its last client has disconnected."""


class Disagreements(Feature, Reprs, shows="_wrong"):
    """Runs that the server refuses, with the reasons."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._wrong: dict[RunNumber | None, str] = {}
        """Reasons by run. The reason of key None is for all runs."""
        self._lately: dict[tuple[str, Order], tuple[str, float]] = {}
        """The reason by name and order of a refused run, and the time until which it is remembered."""

    @property
    def all_refused(self) -> bool:
        """Whether another node refuses to work with this node."""
        return None in self._wrong

    def refuse_all(self, reason: str) -> None:
        """Refuse all runs, because another node refuses to work with this node."""
        self._wrong[None] = reason

    def refuse(self, name: str, order: Order, reason: str) -> None:
        """Refuse a run that another node refuses."""
        run = self._runs.number_of(name, order)
        if run is not None:
            self._wrong[run] = reason

    def clear(self) -> None:
        """Clear the reason that is for all runs after a node has agreed to work with this node."""
        self._wrong.pop(None, None)

    def refuse_runs(self, runs: Iterable[RunNumber], reason: str) -> None:
        self._wrong |= dict.fromkeys(runs, reason)

    def check(self, node: NodeNumber) -> None:
        """Refuse the runs that ranks of this node (`node`) and of other nodes have begun in different ways."""
        for number, run in self._runs.items():
            reason = run.conflict(node)
            if reason is not None:
                self._wrong[number] = reason

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield the clients to refuse, with the reasons. The server refuses them until they disconnect.

        A process registers on each of its connections. Those that open shortly after the refusal are refused, too.
        """
        self._lately = {named: (why, until_s) for named, (why, until_s) in self._lately.items() if until_s > now_s}
        self._wrong = {run: reason for run, reason in self._wrong.items() if run is None or run in self._runs}
        for number, run in self._runs.items() if self._lately else ():
            lately = self._lately.get((run.name, run.order))
            if lately is not None:
                self._wrong.setdefault(number, lately[0])
        for wrong, reason in self._wrong.items():
            if wrong is not None:
                run = self._runs[wrong]
                self._lately[run.name, run.order] = reason, now_s + REMEMBER_S
            for client in self._runs.clients(wrong):
                if client >= 0:  # other nodes have negative numbers (`as_client`)
                    yield Refuse(client, UsageError(reason))


def disagreement(here: NodeNumber, drawings: Iterable[Drawing], there: NodeNumber, drawing: Drawing) -> str | None:
    """Return why nodes `here` and `there` draw different orders under the same name, or None if they agree."""
    for ours in drawings:
        if ours.name != drawing.name:
            continue
        if ours.order != drawing.order:
            if ours.turn is None or ours.turn != drawing.turn:
                continue
            return f"nodes {here} and {there} disagree: {_differences(here, ours.order, there, drawing.order)}"
        reason = ours.begin.conflict(ours.epoch, drawing.begin) if ours.epoch == drawing.epoch else None
        if reason is not None:
            return reason
    return None


def _differences(here: NodeNumber, ours: Order, there: NodeNumber, theirs: Order) -> str:
    """Return the fields in which two orders differ, as a text."""
    found = ours.differences(theirs)
    parts = [f"{name} is {mine} on node {here} and {other} on node {there}" for name, (mine, other) in found.items()]
    if "group_chunks" in found:
        parts.append("group_chunks follows from the memory: give all nodes the same --memory (in Python: memory=)")
    return "; ".join(parts)


class Announcements(Reprs, shows="_drawings _numbers disagreements"):
    """Announcements of draws that this node (`node`) sends to other nodes and takes from them.

    `left` is called with the number of a node among the clients when the node does not ask any more.
    """

    def __init__(
        self, epochs: Epochs, peers: PeerTable, node: NodeNumber, left: Callable[[ClientNumber], None]
    ) -> None:
        self._epochs, self._peers, self._node, self._left = epochs, peers, node, left
        self._drawings: dict[Key, Drawing] = {}
        self._seen_changes = -1
        self._told: dict[NodeNumber, dict[Key, tuple[Drawing, bool]]] = {peer.node: {} for peer in peers}
        """The announcements of this node's draws that each node knows."""
        self._theirs: dict[tuple[NodeNumber, int], Key] = {}
        """Epochs that other nodes draw, by node and the node's number of the epoch."""
        self._numbers: dict[tuple[NodeNumber, Key], int] = {}
        """Numbers of epochs that other nodes draw, by node and epoch; 0 if the node cannot take samples yet."""
        self.disagreements = Disagreements(epochs.runs)

    @property
    def draws(self) -> bool:
        return bool(self._drawings)

    # -- to other nodes ----------------------------------------------------------------------------------------------

    def has_told(self, node: NodeNumber, key: Key) -> bool:
        """Return whether a node was told that ranks of this node draw an epoch."""
        return key in self._told[node]

    def news(self) -> Iterator[tuple[NodeNumber, EpochAnnounced | EpochReleased]]:
        """Yield the changes since the last call, for each reachable node."""
        if self._epochs.changes == self._seen_changes:
            return
        self._seen_changes = self._epochs.changes
        self._drawings = self._find_drawings()
        for peer in self._peers:
            for message in self._tell(peer.node):
                yield peer.node, message
        self.disagreements.check(self._node)

    def announce_all(self, node: NodeNumber) -> Iterator[EpochAnnounced | EpochReleased]:
        """Return all announcements for a node that this node can ask now, and that knows nothing."""
        self.disagreements.clear()
        self._told[node].clear()
        return self._tell(node)

    def _tell(self, node: NodeNumber) -> Iterator[EpochAnnounced | EpochReleased]:
        """Yield the announcements of this node's draws that a node does not know yet."""
        if not self._peers.is_reachable(node):
            return
        told = self._told[node]
        for key in [key for key in told if key not in self._drawings]:
            drawing, _ = told.pop(key)
            alive = any(other[0] == key[0] for other in self._drawings)
            yield EpochReleased(drawing.name, drawing.order, drawing.epoch if alive else None)
        for key, drawing in self._drawings.items():
            live = self._epochs.get(key)
            asks = live is not None and live.epoch.requests is not None and node not in live.epoch.lost
            if told.get(key) != (drawing, asks):
                told[key] = drawing, asks
                front = drawing.begin.front if live is None else live.epoch.front()
                yield EpochAnnounced(replace(drawing, begin=replace(drawing.begin, front=front)), asks)

    def _find_drawings(self) -> dict[Key, Drawing]:
        """Return the epochs that the ranks of this node draw or will draw next."""
        found = {}
        for number, run in self._epochs.runs.items():
            begun: dict[int, int] = {}
            for reader in run.readers.values():
                if reader.begin.node == self._node:
                    begun[reader.epoch] = max(reader.begin.times, begun.get(reader.epoch, 0))
                    begun.setdefault(reader.epoch + 1, 0)
            for epoch, times in begun.items():
                drawing = self._drawing(run, (number, epoch), times)
                if drawing is not None:
                    found[number, epoch] = drawing
            for key in self._epochs.unfinished(number):
                if key in self._drawings:
                    found.setdefault(key, self._drawings[key])
        return found

    def _drawing(self, run: Run, key: Key, times: int) -> Drawing | None:
        """Return the description of the draws of this node's ranks in an epoch, or None if they draw nothing."""
        life = self._epochs.lives.get(key)
        if life is None or (life.live is None and life.begin is None):
            return None
        begun = life.live.begin if life.live is not None else life.begin
        assert begun is not None
        division, number = begun.division, 0 if life.live is None else life.live.epoch.number
        here = tuple(sorted(seat for seat, at in run.seats(division.seats).items() if at == self._node))
        if not here or division.start >= division.samples:
            return None
        # An epoch that was evicted for others continues at a later position (`Epochs.expect`). Other nodes need the
        # position at which its ranks have begun it, because nodes compare these to detect disagreements.
        said = [begin.start for begin in run.begins(key[1]) if begin.node == self._node and begin.times == times]
        start = min(said, default=division.start)
        largest = self._epochs.limits.largest_sent(self._node)
        fronts = run.fronts(key[1])
        front = min(fronts.get(seat, 0) for seat in here)
        rule = None if division.ruled is None else division.ruled.rule
        begin = Begin(
            start, division.replicas, here, division.batch, self._node, times, front, largest, rule, division.spans
        )
        return Drawing(run.name, run.turn, run.order, key[1], begin, number)

    # -- from other nodes --------------------------------------------------------------------------------------------

    def key_of(self, node: NodeNumber, number: int) -> Key | None:
        """Return the epoch to which a node gave a number, or None if there is none."""
        return self._theirs.get((node, number))

    def number_of(self, node: NodeNumber, key: Key) -> int:
        """Return the number that a node gave an epoch; 0 if the node cannot take its samples."""
        return self._numbers.get((node, key), 0)

    def on_announced(self, node: NodeNumber, told: EpochAnnounced) -> Refused | None:
        """Take the announcement of an epoch. Return the refusal if this node disagrees. Raises `UsageError`."""
        drawing, epochs = told.drawing, self._epochs
        wrong = disagreement(self._node, self._drawings.values(), node, drawing)
        if wrong is not None:
            runs = {key[0] for key, d in self._drawings.items() if (d.name, d.turn) == (drawing.name, drawing.turn)}
            self.disagreements.refuse_runs(runs, wrong)
            return Refused(EpochReleased(drawing.name, drawing.order, None), wrong)
        run = epochs.runs.register(as_client(node), drawing.order, drawing.name, None, drawing.turn)
        key = run, drawing.epoch
        before = self._numbers.get((node, key), 0)
        if before not in (0, drawing.number):  # the node has begun the epoch again
            self._theirs.pop((node, before), None)
            epochs.forget(as_client(node), key, node)
        self._numbers[node, key] = drawing.number
        epochs.begin(as_client(node), key, drawing.begin)
        if drawing.number:
            self._theirs[node, drawing.number] = key
            epochs.lives[key].take(node, Taker(node, drawing.begin.front, told.asks))
        return None

    def on_released(self, node: NodeNumber, forgotten: EpochReleased) -> None:
        """Forget a node's epoch, or its run, that it has released."""
        epochs = self._epochs
        run = epochs.runs.number_of(forgotten.name, forgotten.order)
        for other, key in list(self._numbers):
            if other == node and key[0] == run and forgotten.epoch in (None, key[1]):
                self._forget(node, key)
        if forgotten.epoch is None and run is not None:
            epochs.remove_client(as_client(node), run)

    def on_node_gone(self, node: NodeNumber) -> None:
        """Forget all that a node draws after its stream has ended."""
        for other, key in list(self._numbers):
            if other == node:
                self._forget(node, key)
        self._left(as_client(node))

    def _forget(self, node: NodeNumber, key: Key) -> None:
        self._theirs.pop((node, self._numbers.pop((node, key))), None)
        self._epochs.forget(as_client(node), key, node)


def as_client(node: NodeNumber) -> ClientNumber:
    """Return the number of another node among the clients: negative, unlike the numbers of this node's own clients."""
    return ClientNumber(-1 - node)
