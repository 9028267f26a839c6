"""How fast does each run draw, and which runs draw nothing just now?

No clock is here: times are arguments. `Pacing` owns the measured rates.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from typing import Final

from brand.node.decide.state.lives import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber

RATE_S: Final = 10.0
"""A rate is that of the last so many seconds."""
LEAST_RATE_S: Final = 2.0
"""A rate is known after so long."""
IDLE_S: Final = 2.0
"""A run that draws nothing for so long is idle, where its draws are not usually farther apart."""
GAPS: Final = 64
"""The last so many gaps between draws say what is usual."""
LATE: Final = 1.5
"""A run is idle once it has drawn nothing for so many times its usual gap."""
LONGEST_GAP_S: Final = 30.0
"""A usual gap is at most so long."""
LEAST_BEATS: Final = 4
"""A rate is that of so many draws, where these took longer than `RATE_S`."""
_KEPT_EVERY_S: Final = 0.1


class Pulse:
    """How fast a run draws."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()
        """Moments of the last seconds, and the draws before each. Where draws come in a row, its first moment."""
        self._gaps: deque[float] = deque(maxlen=GAPS)
        """Seconds between the last draws."""
        self.drawn = 0
        self.last_s = float("-inf")

    def __repr__(self) -> str:
        return f"Pulse({self.drawn:,} drawn, {self.rate or 0:.0f}/s)"

    def beat(self, draws: int, now_s: float) -> None:
        """The run draws."""
        if self._times and self.idle(now_s):  # a rate that has a pause in it says nothing
            self._times.clear()
        gap_s, usual_s = now_s - self.last_s, self._usual_gap_s
        if self.drawn:
            self._gaps.append(gap_s)
        self.last_s = now_s
        since_s = now_s - self._times[-1][0] if self._times else math.inf
        # A rate from the middle of one row of draws to that of another would count too many or too few of them.
        if since_s >= max(_KEPT_EVERY_S, usual_s / 2 if gap_s >= usual_s / 2 else 2 * usual_s):
            self._times.append((now_s, self.drawn))
            while len(self._times) > LEAST_BEATS and now_s - self._times[0][0] > RATE_S:
                self._times.popleft()
        self.drawn += draws

    @property
    def rate(self) -> float | None:
        """Draws a second; None: not known yet."""
        if len(self._times) < 2 or self.last_s - self._times[0][0] < LEAST_RATE_S:
            return None
        (since_s, before), (until_s, after) = self._times[0], self._times[-1]
        return (after - before) / (until_s - since_s)

    def idle(self, now_s: float) -> bool:
        """Whether the run has drawn nothing for a while, and should have."""
        passed_s = now_s - self.last_s
        return passed_s > IDLE_S and passed_s > LATE * min(LONGEST_GAP_S, self._usual_gap_s)

    @property
    def _usual_gap_s(self) -> float:
        """How long a run usually draws nothing: a loop with long steps draws seldom, several times in a row.

        The longest gap may be a pause, so this is the second longest one.
        """
        return heapq.nlargest(2, self._gaps)[1] if len(self._gaps) > 1 else 0.0


class Pacing:
    """The rates of all runs of a node."""

    def __init__(self, runs: Runs, lives: EpochTable) -> None:
        self._runs, self._lives = runs, lives
        self._pulses: defaultdict[RunNumber, Pulse] = defaultdict(Pulse)

    def __repr__(self) -> str:
        return f"Pacing({dict(self._pulses)})"

    def pulse(self, run: RunNumber) -> Pulse:
        """How fast a run draws."""
        return self._pulses[run]

    def left(self) -> None:
        """Forget runs that are gone."""
        for run in [run for run in self._pulses if run not in self._runs]:
            del self._pulses[run]

    def begun(self) -> list[RunNumber]:
        """Runs with an epoch under way."""
        return sorted({key[0] for key, live in self._lives.live() if live.begun})

    def now(self, run: RunNumber) -> Key | None:
        """The last epoch that a run has begun; None: it has none under way."""
        return max((key for key, live in self._lives.live() if key[0] == run and live.begun), default=None)

    def idle(self, run: RunNumber, now_s: float) -> bool:
        """Whether a run has drawn nothing for a while, and waits for nothing."""
        pulse = self._pulses[run]
        return pulse.drawn > 0 and pulse.idle(now_s) and all(draw.key[0] != run for draw in self._lives.draws())
