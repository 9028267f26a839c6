"""At which point of the shared order does a run join the runs that it shares with?

A run joins at the pacemaker's *leading offset* when an epoch of it begins, and again when it has fallen off that
offset. Its order follows from its joins alone (`brand.orders.policies.following`). So decided joins are final, and no
position that a client has asked for gets another sample. This module has no clock: times are arguments. `JobJoins` owns
the joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from brand.errors import UsageError
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.sharing.pacemakers import Pacemakers
from brand.node.decide.state.epoch import Division
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.features import NO_JOINS
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import LEAST_PACE, MAX_LAP, MOST, MOST_PACE, Join, Joins, alone
from brand.orders.policies.following import UNIT

LAP_END_SHARE: Final = 50
"""If a pacemaker is within this share of a lap of its end, a joining run begins with the next lap."""
LOST_SHARE: Final = 50
"""A run joins again if it is this share of a lap off the leading offset, or more than memory holds for it."""
LEAST_LOST: Final = 4096
"""The fewest samples that count as lost, if memory holds that many: loaders ask for that many at a time."""
APART_SHARE: Final = 64
"""Smallest distance between two joins of an epoch, as a share of its draws."""
PLANNING_S: Final = 1.0
"""Seconds of draws by which a new join lies ahead, so that its plan is ready in time."""


class JobJoins:
    """The joins of all runs of a node. `samples`: of the data set."""

    def __init__(self, runs: Runs, lives: EpochTable, samples: int, pacing: Pacing, pacemakers: Pacemakers) -> None:
        self._runs, self._lives, self._samples = runs, lives, samples
        self._pacing, self.pacemakers = pacing, pacemakers
        self._joins: dict[Key, tuple[Join, ...]] = {}
        self._wanted: dict[Key, tuple[Join, ...]] = {}
        """Joins for which a plan is being made, for a run that has fallen off the leading offset."""
        self._most: defaultdict[Key, int] = defaultdict(int)
        """The position behind all positions that clients have asked for, in each epoch."""
        self._margin: dict[Key, int] = {}
        """Draws that a run may make while its plan is made."""
        self._highest: dict[RunNumber, int] = {}
        """The highest lap that each run has drawn from."""

    def __repr__(self) -> str:
        return f"JobJoins({self._joins}, {self.pacemakers!r})"

    # -- queries -----------------------------------------------------------------------------------------------------

    def joins(self, key: Key) -> tuple[Join, ...]:
        """Return the joins of an epoch; none if they are not decided, or if the run's policy has none."""
        return self._joins.get(key, ())

    def known(self, key: Key) -> Joins:
        """Return the joins of an epoch that clients may see."""
        return Joins(self.joins(key), self._highest.get(key[0], -1))

    def is_wanted(self, key: Key, joins: Sequence[Join]) -> bool:
        """Return whether a plan with these joins is of use for an epoch that is under way."""
        return bool(joins) and self._wanted.get(key) == tuple(joins)

    # -- events ------------------------------------------------------------------------------------------------------

    def learn(self, key: Key, said: Joins, *, closed: bool = True) -> None:
        """Take the joins that a client knows of an epoch, from another server or from a loader state. Raises
        `UsageError`.

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

    def on_ask(self, key: Key, last: int) -> None:
        """Note that a client asks for positions up to `last`. Positions that were asked for keep their samples."""
        self._most[key] = max(self._most[key], last + 1)

    def on_drawn(self, key: Key) -> None:
        """Note that a run has drawn."""
        front = self.pacemakers.front(key)
        if front is not None:
            self._add_lap(key[0], (front - 1) // self._samples)

    def forget_runs(self) -> None:
        """Forget runs that have ended."""
        self.pacemakers.forget_runs()
        for run in [run for run in self._highest if run not in self._runs]:
            del self._highest[run]
        for known in (self._joins, self._wanted, self._margin, self._most):
            for key in [key for key in known if key[0] not in self._runs]:
                del known[key]

    def decide(self, key: Key, now_s: float, *, with_others: bool = True) -> tuple[Join, ...]:
        """Decide the joins for the plan of an epoch that has none. Without other runs the epoch is a lap of its own."""
        if self._runs[key[0]].order.joins and key not in self._joins:
            self._joins[key] = (self._first_join(*key, now_s) if with_others else self._own_lap(*key),)
        return self.joins(key)

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Yield epochs that continue from another join, with all joins: their runs have fallen off the leading offset.

        `bridge`: about how many samples memory holds for runs that draw them later. Each plan is requested once.
        """
        for number in self._pacing.begun():
            order = self._runs[number].order
            if not order.policy.rejoins or not self.pacemakers.others(number):
                continue
            pacemaker, key = self.pacemakers.pacemaker(number, now_s), self._pacing.now(number)
            if pacemaker == number or key is None or key in self._wanted:
                continue
            mine, front = self.pacemakers.front(key), self.pacemakers.front(self._pacing.now(pacemaker))
            joins, live = self.joins(key), self._lives[key].live
            assert live is not None
            if mine is None or front is None or self._has_passed(number, front) or not 0 < len(joins) < MOST:
                continue
            limit = max(1, min(max(LEAST_LOST, self._samples // LOST_SHARE), bridge))
            if abs(mine - front) <= limit or live.epoch.front() - joins[-1].position < order.draws // APART_SHARE:
                continue
            margin = self._margin.setdefault(key, round((self._pacing.pulse(number).rate or 0) * PLANNING_S))
            at = _unasked(self._most[key], live.epoch.division, margin)
            if at < order.draws - order.draws // APART_SHARE:
                pace = self._pace(number, pacemaker)
                lap, passed = divmod(front + margin * pace // UNIT, self._samples)
                self._wanted[key] = (*joins, Join(at, lap, passed, pace))
                yield key, self._wanted[key]

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool = True) -> bool:
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

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _first_join(self, number: RunNumber, epoch: int, now_s: float) -> Join:
        """Return the offset of a run and the leading offset, at or just before the beginning of an epoch."""
        if self._runs[number].order.policy.lock_step is not None:  # join the first lap under way that it can draw
            least, common = max(epoch, 1 + self._highest.get(number, -1)), self.pacemakers.common(number)
            under_way = [key for key in self._lives if self.pacemakers.common(key[0]) == common and self.joins(key)]
            laps = [joins[0].lap for joins in map(self.joins, under_way) if joins[0].lap >= least]
            return alone(min(MAX_LAP, min(laps, default=least)))[0]
        begins = self._own_lap(number, epoch)
        if not self.pacemakers.others(number):
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
        """Return 1,024 times the coordinates that pass during one draw of a run."""
        thinned = self._samples / self._runs[pacemaker].order.draws
        return max(LEAST_PACE, min(MOST_PACE, round(UNIT * self.pacemakers.times(number, pacemaker) * thinned)))

    def _has_passed(self, number: RunNumber, front: int) -> bool:
        """Return whether a run has drawn from a lap beyond this offset, so that it would see an order twice.

        Not if the run is only a little ahead of the runs that it shares with.
        """
        ahead = self._highest.get(number, -1) * self._samples - front
        return ahead > min(self._samples // 4, max(LEAST_LOST, self._samples // LOST_SHARE))

    def _add_lap(self, number: RunNumber, lap: int) -> None:
        self._highest[number] = max(self._highest.get(number, -1), lap)


def _unasked(most: int, division: Division, margin: int) -> int:
    """Return the first position of a round, `margin` positions behind `most`, before which clients have asked."""
    at = max(most, division.start) + margin
    return at + (division.start - at) % division.replicas
