"""Which samples do the memory cache and the cache folder hold? The planner's choice, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.members import Owners
from brand.node.memory.pages import PageCounts
from brand.orders.base.placement import choose_cached, choose_kept, most_wanted, unit_at, units
from brand.orders.base.plan import EpochPlan
from brand.orders.nextuse import Frequency, NextUse, Ranks

ON_TOP: Final = 4096
"""Bytes that the file system needs in addition to those of a unit: half a block at both ends, on average."""
SLACK_SHARE: Final = 32
"""`1 / SLACK_SHARE` of the folder stays free for samples that are written before others are evicted."""

Placement = Literal["auto", "even", "next", "frequency"]
"""The placement that a user asks for (`brand.node.decide.cache.keeping`)."""
Way = Literal["coming", "next", "frequency"]
"""How the folder follows the draws of this node.

`coming`: the ranks that draw here are not settled. Samples that they draw have a place when read; none is evicted.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CacheContents:
    """Contents and capacity of a cache folder. Arrays have the shape (samples,)."""

    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes."""
    held: NDArray[np.bool_]
    """Whether the folder holds each sample, or will hold it when the epoch begins that the choice is for."""
    able: NDArray[np.bool_]
    """Whether each sample is small enough for memory, from which the folder is written."""
    near: NDArray[np.bool_]
    """Whether the memory cache holds each sample."""
    limit: int
    """Bytes that the folder's samples may take."""
    unit: int
    """Samples of a chunk that are written together."""
    whole: bool = False
    """Whether a miss reads its whole unit."""


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """An instruction that the folder follows the draws of this node's ranks, from an epoch on."""

    way: Way
    ranks: Ranks
    epoch: int
    start: int
    """The first position of this epoch that the ranks draw."""
    number: int
    """Number of the epoch among those of this node."""
    ahead: NextUse | Frequency | None
    """The later draws of the ranks. None for `coming`."""

    def foresee(self) -> bool:
        """Compute the draws of one more epoch. Return whether one was missing."""
        return self.ahead is not None and self.ahead.foresee(self.epoch)

    def held(self, plan: EpochPlan, shelf: CacheContents, size_of: NDArray[Any], seed: int) -> NDArray[np.bool_]:
        """Return a mask of the samples that have a place, shape (samples,). `size_of` is 0 if a sample cannot have one.

        Samples that the folder holds and no rank draws again come last. They are evicted only if their space is needed.
        """
        unit_of, sizes = units(plan.mapping, size_of, shelf.unit)
        here = np.zeros(len(sizes), np.bool_)
        here[unit_of[shelf.held]] = True
        first = np.full(len(sizes), len(plan.sample_of), np.int64)
        for turn, places in enumerate(self.ranks.places(plan.sample_of, self.start)):
            positions = np.arange(len(places)) * self.ranks.replicas + turn
            np.minimum.at(first, unit_at(plan.mapping, shelf.unit, places), positions)
        drawn = first < len(plan.sample_of)
        if self.ahead is None:
            key, wanted = np.where(here, -1, first), here | drawn
        else:
            key, again = self.ahead.key(self.epoch)
            wanted = here | again if isinstance(self.ahead, Frequency) else here | (drawn & again)
        room = shelf.limit - shelf.limit // SLACK_SHARE
        sizes += np.where(sizes > 0, ON_TOP, 0)
        chosen: NDArray[np.bool_] = most_wanted(key, wanted, sizes, room, seed)[unit_of]
        return chosen & (size_of > 0)


@dataclass(frozen=True, slots=True)
class ChooseCached:
    """Have the planner choose the samples to cache during the epoch of this plan, then report `KeptChosen`.

    It also chooses the contents of the cache folder, if there is one.
    """

    number: int
    plan: EpochPlan
    unit: int | None
    """Samples of a chunk that are cached together (`Policy.kept_unit`). None if the memory cache does not change."""
    seed: int
    room: int
    """Pages that cached samples and the samples of the epoch may take together."""
    owners: Owners
    shelf: CacheContents | None = None
    """The cache folder. None if there is none, or if nothing more is written to it."""
    follow: Follow | None = None
    """How the folder follows the draws. None if samples that have a place keep it."""

    @property
    def since(self) -> int | None:
        """Number of the epoch whose first read begins the eviction of other samples. None if none are evicted."""
        return None if self.follow is None or self.follow.way == "coming" else self.follow.number

    @property
    def whole_unit(self) -> int:
        """Samples of a unit that a miss reads as a whole. 1 if it reads only the missing sample."""
        return self.shelf.unit if self.shelf is not None and self.shelf.whole else 1

    def foresee(self) -> bool:
        """Do one step of the long work. Return whether there was any, so that plans in between need not wait."""
        return self.follow is not None and self.follow.foresee()

    def kept(self, pages_of: PageCounts) -> NDArray[np.bool_] | None:
        """Return a mask of the samples to cache, shape (samples,): as many as fit of those that this node owns.

        Returns None if the memory cache does not change.
        """
        if self.unit is None:
            return None
        mine = self._mine()
        if mine is None:
            return choose_kept(self.plan, pages_of, self.room, self.unit, self.seed)
        return choose_kept(self.plan, np.where(mine, pages_of, 0), self.room, self.unit, self.seed) & mine

    def _mine(self) -> NDArray[np.bool_] | None:
        """Return a mask of the samples that this node reads for the epoch, shape (samples,). None if it reads all."""
        owners, samples = self.owners, self.plan.mapping.samples
        mine = None if owners.of_chunk is None else owners.mine(np.arange(samples))
        if len(self.plan.sample_of) < samples:
            drawn = np.zeros(samples, np.bool_)
            drawn[self.plan.sample_of] = True
            mine = drawn if mine is None else mine & drawn
        return mine

    def cached(self, kept: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Return a mask of the samples that have a place in the cache folder, shape (samples,).

        Samples of the memory cache are left out. If the folder has space for all samples, it includes them, too, so
        that the next server reads them from the folder. Samples that this node does not own are read by other nodes.
        Returns None if there is no folder.
        """
        shelf = self.shelf
        if shelf is None:
            return None
        mine = self._mine()
        able = shelf.able if mine is None else shelf.able & mine
        if int(shelf.sizes[able | shelf.held].sum(dtype=np.int64)) <= shelf.limit:
            return able | shelf.held
        size_of = np.where(able & ~(shelf.near if kept is None else kept), shelf.sizes, 0)
        if self.follow is not None:
            return self.follow.held(self.plan, shelf, size_of, self.seed)
        size_of[shelf.held] = 0
        room = shelf.limit - int(shelf.sizes[shelf.held].sum(dtype=np.int64))
        return shelf.held | choose_cached(self.plan.mapping, size_of, room, shelf.unit, self.seed)
