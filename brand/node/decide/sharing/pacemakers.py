"""Which runs share, and which of them is the fastest and leads?

Runs share if their orders have the same seed and the same laps (`Policy.common`). The fastest one is the *pacemaker*.
It stays pacemaker until another run is 10 % faster, or it ends, or it draws nothing for a while. This module has no
clock: times are arguments. `Pacemakers` owns the choice; `Pacing` owns the measured rates.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber

FASTER: Final = 1.1
"""The pacemaker changes if another run is this many times as fast. Rates that differ by less count as equal."""


class Pacemakers:
    """The pacemakers of all runs of a node that share."""

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing) -> None:
        self._runs, self._lives, self._pacing = runs, lives, pacing
        self._pacemaker: dict[Hashable, RunNumber] = {}
        """The pacemaker of each group of runs, by the group's common key."""

    def __repr__(self) -> str:
        return f"Pacemakers({sorted(self._pacemaker.values())})"

    def forget_runs(self) -> None:
        """Forget runs that have ended."""
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

    def slowness(self, run: RunNumber) -> float:
        """Return the time of a draw of this run over that of the fastest run that shares with it."""
        mine = self._pacing.pulse(run).rate
        known = [rate for rate in (self._pacing.pulse(other).rate for other in self.others(run)) if rate]
        return max((mine, *known)) / mine if mine else 1.0

    def times(self, run: RunNumber, than: RunNumber) -> float:
        """Return how many times as fast the run `than` is. Nearly equal rates count as equal.

        A loop that waits for its loader keeps together with others by itself, because it finds what they have read.
        """
        mine, theirs = self._pacing.pulse(run).rate, self._pacing.pulse(than).rate
        times = theirs / mine if mine and theirs else 1.0
        return 1.0 if 1 / FASTER < times < FASTER else times

    def pacemaker(self, run: RunNumber, now_s: float) -> RunNumber:
        """Return the fastest of the runs that share with this one."""
        common = self.common(run)
        if common is None:
            return run
        together = [other for other in self._pacing.begun() if self.common(other) == common]
        able = [other for other in together if not self._pacing.idle(other, now_s)]
        present = self._pacemaker.get(common)
        if not able:
            return run if present is None else present
        rates = {other: self._pacing.pulse(other).rate or 0.0 for other in able}
        best = max(able, key=lambda other: (rates[other], self._runs[other].order.draws, -other))
        if present in able and (not rates[present] or rates[best] <= FASTER * rates[present]):
            return present
        self._pacemaker[common] = best
        return best

    def common(self, run: RunNumber) -> Hashable | None:
        """Return the common key of the runs that share with this one, or None if it shares with none."""
        order = self._runs[run].order
        return None if order.policy.common is None else (order.seed, order.policy.common)
