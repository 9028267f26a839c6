"""The hooks through which jobs that share reads take part in the steps of a node: they join and wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.sharing.early import EarlyHolds
from brand.node.decide.sharing.leading import JoinConsensus
from brand.node.decide.sharing.lockstep import Lockstep
from brand.node.decide.sharing.pacemakers import Pacemakers
from brand.node.decide.sharing.sharing import LEAST_LOST, JobJoins
from brand.node.decide.state.epoch_table import Draw, Key
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import Join, Joins
from brand.orders.order import Order
from brand.orders.policies.following import UNIT

FOLLOWER_SHARE: Final = 0.045
"""Upper limit on the share of the data set that a following job holds for the samples that it missed.

Found by simulation: two jobs hold 0.095 of the data set together, one job 0.053.
"""


class JobSharing(Feature):
    """Jobs that share the reads of one node."""

    def __init__(self, residents: Residents, epochs: Epochs, members: Members) -> None:
        runs, lives, pacing = epochs.runs, epochs.lives, epochs.pacing
        self._epochs = epochs
        self.pacemakers = Pacemakers(runs, lives, pacing)
        self.sharing = JobJoins(runs, lives, len(residents.pages_of), pacing, self.pacemakers)
        self.lockstep = Lockstep(runs, lives, pacing, self.pacemakers)
        self.early = EarlyHolds(residents, epochs, self.pacemakers)
        self.leading = JoinConsensus(runs, lives, self.sharing, members)
        self._alone = members.nodes == 1

    def __repr__(self) -> str:
        return f"JobSharing({self.sharing!r}, {self.lockstep!r}, {self.leading!r})"

    def learn(self, key: Key, said: Joins) -> Joins:
        """Take the joins that a client knows of an epoch. Return those that this node knows. Raises `UsageError`."""
        if self.leading.learn(key, said):
            self._epochs.remake_plan(key)
        return self.leading.known(key)

    # -- epochs ------------------------------------------------------------------------------------------------------

    def forget_runs(self) -> None:
        """Forget runs that have ended."""
        self.sharing.forget_runs()
        self.lockstep.forget_runs()
        self.leading.forget_runs()

    def joined(self, key: Key) -> tuple[Join, ...]:
        """Return the joins of an epoch, as far as they are decided."""
        return self.sharing.joins(key)

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        """Decide the joins for the plan of an epoch that has none. Return None if they are not known yet."""
        return self.leading.joins(key, now_s)

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Yield epochs whose runs have fallen off the leading offset, on one node, each with all its joins."""
        return self.sharing.rejoins(now_s, bridge) if self._alone else iter(())

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        """Return whether a plan with these joins is of use for an epoch that is under way."""
        return self.sharing.is_wanted(key, joins)

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        """Take a requested plan of an epoch under way. Return whether it replaces the old one."""
        return self.sharing.take_plan(key, joins, live=live)

    def is_committed(self, key: Key) -> bool:
        """Return whether draws of an epoch may be answered with the joins that this node knows."""
        return self.leading.is_committed(key)

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        """Return how many samples memory has to hold for jobs that follow the job of this order."""
        follow = sum(bool(self.pacemakers.others(run)) for run in runs) - 1
        return FOLLOWER_SHARE * order.samples * follow + 2 * LEAST_LOST if order.joins and follow > 0 else 0.0

    # -- draws -------------------------------------------------------------------------------------------------------

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        """Note that a client asks for positions of an epoch, or has taken them."""
        del now_s
        self.sharing.on_ask(key, int(positions.max()))

    def is_held_back(self, draw: Draw, now_s: float) -> bool:
        """Return whether a draw has to wait for other jobs, in lock step."""
        return self.lockstep.must_wait(draw, now_s)

    def on_drawn(self, key: Key) -> None:
        """Note that ranks of this node have drawn samples of an epoch."""
        self.sharing.on_drawn(key)

    def answer(self, key: Key) -> int:
        """Return how often the run has joined others in the epoch."""
        return len(self.sharing.joins(key))

    def facts(self, key: Key, now_s: float) -> dict[str, Any]:
        """Return the facts about how the job of an epoch keeps together with other jobs."""
        number, pacing, joins = key[0], self._epochs.pacing, self.sharing.joins(key)
        pacemaker = self.pacemakers.pacemaker(number, now_s)
        mine, front = self.pacemakers.front(key), self.pacemakers.front(pacing.now(pacemaker))
        order = self._epochs.runs[number].order
        return {
            "sets_the_pace": order.joins and pacemaker == number and bool(self.pacemakers.others(number)),
            "pace": joins[-1].pace / UNIT if joins and joins[-1].pace else None,
            "behind": None if front is None or mine is None else front - mine,
            "joins": [list(astuple(join)) for join in joins],
        }

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield clients that have waited too long for the jobs that should begin together with theirs."""
        return self.lockstep.refusals(now_s)
