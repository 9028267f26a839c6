"""When must a node choose its cached samples again, and how much memory may they take?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from brand.node.decide.cache.caching import Caching
from brand.node.decide.cache.placing import Aim, CacheCapacity, Placing
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.choosing import ChooseCached, Follow
from brand.node.decide.state.epoch_table import ActiveEpoch
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.orders.nextuse import Frequency, NextUse
from brand.orders.order import MAX_EPOCH, Order

AHEAD_SHARE: Final = 8
"""`1 / AHEAD_SHARE` of the arena remains free of cached samples, for read-ahead."""
AHEAD_MOST: Final = 256 << 20
"""The most bytes that remain free of cached samples, unless the storage needs more in flight."""
BUSY_SHARE: Final = 4
"""The bytes that the storage needs in flight remain free up to `1 / BUSY_SHARE` of the arena."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Memory that cached samples do not take. They save reads, but they must not starve the reads that remain."""

    remote_pages: int
    """Pages that other nodes may fill."""
    busy_bytes: int
    """Bytes in flight that keep the storage busy."""

    def ahead(self, pages: int, page: int) -> int:
        """Return how many of `pages` remain free for read-ahead."""
        by_share = min(pages // AHEAD_SHARE, AHEAD_MOST // page)
        return max(by_share, min(pages // BUSY_SHARE, self.busy_bytes // page))


class Keeping:
    """Choices of the samples for the memory cache and the cache folder."""

    def __init__(
        self, residents: Residents, epochs: Epochs, members: Members, caching: Caching, reserved: Reserved
    ) -> None:
        self._residents, self._epochs, self._members, self._caching = residents, epochs, members, caching
        self.reserved = reserved
        self._runs: set[RunNumber] = set()
        """Runs that were under way at the last choice."""
        self._for: tuple[RunNumber, CacheCapacity | None] | None = None
        """The run of the last choice, and the facts that the folder's placement depends on. None if the folder is
        not written.
        """
        self._last = self._taken = 0
        """Numbers of the last choice that was requested, and of the last one that was made."""
        self._placing = Placing(members, epochs)
        self._aim: Aim | None = None
        """The aim of the last choice for the cache folder."""
        self._ahead: tuple[Aim, NextUse | Frequency] | None = None
        """The later draws of the ranks, as far as the planner has computed them, and the aim for which it began."""

    def is_current(self, number: int) -> bool:
        """Return whether a choice is still of use: it is the last one."""
        return number == self._last

    def on_choice(self, number: int) -> bool:
        """Note that a choice is made. Return whether it is still of use."""
        self._taken = max(self._taken, number)
        return self.is_current(number)

    def next_choice(self) -> ChooseCached | None:
        """Return the choice to make now. None if the last choice holds.

        A choice is needed if a run has begun, if a run has ended and freed its memory, or if the contents of the cache
        folder are to change with an epoch.
        """
        live = self._epochs.lives.live()
        runs = {run for (run, _), _ in live}
        if runs != self._runs:  # a run may wait for the plan of its next epoch
            runs |= self._runs & {key[0] for key, life in self._epochs.lives.items() if life.planned}
        anew = runs != self._runs and not (runs and not live)
        if anew:
            self._runs = runs
            keeping = [run for (run, _), _ in live if self._order(run).policy.kept_unit is not None]
            first = next(iter(keeping or [run for (run, _), _ in live]), None)
            self._for = None if first is None else (first, self._room_of(first))
        elif self._taken != self._last:
            return None
        if self._for is None:
            return None
        first, room = self._for
        if not anew and (room is None or room.is_fixed or self._caching.stopped):
            return None
        aim = None if room is None else self._placing.aim(first, room)
        if not anew and aim in (None, self._aim):
            return None
        mine = {epoch: at for (run, epoch), at in live if run == first}
        return self._choice(first, aim, mine, anew=anew) if mine else None

    def _choice(
        self, run: RunNumber, aim: Aim | None, live: dict[int, ActiveEpoch], *, anew: bool
    ) -> ChooseCached | None:
        """Return the choice for a run with these active epochs.

        The memory cache is only chosen `anew`, because the reads of the next epochs are planned with it.
        """
        self._aim, order = aim, self._order(run)
        epoch = aim.epoch if aim is not None and aim.epoch in live else next(iter(live))
        unit = order.policy.kept_unit
        later = aim is not None and aim.way in ("next", "frequency")
        whole = live[epoch].epoch.plan.reads is None and aim is not None and aim.way == "even"
        shelf = self._caching.shelf(unit, self._epochs.lives, later=later, whole=whole)
        kept = unit if anew else None
        if kept is None and shelf is None:
            return None
        follow = None if shelf is None else self._follow(order, aim, epoch, live[epoch])
        self._last += 1
        owners, plan = self._members.owners(order.mapping), live[epoch].epoch.plan
        if plan.grows:  # the planner's thread reads it while the order grows
            plan = replace(plan, sample_of=plan.sample_of.copy())
        choice = ChooseCached(self._last, plan, kept, order.seed, self._room(order), owners, shelf, follow)
        if kept is not None and self._drawn(order) <= self._most():
            # All samples fit, so the choice is fast. If it were left to the planner, a sample that is drawn before its
            # answer would be dropped and read a second time.
            mask = choice.kept(self._residents.pool.pages_of)
            assert mask is not None
            self._residents.keep(mask)
        return choice

    def _follow(self, order: Order, aim: Aim | None, epoch: int, live: ActiveEpoch) -> Follow | None:
        if aim is None or aim.ranks is None or aim.way == "even":
            return None
        division = live.epoch.division
        ahead = None if aim.way == "coming" else self._look_ahead(order, aim)
        return Follow(aim.way, aim.ranks, epoch, division.start, live.epoch.number, ahead)

    def _look_ahead(self, order: Order, aim: Aim) -> NextUse | Frequency:
        """Return the later draws of the ranks. The result for one epoch serves the next one, too."""
        start = self._caching.start
        assert start is not None
        assert aim.ranks is not None
        if self._ahead is None or not aim.same_draws_as(self._ahead[0]):
            last = MAX_EPOCH if start.epochs is None else min(MAX_EPOCH, start.epochs - 1)
            unit = self._caching.unit(order.policy.kept_unit)
            kind = Frequency if aim.way == "frequency" else NextUse
            self._ahead = aim, kind(order, aim.ranks, unit, last)
        return self._ahead[1]

    def _room_of(self, run: RunNumber) -> CacheCapacity | None:
        start = self._caching.start
        if start is None or self._caching.stopped:
            return None
        unit = self._caching.unit(self._order(run).policy.kept_unit)
        return CacheCapacity(start.placement, start.all_fits, unit, unit * start.mean_bytes)

    def _order(self, run: RunNumber) -> Order:
        return self._epochs.runs[run].order

    def _room(self, order: Order) -> int:
        """Return the pages that cached samples and an epoch's samples of this order may take together."""
        pages, mean = self._most(), self._residents.pool.mean_pages
        if self._drawn(order) <= pages:
            return pages  # all samples fit, so nothing is read ahead
        if order.grows:
            return 0  # the samples that its jobs draw later are in memory already
        pages -= self.reserved.ahead(pages, self._residents.pool.allocator.page)
        runs = {run for (run, _), _ in self._epochs.lives.live()}
        others = {self._epochs.runs[run].order for run in runs} - {order}
        followers = self._epochs.features.held_for_followers(order, runs)
        if followers:
            pages -= min(pages // 2, round(followers * mean))
            others = {other for other in others if not other.joins}
        return pages - round(sum(other.policy.held(other.mapping) for other in others) * mean)

    def _most(self) -> int:
        """Return the pages of this node's own samples."""
        return self._residents.pool.allocator.count - 1 - self.reserved.remote_pages

    def _drawn(self, order: Order) -> int:
        """Return the pages of all samples that an order draws."""
        pool = self._residents.pool
        return pool.all_pages if order.subset is None else int(pool.pages_of[order.subset.mask].sum(dtype="int64"))
