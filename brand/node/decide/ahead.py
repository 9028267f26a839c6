"""Which samples are prepared next? Those in memory, of the epoch whose draws come to them soonest, in draw order.

Of each live epoch, positions before a cursor need nothing more. From there on, some samples are not in memory yet, so a
bounded stretch of positions is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.early import draws_before
from brand.node.decide.epoch import Epoch
from brand.node.decide.epochs import Epochs
from brand.node.decide.lives import Key
from brand.node.decide.states import HELD
from brand.node.decide.wants import Wants
from brand.node.memory.prepared import RAW, PreparedMemory, Shelf
from brand.node.wire.numbers import RunNumber

STEP: Final = 1024
"""Positions that are looked at together."""
STEPS: Final = 16
"""The most steps from the cursor on."""


@dataclass(frozen=True, slots=True, eq=False)
class Next:
    """Samples to prepare: of a want, for a run, by place."""

    run: RunNumber
    want: int
    places: NDArray[Any]


class Ahead:
    """What ranks of this node still draw of one epoch, and how far that is prepared, by want."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self._undrawn = np.zeros(epoch.plan.mapping.samples, np.bool_)
        """By place."""
        self._ranks: set[int] = set()
        self._start = 0
        """Positions before this one are given up."""
        self._cursors: dict[int, int] = {}
        """By want; where there is none, that is the front of the draws."""
        self.look()

    def __repr__(self) -> str:
        return f"Ahead(epoch {self.epoch.number}, {np.count_nonzero(self._undrawn)} undrawn, cursors {self._cursors})"

    def look(self) -> None:
        """Ranks may have come, and positions may have been given up."""
        sample_of, progress = self.epoch.plan.sample_of, self.epoch.progress
        for rank in set(self.epoch.here) - self._ranks:
            positions = self.epoch.division.positions(rank)
            self._undrawn[sample_of[positions[positions >= progress.front([rank])]]] = True
            self._ranks.add(rank)
            self._cursors.clear()
        if progress.start > self._start:
            self._undrawn[sample_of[self._start : progress.start]] = False
            self._start = progress.start

    def drawn(self, places: NDArray[Any]) -> None:
        """Ranks have drawn samples."""
        self._undrawn[places] = False

    def rewind(self) -> None:
        """Samples before the cursors may need to be prepared again."""
        self._cursors.clear()

    def undrawn(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Which samples a rank of this node will still draw."""
        undrawn: NDArray[np.bool_] = self._undrawn[places]
        return undrawn

    def next(self, want: int, shelf: Shelf, kept: NDArray[np.bool_], most: int) -> tuple[int, NDArray[Any]] | None:
        """The first position whose sample can be prepared, and the places of up to `most` samples from it on.

        `kept`: which samples are kept in memory, by place. None: there is nothing to prepare.
        """
        sample_of, states = self.epoch.plan.sample_of, self.epoch.states
        at = max(self._cursors.get(want, self.epoch.front()), self.epoch.progress.start)
        found: list[NDArray[Any]] = []
        first, done, looked = -1, True, 0
        for begin in range(at, len(sample_of), STEP):
            looked += not done
            if looked > STEPS:
                break
            places = sample_of[begin : begin + STEP]
            raw = self._undrawn[places] & (shelf.states(places) == RAW)
            if done:
                done = not raw.any()
                at = begin + (len(places) if done else int(raw.argmax()))
            ready = raw & (states.are(HELD, places) | kept[places])
            if ready.any():
                first = begin + int(ready.argmax()) if first < 0 else first
                found.append(places[ready])
                if sum(map(len, found)) >= most:
                    break
        self._cursors[want] = at
        return (first, np.concatenate(found)[:most]) if found else None


class Aheads:
    """The live epochs of runs whose clients want something."""

    def __init__(self, epochs: Epochs, wants: Wants) -> None:
        self._epochs, self._wants = epochs, wants
        self._aheads: dict[int, tuple[Key, Ahead]] = {}
        """By number of the epoch."""

    def __repr__(self) -> str:
        return f"Aheads({self._aheads})"

    def look(self) -> None:
        """Epochs may have begun and ended."""
        live = {
            live.epoch.number: (key, live.epoch)
            for key, live in self._epochs.lives.live()
            if self._wants.of_run(key[0])
        }
        self._aheads = {
            number: self._aheads.get(number) or (key, Ahead(epoch)) for number, (key, epoch) in live.items()
        }
        for _, ahead in self._aheads.values():
            ahead.look()

    def drawn(self, epoch: Epoch, places: NDArray[Any]) -> None:
        """Ranks have drawn samples of an epoch. What they draw before the next `look`, its progress tells."""
        if epoch.number in self._aheads:
            self._aheads[epoch.number][1].drawn(places)

    def rewind(self) -> None:
        """Samples that were prepared, or were to be, may need it again."""
        for _, ahead in self._aheads.values():
            ahead.rewind()

    def next(self, memory: PreparedMemory, kept: NDArray[np.bool_], most: int) -> Next | None:
        """Up to `most` samples to prepare: of the epoch whose next one is drawn after the fewest draws."""
        best, least = None, None
        for key, ahead in self._aheads.values():
            live, progress = self._epochs.get(key), ahead.epoch.progress
            for want in sorted(self._wants.of_run(key[0])) if live is not None else ():
                found = ahead.next(want, memory[want], kept, most)
                if live is None or found is None:
                    continue
                lead = draws_before(self._epochs, key, live) + found[0] - progress.start - progress.done
                if least is None or lead < least:
                    best, least = Next(key[0], want, found[1]), lead
        return best

    def undrawn(self, want: int, places: NDArray[Any], runs: set[RunNumber] | None = None) -> NDArray[np.bool_]:
        """Which samples ranks of this node will still draw in live epochs that want them, of `runs` (None: all)."""
        found = np.zeros(len(places), np.bool_)
        for key, ahead in self._aheads.values():
            if want in self._wants.of_run(key[0]) and (runs is None or key[0] in runs):
                found |= ahead.undrawn(places)
        return found

    def busy(self, since_s: float) -> set[RunNumber]:
        """Runs that wait for a draw, have drawn since then, or have not begun to draw."""
        runs = {draw.key[0] for draw in self._epochs.lives.draws()}
        for run in {key[0] for key, _ in self._aheads.values()}:
            asked = [ahead.epoch.progress.asked_s for key, ahead in self._aheads.values() if key[0] == run]
            latest = max((at for at in asked if at < np.inf), default=np.inf)
            runs |= {run} if latest > since_s else set()
        return runs
