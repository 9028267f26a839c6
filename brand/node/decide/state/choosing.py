"""What does memory keep, and what does the cache folder hold? The choice that the planner makes, as a pure function."""

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
"""Bytes that the file system takes on top of a unit: half a block at both ends, on average."""
SLACK_SHARE: Final = 32
"""`1 / SLACK_SHARE` of the folder stays free for samples that come before others have gone."""

Placement = Literal["auto", "even", "next", "frequency"]
"""What a user asks for (`brand.node.decide.cache.placing`)."""
Way = Literal["coming", "next", "frequency"]
"""How the folder follows the draws of this node. `coming`: it is not settled yet which ranks draw here; what they draw
in this epoch has a place as it comes, and nothing goes."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheContents:
    """What a cache folder holds and has room for. Arrays have the shape (samples,)."""

    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes."""
    held: NDArray[np.bool_]
    """Which samples the folder holds, or will hold when the epoch begins that the choice is for."""
    able: NDArray[np.bool_]
    """Which samples come into memory, from where they are written."""
    near: NDArray[np.bool_]
    """Which samples memory keeps."""
    limit: int
    """Bytes that its samples may take."""
    unit: int
    """Samples of a chunk that are written together."""
    whole: bool = False
    """Whether a miss reads all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """Have the folder follow what ranks of this node draw, from an epoch on."""

    way: Way
    ranks: Ranks
    epoch: int
    start: int
    """The position from which on the ranks draw this epoch."""
    number: int
    """Number of the epoch among those of this node."""
    ahead: NextUse | Frequency | None
    """What the ranks draw later; None for `coming`."""

    def foresee(self) -> bool:
        """Look at one more epoch. Returns whether one was missing."""
        return self.ahead is not None and self.ahead.foresee(self.epoch)

    def held(self, plan: EpochPlan, shelf: CacheContents, size_of: NDArray[Any], seed: int) -> NDArray[np.bool_]:
        """Which samples have a place, shape (samples,). `size_of` is 0 for those that cannot have one.

        What the folder holds and no rank draws again comes last. It goes only where its room is wanted.
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
    """Have the planner choose the samples to keep while the epoch of this plan goes on, then say `KeptChosen`.

    It also chooses what the cache folder holds, if there is one.
    """

    number: int
    plan: EpochPlan
    unit: int | None
    """Samples of a chunk that are kept together (`Policy.kept_unit`); None: what is kept does not change."""
    seed: int
    room: int
    """Pages that kept samples and the samples of the epoch may take together."""
    owners: Owners
    shelf: CacheContents | None = None
    """The cache folder; None: there is none, or it takes no more."""
    follow: Follow | None = None
    """How the folder follows the draws; None: what has a place stays."""

    @property
    def since(self) -> int | None:
        """Number of the epoch with whose first read other samples begin to leave the folder; None: none leave it."""
        return None if self.follow is None or self.follow.way == "coming" else self.follow.number

    @property
    def whole_unit(self) -> int:
        """Samples of a unit that a miss reads as a whole; 1: it reads the one sample."""
        return self.shelf.unit if self.shelf is not None and self.shelf.whole else 1

    def foresee(self) -> bool:
        """Do a part of the work that takes long. Returns whether there was any; so plans in between need not wait."""
        return self.follow is not None and self.follow.foresee()

    def kept(self, pages_of: PageCounts) -> NDArray[np.bool_] | None:
        """Which samples to keep, shape (samples,): as many as fit of those that this node owns."""
        if self.unit is None:
            return None
        mine = self._mine()
        if mine is None:
            return choose_kept(self.plan, pages_of, self.room, self.unit, self.seed)
        return choose_kept(self.plan, np.where(mine, pages_of, 0), self.room, self.unit, self.seed) & mine

    def _mine(self) -> NDArray[np.bool_] | None:
        """The samples that this node reads for the epoch, shape (samples,); None: all."""
        owners, samples = self.owners, self.plan.mapping.samples
        mine = None if owners.of_chunk is None else owners.mine(np.arange(samples))
        if len(self.plan.sample_of) < samples:
            drawn = np.zeros(samples, np.bool_)
            drawn[self.plan.sample_of] = True
            mine = drawn if mine is None else mine & drawn
        return mine

    def cached(self, kept: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Which samples have a place in the cache folder, shape (samples,), beside those that memory keeps.

        What this node does not own is read by other nodes. Where the folder has room for all, it also takes what memory
        keeps, so that the next server reads it there.
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
