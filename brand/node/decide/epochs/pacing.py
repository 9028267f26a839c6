"""How fast does each run draw, and which runs are idle?

This module has no clock: times are arguments. `Pacing` owns the measured rates.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import defaultdict, deque
from typing import Final

from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.reprs import Reprs

RATE_S: Final = 10.0
"""Seconds of draws over which a rate is measured."""
LEAST_RATE_S: Final = 2.0
"""Seconds of draws after which a rate is known."""
IDLE_S: Final = 2.0
"""Seconds without a draw after which a run is idle, unless its gaps between draws are usually longer."""
GAPS: Final = 64
"""Number of the last gaps between draws that give the usual gap."""
LATE: Final = 1.5
"""A run is idle once it has drawn nothing for this many times its usual gap."""
LONGEST_GAP_S: Final = 30.0
"""Upper limit of the usual gap, in seconds."""
LEAST_BEATS: Final = 4
"""The fewest draws over which a rate is measured, even if these took longer than `RATE_S`."""
_KEPT_EVERY_S: Final = 0.02


class Pulse(Reprs, shows="drawn rate"):
    """The draw rate of one run."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()
        """Moments of the last seconds, each with the number of draws before it. A row of draws has its first moment."""
        self._gaps: deque[float] = deque(maxlen=GAPS)
        """Seconds between the last draws."""
        self.drawn = 0
        self.last_s = float("-inf")

    def beat(self, draws: int, now_s: float) -> None:
        if self._times and self.idle(now_s):  # a rate over a pause is meaningless
            self._times.clear()
        gap_s, usual_s = now_s - self.last_s, self._usual_gap_s
        if self.drawn:
            self._gaps.append(gap_s)
        self.last_s = now_s
        since_s = now_s - self._times[-1][0] if self._times else math.inf
        # A rate measured from the middle of one row of draws to that of another counts too many or too few draws.
        if since_s >= max(_KEPT_EVERY_S, usual_s / 2 if gap_s >= usual_s / 2 else 2 * usual_s):
            self._times.append((now_s, self.drawn))
            while len(self._times) > LEAST_BEATS and now_s - self._times[0][0] > RATE_S:
                self._times.popleft()
        self.drawn += draws

    @property
    def rate(self) -> float | None:
        """Draws per second. None if it is not known yet."""
        known = self._times and self.last_s - self._times[0][0] >= LEAST_RATE_S
        return self.rate_since(-math.inf, moments=2) if known else None

    @property
    def since_s(self) -> float:
        """The first moment of the draws over which the rate is measured. Infinity if there are none."""
        return self._times[0][0] if self._times else math.inf

    def rate_since(self, since_s: float, moments: int = LEAST_BEATS) -> float | None:
        """Return the draws per second, without those before `since_s`. None if there were fewer moments of draws."""
        first = bisect_left(self._times, (since_s, 0))
        if len(self._times) - first < moments:
            return None
        (first_s, before), (until_s, after) = self._times[first], self._times[-1]
        return (after - before) / (until_s - first_s)

    def idle(self, now_s: float) -> bool:
        """Return whether the run has drawn nothing for longer than usual."""
        passed_s = now_s - self.last_s
        return passed_s > IDLE_S and passed_s > LATE * min(LONGEST_GAP_S, self._usual_gap_s)

    @property
    def _usual_gap_s(self) -> float:
        """Seconds that usually pass between draws: a loop with long steps draws rarely, several times in a row.

        The longest gap may be a pause, so this is the second longest one.
        """
        return heapq.nlargest(2, self._gaps)[1] if len(self._gaps) > 1 else 0.0


class Pacing(Reprs, shows="_pulses"):
    """The draw rates of all runs of a node."""

    def __init__(self, runs: Runs, lives: EpochTable) -> None:
        self._runs, self._lives = runs, lives
        self._pulses: defaultdict[RunNumber, Pulse] = defaultdict(Pulse)
        self._drawn = 0
        """Draws of all runs."""
        self._drawn_at: dict[RunNumber, int] = {}
        """Draws of all runs up to the last draw of each run."""

    def beat(self, run: RunNumber, draws: int, now_s: float) -> None:
        self._pulses[run].beat(draws, now_s)
        self._drawn += draws
        self._drawn_at[run] = self._drawn

    def drawn_since(self, run: RunNumber) -> int:
        """Return the draws of all runs since the last draw of this one. 0 if it has drawn nothing."""
        return self._drawn - self._drawn_at.get(run, self._drawn)

    def pulse(self, run: RunNumber) -> Pulse:
        return self._pulses[run]

    def times(self, run: RunNumber, than: RunNumber) -> float | None:
        """Return how many times as fast the run `than` is. None if it is not known yet.

        Both are measured over the same time: a job that begins slows others down, and their rates lag behind.
        """
        pulses = self._pulses[run], self._pulses[than]
        since_s = max(pulse.since_s for pulse in pulses)
        mine, theirs = (pulse.rate_since(since_s) for pulse in pulses)
        return theirs / mine if mine and theirs else None

    def forget_ended(self) -> None:
        for run in [run for run in self._pulses if run not in self._runs]:
            del self._pulses[run]
        self._drawn_at = {run: drawn for run, drawn in self._drawn_at.items() if run in self._runs}

    def begun(self) -> list[RunNumber]:
        return sorted({key[0] for key, live in self._lives.live() if live.begun})

    def now(self, run: RunNumber) -> Key | None:
        """Return the last epoch that a run has begun. None if it has none under way."""
        return max((key for key, live in self._lives.live() if key[0] == run and live.begun), default=None)

    def idle(self, run: RunNumber, now_s: float) -> bool:
        """Return whether a run has drawn nothing for longer than usual, and waits for nothing."""
        pulse = self._pulses[run]
        return pulse.drawn > 0 and pulse.idle(now_s) and all(draw.key[0] != run for draw in self._lives.draws())
