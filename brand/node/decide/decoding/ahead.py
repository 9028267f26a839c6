"""Which samples of each rank are decoded next, and which decoded samples are evicted for them?

Each rank's samples in memory are decoded in the order of its draws. In each active epoch, the positions before a cursor
need no more work. Behind the cursor some samples are not in memory yet, so a search visits few positions.

Decoded samples whose next draw is the latest are evicted, first those that no rank of this node will draw in an epoch
under way. Draws of a run that has not drawn for a while do not count. A search for them visits all places. After a
search that found too little, the next one waits until enough samples were copied or some time has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.specs import DecodeSpecTable
from brand.node.decide.epochs.epochs import Epochs, draws_before
from brand.node.decide.state.epoch import Epoch, reached
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.states import HELD
from brand.node.memory.decoded import MADE, RAW, DecodedStore, PreparedMemory
from brand.node.wire.numbers import RunNumber
from brand.reprs import Reprs

STEP: Final = 1024
"""Positions that a search visits at once."""
STEPS: Final = 16
"""Limit on the steps of a search from the first position that needs work."""
FIRST_RATE: Final = 500.0
"""Draws per second of a run whose rate is not known yet."""
LOOK_S: Final = 1.0
"""Time between a search that found too little and the next one, if few samples were copied."""
COPIED_SHARE: Final = 64
"""A search is worthwhile once `1 / COPIED_SHARE` of the memory was copied."""
CLEARED_SHARE: Final = 16
"""A search frees `1 / CLEARED_SHARE` of the memory, from samples that no rank will draw, for those decoded next."""

Queue = tuple[RunNumber, int]
"""A rank of a run."""
Kept = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Returns whether each sample is cached, by place."""


@dataclass(frozen=True, slots=True, eq=False)
class NextToDecode:
    """Samples to decode with one decode spec (`want`), for one rank of a run, by place."""

    queue: Queue
    want: int
    places: NDArray[Any]
    lead: float
    """Number of draws before that of the first sample."""
    due_s: float
    """Seconds until the first sample is drawn, at the rate of the rank."""


class DecodeAhead(Reprs, shows="epoch.number _cursors"):
    """The samples of an epoch that ranks of this node still draw, and the progress of their decoding, by spec."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self._position = np.full(epoch.plan.mapping.samples, -1, np.int32)
        """The position at which a rank of this node will draw each place; -1 if no rank will."""
        self._ranks: set[int] = set()
        self._start = 0
        """Positions before this one are given up."""
        self._end = 0
        """The end of the known positions at the last update."""
        self._cursors: dict[int, int] = {}
        """The cursor by decode spec. If there is none, a search begins at the front of the draws."""
        self._plan = epoch.plan
        self.update()

    def update(self) -> None:
        """Take account of new ranks, positions that were given up, and a new plan after the run has joined again."""
        sample_of, progress, known = self.epoch.plan.sample_of, self.epoch.progress, self.epoch.known
        if self.epoch.plan.shares and self.epoch.plan is not self._plan:
            self._plan = self.epoch.plan
            left = np.flatnonzero(self._position[sample_of] >= 0)
            self._position[sample_of[left]] = left
            self._cursors.clear()
        new = set(self.epoch.here) - self._ranks
        for rank in new if known.stop == self._end else self.epoch.here:
            since = progress.front([rank]) if rank in new else self._end
            positions = self.epoch.positions_of(rank, since)
            self._position[sample_of[positions]] = positions
        if new:
            self._ranks |= new
            self._cursors.clear()
        self._end, given_up = known.stop, max(progress.start, known.start)
        if given_up > self._start:
            start = max(self._start, known.start)
            self._position[sample_of[start : max(start, min(progress.start, known.stop))]] = -1
            self._start = given_up

    def remove(self, places: NDArray[Any]) -> None:
        self._position[places] = -1

    def rewind(self) -> None:
        """Reset the cursors, because samples before them may need to be decoded again."""
        self._cursors.clear()

    def positions(self, places: NDArray[Any]) -> NDArray[np.float64]:
        """Return the position at which a rank of this node will draw each sample; infinity if no rank will."""
        positions = self._position[places]
        return np.where(positions < self._start, np.inf, positions)

    def next(self, want: int, shelf: DecodedStore, kept: Kept, most: int) -> dict[int, NDArray[np.int64]]:
        """Return up to `most` positions of each rank of this node whose samples can be decoded, by rank, ascending.

        `kept` returns whether samples are cached. A rank without samples to decode is left out.
        """
        sample_of, states = self.epoch.plan.sample_of, self.epoch.states
        at = max(self._cursors.get(want, self.epoch.front()), self.epoch.progress.start)
        found: list[NDArray[np.int64]] = [np.arange(0)]
        done, looked = True, 0
        for begin in range(at, self._end, STEP):
            looked += not done
            if looked > STEPS:
                break
            places = sample_of[begin : min(begin + STEP, self._end)]
            raw = (self._position[places] >= 0) & (shelf.states(places) == RAW)
            if done:
                done = not raw.any()
                at = begin + (len(places) if done else int(raw.argmax()))
            ready = raw & (states.are(HELD, places) | kept(places))
            found.append(begin + np.flatnonzero(ready))
            if sum(map(len, found)) >= most * len(self._ranks):
                break
        self._cursors[want] = at
        positions = np.concatenate(found)
        ranks = self.epoch.division.ranks_of(positions)
        return {rank: positions[ranks == rank][:most] for rank in np.unique(ranks).tolist()}

    @property
    def ranks(self) -> int:
        """Number of ranks of this node that draw the epoch."""
        return len(self._ranks)


class DecodeAheadTable(Reprs, shows="_aheads"):
    """The active epochs of runs whose clients have decode specs."""

    def __init__(self, epochs: Epochs, specs: DecodeSpecTable) -> None:
        self._epochs, self._specs = epochs, specs
        self._aheads: dict[int, tuple[Key, DecodeAhead]] = {}
        """By number of the epoch."""

    def update(self) -> None:
        live = [(key, live.epoch) for key, live in self._epochs.lives.live() if self._specs.of_run(key[0])]
        self._aheads = {
            epoch.number: self._aheads.get(epoch.number) or (key, DecodeAhead(epoch)) for key, epoch in live
        }
        for _, ahead in self._aheads.values():
            ahead.update()

    def remove(self, epoch: Epoch, places: NDArray[Any]) -> None:
        """Remove samples that ranks have drawn. Draws before the next `update` are known from the epoch's progress."""
        if epoch.number in self._aheads:
            self._aheads[epoch.number][1].remove(places)

    def rewind(self) -> None:
        """Reset all cursors, because samples that were decoded or about to be may need it again."""
        for _, ahead in self._aheads.values():
            ahead.rewind()

    def queues(self, memory: PreparedMemory, kept: Kept, few: int, many: int, now_s: float) -> list[NextToDecode]:
        """Return samples to decode for each rank, with the epoch and decode spec whose next sample is drawn soonest.

        If only one rank draws, up to `few` samples, else up to `many` per rank.
        """
        best, runs = dict[Queue, NextToDecode](), self.active_runs(now_s)
        aheads = [(key, ahead) for key, ahead in self._aheads.values() if key[0] in runs]
        alone = len(runs) == 1 and all(ahead.ranks == 1 for _, ahead in aheads)
        for key, ahead in aheads:
            behind, sample_of = self._behind(key, ahead), ahead.epoch.plan.sample_of
            for want in sorted(self._specs.of_run(key[0])):
                for rank, positions in ahead.next(want, memory[want], kept, few if alone else many).items():
                    queue, lead = (key[0], rank), float(positions[0] + behind)
                    if queue not in best or lead < best[queue].lead:
                        due_s = self._due_s(key, ahead, rank, int(positions[0]))
                        best[queue] = NextToDecode(queue, want, sample_of[positions], lead, due_s)
        return list(best.values())

    def leads(self, want: int, places: NDArray[Any], runs: set[RunNumber]) -> NDArray[np.float64]:
        """Return the number of draws before that of each sample, in active epochs of these runs with the decode spec.

        Infinity if no rank of this node will draw the sample in these epochs.
        """
        found = np.full(len(places), np.inf)
        for key, ahead in self._aheads.values():
            if key[0] in runs and want in self._specs.of_run(key[0]):
                np.minimum(found, ahead.positions(places) + self._behind(key, ahead), out=found)
        return found

    def active_runs(self, now_s: float) -> set[RunNumber]:
        """Return the runs that are not idle or have not begun to draw; all runs if there are none.

        The same rule is used to decode and to evict samples, or runs would evict each other's samples without end.
        """
        every = {key[0] for key, _ in self._aheads.values()}
        runs = {run for run in every if not self._epochs.pacing.idle(run, now_s)}
        return runs or every

    def _due_s(self, key: Key, ahead: DecodeAhead, rank: int, position: int) -> float:
        """Return the seconds until a rank draws a position of an epoch, at its fraction of the rate of its run."""
        live, epoch = self._epochs.get(key), ahead.epoch
        before = 0 if live is None else draws_before(self._epochs, key, live)
        draws = (before + position - epoch.progress.last(rank)) / epoch.division.replicas
        rate = self._epochs.pacing.pulse(key[0]).rate or FIRST_RATE
        return max(0.0, draws * max(1, ahead.ranks) / rate)

    def _behind(self, key: Key, ahead: DecodeAhead) -> float:
        """Return the number to add to a position of an epoch for the number of draws before it."""
        live = self._epochs.get(key)
        return (0 if live is None else draws_before(self._epochs, key, live)) - reached(ahead.epoch)


class Clearing(Reprs, shows="_memory"):
    """Evicts decoded samples."""

    def __init__(self, memory: PreparedMemory, aheads: DecodeAheadTable) -> None:
        self._memory, self._aheads = memory, aheads
        self._looked_s = -np.inf
        self._lead = np.inf
        """The last search found too little for samples of this lead; infinity if it found enough."""

    def make_room(self, pages: int, lead: float, runs: set[RunNumber], now_s: float) -> None:
        """Free `pages` pages for samples of these runs with at most this lead, as far as possible."""
        memory, count = self._memory, self._memory.allocator.count
        recent = now_s - self._looked_s < LOOK_S and memory.released < max(pages, count // COPIED_SHARE)
        if memory.allocator.free >= pages or (recent and lead >= self._lead):
            return
        self._looked_s = now_s
        self._clear(max(pages, count // CLEARED_SHARE), np.inf, runs)
        self._clear(pages, lead, runs)
        memory.looked()
        self._lead = lead if memory.allocator.free < pages else np.inf
        self._aheads.rewind()

    def _clear(self, pages: int, lead: float, runs: set[RunNumber]) -> None:
        """Evict samples until `pages` pages are free: those whose lead in these runs is longer, or infinite."""
        memory = self._memory
        for want in memory:
            shelf = memory[want]
            places = shelf.all(MADE)
            places = places[~shelf.copied(places)]
            leads = self._aheads.leads(want, places, runs)
            order = np.argsort(-leads, kind="stable")
            order = order[: int(np.count_nonzero((leads > lead) | (leads == np.inf)))]
            missing = pages - memory.allocator.free
            enough = int(np.searchsorted(np.cumsum(shelf.pages(places[order])), missing)) + 1
            if missing > 0:
                shelf.free(places[order[:enough]])
