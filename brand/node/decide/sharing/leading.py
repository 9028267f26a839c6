"""Where does a run on several nodes join others: who decides it, and from when on can no node draw otherwise?

The *leader*, node 0, decides with which joins an epoch is planned. Where the leader does not answer in time, the node
of the run's rank 0 decides that the run joins nobody. Every node tells all others with which joins it would draw an
epoch (`Vote`). No draw is answered before the joins *stand*: before all nodes that have ranks of the run say the same.

Until then a node that hears of better joins takes them over, and never worse ones. Joins that stand are the best, so
all nodes take them over. An epoch never stands with two different joins, whoever decides, whatever is lost on the way,
and whichever server starts anew: two nodes that wait for each other's old joins would both have changed theirs, and one
of them to worse ones. A draw that waits too long for this is refused. No clock is here: times are arguments. `JoinConsensus`
owns who has said what; `JobJoins` owns the joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brand.node.decide.sharing.sharing import JobJoins
from brand.node.decide.state.lives import EpochTable, Key
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Run, Runs
from brand.node.wire.joining import JoinVote, Vote
from brand.node.wire.numbers import FIRST_NODE, NodeNumber, RunNumber
from brand.orders.base.joins import Join, Joins

LEADER: Final = FIRST_NODE
ANSWER_S: Final = 2.0
"""After so long without joins of the leader, the node of the run's rank 0 decides."""
MAX_UNSEEN: Final = 1024
"""The most epochs without a life of which joins are remembered that other nodes have said."""
LIMIT_S: Final = 30.0
"""A draw whose joins do not stand after so long is refused."""


class JoinConsensus:
    """What the nodes say of the joins of each epoch, and which joins stand. On one node all joins stand."""

    def __init__(self, runs: Runs, lives: EpochTable, sharing: JobJoins, members: Members) -> None:
        self._runs, self._lives, self._sharing, self._members = runs, lives, sharing, members
        self._standing: set[Key] = set()
        self._led: set[Key] = set()
        """Epochs whose joins the leader has decided."""
        self._theirs: dict[tuple[NodeNumber, Key], Vote] = {}
        """What the other nodes have said last. Forgotten where a stream opens: the node may have started anew."""
        self._unseen: set[Key] = set()
        """Epochs that had no life here when another node said their joins."""
        self._since_s: dict[Key, float] = {}
        """Since when this node waits for the leader's joins."""
        self._wrong: dict[RunNumber, str] = {}
        """Runs whose epochs stand with different joins, and what to tell their clients."""
        self.changes = 0
        """How often something changed that this node tells other nodes."""

    def __repr__(self) -> str:
        return f"JoinConsensus({len(self._standing)} epochs stand, {self._theirs})"

    # -- questions ---------------------------------------------------------------------------------------------------

    def decides(self, key: Key) -> bool:
        """Whether nodes have to agree on the joins of an epoch."""
        run = self._runs.get(key[0])
        return self._members.nodes > 1 and run is not None and run.order.joins

    def said(self, key: Key) -> Vote:
        """What this node says."""
        return Vote(key in self._standing, key in self._led, self._sharing.joins(key))

    def knows(self, node: NodeNumber, key: Key) -> bool:
        """Whether this node knows what another one says of an epoch."""
        return (node, key) in self._theirs

    def stands(self, key: Key) -> bool:
        """Whether draws of an epoch may be answered with the joins that this node knows."""
        if key in self._standing or not self.decides(key):
            return True
        rows = self._sharing.joins(key)
        if not rows or self._silent(key):
            return False
        self._standing.add(key)
        self.changes += 1
        return True

    def known(self, key: Key) -> Joins:
        """What clients are told of an epoch: no joins before these stand."""
        known = self._sharing.known(key)
        return known if self.stands(key) else Joins((), known.lap)

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        """The joins with which an epoch is planned that has no plan; None: they are still to come."""
        known = self._sharing.joins(key)
        if known or not self.decides(key):
            return self._sharing.decide(key, now_s)
        if self._members.node == LEADER:
            self._led.add(key)
            self.changes += 1
            return self._sharing.decide(key, now_s)
        if now_s - self._since_s.setdefault(key, now_s) > ANSWER_S and self._takes_its_place(key):
            self._runs.notice(
                f"node {LEADER} does not answer: job {self._runs[key[0]].name} draws epoch {key[1]} without others"
            )
            self.changes += 1
            return self._sharing.decide(key, now_s, with_others=False)
        return None

    def wrong(self, now_s: float) -> Iterator[tuple[RunNumber, str]]:
        """Runs that cannot go on, and why."""
        yield from self._wrong.items()
        for draw in self._lives.draws() if self._members.nodes > 1 else ():
            run, epoch = draw.key
            if now_s - draw.since_s > LIMIT_S and not self.stands(draw.key):
                silent = ", ".join(map(str, self._silent(draw.key) or [LEADER]))
                yield (
                    run,
                    f"nodes have not agreed within {LIMIT_S:.0f} s where job {self._runs[run].name} joins others in "
                    f"epoch {epoch}: nothing from node {silent}; start its server again, or give order='stripes'",
                )

    # -- clients and other nodes say ---------------------------------------------------------------------------------

    def learns(self, key: Key, said: Joins) -> bool:
        """A client says which joins an epoch had, under another server or in a state: they stand.

        Returns whether a plan that was made for the epoch is void. Raises `UsageError`.
        """
        before = self._sharing.joins(key)
        closed = not self.decides(key) or key in self._standing
        self._sharing.learns(key, said, closed=closed)
        if closed or not said.rows:
            return False
        self._standing.add(key)
        self.changes += 1
        return before not in ((), said.rows)

    def hears(self, node: NodeNumber, key: Key, joining: JoinVote, now_s: float) -> bool:
        """Another node says with which joins it would draw an epoch. Returns whether this node's plan of it is void."""
        self._sharing.learns(key, Joins((), joining.lap), closed=False)
        if self._lives.get(key) is None and key not in self._unseen:
            if len(self._unseen) == MAX_UNSEEN:
                return False
            self._unseen.add(key)
        if not joining.said.rows and self._members.node == LEADER:
            self.joins(key, now_s)
        theirs, mine = joining.said, self.said(key)
        self._theirs[node, key] = theirs
        if mine.stands and theirs.stands and mine.rows != theirs.rows:
            self._wrong[key[0]] = (
                f"nodes {self._members.node} and {node} disagree where job {joining.name} joined others in epoch "
                f"{key[1]}: give all ranks the same state"
            )
        if mine.stands or theirs <= mine:
            return False
        self._sharing.learns(key, Joins(theirs.rows, joining.lap), closed=False)
        if theirs.stands:
            self._standing.add(key)
        if theirs.leads:
            self._led.add(key)
        self.changes += 1
        return mine.rows not in ((), theirs.rows)

    def opened(self, node: NodeNumber) -> None:
        """A stream to or from a node has opened: the node may have started anew, and know nothing."""
        self._theirs = {which: said for which, said in self._theirs.items() if which[0] != node}
        self.changes += 1

    def left(self) -> None:
        """Forget runs that are gone."""
        for known in (self._standing, self._led, self._unseen):
            known -= {key for key in known if key[0] not in self._runs}
        self._wrong = {run: reason for run, reason in self._wrong.items() if run in self._runs}

    def tidy(self) -> None:
        """Forget what was said of epochs that have no life any more."""
        self._theirs = {which: said for which, said in self._theirs.items() if self._lives.get(which[1]) is not None}
        self._unseen = {key for key in self._unseen if self._lives.get(key) is None}
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if self._lives.get(key) is not None}

    # -- steps -------------------------------------------------------------------------------------------------------

    def _silent(self, key: Key) -> list[NodeNumber]:
        """Nodes that may have ranks of the run, and do not say the same of an epoch as this node."""
        mine, nothing = self.said(key), Vote()
        said = {node: self._theirs.get((node, key), nothing) for node in self._with_ranks(self._runs[key[0]])}
        return [node for node, theirs in said.items() if (theirs.leads, theirs.rows) != (mine.leads, mine.rows)]

    def _with_ranks(self, run: Run) -> list[NodeNumber]:
        """The other nodes that may have ranks of a run: all of them, unless it is known where each rank is."""
        homes = [run.known(replicas) for replicas in _replicas(run)]
        if len(homes) == 1 and len(homes[0]) >= max(_replicas(run)):
            return sorted(set(homes[0].values()) - {self._members.node})
        return self._members.others

    def _takes_its_place(self, key: Key) -> bool:
        """Whether this node decides where the leader does not: it has rank 0 of the run."""
        run = self._runs[key[0]]
        return any(run.known(replicas).get(0) == self._members.node for replicas in _replicas(run))


def _replicas(run: Run) -> set[int]:
    """The numbers of ranks with which ranks of a run have begun."""
    return {reader.begin.replicas for reader in run.readers.values()}
