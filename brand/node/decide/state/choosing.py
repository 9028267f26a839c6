"""Which samples do the memory cache and the cache folders hold? The planner's choice, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.members import Owners
from brand.node.memory.pages import PageCounts, all_pages
from brand.orders.base.mapping import MOST_LISTED
from brand.orders.base.part import ONE, RandomSubset, Subset
from brand.orders.base.placement import (
    CachedUnits,
    choose_cached,
    choose_kept,
    choose_units,
    held_units,
    most_wanted,
    room_left,
    unit_at,
    unit_count,
    unit_lengths,
    unit_sums,
    units,
)
from brand.orders.base.plan import EpochPlan, PlanWindows
from brand.orders.nextuse import Frequency, NextUse, Ranks
from brand.orders.order import Order

ON_TOP: Final = 4096
"""Bytes that the file system needs in addition to those of a unit: half a block at both ends, on average."""
SLACK_SHARE: Final = 32
"""`1 / SLACK_SHARE` of a folder stays free for samples that are written before others are evicted."""

LEAST_UNIT: Final = 64
"""The fewest samples of a unit of a data set of more than `MOST_LISTED` samples."""

Placement = Literal["auto", "even", "next", "frequency"]
"""The placement that a user asks for (`brand.node.decide.cache.keeping`)."""
Way = Literal["coming", "next", "frequency"]
"""How the folders follow the draws of this node.

`coming`: the ranks that draw here are not settled. Samples that they draw have a place when read; none is evicted.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CacheContents:
    """Contents and capacity of the cache folders. Arrays have the shape (samples,)."""

    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes."""
    held: NDArray[np.int8]
    """The folder that holds each sample, or will when the epoch begins that the choice is for. 0 if none does."""
    able: NDArray[np.bool_]
    """Whether each sample is small enough for memory, from which the folders are written."""
    near: NDArray[np.bool_]
    """Whether the memory cache holds each sample."""
    limits: NDArray[np.int64]
    """Bytes that the samples of each folder may take, shape (folders,). The fastest folder is the first one."""
    unit: int
    """Samples of a chunk that are written together."""
    whole: bool = False
    """Whether a miss reads its whole unit."""


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """An instruction that the folders follow the draws of this node's ranks, from an epoch on."""

    way: Way
    ranks: Ranks
    epoch: int
    start: int
    """The first position of this epoch that the ranks draw."""
    number: int
    """Number of the epoch among those of this node."""
    ahead: NextUse | Frequency | None
    """The later draws of the ranks. None for `coming`."""

    @property
    def in_memory(self) -> bool:
        """Whether memory, too, holds the samples that the ranks draw most often (HDMLP, section 5.1).

        Ranks that draw all samples draw each of them equally often.
        """
        return self.way == "frequency" and not self.ranks.all

    def foresee(self) -> bool:
        """Compute the draws of one more epoch. Return whether one was missing."""
        return self.ahead is not None and self.ahead.foresee(self.epoch)

    def folders(self, plan: EpochPlan, shelf: CacheContents, size_of: NDArray[Any], seed: int) -> NDArray[np.int8]:
        """Return the folder of each sample, 0 if it has no place. `size_of` is 0 if a sample cannot have one.

        Samples that a folder holds and no rank draws again come last. They are evicted only if their space is needed.
        Samples that stay in a folder are not moved to another one. The others are placed into the fastest folder first.
        """
        unit_of, sizes = units(plan.mapping, size_of, shelf.unit)
        held_in = held_units(shelf.held, unit_of, len(sizes))
        here = held_in > 0
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
        rooms = shelf.limits - shelf.limits // SLACK_SHARE
        sizes += np.where(sizes > 0, ON_TOP, 0)
        chosen = most_wanted(key, wanted, sizes, rooms.sum(keepdims=True), seed) > 0
        folder_of = np.zeros(len(sizes), np.int8)
        for folder in range(1, len(rooms) + 1):  # a folder may hold more than it may now
            stays = most_wanted(key, chosen & (held_in == folder), sizes, rooms[folder - 1 : folder], seed)
            folder_of[stays > 0] = folder
        chosen &= folder_of == 0
        folder_of += most_wanted(key, chosen, sizes, room_left(rooms, folder_of, sizes), seed)
        return np.where(size_of > 0, folder_of[unit_of], np.int8(0))


@dataclass(frozen=True, slots=True)
class ChooseCached:
    """Have the planner choose the samples to cache during the epoch of this plan, then report `KeptChosen`.

    It also chooses the contents of the cache folders, if there are any.
    """

    number: int
    plan: EpochPlan | PlanWindows
    unit: int | None
    """Samples of a chunk that are cached together (`Policy.kept_unit`). None if the memory cache does not change."""
    seed: int
    room: int
    """Pages that cached samples and the samples of the epoch may take together."""
    owners: Owners
    shelf: CacheContents | None = None
    """The cache folders. None if there are none, or if nothing more is written to them."""
    follow: Follow | None = None
    """How the folders follow the draws. None if samples that have a place keep it."""
    subset: Subset | None = None
    """The samples that the run draws. None if it draws all."""
    held: int = 0
    """Pages that the epoch holds at a time, on all nodes together, if nothing is cached."""
    together: tuple[Order, ...] = ()
    """The orders that a sampler with weights draws at a time, so that some samples are drawn more often than others."""

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

    def kept(self, pages_of: PageCounts) -> NDArray[np.bool_] | CachedUnits | None:
        """Return the samples to cache: as many as fit of those that this node owns. A mask has the shape (samples,).

        Returns None if the memory cache does not change.
        """
        if self.unit is None:
            return None
        if len(pages_of) > MOST_LISTED:  # the plan and the samples are too many: units, by an estimate
            return self._kept_units(pages_of)
        mine, size_of, unit, key = self._mine(), pages_of[:], self.unit, None
        if mine is not None:
            size_of = np.where(mine, size_of, 0)
        if int(size_of.sum(dtype=np.int64)) <= self.room:  # all fit, whatever the plan, which would take long to make
            return np.ones(len(size_of), np.bool_) if mine is None else mine
        if self.together:
            chosen = choose_units(
                size_of.astype(np.int64), self.held, self.room, self.seed, self._often_drawn_first(1)[: len(size_of)]
            )
            return chosen & (size_of > 0)
        if self.follow is not None and self.follow.in_memory:
            unit, key = self._wanted(self.follow)
        kept = choose_kept(self._whole(), size_of, self.room, unit, self.seed, key=key)
        return kept if mine is None else kept & mine

    def _kept_units(self, pages_of: PageCounts) -> CachedUnits:
        """Return the units to cache, without an array that has an entry for each sample."""
        assert self.unit is not None
        unit, key = max(self.unit, LEAST_UNIT), None
        sizes, every = self._unit_pages(pages_of, unit)
        if self.together:
            key = self._often_drawn_first(unit)
        elif int(sizes.sum()) > self.room and self.follow is not None and self.follow.in_memory:
            unit, key = self._wanted(self.follow)
            sizes, every = self._unit_pages(pages_of, unit)
        held = round(self.held * int(sizes.sum()) / max(1, every))
        chosen = choose_units(sizes, held, self.room, self.seed, key) & (sizes > 0)
        return CachedUnits(self.plan.mapping, unit, chosen, self.subset)

    def _often_drawn_first(self, unit: int) -> NDArray[np.int64]:
        """Return a key for each unit that is smaller the more often an epoch draws the samples of the unit, (units,).

        (HDMLP, section 5.1: samples are placed by how often they are accessed.)
        """
        mapping = self.plan.mapping
        key = np.zeros(unit_count(mapping, unit), np.int64)
        for order in self.together:
            if isinstance(order.subset, RandomSubset):
                key -= unit_sums(mapping, order.subset.fractions, unit)
            else:
                key -= order.times * ONE * unit_lengths(mapping, unit, order.subset)
        return key

    def _wanted(self, follow: Follow) -> tuple[int, NDArray[Any]]:
        """Return the samples of a unit, and a key for each unit: the ranks here draw those with small keys most."""
        assert follow.ahead is not None
        assert self.shelf is not None
        return self.shelf.unit, follow.ahead.key(follow.epoch)[0]

    def _unit_pages(self, pages_of: PageCounts, unit: int) -> tuple[NDArray[np.int64], int]:
        """Return the pages of each unit that this node reads for the epoch, and the pages that all nodes read."""
        mapping, owners = self.plan.mapping, self.owners
        lengths = unit_lengths(mapping, unit, self.subset)
        # With a mean, as units differ little: the index would have to be read for each sample.
        sizes = np.rint(lengths * (all_pages(pages_of) / len(pages_of))).astype(np.int64)
        every = int(sizes.sum())
        if owners.of_chunk is not None:
            sizes[np.repeat(owners.of_chunk != owners.node, len(sizes) // mapping.chunks)] = 0
        return sizes, every

    def _whole(self) -> EpochPlan:
        return self.plan if isinstance(self.plan, EpochPlan) else self.plan.whole()

    def _mine(self) -> NDArray[np.bool_] | None:
        """Return a mask of the samples that this node reads for the epoch, shape (samples,). None if it reads all."""
        owners, samples = self.owners, self.plan.mapping.samples
        mine = None if owners.of_chunk is None else owners.mine(np.arange(samples))
        if self.subset is not None:
            mine = self.subset.mask if mine is None else mine & self.subset.mask
        return mine

    def cached(self, kept: NDArray[np.bool_] | CachedUnits | None) -> NDArray[np.int8] | None:
        """Return the cache folder in which each sample has a place, from 1 on; 0 if it has none. Shape (samples,).

        Samples of the memory cache are left out. If the folders have space for all samples, they include them, too, so
        that the next server reads them from there. Samples that this node does not own are read by other nodes.
        Returns None if there is no folder.
        """
        shelf = self.shelf
        if shelf is None:
            return None
        mine, kept = self._mine(), kept.part() if isinstance(kept, CachedUnits) else kept
        able, near = shelf.able if mine is None else shelf.able & mine, shelf.near if kept is None else kept
        all_fit = int(shelf.sizes[able | (shelf.held > 0)].sum(dtype=np.int64)) <= int(shelf.limits.sum())
        size_of = np.where(able if all_fit else able & ~near, shelf.sizes, 0)
        if self.follow is not None and not all_fit:
            return self.follow.folders(self._whole(), shelf, size_of, self.seed)
        size_of[shelf.held > 0] = shelf.sizes[shelf.held > 0]
        later = near if all_fit else None
        return choose_cached(self.plan.mapping, size_of, shelf.held, shelf.limits, shelf.unit, self.seed, later)
