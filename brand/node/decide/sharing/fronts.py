"""How far and how fast do the ranks of other nodes draw runs that share?

Every node reports to all other nodes from time to time how far its ranks have drawn. So each node knows the rate of a
run over all nodes, and the leader knows the run's leading offset. This module has no clock: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brand.errors import ProtocolError
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.peers.peers import PeerTable
from brand.node.decide.sharing.sharing import JobJoins
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.joining import LeadingOffset
from brand.node.wire.numbers import NodeNumber, RunNumber

TELL_S: Final = 0.25
"""Shortest time between two reports of a node's leading offsets."""
MAX_DRAWN: Final = 1 << 62


class LeadingOffsets:
    """The leading offsets that this node reports, and those that other nodes have reported."""

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing, sharing: JobJoins, peers: PeerTable) -> None:
        self._runs, self._lives, self._pacing, self._sharing, self._peers = runs, lives, pacing, sharing, peers
        self._told_s = float("-inf")
        self._told: dict[Key, LeadingOffset] = {}
        self._drawn: dict[tuple[NodeNumber, RunNumber], int] = {}
        """The last reported progress of the ranks of each other node, by run."""

    def __repr__(self) -> str:
        return f"LeadingOffsets({len(self._told)} epochs reported, {self._drawn})"

    def news(self, now_s: float) -> Iterator[tuple[NodeNumber, LeadingOffset]]:
        """Yield the changes since the last call, for each reachable node."""
        if not len(self._peers) or now_s - self._told_s < TELL_S:
            return
        found = {}
        for key, live in self._lives.live():
            run, epoch = self._runs[key[0]], live.epoch
            if run.order.joins and live.begun and epoch.here:
                found[key] = LeadingOffset(epoch.number, epoch.front(), run.drawn)
        news = [front for key, front in found.items() if self._told.get(key) != front]
        self._told = found
        if news:
            self._told_s = now_s
        for peer in self._peers:
            if self._peers.is_reachable(peer.node):
                for front in news:
                    yield peer.node, front

    def on_front(self, node: NodeNumber, key: Key, front: LeadingOffset, now_s: float) -> None:
        """Note the progress of another node's ranks in an epoch. Raises `ProtocolError`."""
        if front.position > self._runs[key[0]].order.draws or front.drawn > MAX_DRAWN:
            raise ProtocolError(f"a leading offset at position {front.position:,}, after {front.drawn:,} samples")
        life = self._lives.get(key)
        if life is None or life.live is None:
            return
        life.live.epoch.progress.learn_elsewhere(node, front.position)
        # The first report of a node only sets the count: its draws have no known beginning.
        before = self._drawn.get((node, key[0]), front.drawn)
        self._drawn = {which: drawn for which, drawn in self._drawn.items() if which[1] in self._runs}
        self._drawn[node, key[0]] = front.drawn
        if front.drawn > before:
            self._pacing.pulse(key[0]).beat(front.drawn - before, now_s)
            self._sharing.on_drawn(key)
