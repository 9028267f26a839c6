"""At which point does a run on several nodes join others: which node decides it, and when is the decision final?

The *leader*, node 0, decides with which joins an epoch is planned. If the leader does not answer in time, the node
of the run's rank 0 decides that the run joins nobody; for a run in lock step, it decides as the leader would. Every
node sends all other nodes the joins with which it would draw an epoch (its `Vote`). A draw waits until the joins are
*committed*: all nodes with ranks of the run vote the same.

Until then a node that receives better joins adopts them, and never adopts worse ones. Committed joins are the best
ones, so all nodes adopt them. An epoch is never committed with two different joins, no matter which node decides,
which messages are lost and which server restarts: for that, two nodes that wait for each other's old joins would both
have to change theirs, and one of them to worse ones. A draw that waits too long for a commit is refused. This module
has no clock: times are arguments. `JoinConsensus` owns the votes; `JobJoins` owns the joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brand.node.decide.sharing.joins import JobJoins
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.features import Feature
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Run, Runs
from brand.node.wire.numbers import FIRST_NODE, NodeNumber, RunNumber
from brand.node.wire.peer_messages import JoinVote, Vote
from brand.orders.base.joins import Join, Joins
from brand.reprs import Reprs

LEADER: Final = FIRST_NODE
ANSWER_S: Final = 2.0
"""If the leader sends no joins for this long, the node of the run's rank 0 decides."""
MAX_UNSEEN: Final = 1024
"""Limit on the epochs without an entry for which votes of other nodes are remembered."""
LIMIT_S: Final = 30.0
"""A draw is refused if its joins are not committed after this long."""


class JoinConsensus(Feature, Reprs, shows="_committed _theirs"):
    """The votes of the nodes on the joins of each epoch, and the committed joins: on one node, all joins."""

    def __init__(self, runs: Runs, lives: EpochTable, sharing: JobJoins, members: Members) -> None:
        self._runs, self._lives, self._sharing, self._members = runs, lives, sharing, members
        self._committed: set[Key] = set()
        self._led: set[Key] = set()
        """Epochs whose joins the leader has decided."""
        self._theirs: dict[tuple[NodeNumber, Key], Vote] = {}
        """The last votes of the other nodes. Forgotten when a stream opens, because that node may have restarted."""
        self._unseen: set[Key] = set()
        """Epochs that had no entry here when another node voted on them."""
        self._since_s: dict[Key, float] = {}
        """Since when this node waits for the leader's joins."""
        self._wrong: dict[RunNumber, str] = {}
        """Runs whose epochs were committed with different joins, and the message for their clients."""
        self.changes = 0
        """Number of changes that this node reports to other nodes."""

    def needs_votes(self, key: Key) -> bool:
        """Return whether nodes have to agree on the joins of an epoch."""
        run = self._runs.get(key[0])
        return self._members.nodes > 1 and run is not None and run.order.joins

    def vote(self, key: Key) -> Vote:
        return Vote(key in self._committed, key in self._led, self._sharing.joined(key))

    def has_vote(self, node: NodeNumber, key: Key) -> bool:
        return (node, key) in self._theirs

    def is_committed(self, key: Key) -> bool:
        if key in self._committed or not self.needs_votes(key):
            return True
        rows = self._sharing.joined(key)
        if not rows or self._silent(key):
            return False
        self._committed.add(key)
        self.changes += 1
        return True

    def known(self, key: Key) -> Joins:
        """Return the joins that clients may see: none before they are committed."""
        known = self._sharing.known(key)
        return known if self.is_committed(key) else Joins((), known.lap)

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        known = self._sharing.joined(key)
        if known or not self.needs_votes(key):
            return self._sharing.decide(key, now_s)
        if self._members.node == LEADER:
            self._led.add(key)
            self.changes += 1
            return self._sharing.decide(key, now_s)
        if now_s - self._since_s.setdefault(key, now_s) > ANSWER_S and self._decides_for_leader(key):
            run = self._runs[key[0]]
            how = "without joining other jobs" if run.order.policy.lock_step is None else "as this node knows the jobs"
            self._runs.notice(f"node {LEADER} does not answer: job {run.name} reads epoch {key[1]} {how}")
            self.changes += 1
            return self._sharing.decide(key, now_s, with_others=False)
        return None

    def wrong(self, now_s: float) -> Iterator[tuple[RunNumber, str]]:
        """Return the runs that cannot continue, with the reasons."""
        yield from self._wrong.items()
        for draw in self._lives.draws() if self._members.nodes > 1 else ():
            run, epoch = draw.key
            if now_s - draw.since_s > LIMIT_S and not self.is_committed(draw.key):
                silent = ", ".join(map(str, self._silent(draw.key) or [LEADER]))
                yield (
                    run,
                    f"nodes have not agreed within {LIMIT_S:.0f} s how job {self._runs[run].name} joins other jobs in "
                    f"epoch {epoch}: no vote from node {silent}; restart its server, or use order='stripes'",
                )

    # -- from clients and other nodes --------------------------------------------------------------------------------

    def learn(self, key: Key, said: Joins) -> bool:
        """Commit the joins that a client knows of an epoch, from another server or from a loader state.

        Returns whether a plan that was made for the epoch is void. Raises `UsageError`.
        """
        before = self._sharing.joined(key)
        closed = not self.needs_votes(key) or key in self._committed
        self._sharing.learn(key, said, closed=closed)
        if closed or not said.rows:
            return False
        self._committed.add(key)
        self.changes += 1
        return before not in ((), said.rows)

    def on_vote(self, node: NodeNumber, key: Key, joining: JoinVote, now_s: float) -> bool:
        """Take another node's vote on an epoch. Return whether this node's plan of the epoch is void."""
        self._sharing.learn(key, Joins((), joining.lap), closed=False)
        if self._lives.get(key) is None and key not in self._unseen:
            if len(self._unseen) == MAX_UNSEEN:
                return False
            self._unseen.add(key)
        if not joining.said.rows and self._members.node == LEADER:
            self.joins(key, now_s)
        theirs, mine = joining.said, self.vote(key)
        self._theirs[node, key] = theirs
        if mine.committed and theirs.committed and mine.rows != theirs.rows:
            self._wrong[key[0]] = (
                f"nodes {self._members.node} and {node} disagree how job {joining.name} joined other jobs in epoch "
                f"{key[1]}: give all ranks the same state"
            )
        if mine.committed or theirs <= mine:
            return False
        self._sharing.learn(key, Joins(theirs.rows, joining.lap), closed=False)
        if theirs.committed:
            self._committed.add(key)
        if theirs.from_leader:
            self._led.add(key)
        self.changes += 1
        return mine.rows not in ((), theirs.rows)

    def on_stream_open(self, node: NodeNumber) -> None:
        """Forget the votes of a node after a stream to or from it has opened: it may have restarted."""
        self._theirs = {which: said for which, said in self._theirs.items() if which[0] != node}
        self.changes += 1

    def forget_runs(self) -> None:
        for known in (self._committed, self._led, self._unseen):
            known -= {key for key in known if key[0] not in self._runs}
        self._wrong = {run: reason for run, reason in self._wrong.items() if run in self._runs}

    def tidy(self) -> None:
        """Forget the votes on epochs that have no entry any more, and those that have no joins either."""
        for known in (self._committed, self._led):
            known -= {key for key in known if not self._sharing.joined(key) and self._lives.get(key) is None}
        self._theirs = {which: said for which, said in self._theirs.items() if self._lives.get(which[1]) is not None}
        self._unseen = {key for key in self._unseen if self._lives.get(key) is None}
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if self._lives.get(key) is not None}

    def _silent(self, key: Key) -> list[NodeNumber]:
        """Return the nodes that may have ranks of the run and have not voted as this node on an epoch."""
        mine, nothing = self.vote(key), Vote()
        said = {node: self._theirs.get((node, key), nothing) for node in self._with_ranks(self._runs[key[0]])}
        return [node for node, vote in said.items() if (vote.from_leader, vote.rows) != (mine.from_leader, mine.rows)]

    def _with_ranks(self, run: Run) -> list[NodeNumber]:
        """Return the other nodes that may have ranks of a run: all of them, unless the node of each rank is known."""
        homes = [run.known(replicas) for replicas in _replicas(run)]
        if len(homes) == 1 and len(homes[0]) >= max(_replicas(run)):
            return sorted(set(homes[0].values()) - {self._members.node})
        return self._members.others

    def _decides_for_leader(self, key: Key) -> bool:
        """Return whether this node decides in the leader's place: it has rank 0 of the run."""
        run = self._runs[key[0]]
        return any(run.known(replicas).get(0) == self._members.node for replicas in _replicas(run))


def _replicas(run: Run) -> set[int]:
    """Return the numbers of ranks with which ranks of a run have begun."""
    return {reader.begin.replicas for reader in run.readers.values()}
