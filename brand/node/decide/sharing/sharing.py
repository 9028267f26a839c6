"""Where does a run join those that it shares with?

A run joins where the pacemaker's *front* is: as its epochs begin, and again where it has lost the front. What it draws
follows from its joins alone (`brand.orders.policies.following`), so they stand once they are decided, and no position
that a client has asked for gets another sample. No clock is here: times are arguments. `JobJoins` owns the joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from brand.errors import UsageError
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.sharing.pacemakers import Pacemakers
from brand.node.decide.state.division import Division
from brand.node.decide.state.features import NO_JOINS
from brand.node.decide.state.lives import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import LEAST_PACE, MAX_LAP, MOST, MOST_PACE, Join, Joins, alone
from brand.orders.policies.following import UNIT

LAP_END_SHARE: Final = 50
"""A pacemaker so near the end of a lap, as a share of it, begins with the next one."""
LOST_SHARE: Final = 50
"""A run joins anew where it is this share of a lap off the front, or more than memory holds for it."""
LEAST_LOST: Final = 4096
"""The least samples that count as lost, if memory holds as many: loaders ask for so many at a time."""
APART_SHARE: Final = 64
"""Two joins of an epoch are at least this share of its draws apart."""
PLANNING_S: Final = 1.0
"""A run joins anew so far ahead of its draws, in seconds of these, that the plan is made before they get there."""


class JobJoins:
    """The joins of all runs of a node. `samples`: of the data set."""

    def __init__(self, runs: Runs, lives: EpochTable, samples: int, pacing: Pacing, pacemakers: Pacemakers) -> None:
        self._runs, self._lives, self._samples = runs, lives, samples
        self._pacing, self.pacemakers = pacing, pacemakers
        self._joins: dict[Key, tuple[Join, ...]] = {}
        self._wanted: dict[Key, tuple[Join, ...]] = {}
        """Joins for which a plan is being made, for a run that has lost the front."""
        self._most: defaultdict[Key, int] = defaultdict(int)
        """The position behind all that clients have asked for, in each epoch."""
        self._margin: dict[Key, int] = {}
        """Draws that a run may make while its plan is made."""
        self._highest: dict[RunNumber, int] = {}
        """The highest lap that each run has drawn from."""

    def __repr__(self) -> str:
        return f"JobJoins({self._joins}, {self.pacemakers!r})"

    # -- questions ---------------------------------------------------------------------------------------------------

    def joins(self, key: Key) -> tuple[Join, ...]:
        """The joins of an epoch; none where they are not decided, or where the run's policy has none."""
        return self._joins.get(key, ())

    def known(self, key: Key) -> Joins:
        """What clients are told of an epoch."""
        return Joins(self.joins(key), self._highest.get(key[0], -1))

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        """Whether a plan with these joins is of use for an epoch that is under way."""
        return bool(joins) and self._wanted.get(key) == tuple(joins)

    # -- something happens -------------------------------------------------------------------------------------------

    def learns(self, key: Key, said: Joins, *, closed: bool = True) -> None:
        """A client says which joins an epoch had, under another server or in a state. Raises `UsageError`.

        `closed`: what is known of the epoch stays as it is. Else what the client says takes its place.
        """
        number, epoch = key
        order = self._runs[number].order
        if not order.joins:
            raise UsageError(NO_JOINS)
        try:
            said.check_fits(self._samples, order.draws)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._reaches(number, said.lap)
        if not closed:
            self._joins |= {key: said.rows} if said.rows else {}
            return
        known, life = self.known(key), self._lives.get(key)
        if said.is_start_of(known):
            return
        if not known.is_start_of(said):
            raise UsageError(
                f"epoch {epoch} is under way, and not as the state says: begin with the state, in a job of its own name"
            )
        if life is not None and (life.live is not None or life.planned):
            raise UsageError(f"processes of one job know epoch {epoch} differently: go on from its last state")
        self._joins[key] = said.rows

    def asked(self, key: Key, last: int) -> None:
        """A client asks for positions up to `last`. What was asked for once stays what it is."""
        self._most[key] = max(self._most[key], last + 1)

    def drawn(self, key: Key) -> None:
        """A run has drawn."""
        front = self.pacemakers.front(key)
        if front is not None:
            self._reaches(key[0], (front - 1) // self._samples)

    def left(self) -> None:
        """Forget runs that are gone."""
        self.pacemakers.left()
        for run in [run for run in self._highest if run not in self._runs]:
            del self._highest[run]
        for known in (self._joins, self._wanted, self._margin, self._most):
            for key in [key for key in known if key[0] not in self._runs]:
                del known[key]

    def decide(self, key: Key, now_s: float, *, with_others: bool = True) -> tuple[Join, ...]:
        """The joins with which an epoch is planned that has no plan. Without others it is a lap of its own."""
        if self._runs[key[0]].order.joins and key not in self._joins:
            self._joins[key] = (self._first_join(*key, now_s) if with_others else self._begins(*key),)
        return self.joins(key)

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Epochs that are to go on from another join, each with all its joins: their runs have lost the front.

        `bridge`: about how many samples memory holds for runs that come later. Each plan is asked for once.
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
            if mine is None or front is None or self._knows(number, front) or not 0 < len(joins) < MOST:
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

    def planned(self, key: Key, joins: tuple[Join, ...], *, live: bool = True) -> bool:
        """The plan of an epoch is made anew. Returns whether it takes the place of the old one.

        It does not where the epoch is not `live` any more, or where draws were faster: they have passed the join.
        """
        del self._wanted[key]
        if not live:
            return False
        late = self._most[key] - joins[-1].position
        if late > 0:
            self._margin[key] = 2 * (self._margin.get(key, 0) + late)
            return False
        self._joins[key] = joins
        return True

    # -- steps -------------------------------------------------------------------------------------------------------

    def _first_join(self, number: RunNumber, epoch: int, now_s: float) -> Join:
        """Where a run is, and where the front, as an epoch begins or is about to begin."""
        if self._runs[number].order.policy.lock_step is not None:  # the first lap of those under way that it can draw
            least, common = max(epoch, 1 + self._highest.get(number, -1)), self.pacemakers.common(number)
            under_way = [key for key in self._lives if self.pacemakers.common(key[0]) == common and self.joins(key)]
            laps = [joins[0].lap for joins in map(self.joins, under_way) if joins[0].lap >= least]
            return alone(min(MAX_LAP, min(laps, default=least)))[0]
        begins = self._begins(number, epoch)
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
        if front_now is None or self._knows(number, front_now):
            return begins
        pace = self._pace(number, pacemaker)
        left = 0 if before is None else self._runs[number].order.draws - before.progress.everywhere(before.here)
        lap, front = divmod(front_now + left * pace // UNIT, self._samples)
        return Join(0, lap, front, pace)

    def _begins(self, number: RunNumber, epoch: int) -> Join:
        """A lap of its own, from its beginning: the first one that no run has drawn from that shares with this one."""
        runs = (number, *self.pacemakers.others(number))
        return alone(min(MAX_LAP, max(epoch, 1 + max(self._highest.get(run, -1) for run in runs))))[0]

    def _pace(self, number: RunNumber, pacemaker: RunNumber) -> int:
        """1,024 times the coordinates that pass during a draw of a run."""
        thinned = self._samples / self._runs[pacemaker].order.draws
        return max(LEAST_PACE, min(MOST_PACE, round(UNIT * self.pacemakers.times(number, pacemaker) * thinned)))

    def _knows(self, number: RunNumber, front: int) -> bool:
        """Whether a run has drawn from a lap beyond this front: it would meet an order twice.

        Not where it is only a little ahead of those that it shares with.
        """
        ahead = self._highest.get(number, -1) * self._samples - front
        return ahead > min(self._samples // 4, max(LEAST_LOST, self._samples // LOST_SHARE))

    def _reaches(self, number: RunNumber, lap: int) -> None:
        self._highest[number] = max(self._highest.get(number, -1), lap)


def _unasked(most: int, division: Division, margin: int) -> int:
    """The first position of a round, `margin` positions behind `most`, before which clients have asked."""
    at = max(most, division.start) + margin
    return at + (division.start - at) % division.replicas
