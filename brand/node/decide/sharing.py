"""Which jobs draw from the same laps, which of them makes the pace, and where do the others join it?

Runs whose orders have the same seed and the same laps (`SharedPolicy.stripes`) share. The fastest one is the
*pacemaker*. The others join it where its *front* is, as their epochs begin, and again where they have lost it. What a
run draws follows from its joins alone, so they stand once they are decided. No clock is here: times are arguments.
`Sharing` owns the joins and the measured rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

from brand.errors import UsageError
from brand.node.decide.epoch import Epoch
from brand.node.decide.lives import Key, Lives
from brand.node.decide.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.protocol.following import LEAST_PACE, MOST_PACE, UNIT, Join, alone
from brand.protocol.joins import MAX_LAP, MOST, Joins

RATE_S: Final = 10.0
"""A rate is that of the last so many seconds."""
LEAST_RATE_S: Final = 2.0
"""A rate is known after so long."""
IDLE_S: Final = 2.0
"""A run that draws nothing for so long makes no pace."""
FASTER: Final = 1.1
"""The pacemaker changes where another run is so many times as fast. Rates that differ by less count as equal."""
LAP_END_SHARE: Final = 50
"""A pacemaker so near the end of a lap, as a share of it, begins with the next one."""
LOST_SHARE: Final = 50
"""A run joins anew where it is this share of a lap off the front, or more than memory holds for it."""
LEAST_LOST: Final = 4096
"""The least samples that count as lost, if memory holds as many: loaders ask for so many at a time."""
PLANNING_S: Final = 1.0
"""A run joins anew so far ahead of its draws, in seconds of these, that the plan is made before they get there."""
_KEPT_EVERY_S: Final = 0.1


class Pulse:
    """How fast a run draws."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()
        """Moments of the last seconds, and the draws before each."""
        self.drawn = 0
        self.last_s = float("-inf")

    def __repr__(self) -> str:
        return f"Pulse({self.drawn:,} drawn, {self.rate or 0:.0f}/s)"

    def beat(self, draws: int, now_s: float) -> None:
        """The run draws."""
        if self._times and now_s - self.last_s > IDLE_S:  # a rate that has a pause in it says nothing
            self._times.clear()
        self.last_s = now_s
        if not self._times or now_s - self._times[-1][0] >= _KEPT_EVERY_S:
            self._times.append((now_s, self.drawn))
            while now_s - self._times[0][0] > RATE_S:
                self._times.popleft()
        self.drawn += draws

    @property
    def rate(self) -> float | None:
        """Draws a second; None: not known yet."""
        if not self._times or self.last_s - self._times[0][0] < LEAST_RATE_S:
            return None
        since_s, before = self._times[0]
        return (self._times[-1][1] - before) / (self._times[-1][0] - since_s)

    def idle(self, now_s: float) -> bool:
        """Whether the run has drawn nothing for a while."""
        return now_s - self.last_s > IDLE_S


class Sharing:
    """The joins of all runs of a node. `samples`: of the data set."""

    def __init__(self, runs: Runs, lives: Lives, samples: int) -> None:
        self._runs, self._lives, self._samples = runs, lives, samples
        self._joins: dict[Key, tuple[Join, ...]] = {}
        self._wanted: dict[Key, tuple[Join, ...]] = {}
        """Joins for which a plan is being made, for a run that has lost the front."""
        self._most: defaultdict[Key, int] = defaultdict(int)
        """The position behind all that clients have asked for, in each epoch."""
        self._margin: dict[Key, int] = {}
        """Draws that a run may make while its plan is made, where one second's were too few."""
        self._pulses: dict[RunNumber, Pulse] = {}
        self._brought: dict[RunNumber, int] = {}
        """Samples that each run's own reads have brought."""
        self._highest: dict[RunNumber, int] = {}
        """The highest lap that each run has drawn from."""
        self._pacemaker: dict[Any, RunNumber] = {}
        """By what the runs have in common."""

    def __repr__(self) -> str:
        return f"Sharing({self._joins}, pacemakers {sorted(self._pacemaker.values())})"

    # -- questions ---------------------------------------------------------------------------------------------------

    def joins(self, key: Key) -> tuple[Join, ...]:
        """The joins of an epoch; none where they are not decided, or where the run's policy has none."""
        return self._joins.get(key, ())

    def known(self, key: Key) -> Joins:
        """What clients are told of an epoch."""
        return Joins(self.joins(key), self.highest_lap(key[0]))

    def highest_lap(self, run: RunNumber) -> int:
        """The highest lap that a run has drawn from; -1: none."""
        return self._highest.get(run, -1)

    def others(self, run: RunNumber) -> list[RunNumber]:
        """Other runs that share with this one and have an epoch under way."""
        mine = self._in_common(run)
        return [] if mine is None else [other for other in self._begun() if other != run and self._same(other, mine)]

    def slowness(self, run: RunNumber) -> float:
        """How many times as long a draw of this run takes as one of the fastest run that shares with it."""
        rates = {other: self._rate(other) for other in (run, *self.others(run))}
        mine = rates[run]
        known = [rate for rate in rates.values() if rate]
        return max(known) / mine if mine and known else 1.0

    def idle(self, run: RunNumber, now_s: float) -> bool:
        """Whether a run has drawn nothing for a while, and waits for nothing."""
        pulse = self._pulses.get(run)
        return pulse is not None and pulse.idle(now_s) and all(draw.key[0] != run for draw in self._lives.draws())

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        """Whether a plan with these joins is of use for an epoch that is under way."""
        return bool(joins) and self._wanted.get(key) == tuple(joins)

    def facts(self, now_s: float) -> list[dict[str, Any]]:
        """What users see of each run with an epoch under way, as plain values."""
        return [self._facts_of(number, now_s) for number in self._begun()]

    def _facts_of(self, number: RunNumber, now_s: float) -> dict[str, Any]:
        key, common = self._now(number), self._in_common(number)
        assert key is not None
        epoch, pulse, joins = self._epoch(key), self._pulses.get(number), self.joins(key)
        pacemaker = self._pacemaker_of(number, now_s) if common is not None else number
        leading = self._now(pacemaker)
        front = None if leading is None else self._front_of(leading)
        mine = self._front_of(key)
        drawn, brought = 0 if pulse is None else pulse.drawn, self._brought.get(number, 0)
        return {
            "job": self._runs[number].name,
            "epoch": key[1],
            "position": epoch.front(),
            "samples": self._runs[number].order.draws,
            "drawn": drawn,
            "rate": 0.0 if pulse is None or pulse.idle(now_s) else round(pulse.rate or 0.0, 1),
            "sets_the_pace": common is not None and pacemaker == number and bool(self.others(number)),
            "pace": joins[-1].pace / UNIT if joins and joins[-1].pace else None,
            "behind": None if front is None or mine is None else front - mine,
            "joins": [list(astuple(join)) for join in joins],
            "shared": max(0.0, 1 - brought / drawn) if drawn else 0.0,
        }

    # -- something happens -------------------------------------------------------------------------------------------

    def learns(self, key: Key, said: Joins) -> None:
        """A client says which joins an epoch had, under another server or in a state. Raises `UsageError`."""
        number, epoch = key
        order = self._runs[number].order
        if not order.joins:
            raise UsageError("joins of an order that has none")
        try:
            said.check_fits(self._samples, order.draws)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._highest[number] = max(self.highest_lap(number), said.lap)
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

    def drawn(self, key: Key, draws: int, now_s: float) -> None:
        """A run draws."""
        number = key[0]
        self._pulses.setdefault(number, Pulse()).beat(draws, now_s)
        front = self._front_of(key)
        if front is not None:
            self._highest[number] = max(self.highest_lap(number), (front - 1) // self._samples)

    def brought(self, epoch: Epoch, samples: int) -> None:
        """A read of an epoch has brought samples that were not in memory."""
        for key, live in self._lives.live():
            if live.epoch is epoch:
                self._brought[key[0]] = self._brought.get(key[0], 0) + samples

    def left(self) -> None:
        """Forget runs that are gone."""
        for known in (self._pulses, self._highest, self._brought):
            for number in [number for number in known if number not in self._runs]:
                del known[number]
        self._pacemaker = {common: run for common, run in self._pacemaker.items() if run in self._runs}
        for joins in (self._joins, self._wanted, self._margin, self._most):
            for key in [key for key in joins if key[0] not in self._runs]:
                del joins[key]

    def decide(self, key: Key, now_s: float) -> tuple[Join, ...]:
        """The joins with which an epoch is planned that has no plan."""
        number, epoch = key
        if not self._runs[number].order.joins:
            return ()
        if key not in self._joins:
            self._joins[key] = (self._first_join(number, epoch, now_s),)
        return self._joins[key]

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Epochs that are to go on from another join, each with all its joins: their runs have lost the front.

        `bridge`: about how many samples memory holds for runs that come later. Each plan is asked for once.
        """
        for number in self._begun():
            others = self.others(number)
            order = self._runs[number].order
            if not others or not order.policy.rejoins:
                continue
            pacemaker = self._pacemaker_of(number, now_s)
            key, leading = self._now(number), self._now(pacemaker)
            if pacemaker == number or key is None or leading is None or key in self._wanted:
                continue
            mine, front = self._front_of(key), self._front_of(leading)
            joins = self.joins(key)
            if mine is None or front is None or not joins or len(joins) >= MOST:
                continue
            limit = max(1, min(max(LEAST_LOST, self._samples // LOST_SHARE), bridge))
            position = self._epoch(key).front()
            if abs(mine - front) <= limit or position - joins[-1].position < order.draws // 64:
                continue
            margin = self._margin.setdefault(key, round((self._rate(number) or 0) * PLANNING_S))
            margin += -margin % self._epoch(key).division.replicas
            at = self._asked(key) + margin
            if at >= order.draws - order.draws // 64:
                continue
            pace = self._pace(number, pacemaker)
            front += round(margin * pace / UNIT)
            lap, passed = divmod(front, self._samples)
            self._wanted[key] = (*joins, Join(at, lap, passed, pace))
            yield key, self._wanted[key]

    def planned(self, key: Key, joins: tuple[Join, ...]) -> bool:
        """The plan of an epoch under way is made anew. Returns whether it takes the place of the old one.

        It does not where draws were faster: they have passed the join.
        """
        del self._wanted[key]
        late = self._asked(key) - joins[-1].position
        if late > 0:
            self._margin[key] = 2 * (self._margin.get(key, 0) + late)
            return False
        self._joins[key] = joins
        return True

    # -- steps -------------------------------------------------------------------------------------------------------

    def _first_join(self, number: RunNumber, epoch: int, now_s: float) -> Join:
        """Where a run is, and where the front, as an epoch begins or is about to begin."""
        others = self.others(number)
        runs = [number, *others]
        new_lap = min(MAX_LAP, max(epoch, 1 + max(self.highest_lap(run) for run in runs)))
        behind = (number, epoch - 1)
        ahead = self._now(number) == behind and self._lives.get(behind) is not None
        if not others:
            return alone(new_lap)[0]
        pacemaker = self._pacemaker_of(number, now_s)
        if pacemaker == number:
            live = self._lives.get(behind)
            plan = None if live is None or live.live is None else live.live.epoch.plan
            if not ahead or plan is None or plan.track is None:
                return alone(new_lap)[0]
            lap, front = divmod(plan.track.at(len(plan.sample_of)), self._samples)
            near = self._samples // LAP_END_SHARE
            return alone(new_lap)[0] if not near <= front <= self._samples - near else Join(0, lap, front, 0)
        leading = self._now(pacemaker)
        front_now = None if leading is None else self._front_of(leading)
        if front_now is None:
            return alone(new_lap)[0]
        pace = self._pace(number, pacemaker)
        if ahead:
            left = self._runs[number].order.draws - self._epoch(behind).front()
            front_now += left * pace // UNIT
        lap, front = divmod(front_now, self._samples)
        return Join(0, lap, front, pace)

    def _pace(self, number: RunNumber, pacemaker: RunNumber) -> int:
        """1,024 times the coordinates that pass during a draw of a run. Nearly equal rates count as equal: a loop that
        waits for its loader keeps together with others by itself, as each finds there what another one has read.
        """
        mine, theirs = self._rate(number), self._rate(pacemaker)
        times = theirs / mine if mine and theirs else 1.0
        if 1 / FASTER < times < FASTER:
            times = 1.0
        thinned = self._samples / self._runs[pacemaker].order.draws
        return max(LEAST_PACE, min(MOST_PACE, round(UNIT * times * thinned)))

    def _pacemaker_of(self, number: RunNumber, now_s: float) -> RunNumber:
        """The run that makes the pace for this one and those that share with it."""
        common = self._in_common(number)
        able = [run for run in self._begun() if self._same(run, common) and not self.idle(run, now_s)]
        present = self._pacemaker.get(common)
        if not able:
            return number if present is None else present
        best = max(able, key=lambda run: (self._rate(run) or 0.0, self._runs[run].order.draws, -run))
        if present in able and (self._rate(best) or 0.0) <= FASTER * (self._rate(present) or 0.0):
            return present
        if present in able and not self._rate(present):
            return present  # nothing says that another one is faster
        self._pacemaker[common] = best
        return best

    def _in_common(self, number: RunNumber) -> Any:
        """What runs have in common that share; None: the run shares with none."""
        order = self._runs[number].order
        return None if order.policy.common is None else (order.seed, order.policy.common)

    def _same(self, number: RunNumber, common: Any) -> bool:
        return common is not None and self._in_common(number) == common

    def _begun(self) -> list[RunNumber]:
        """Runs with an epoch under way."""
        return sorted({key[0] for key, live in self._lives.live() if live.begun})

    def _now(self, number: RunNumber) -> Key | None:
        """The last epoch that a run has begun."""
        return max((key for key, live in self._lives.live() if key[0] == number and live.begun), default=None)

    def _epoch(self, key: Key) -> Epoch:
        live = self._lives[key].live
        assert live is not None
        return live.epoch

    def _front_of(self, key: Key) -> int | None:
        """Where the front is as far as a run goes; None where its plan does not say."""
        life = self._lives.get(key)
        if life is None or life.live is None or life.live.epoch.plan.track is None:
            return None
        return life.live.epoch.plan.track.at(life.live.epoch.front())

    def _asked(self, key: Key) -> int:
        """The first position of a round such that no rank has asked for it, nor for any after it."""
        division = self._epoch(key).division
        most = max(self._most[key], division.start)
        return most + (division.start - most) % division.replicas

    def _rate(self, number: RunNumber) -> float | None:
        pulse = self._pulses.get(number)
        return None if pulse is None else pulse.rate
