"""When must a node choose its cached samples again, how much memory may they take, and where are they in its folder?

The placement of the cache folder is one of

    even         a fixed random choice: if this node draws everything, or if nodes draw from each other
    next         the samples that the ranks of this node draw again soonest, chosen for each epoch: if the node is alone
    frequency    the samples that they draw most often in all epochs, chosen once: memory is filled first

The ranks that draw here are settled when all ranks of the run draw here, or otherwise when half of an epoch is drawn,
because ranks begin one after the other. Until then each sample that is read has a place, as far as there is space, and
nothing is evicted from the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from brand.node.decide.cache.caching import Caching
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.choosing import ChooseCached, Follow, Placement, Way
from brand.node.decide.state.epoch_table import ActiveEpoch, Key
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.orders.base.part import Subset, united
from brand.orders.base.placement import CACHED_BYTES
from brand.orders.base.plan import EpochPlan
from brand.orders.nextuse import Frequency, NextUse, Ranks
from brand.orders.order import MAX_EPOCH, Order
from brand.reprs import Reprs

AHEAD_SHARE: Final = 8
"""`1 / AHEAD_SHARE` of the arena remains free of cached samples, for read-ahead."""
AHEAD_MOST: Final = 256 << 20
"""The most bytes that remain free of cached samples, unless the storage needs more in flight."""
BUSY_SHARE: Final = 4
"""The bytes that the storage needs in flight remain free up to `1 / BUSY_SHARE` of the arena."""
MOST_SEEN: Final = 0.75
"""If at least this fraction of all units is drawn in each epoch, the next draws of units hardly differ.

The placement `even` is then as good as the others.
"""


@dataclass(frozen=True, slots=True)
class Aim:
    """The run, the ranks and the epoch for which the placement is to be chosen."""

    way: Way | Literal["even"]
    run: RunNumber
    ranks: Ranks | None = None
    epoch: int = 0

    def same_draws_as(self, other: Aim | None) -> bool:
        """Return whether this is for the same draws as another aim, in a later epoch or in the same one."""
        return other is not None and (self.way, self.run, self.ranks) == (other.way, other.run, other.ranks)


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """The facts on which the placement depends, in addition to the ranks."""

    placement: Placement
    all_fits: bool
    unit: int
    """Samples that are placed together."""
    unit_bytes: float

    @property
    def is_fixed(self) -> bool:
        """Whether no sample is ever evicted from the folder."""
        return self.placement == "even" or self.all_fits


class Placing(Reprs, shows="_aim"):
    """The placement of one node's cache folder."""

    def __init__(self, members: Members, epochs: Epochs) -> None:
        self._members, self._epochs = members, epochs
        self._settled: tuple[RunNumber, Ranks] | None = None
        """The last run whose ranks here were settled, and these ranks."""
        self._aim: Aim | None = None
        self._said: set[str] = set()

    def aim(self, run: RunNumber, capacity: CacheCapacity) -> Aim | None:
        """Return the aim of the next choice. None if the run has no active epoch, so that the last choice holds."""
        lives = [(epoch, live) for (number, epoch), live in self._epochs.lives.live() if number == run]
        if not lives:
            return None
        now, live = next(((epoch, live) for epoch, live in lives if live.begun), lives[0])
        ranks = Ranks(tuple(sorted(live.epoch.here)), live.epoch.division.replicas)
        if not ranks.here or not self._may_move(live, ranks, capacity):
            self._aim = Aim("even", run)
        elif not self._is_settled(run, ranks, live):
            self._aim = Aim("coming", run, ranks, now)
        elif capacity.placement == "auto" and self._too_small(ranks, capacity):
            self._aim = Aim("even", run)
        else:
            aim = Aim("frequency" if capacity.placement == "frequency" else "next", run, ranks, lives[0][0])
            self._aim = self._after(self._aim, [epoch for epoch, _ in lives]) if aim.same_draws_as(self._aim) else aim
        return self._aim

    def _after(self, last: Aim | None, epochs: list[int]) -> Aim:
        """Return the aim for the next epoch. Epochs are chosen in order: each depends on the contents before it."""
        assert last is not None
        if last.way == "frequency":
            return last
        later = [epoch for epoch in epochs if epoch > last.epoch]
        return replace(last, epoch=later[0] if later else last.epoch if last.epoch in epochs else epochs[0])

    def _is_settled(self, run: RunNumber, ranks: Ranks, live: ActiveEpoch) -> bool:
        if self._settled != (run, ranks) and (ranks.all or (live.begun and live.epoch.progress.half_done)):
            self._settled = run, ranks
        return self._settled == (run, ranks)

    def _may_move(self, live: ActiveEpoch, ranks: Ranks, capacity: CacheCapacity) -> bool:
        """Return whether samples may be evicted, by all that is known before the ranks here are settled."""
        placement = capacity.placement
        if capacity.is_fixed or live.epoch.plan.grows:  # the next epochs of a growing order are unknown
            return False
        if self._members.nodes > 1 or live.epoch.division.batch:
            if placement != "auto":
                self._say(f"placement {placement!r} needs a single node without locality: this node uses 'even'")
            return False
        return placement != "auto" or not ranks.all

    def _too_small(self, ranks: Ranks, capacity: CacheCapacity) -> bool:
        seen = 1 - (1 - ranks.share) ** capacity.unit
        if capacity.unit_bytes >= CACHED_BYTES and seen <= MOST_SEEN:
            return False
        self._say(
            f"this node has {len(ranks.here)} of {ranks.replicas} ranks, but samples are cached "
            f"{capacity.unit} at a time, so the cache folder holds a random choice (placement 'even'). "
            "The next use can decide only for single samples of 64 KiB or more, with order='uniform'"
        )
        return True

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._epochs.runs.notice(text)


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


@dataclass(slots=True)
class Shortage:
    """When are samples cached again that were evicted because memory was short? With the run's next epoch.

    If memory is short again in that very epoch, twice as many epochs begin before the next attempt: a run that always
    lacks the memory evicts ever more rarely.
    """

    waits: int = 1
    """Number of epochs that begin after an eviction, until the samples are cached again."""
    left: int = 0
    """How many of these epochs have not begun yet. 0 if no samples are left out."""
    epoch: int | None = None
    """The epoch of the eviction or, later, the last one that has begun."""

    def on_evicted(self, epoch: int | None) -> None:
        """Note that samples were evicted in an epoch."""
        if not self.left:
            self.waits = 2 * self.waits if epoch is not None and epoch == self.epoch else 1
            self.left, self.epoch = self.waits, epoch

    def is_over(self, epoch: int) -> bool:
        """Whether to cache the samples again now, in this epoch. Call it only if samples are left out."""
        if epoch != self.epoch:
            self.left, self.epoch = self.left - 1, epoch
        return not self.left


class Keeping:
    """Choices of the samples for the memory cache and the cache folder."""

    def __init__(
        self, residents: Residents, epochs: Epochs, members: Members, caching: Caching, reserved: Reserved
    ) -> None:
        self._residents, self._epochs, self._members, self._caching = residents, epochs, members, caching
        self.reserved = reserved
        self._runs: set[tuple[RunNumber, ...]] = set()
        """Runs that were under way at the last choice; those of a sampler with weights together."""
        self._for: tuple[RunNumber, CacheCapacity | None] | None = None
        """The run of the last choice, and the facts for the folder's placement; None if the folder is not written."""
        self._last = self._taken = 0
        """Numbers of the last choice that was requested, and of the last one that was made."""
        self._placing = Placing(members, epochs)
        self._aim: Aim | None = None
        """The aim of the last choice for the cache folder."""
        self._ahead: tuple[Aim, NextUse | Frequency] | None = None
        """The later draws of the ranks, as far as the planner has computed them, and the aim for which it began."""
        self._shortage = Shortage()

    def evict_some(self, chunk_size: int) -> bool:
        """Evict cached samples of `1 / AHEAD_SHARE` of the memory, until a later epoch. Return whether there were any.

        That many are evicted at once, so that the next reads need no further space.
        """
        residents = self._residents
        evicted = residents.keep_less(chunk_size, residents.pool.allocator.count // AHEAD_SHARE)
        if not len(evicted):
            return False
        self._shortage.on_evicted(self._epoch())
        self._epochs.on_evicted(evicted[~residents.present(evicted)])
        return True

    def cache_again(self) -> None:
        """Cache evicted samples again if the time has come: they are read in the epoch that begins, and stay."""
        if self._shortage.left and (epoch := self._epoch()) is not None and self._shortage.is_over(epoch):
            self._residents.keep_chosen()

    def _epoch(self) -> int | None:
        """Return the latest epoch that the run of the last choice has begun. None if it has no epoch at present."""
        run = None if self._for is None else self._for[0]
        return max((key[1] for key, live in self._epochs.lives.live() if key[0] == run and live.begun), default=None)

    def is_current(self, number: int) -> bool:
        """Return whether a choice is still of use: it is the last one."""
        return number == self._last

    def on_choice(self, number: int) -> bool:
        """Note that a choice is made. Return whether it is still of use."""
        self._taken = max(self._taken, number)
        return self.is_current(number)

    def next_choice(self, now_s: float) -> ChooseCached | None:
        """Return the choice to make now. None if the last choice holds.

        A choice is needed if a run has begun, if a run has ended or is resting, or if the cache folder is to change
        with an epoch.
        """
        live = self._counted(now_s)
        runs = {self._drawing(run) for (run, _), _ in live}
        if runs != self._runs:  # a run may wait for the plan of its next epoch
            planned = {key[0] for key, life in self._epochs.lives.items() if life.planned}
            runs |= self._runs & set(map(self._drawing, planned))
        again = runs != self._runs and not (runs and not live)
        if again:
            self._runs, self._shortage = runs, Shortage()
            keeping = [run for (run, _), _ in live if self._order(run).policy.kept_unit is not None]
            first = next(iter(keeping or [run for (run, _), _ in live]), None)
            self._for = None if first is None else (first, self._capacity_for(first))
        elif self._taken != self._last:
            return None
        if self._for is None:
            return None
        first, capacity = self._for
        if not again and (capacity is None or capacity.is_fixed or self._caching.stopped):
            return None
        aim = None if capacity is None else self._placing.aim(first, capacity)
        if not again and aim in (None, self._aim):
            return None
        mine = {epoch: at for (run, epoch), at in live if run == first}
        return self._choice(first, aim, mine, now_s, again=again) if mine else None

    def _counted(self, now_s: float) -> list[tuple[Key, ActiveEpoch]]:
        """Return the active epochs of the runs that count: not those that are resting, unless all are."""
        live = self._epochs.lives.live()
        resting = {run for run, _ in dict(live) if self._epochs.features.is_resting(run, now_s)}
        counted = [item for item in live if item[0][0] not in resting]
        return counted or live

    def _choice(
        self, run: RunNumber, aim: Aim | None, live: dict[int, ActiveEpoch], now_s: float, *, again: bool
    ) -> ChooseCached | None:
        """Return the choice for a run with these active epochs.

        The memory cache is chosen `again` with a run, and once its ranks are settled if it follows them (`in_memory`).
        """
        self._aim, order = aim, self._order(run)
        epoch = aim.epoch if aim is not None and aim.epoch in live else next(iter(live))
        unit = order.policy.kept_unit
        later = aim is not None and aim.way in ("next", "frequency")
        whole = live[epoch].epoch.plan.reads is None and aim is not None and aim.way == "even"
        shelf = self._caching.shelf(unit, self._epochs.lives, later=later, whole=whole)
        follow = None if shelf is None else self._follow(order, aim, epoch, live[epoch])
        # The reads of the next epochs are planned with the choice for memory.
        kept = unit if again or (follow is not None and follow.in_memory) else None
        if kept is None and shelf is None:
            return None
        self._last += 1
        owners, plan, ever = self._members.owners(order.mapping), live[epoch].epoch.source, self._ever(run)
        if isinstance(plan, EpochPlan) and plan.grows:  # the planner's thread reads it while the order grows
            plan = replace(plan, sample_of=plan.sample_of.copy())
        choice = ChooseCached(
            self._last,
            plan,
            kept,
            order.seed,
            self._room(run, self._pages(ever), now_s),
            owners,
            shelf,
            follow,
            ever,
            self._held(order),
            self._together(run),
        )
        if kept is not None and self._pages(ever) <= self._most():
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

    def _capacity_for(self, run: RunNumber) -> CacheCapacity | None:
        start = self._caching.start
        if start is None or self._caching.stopped:
            return None
        unit = self._caching.unit(self._order(run).policy.kept_unit)
        return CacheCapacity(start.placement, start.all_fits, unit, unit * start.mean_bytes)

    def _order(self, run: RunNumber) -> Order:
        return self._epochs.runs[run].order

    def _room(self, run: RunNumber, drawn: int, now_s: float) -> int:
        """Return the pages that cached samples and an epoch's samples of this run may take together.

        `drawn`: the pages of all samples that its sampler draws.
        """
        order, pages, mean = self._order(run), self._most(), self._residents.pool.mean_pages
        if drawn <= pages:
            return pages  # all samples fit, so nothing is read ahead
        if order.grows:
            return 0  # the samples that its jobs draw later are in memory already
        pages -= self.reserved.ahead(pages, self._residents.pool.allocator.page)
        runs = {run for (run, _), _ in self._counted(now_s)} | set(self._drawing(run))
        others = {self._epochs.runs[run].order for run in runs} - {order}
        followers = self._epochs.features.held_for_followers(order, runs)
        if followers:
            pages -= min(pages // 2, round(followers * mean))
            others = {other for other in others if not other.joins}
        return pages - sum(map(self._held, others))

    def _held(self, order: Order) -> int:
        """Return the pages of the samples that an epoch of this order holds at a time, of those that it draws."""
        held = min(order.policy.held(order.mapping), order.samples)
        return round(held * self._residents.pool.mean_pages * order.draws / order.samples)

    def _most(self) -> int:
        """Return the pages of this node's own samples."""
        return self._residents.pool.allocator.count - 1 - self.reserved.remote_pages

    def _drawing(self, run: RunNumber) -> tuple[RunNumber, ...]:
        """Return the runs that the sampler of this run draws at a time: several if it has weights.

        They count as one for the choice of cached samples: their epochs are short, and begin and end all the time.
        """
        runs = self._epochs.runs
        if not runs[run].order.times:
            return (run,)
        return tuple(n for n, each in runs.items() if each.order.times and each.name == runs[run].name)

    def _together(self, run: RunNumber) -> tuple[Order, ...]:
        """Return the orders that the sampler with weights of this run draws at a time; none for another run."""
        return tuple(map(self._order, self._drawing(run))) if self._order(run).times else ()

    def _ever(self, run: RunNumber) -> Subset | None:
        """Return the samples that the sampler of this run draws in some epoch. None if those are all."""
        return united([order.ever for order in self._together(run) or (self._order(run),)])

    def _pages(self, ever: Subset | None) -> int:
        """Return the pages of these samples. None: of all."""
        pool = self._residents.pool
        if ever is None:
            return pool.all_pages
        if isinstance(pool.pages_of, np.ndarray):
            return int(pool.pages_of[ever.mask].sum(dtype=np.int64))
        return min(pool.all_pages, len(ever) * pool.most_pages)
