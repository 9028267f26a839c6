"""The messages between nodes about the joins of their epochs, and about the progress of these epochs.

A node sends every other node the joins with which it would draw an epoch (`JoinConsensus`), and sends them again after
each change. If clients of this node draw the run, the other node remembers the run until a message releases it.

Every node also reports to all other nodes from time to time how far its ranks have drawn. So each node knows the rate
of a run over all nodes, and the leader knows the run's leading offset. Jobs in lock step wait for these reports, so
theirs are sent more often, and repeated. This module has no clock: times are arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from brand.errors import ProtocolError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.peers.announcements import Announcements, as_client
from brand.node.decide.peers.peers import PeerTable
from brand.node.decide.sharing.job_sharing import JobSharing
from brand.node.decide.state.epoch_table import Key
from brand.node.wire.numbers import NodeNumber, RunNumber
from brand.node.wire.peer_messages import EpochReleased, JoinVote, LeadingOffset, Vote
from brand.reprs import Reprs

TELL_S: Final = 0.25
"""Shortest time between two reports of a node's leading offsets."""
REPORTS_OF_WINDOW: Final = 8
"""A job in lock step is reported earlier if it has drawn this share of its window since its last report."""
MAX_DRAWN: Final = 1 << 62


class JoinAnnouncements(Reprs, shows="_told _owed _drawn"):
    """The joins and leading offsets that this node reports to other nodes, and takes from them."""

    def __init__(self, epochs: Epochs, peers: PeerTable, announcements: Announcements, jobs: JobSharing) -> None:
        self._epochs, self._peers, self._announcements = epochs, peers, announcements
        self._sharing, self._leading, self._lockstep = jobs.joins, jobs.consensus, jobs.lockstep
        self._told: defaultdict[NodeNumber, dict[Key, Vote]] = defaultdict(dict)
        self._owed: defaultdict[NodeNumber, set[Key]] = defaultdict(set)
        """Epochs about which each node has asked."""
        self._shown: defaultdict[NodeNumber, dict[RunNumber, EpochReleased]] = defaultdict(dict)
        """Runs of clients of this node that each node knows, with the message that releases them there."""
        self._changes, self._seen = 0, (-1, -1, -1)
        self._reported_s = float("-inf")
        self._reported: dict[Key, LeadingOffset] = {}
        """The leading offsets that this node has reported last, and the time of this report."""
        self._steps = False
        """Whether ranks of this node draw in lock step."""
        self._drawn: dict[tuple[NodeNumber, RunNumber], int] = {}
        """The last reported progress of the ranks of each other node, by run."""

    # -- from other nodes --------------------------------------------------------------------------------------------

    def on_vote(self, node: NodeNumber, joining: JoinVote, now_s: float) -> None:
        """Take the joins with which another node would draw an epoch. Raises `UsageError`."""
        runs, leading = self._epochs.runs, self._leading
        number = runs.number_of(joining.name, joining.order)
        if joining.draws:
            number = runs.register(as_client(node), joining.order, joining.name, None)
        if number is None:
            return
        key = number, joining.epoch
        if leading.on_vote(node, key, joining, now_s):
            self._epochs.remake_plan(key)
        if joining.asks or (leading.vote(key).committed and not joining.said.committed):
            self._told[node].pop(key, None)
            self._owed[node].add(key)
            self._changes += 1

    def on_front(self, node: NodeNumber, front: LeadingOffset, now_s: float) -> None:
        """Take the progress of another node's ranks. Raises `ProtocolError`."""
        key, epochs = self._announcements.key_of(node, front.number), self._epochs
        if key is None:
            return
        if front.position > epochs.runs[key[0]].order.draws or front.drawn > MAX_DRAWN:
            raise ProtocolError(f"a leading offset at position {front.position:,}, after {front.drawn:,} samples")
        live = epochs.get(key)
        if live is None:
            return
        live.epoch.progress.learn_elsewhere(node, front.position)
        if front.drawn:
            self._lockstep.on_drawn_elsewhere(key)
        # The first report of a node only sets the count: its draws have no known beginning.
        before = self._drawn.get((node, key[0]), front.drawn)
        self._drawn = {which: drawn for which, drawn in self._drawn.items() if which[1] in epochs.runs}
        self._drawn[node, key[0]] = front.drawn
        if front.drawn > before:
            epochs.pacing.beat(key[0], front.drawn - before, now_s)
            self._sharing.on_drawn(key)

    def on_stream_open(self, node: NodeNumber) -> None:
        """Report everything again to a node after a stream to or from it has opened: it may have restarted.

        It may also have kept what came over the other stream, so runs are released as before.
        """
        self._leading.on_stream_open(node)
        self._told[node].clear()
        self._changes += 1

    # -- to other nodes ----------------------------------------------------------------------------------------------

    def news(self, now_s: float) -> Iterator[tuple[NodeNumber, JoinVote | EpochReleased | LeadingOffset]]:
        """Yield the changes since the last call, for each reachable node."""
        for run, reason in self._leading.wrong(now_s):
            self._announcements.disagreements.refuse_runs([run], reason)
        yield from self._joinings()
        yield from self._fronts(now_s)

    def _fronts(self, now_s: float) -> Iterator[tuple[NodeNumber, LeadingOffset]]:
        """Yield the leading offsets to report now.

        Those of jobs in lock step are repeated although they have not changed: the other node may have taken the last
        report when it did not have the epoch yet, or may have dropped the epoch since.
        """
        due = now_s - self._reported_s >= TELL_S
        if not len(self._peers) or not (due or self._steps):
            return
        found, news, self._steps = {}, [], False
        for key, live in self._epochs.lives.live():
            run, epoch = self._epochs.runs[key[0]], live.epoch
            if not (run.order.joins and live.begun and epoch.here):
                continue
            front, before = LeadingOffset(epoch.number, epoch.front(), run.drawn), self._reported.get(key)
            step = run.order.policy.lock_step
            if step is None:
                reports = due and front != before
            else:
                self._steps = True
                moved = front.position - (0 if before is None else before.position)
                reports = due or moved * REPORTS_OF_WINDOW >= step.window
            if reports:
                news.append(front)
                found[key] = front
            elif before is not None:
                found[key] = before
        self._reported = found
        if news and due:
            self._reported_s = now_s
        for peer in self._peers:
            if self._peers.is_reachable(peer.node):
                for front in news:
                    yield peer.node, front

    def _joinings(self) -> Iterator[tuple[NodeNumber, JoinVote | EpochReleased]]:
        epochs, leading = self._epochs, self._leading
        changes = epochs.changes, leading.changes, self._changes
        if self._seen == changes:
            return
        self._seen = changes
        leading.tidy()
        live = {key: None for key in epochs.lives if leading.needs_votes(key)}
        for peer in self._peers:
            if self._peers.is_reachable(peer.node):
                shown = self._shown[peer.node]
                for number in [number for number in shown if not epochs.runs.is_drawn_here(number)]:
                    yield peer.node, shown.pop(number)
                owed = self._owed.pop(peer.node, set())
                self._told[peer.node] = {key: said for key, said in self._told[peer.node].items() if key in live}
                for joining in self._tell(peer.node, [*live, *sorted(owed - live.keys())], live):
                    yield peer.node, joining

    def _tell(self, node: NodeNumber, keys: list[Key], live: dict[Key, None]) -> Iterator[JoinVote]:
        """Yield the votes about these epochs that a node does not know yet."""
        told, epochs, leading = self._told[node], self._epochs, self._leading
        for key in keys:
            run, said = epochs.runs.get(key[0]), leading.vote(key)
            if run is None or told.get(key) == said or not (said.rows or key in live):
                continue
            if key in live:
                told[key] = said
            asks, draws = key in live and not leading.has_vote(node, key), epochs.runs.is_drawn_here(key[0])
            if draws:
                self._shown[node][key[0]] = EpochReleased(run.name, run.order, None)
            yield JoinVote(run.name, run.order, key[1], said, self._sharing.known(key).lap, asks, draws)
