"""How many threads decode in a `BrandLoader(num_workers="auto")`? The fewest that feed the training loop, or else reach
the peak of throughput (Lobster, observation 3).

    Ladder   numbers of threads as rungs: what a window of time has shown -> the number for the next window
    Pace     the sums of a `Stages` and the time -> windows for the ladder, and the figures of the last one

Both are pure: the iteration brings the time, and sets the number that it gets. The number changes no batch, because
each sample has a seed of its own and batches keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RUNGS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WAITS: Final = 0.02
"""A loop that waits for more than this share of its time lacks batches."""
WORTH: Final = 1.03
"""A rung above is worth its threads where its rate is more than so many times this one's."""
ENOUGH: Final = 1.1
"""A rung below is enough where its rate is so many times what the loop needs."""
CALM: Final = 3
"""So many windows without waiting come before a step down."""
MOST_CALM: Final = 96
"""The most windows before a step down, where steps down have failed."""
FORGOTTEN: Final = 64
"""After so many windows, the rate of a rung is not known any more: data, transforms and other programs change."""
WINDOW_S: Final = 0.3
WINDOW_BATCHES: Final = 8
RAMP: Final = 4
"""The first batches of an iteration wait for requests that are small yet, and say nothing about threads."""


class ThreadTuner:
    """Numbers of threads, up to `most`, and what is known of their rates."""

    def __init__(self, most: int, *, fixed: bool = False) -> None:
        self._rungs = (most,) if fixed else (*(rung for rung in RUNGS if rung < most), most)
        self._rung = min(1, len(self._rungs) - 1)
        self._rates: dict[int, tuple[float, int]] = {}
        """By rung: samples a second, and the window that showed it last."""
        self._window = 0
        self._calm = 0
        """Windows without waiting since the last step."""
        self._patience = CALM
        self._tried = False
        """Whether the last step went down because fewer threads seemed enough."""

    def __repr__(self) -> str:
        known = {self._rungs[rung]: round(rate) for rung, (rate, _) in sorted(self._rates.items())}
        return f"ThreadTuner({self.threads} of {self._rungs[-1]} threads, samples a second: {known})"

    @property
    def threads(self) -> int:
        """The number of threads now."""
        return self._rungs[self._rung]

    def window(self, rate: float, need: float, waits: float) -> int:
        """The number of threads for the next window.

        Args:
            rate: Samples a second that this number of threads decodes when none of them rests.
            need: Samples a second that the loop takes when it does not wait.
            waits: The share of its time that the loop waited.
        """
        self._window += 1
        before = self._rate(self._rung)
        self._rates[self._rung] = (rate if before is None else (rate + before) / 2, self._window)
        if waits > WAITS:
            self._step_for_waiting()
        else:
            self._calm += 1
            if self._calm >= self._patience and self._rung > 0 and self._below() >= ENOUGH * need:
                self._rung, self._calm, self._tried = self._rung - 1, 0, True
        return self.threads

    def _step_for_waiting(self) -> None:
        if self._tried:  # a step down that fails soon is tried later next time, so that trying costs little
            failed = self._calm < self._patience
            self._patience = min(2 * self._patience, MOST_CALM) if failed else CALM
        self._calm, self._tried = 0, False
        here, below, above = (self._rate(self._rung + step) for step in (0, -1, 1))
        assert here is not None
        if below is not None and below > here:
            self._rung -= 1
        elif self._rung + 1 < len(self._rungs) and (above is None or above > WORTH * here):
            self._rung += 1

    def _below(self) -> float:
        """The rate of the rung below: as it was seen, or in proportion, which is less than it will be."""
        known, (here, _) = self._rate(self._rung - 1), self._rates[self._rung]
        return here * self._rungs[self._rung - 1] / self.threads if known is None else known

    def _rate(self, rung: int) -> float | None:
        """Samples a second of a rung; None where there is none, or where it is not known."""
        rate, seen = self._rates.get(rung, (0.0, -FORGOTTEN))
        return rate if self._window - seen < FORGOTTEN else None


class PaceWindows:
    """Windows of one loader: a window takes at least `WINDOW_S` and `WINDOW_BATCHES`, and some samples are decoded."""

    def __init__(self, ladder: ThreadTuner) -> None:
        self._ladder = ladder
        self._start_s = 0.0
        self._totals: Mapping[str, float] = {}
        self._batches = self._samples = self._ramp = 0
        self._shown: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return f"PaceWindows({self._ladder!r}, {self.to_json()})"

    @property
    def threads(self) -> int:
        """The number of threads now."""
        return self._ladder.threads

    def begin(self) -> None:
        """An iteration begins; windows begin after its first batches."""
        self._ramp = RAMP

    def batch(self, now_s: float, samples: int, totals: Mapping[str, float]) -> int:
        """The loop has trained a batch of so many samples. Returns the number of threads from now on.

        `totals` are the sums of a `Stages`.
        """
        if self._ramp:
            self._ramp -= 1
            self._begin_window(now_s, totals)
            return self.threads
        self._batches += 1
        self._samples += samples
        if now_s - self._start_s >= WINDOW_S and self._batches >= WINDOW_BATCHES:
            spent = {name: total - self._totals[name] for name, total in totals.items()}
            busy_s, loop_s = spent["decode"] + spent["collate"], spent["loop_waits"] + spent["training"]
            if spent["decoded"] and min(busy_s, spent["training"]) > 0:
                rate = self.threads * spent["decoded"] / busy_s
                need = self._samples / spent["training"]
                self._shown = rate, need
                self._ladder.window(rate, need, spent["loop_waits"] / loop_s)
                self._begin_window(now_s, totals)
        return self.threads

    def _begin_window(self, now_s: float, totals: Mapping[str, float]) -> None:
        self._start_s, self._totals, self._batches, self._samples = now_s, totals, 0, 0

    def to_json(self) -> dict[str, Any]:
        """`threads` now; of the last window, `decode_rate` of its threads, and what the loop needed, in samples/s."""
        rate, need = self._shown or (None, None)
        return {
            "threads": self.threads,
            "decode_rate": None if rate is None else round(rate, 1),
            "need": None if need is None else round(need, 1),
        }
