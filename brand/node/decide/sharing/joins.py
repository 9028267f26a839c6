"""Which runs share, which of them leads, and at which point of the shared order does a run join the others?

Runs share if their orders have the same seed and the same laps (`Policy.common`). The fastest one is the *pacemaker*; a
run with a part of the samples counts as that much slower. It stays pacemaker until another run is 10 % faster, or it
ends, or it draws nothing for a while.

A run joins at the pacemaker's *leading offset* when an epoch of it begins, and again when it has fallen off that
offset. Its order follows from its joins alone (`brand.orders.policies.shared_policy`). So decided joins are final, and
no position that a client has asked for gets another sample. This module has no clock: times are arguments. `JobJoins`
owns the joins, `Pacemakers` the choice of the pacemaker, and `Pacing` the measured rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.state.epoch import Division
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.features import NO_JOINS, Feature
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import LEAST_PACE, MAX_LAP, MOST, MOST_PACE, Join, Joins, alone
from brand.orders.order import Order
from brand.orders.policies.shared_policy import UNIT
from brand.reprs import Reprs

FASTER: Final = 1.1
"""The pacemaker changes if another run is this many times as fast. Rates that differ by less count as equal."""
LAP_END_SHARE: Final = 50
"""If a pacemaker is within this share of a lap of its end, a joining run begins with the next lap."""
LOST_SHARE: Final = 50
"""A run joins again if it is this share of a lap off the leading offset, or more than memory holds for it."""
LEAST_LOST: Final = 4096
"""The fewest samples that count as lost, if memory holds that many: loaders ask for that many at a time."""
APART_SHARE: Final = 64
"""Smallest distance between the first two joins of an epoch, as a share of its draws. Later joins are farther apart.

A new join changes the order of the samples that the run already holds for later, so a run that never finds the leading
offset would read them again and again.
"""
FOLLOWER_SHARE: Final = 0.045
"""Upper limit on the share of the data set that a following job holds for the samples that it missed.

Found by simulation: two jobs hold 0.095 of the data set together, one job 0.053.
"""
MOST_KEPT: Final = 1024
"""Number of epochs of a run, not drawn any more, whose joins are remembered for a rank that returns to them."""
PLANNING_S: Final = 1.0
"""Seconds of draws by which a new join lies ahead, so that its plan is ready in time."""


class Pacemakers(Reprs, shows="_pacemaker"):
    """The pacemakers of all runs of a node that share."""

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing) -> None:
        self._runs, self._lives, self._pacing = runs, lives, pacing
        self._pacemaker: dict[Hashable, RunNumber] = {}
        """The pacemaker of each group of runs, by the group's common key."""

    def forget_runs(self) -> None:
        self._pacemaker = {common: run for common, run in self._pacemaker.items() if run in self._runs}

    def front(self, key: Key | None) -> int | None:
        """Return the leading offset as far as this epoch's run has come, or None if its plan has none."""
        life = None if key is None else self._lives.get(key)
        if life is None or life.live is None or life.live.epoch.plan.track is None:
            return None
        return life.live.epoch.plan.track.at(life.live.epoch.progress.everywhere(life.live.epoch.here))

    def others(self, run: RunNumber) -> list[RunNumber]:
        """Return the other runs that share with this one and have an epoch under way."""
        common = self.common(run)
        if common is None:
            return []
        return [other for other in self._pacing.begun() if other != run and self.common(other) == common]

    def sharers(self, run: RunNumber, now_s: float) -> list[RunNumber]:
        """Return the other runs that share with this one and are not resting."""
        return [other for other in self.others(run) if not self.is_resting(other, now_s)]

    def is_resting(self, run: RunNumber, now_s: float) -> bool:
        """Return whether a run that shares has drawn its epoch, or is idle, and others have drawn many samples since.

        Its training may have ended while its client stays connected, or evaluate, or stand still in a notebook. It is
        resting until it draws again. A slow run in the middle of its epoch is not resting.
        """
        key = self._pacing.now(run)
        if key is None or self.common(run) is None or any(draw.key[0] == run for draw in self._lives.draws()):
            return False
        live = self._lives[key].live
        assert live is not None
        # It may begin its next epoch at once, so the others keep to their choices for a while.
        passed = self._pacing.drawn_since(run) > far(self._runs[run].order.samples)
        return passed and (live.epoch.is_drawn or self._pacing.idle(run, now_s))

    def is_away(self, run: RunNumber, now_s: float) -> bool:
        """Return whether a run draws nothing at present."""
        return self._pacing.idle(run, now_s) or self.is_resting(run, now_s)

    def slowness(self, run: RunNumber, now_s: float) -> float:
        """Return the time of a draw of this run over that of the fastest run that shares with it."""
        return max((1.0, *(self._pacing.times(run, other) or 1.0 for other in self.sharers(run, now_s))))

    def pacemaker(self, run: RunNumber, now_s: float) -> RunNumber:
        """Return the fastest of the runs that share with this one; a part of the samples counts as that much slower."""
        common = self.common(run)
        if common is None:
            return run
        together = [other for other in self._pacing.begun() if self.common(other) == common]
        able = [other for other in together if not self.is_away(other, now_s)]
        present = self._pacemaker.get(common)
        if not able:
            return run if present is None else present
        # What a run with a part of the samples reads serves the others in part.
        rates = {other: (self._pacing.pulse(other).rate or 0.0) * self._runs[other].order.draws for other in able}
        best = max(able, key=lambda other: (rates[other], self._runs[other].order.draws, -other))
        if present in able and (not rates[present] or rates[best] <= FASTER * rates[present]):
            return present
        self._pacemaker[common] = best
        return best

    def common(self, run: RunNumber) -> Hashable | None:
        """Return the common key of the runs that share with this one, or None if it shares with none."""
        order = self._runs[run].order
        return None if order.policy.common is None else (order.seed, order.policy.common)


class JobJoins(Feature, Reprs, shows="_joins pacemakers"):
    """The joins of all runs of a node. `samples`: of the data set. `alone`: there is no other node."""

    def __init__(self, epochs: Epochs, pacemakers: Pacemakers, samples: int, *, alone: bool) -> None:
        self._runs, self._lives, self._pacing = epochs.runs, epochs.lives, epochs.pacing
        self.pacemakers, self._samples, self._alone = pacemakers, samples, alone
        self._joins: dict[Key, tuple[Join, ...]] = {}
        self._wanted: dict[Key, tuple[Join, ...]] = {}
        """Joins for which a plan is being made, for a run that has fallen off the leading offset."""
        self._most: defaultdict[Key, int] = defaultdict(int)
        """The position behind all positions that clients have asked for, in each epoch."""
        self._margin: dict[Key, int] = {}
        """Draws that a run may make while its plan is made."""
        self._highest: dict[RunNumber, int] = {}
        """The highest lap that each run has drawn from."""

    def joined(self, key: Key) -> tuple[Join, ...]:
        return self._joins.get(key, ())

    def known(self, key: Key) -> Joins:
        """Return the joins of an epoch that clients may see."""
        return Joins(self.joined(key), self._highest.get(key[0], -1))

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        return bool(joins) and self._wanted.get(key) == tuple(joins)

    def learn(self, key: Key, said: Joins, *, closed: bool = True) -> None:
        """Take the joins that a client knows of an epoch, from another server or a loader state. Raises `UsageError`.

        If `closed`, the known joins stay; else the client's joins replace them.
        """
        number, epoch = key
        order = self._runs[number].order
        if not order.joins:
            raise UsageError(NO_JOINS)
        try:
            said.check_fits(self._samples, order.draws)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._add_lap(number, said.lap)
        if not closed:
            # No draw was answered with the known joins yet, so they may still change.
            self._joins |= {key: said.rows} if said.rows else {}
            return
        known, life = self.known(key), self._lives.get(key)
        if said.is_start_of(known):
            return
        if not known.is_start_of(said):
            raise UsageError(
                f"epoch {epoch} is under way, and not as the loader state says: load the state in a job of another name"
            )
        if life is not None and (life.live is not None or life.planned):
            raise UsageError(
                f"processes of one job have different states of epoch {epoch}: load its last state in all of them"
            )
        self._joins[key] = said.rows

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        """Note that a client asks for positions. Positions that were asked for keep their samples."""
        del now_s
        self._most[key] = max(self._most[key], int(positions.max()) + 1)

    def answer(self, key: Key) -> int:
        """Return how often the run has joined others in the epoch."""
        return len(self.joined(key))

    def on_drawn(self, key: Key) -> None:
        front = self.pacemakers.front(key)
        if front is not None:
            self._add_lap(key[0], (front - 1) // self._samples)

    def forget_runs(self) -> None:
        self.pacemakers.forget_runs()
        for run in [run for run in self._highest if run not in self._runs]:
            del self._highest[run]
        for known in (self._joins, self._wanted, self._margin, self._most):
            for key in [key for key in known if key[0] not in self._runs]:
                del known[key]

    def _forget_old(self, number: RunNumber) -> None:
        """Forget the joins of epochs long before the current ones of a run."""
        known = (self._joins, self._wanted, self._margin, self._most)
        idle = [key for key in sorted(set().union(*known)) if key[0] == number and self._lives.get(key) is None]
        for key in idle[:-MOST_KEPT]:
            for each in known:
                each.pop(key, None)

    def decide(self, key: Key, now_s: float, *, with_others: bool = True) -> tuple[Join, ...]:
        """Decide the joins for the plan of an epoch that has none. Without other runs the epoch is a lap of its own."""
        if self._runs[key[0]].order.joins and key not in self._joins:
            # Jobs in lock step never have laps of their own: they could not wait for each other.
            joins_others = with_others or self._runs[key[0]].order.policy.lock_step is not None
            self._joins[key] = (self._first_join(*key, now_s) if joins_others else self._own_lap(*key),)
            self._forget_old(key[0])
        return self.joined(key)

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Yield epochs whose runs have fallen off the leading offset, on one node, each with all its joins.

        `bridge`: about how many samples memory holds for runs that draw them later. Each plan is requested once.
        """
        for number in self._pacing.begun() if self._alone else ():
            order = self._runs[number].order
            if not order.policy.rejoins or not self.pacemakers.sharers(number, now_s):
                continue
            pacemaker, key = self.pacemakers.pacemaker(number, now_s), self._pacing.now(number)
            if pacemaker == number or key is None or key in self._wanted:
                continue
            mine, front = self.pacemakers.front(key), self.pacemakers.front(self._pacing.now(pacemaker))
            joins, live = self.joined(key), self._lives[key].live
            assert live is not None
            if mine is None or front is None or self._has_passed(number, front) or not 0 < len(joins) < MOST:
                continue
            limit = max(1, min(max(LEAST_LOST, self._samples // LOST_SHARE), bridge))
            apart = len(joins) * order.draws // APART_SHARE
            if abs(mine - front) <= limit or live.epoch.front() - joins[-1].position < apart:
                continue
            margin = self._margin.setdefault(key, round((self._pacing.pulse(number).rate or 0) * PLANNING_S))
            at = _unasked(self._most[key], live.epoch.division, margin)
            if at < order.draws - order.draws // APART_SHARE:
                pace = self._pace(number, pacemaker)
                lap, passed = divmod(front + margin * pace // UNIT, self._samples)
                self._wanted[key] = (*joins, Join(at, lap, passed, pace))
                yield key, self._wanted[key]

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        """Take a new plan of an epoch. Return whether it replaces the old one.

        It does not if the epoch is not `live` any more, or if draws have already passed the join.
        """
        del self._wanted[key]
        if not live:
            return False
        late = self._most[key] - joins[-1].position
        if late > 0:
            # The plan took longer than expected, so the next join is placed farther ahead.
            self._margin[key] = 2 * (self._margin.get(key, 0) + late)
            return False
        self._joins[key] = joins
        return True

    def is_resting(self, run: RunNumber, now_s: float) -> bool:
        return self.pacemakers.is_resting(run, now_s)

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        follow = sum(not runs.isdisjoint(self.pacemakers.others(run)) for run in runs) - 1
        return FOLLOWER_SHARE * order.samples * follow + 2 * LEAST_LOST if order.joins and follow > 0 else 0.0

    def facts(self, key: Key, now_s: float) -> dict[str, Any]:
        number, joins = key[0], self.joined(key)
        pacemaker = self.pacemakers.pacemaker(number, now_s)
        mine, front = self.pacemakers.front(key), self.pacemakers.front(self._pacing.now(pacemaker))
        order = self._runs[number].order
        return {
            "sets_the_pace": order.joins and pacemaker == number and bool(self.pacemakers.others(number)),
            "pace": joins[-1].pace / UNIT if joins and joins[-1].pace else None,
            "behind": None if front is None or mine is None else front - mine,
            "joins": [list(astuple(join)) for join in joins],
        }

    def _first_join(self, number: RunNumber, epoch: int, now_s: float) -> Join:
        """Return the offset of a run and the leading offset, at or just before the beginning of an epoch."""
        if self._runs[number].order.policy.lock_step is not None:  # join the first lap under way that it can draw
            least, common = max(epoch, 1 + self._highest.get(number, -1)), self.pacemakers.common(number)
            under_way = [key for key in self._lives if self.pacemakers.common(key[0]) == common and self.joined(key)]
            laps = [joins[0].lap for joins in map(self.joined, under_way) if joins[0].lap >= least]
            return alone(min(MAX_LAP, min(laps, default=least)))[0]
        begins = self._own_lap(number, epoch)
        if not self.pacemakers.sharers(number, now_s):
            return begins
        behind = self._lives.get((number, epoch - 1))
        before = None if behind is None or behind.live is None or not behind.live.begun else behind.live.epoch
        pacemaker = self.pacemakers.pacemaker(number, now_s)
        if pacemaker == number:
            if before is None or before.plan.track is None:
                return begins
            lap, front = divmod(before.plan.track.at(len(before.plan.sample_of)), self._samples)
            near = self._samples // LAP_END_SHARE
            return Join(0, lap, front, 0) if near <= front <= self._samples - near else begins
        front_now = self.pacemakers.front(self._pacing.now(pacemaker))
        if front_now is None or self._has_passed(number, front_now):
            return begins
        pace = self._pace(number, pacemaker)
        left = 0 if before is None else self._runs[number].order.draws - before.progress.everywhere(before.here)
        lap, front = divmod(front_now + left * pace // UNIT, self._samples)
        return Join(0, lap, front, pace)

    def _own_lap(self, number: RunNumber, epoch: int) -> Join:
        """Return the beginning of a lap of its own: the first lap from which no sharing run has drawn."""
        runs = (number, *self.pacemakers.others(number))
        return alone(min(MAX_LAP, max(epoch, 1 + max(self._highest.get(run, -1) for run in runs))))[0]

    def _pace(self, number: RunNumber, pacemaker: RunNumber) -> int:
        """Return 1,024 times the coordinates that pass during one draw of a run. Nearly equal rates count as equal.

        A loop that waits for its loader keeps together with others by itself, because it finds what they have read.
        """
        thinned = self._samples / self._runs[pacemaker].order.draws
        times = self._pacing.times(number, pacemaker) or 1.0
        return max(LEAST_PACE, min(MOST_PACE, round(UNIT * thinned * (1.0 if 1 / FASTER < times < FASTER else times))))

    def _has_passed(self, number: RunNumber, front: int) -> bool:
        """Return whether a run has drawn from a lap beyond this offset, so that it would see an order twice.

        Not if the run is only a little ahead of the runs that it shares with.
        """
        ahead = self._highest.get(number, -1) * self._samples - front
        return ahead > far(self._samples)

    def _add_lap(self, number: RunNumber, lap: int) -> None:
        self._highest[number] = max(self._highest.get(number, -1), lap)


def far(samples: int) -> int:
    """Return the number of draws that take a run far away from another one, in a data set of that many samples."""
    return min(samples // 4, max(LEAST_LOST, samples // LOST_SHARE))


def _unasked(most: int, division: Division, margin: int) -> int:
    """Return the first position of a round, `margin` positions behind `most`, before which clients have asked."""
    at = max(most, division.start) + margin
    return at + (division.start - at) % division.replicas
