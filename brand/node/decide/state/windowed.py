"""How far is an epoch whose plan is made in windows while it is drawn?

All samples are due at first, except those outside the subset. A window tells which samples are drawn at its positions,
and which reads are due there. So the epoch knows the samples of the positions around its draws, and needs memory for
these and for one byte a sample. The planner makes the next window before reads and draws come to its end. A sample of a
read may be drawn in a window that is not made yet, by a rank that has not begun: when the window is made, such samples
are dropped again.

Those orders are drawn in this way that can be planned in windows (`Order.windows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Division, Epoch, EpochSetting, reached, to_read
from brand.node.decide.state.states import DUE, NO_READ, ReadQueue
from brand.node.wire.messages import MOST_PLACES
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, PlanWindows, held_by, read_dtype
from brand.orders.base.random import blocks
from brand.reprs import Reprs

FIRST: Final = 1 << 16
"""Positions of the first window, which draws wait for. Each further window is twice as large as the one before it,"""
MOST: Final = 1 << 18
"""up to this many positions, which take the loop some milliseconds."""
BEHIND: Final = 1 << 17
"""Positions behind all draws that stay known: a slow worker may be there. Those further behind were skipped."""
ASIDE: Final = 16
"""Windows that are known apart from the draws, for positions that a rank repeats or draws ahead of others."""


class KnownPlaces(Reprs, shows="first end"):
    """The place of the sample at each position, as far as it is known. Positions `first` to `end` - 1 are."""

    def __init__(self, draws: int) -> None:
        self._draws = draws
        self.first = self.end = 0
        self._windows: list[PlanWindow] = []
        """Consecutive windows."""
        self._aside: list[PlanWindow] = []
        """Other windows, the last one that was made last."""

    def __len__(self) -> int:
        return self._draws

    def __getitem__(self, at: Any) -> Any:
        """Return the places at positions that are known: a number, an array, or a slice."""
        if isinstance(at, slice):
            return self._at(np.arange(*at.indices(self._draws)))
        if isinstance(at, np.ndarray):
            return self._at(at)
        return self._at(np.array([at]))[0]

    def has(self, positions: NDArray[np.int64]) -> bool:
        """Return whether the places at all of these positions are known."""
        return self.first <= int(positions.min()) <= int(positions.max()) < self.end or not len(self.missing(positions))

    def missing(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of these positions whose places are not known."""
        positions = positions[(positions < self.first) | (positions >= self.end)]
        for window in self._aside:
            positions = positions[(positions < window.first) | (positions >= window.end)]
        return positions

    def begin(self, position: int) -> None:
        """Know positions from this one on."""
        self.first = self.end = position

    def add(self, window: PlanWindow) -> None:
        """Know a window: the next one, or one of other positions."""
        if window.first == self.end:
            self._windows.append(window)
            self.end = window.end
        else:
            self._aside = [*self._aside[1 - ASIDE :], window]

    def forget_before(self, position: int) -> NDArray[Any]:
        """Forget the windows that end before a position. Return the places there."""
        count = sum(window.end <= position for window in self._windows)
        gone, self._windows = self._windows[:count], self._windows[count:]
        self.first = gone[-1].end if gone else self.first
        return np.concatenate([np.arange(0), *(window.sample_of for window in gone)])

    def parts(self, first: int = 0) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield each window's first position and its places, from position `first` on."""
        for window in self._windows:
            if window.end > first:
                skipped = max(0, first - window.first)
                yield window.first + skipped, window.sample_of[skipped:]

    def _at(self, positions: NDArray[Any]) -> NDArray[Any]:
        if not len(positions):
            return np.arange(0)
        low, high = int(positions.min()), int(positions.max())
        for window in self._windows:
            if window.first <= low and high < window.end:
                here: NDArray[Any] = window.sample_of[positions - window.first]
                return here
        found = np.empty(len(positions), np.int64)
        left = np.ones(len(positions), np.bool_)
        for window in (*self._windows, *self._aside):
            inside = left & (positions >= window.first) & (positions < window.end)
            found[inside] = window.sample_of[positions[inside] - window.first]
            left &= ~inside
        assert not left.any(), "a position whose sample is not known yet"
        return found


class WindowedReadQueue(ReadQueue):
    """The reads of the windows that are known, numbered in the order in which they are known."""

    def add(self, plan: EpochPlan, wanted: NDArray[np.bool_]) -> None:
        """Take a plan that knows further reads. Queue those of them that are wanted, behind all others."""
        assert plan.reads is not None
        self._plan, first = plan, len(plan.reads) - len(wanted)
        self._soon = np.concatenate((self.rest(), first + np.flatnonzero(wanted)), dtype=np.int32)
        self._at = 0

    def put_back_all(self) -> None:
        """Queue all known reads again, even if they have started."""
        self._soon, self._at = np.arange(self._plan.read_count, dtype=np.int32), 0

    def put_back(self, places: NDArray[Any]) -> None:
        """Queue the known reads of these places again, even if they have started."""
        if not len(places):
            return
        reads, size = self._plan.reads, self._plan.mapping.chunk_size
        assert reads is not None
        first = reads["chunk"].astype(np.int64) * size + reads["first"]
        order = np.argsort(first)
        at = np.searchsorted(first, places, side="right", sorter=order) - 1
        numbers = order[at[at >= 0]]
        inside = places[at >= 0] < first[numbers] + reads["count"][numbers]
        if self._passed is not None:
            self._passed[places // size] = False
        self._soon, self._at = np.union1d(self.rest(), numbers[inside]).astype(np.int32), 0


@dataclass(frozen=True, slots=True)
class NextWindow:
    """The window that an epoch needs next."""

    windows: PlanWindows
    first: int
    end: int
    begins: bool
    """Whether it is the first one: then the reads that are due before it are needed, too."""

    def make(self) -> tuple[PlanWindow, OpenReads | None]:
        """Return the window, and the reads that are due before it."""
        open_reads = self.windows.open_reads(self.first) if self.begins else None
        return self.windows.window(self.first, self.end), open_reads


class WindowedEpoch(Epoch):
    """The progress of one epoch with the plan `windows`, on a node that is alone. `room`: samples that memory holds."""

    at_first = DUE

    def __init__(self, windows: PlanWindows, division: Division, number: int, setting: EpochSetting, room: int) -> None:
        self._known = KnownPlaces(windows.draws)
        self._table = np.empty(windows.read_count, read_dtype(windows.mapping))
        """The reads that are known. The system gives it memory as far as it is filled."""
        places = cast("NDArray[Any]", self._known)  # plans of active epochs are indexed by positions, and no more
        plan = EpochPlan(windows.mapping, places, self._table[:0], subset=windows.subset)
        super().__init__(plan, division, number, setting)
        self._source, self._room = windows, room
        self.reads: WindowedReadQueue = WindowedReadQueue(self.plan)
        buffer = 2 * windows.mapping.groups * windows.mapping.chunk_size
        self._buffer = buffer * windows.draws // windows.mapping.samples
        """About how many positions pass from the first draw of a stripe to its last one."""
        self._fronts: dict[int, int] = {}
        """Position before which each known rank had drawn all its positions at a node when it began, by its seat."""
        self._begun = False
        self._whole = False
        """Whether draws are so far apart that all positions have to be known."""
        self._asked: NextWindow | None = None
        """The window that the planner makes."""
        self._size = FIRST
        """Positions of the next window."""
        self._last = 0
        """Number of the first read of the last window."""

    @property
    def source(self) -> PlanWindows:
        return self._source

    def decides(self, positions: NDArray[np.int64]) -> bool:
        return self._known.has(positions)

    @property
    def known(self) -> range:
        return range(self._known.first, self._known.end)

    @property
    def waits_for_plan(self) -> bool:
        return self._asked is not None

    def positions_of(self, rank: int, front: int = 0) -> NDArray[np.int64]:
        known = self.known
        positions = np.arange(max(front, known.start), known.stop)
        found: NDArray[np.int64] = positions[self.division.ranks_of(positions) == rank]
        return found

    def places_from(self, first: int, most: int) -> NDArray[Any]:
        end = min(first + most, self._known.end)
        return self._known[first:end] if self._known.first <= first < end else np.arange(0)

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        # The reads may be in the window that is being made.
        return not self.waits_for_plan and self.decides(positions) and super().waits_for_reads(positions)

    # -- ranks -------------------------------------------------------------------------------------------------------

    def expecting(
        self, seats: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """Add ranks that draw. Windows that are known are visited, later ones when they are made."""
        del read_of
        new = {seat: node for seat, node in seats.items() if seat not in self.seats}
        if not new:
            return
        if not self.seats:
            self.reads.put_back_all()
            yield from self._leave_out_others()
        self.seats |= new
        for seat, node in new.items():
            front = self._fronts[seat] = fronts.get(seat, 0)
            if seat in fronts:
                self.progress.note_front(seat // self.division.spans, front)
            self.progress.expect(self._work(seat, node))
        wanted = [np.arange(0)]
        for first, places in self._known.parts():
            positions = np.arange(first, first + len(places))
            ranks_of = self.division.ranks_of(positions)
            for seat, node in new.items():
                mine = (ranks_of == seat // self.division.spans) & (positions >= self._fronts[seat])
                wanted.append(self._to_read_for(node, places[mine]))
            yield len(places)
        self.reads.put_back(np.concatenate(wanted))

    def _work(self, seat: int, node: NodeNumber) -> int:
        """Return how many samples this node delivers for a rank at a node, about."""
        del node
        return self.division.count(seat // self.division.spans, self._fronts[seat])

    def _leave_out_others(self) -> Iterator[int]:
        """Release the samples outside the subset, which are due at first as all are. Yield their number in steps."""
        subset = self._source.subset
        if subset is not None:
            for part in blocks(subset.samples):
                self.states.release_others(part, subset.part(part.start, part.stop))
                yield part.stop - part.start

    @property
    def _start(self) -> int:
        """Position before which no rank draws, except a slow one."""
        return min(len(self._known), max(self.division.start, min(self._fronts.values(), default=0) - BEHIND))

    @property
    def _knows_all_ranks(self) -> bool:
        return len(self.seats) >= self.division.seats

    # -- windows -----------------------------------------------------------------------------------------------------

    @property
    def asked_behind(self) -> list[NDArray[np.int64]]:
        """Positions that other nodes asked for, and that are not known any more."""
        return []

    def next_window(self, waiting: Iterable[NDArray[np.int64]]) -> NextWindow | None:
        """Return the window to make now, if there is one. `waiting`: positions of draws that wait."""
        known, draws = self._known, len(self._known)
        if self._asked is not None or (known.first == 0 and known.end == draws):  # this is asked at each step
            return None
        if not self._begun:
            known.begin(min(draws, self._start // MOST_PLACES * MOST_PLACES))
        unknown = [positions for positions in (*waiting, *self.asked_behind) if not known.has(positions)]
        if not unknown and not self._whole and not self._needs_more():  # as in nearly all steps of the loop
            return None
        missing = np.concatenate([np.arange(0), *map(known.missing, unknown)])
        beyond = missing[(missing < known.first) | (missing >= known.end + MOST)]
        blocks = np.unique(beyond // FIRST)
        self._whole = self._whole or len(blocks) > ASIDE // 2
        if known.end < draws and (self._whole or self._needs_more() or len(beyond) < len(missing)):
            end = draws if self._whole else min(draws, max(known.end, self._start) + self._size)
            self._asked = NextWindow(self._source, known.end, end, not self._begun)
            self._size = min(2 * self._size, MOST)
        elif self._whole and len(beyond):
            self._asked = NextWindow(self._source, 0, known.first, begins=False)
        elif len(beyond):
            first = int(blocks[0]) * FIRST
            self._asked = NextWindow(self._source, first, min(first + FIRST, draws), begins=False)
        return self._asked

    def _needs_more(self) -> bool:
        """Whether reads or ranks will soon be past the positions that are known."""
        if not self.seats:
            return False
        ahead = self._known.end - reached(self)
        if not self._knows_all_ranks and ahead < self._room + self._buffer:
            return True  # the samples of ranks that have not begun take memory until their windows are made
        number = self.reads.next
        return ahead < self._room + MOST and (number is None or number >= self._last)

    def add_window(self, window: PlanWindow, open_reads: OpenReads | None) -> NDArray[Any]:
        """Take a window that is made. Return the places that were held and that nobody will draw."""
        self._asked = None
        if open_reads is not None:
            self._begun = True
            held = self.states.release(open_reads.drawn)
            assert not held.any(), "a sample from before the first position"
            self._queue(open_reads.reads)
        is_next = window.first == self._known.end
        self._known.add(window)
        if not is_next:
            drawn = window.sample_of[: max(0, self._known.first - window.first)]  # or left out
            return drawn[self.states.release(drawn)]
        held = self._leave_out(window)
        self._queue_window(window)
        skipped = self._known.forget_before(0 if self._whole else self._passed - BEHIND)
        return np.concatenate((held, skipped[self.states.release(skipped)]))

    @property
    def _passed(self) -> int:
        """Position before which no rank draws any more."""
        return self.front()

    def _leave_out(self, window: PlanWindow) -> NDArray[Any]:
        """Release the samples of a window that no known rank will draw. Return the places that were held."""
        if self._knows_all_ranks and max(self.progress.start, *self._fronts.values()) <= window.first:
            return np.arange(0)
        places, ranks_of, drawn = self._drawn(window)
        unasked, out = places[~np.isin(ranks_of, self.here) & ~drawn], places[drawn]
        return np.concatenate((unasked[self.states.do_not_ask(unasked)], out[self.states.release(out)]))

    def _drawn(self, window: PlanWindow) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the places of a window, the rank of each, and whether the rank had drawn it when it began."""
        positions = np.arange(window.first, window.end)
        ranks_of = self.division.ranks_of(positions)
        fronts = np.full(self.division.seats, self.progress.start)
        fronts[list(self._fronts)] = [max(self.progress.start, front) for front in self._fronts.values()]
        fronts = fronts.reshape(-1, self.division.spans).min(axis=1)
        return window.sample_of, ranks_of, positions < fronts[ranks_of]

    def _queue_window(self, window: PlanWindow) -> None:
        """Queue the reads of the next window."""
        assert window.reads is not None, "single reads are queued by `WindowedSingleReads`"
        self._last = self.plan.read_count
        self._queue(window.reads)

    def _queue(self, reads: NDArray[np.void]) -> None:
        """Queue the reads of a window that load samples which are due."""
        of, places = held_by(reads, self.plan.mapping, self.plan.subset)
        starts = np.flatnonzero(np.diff(of, prepend=-1))  # each read holds samples
        wanted = self._to_read(places)
        known = self.plan.read_count
        self._table[known : known + len(reads)] = reads
        self.plan = replace(self.plan, reads=self._table[: known + len(reads)])
        self.reads.add(self.plan, np.logical_or.reduceat(wanted, starts) if len(starts) else wanted)

    def _to_read(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the samples that are due and have to be read."""
        due = to_read(self, places)
        spared = due & self._setting.limits.need_no_read(places)
        self.states.need_no_read(places[spared])
        return due & ~spared

    # -- samples that are to be read after all ------------------------------------------------------------------------

    def _to_read_for(self, node: NodeNumber, places: NDArray[Any]) -> NDArray[Any]:
        """Expect samples that a new rank draws at a node. Return those that have to be read."""
        self._expect_for(node, places)
        return places[self._to_read(places)]

    def read_again(self, places: NDArray[np.intp]) -> None:
        places = places[self.states.are(NO_READ, places)]
        self.states.expect(places)
        self.reads.put_back(places[self._to_read(places)])

    def hold(self, places: NDArray[np.intp], front: int) -> NDArray[np.intp]:
        del front
        places = places[self.states.are(NO_READ, places) | self.states.due(places)]
        self.states.expect(places)
        self.states.mark_present(places)
        return places

    def give_up_before(self, position: int) -> NDArray[Any]:
        first, end = max(self.progress.start, self._known.first), min(position, self._known.end)
        before: NDArray[Any] = self._known[first:end] if first < end else np.arange(0)
        self.progress.skip_to(position)
        held: NDArray[Any] = before[self.states.release(before)]
        return held
