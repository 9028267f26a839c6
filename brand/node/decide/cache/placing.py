"""Which placement has the cache folder, and for which epoch is it to be chosen?

    even         a fixed random choice: if this node draws everything, or if nodes draw from each other
    next         the samples that the ranks of this node draw again soonest, chosen for each epoch: if the node is alone
    frequency    the samples that they draw most often in all epochs, chosen once

The ranks that draw here are settled when all ranks of the run draw here, or otherwise when half of an epoch is drawn,
because ranks begin one after the other. Until then each sample that is read has a place, as far as there is space, and
nothing is evicted from the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.choosing import Placement, Way
from brand.node.decide.state.epoch_table import ActiveEpoch
from brand.node.decide.state.members import Members
from brand.node.wire.numbers import RunNumber
from brand.orders.base.placement import CACHED_BYTES
from brand.orders.nextuse import Ranks

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
    """Whether the folder has space for all samples."""
    unit: int
    """Samples that are placed together."""
    unit_bytes: float

    @property
    def is_fixed(self) -> bool:
        """Whether no sample is ever evicted from the folder."""
        return self.placement == "even" or self.all_fits


class Placing:
    """The placement of one node's cache folder."""

    def __init__(self, members: Members, epochs: Epochs) -> None:
        self._members, self._epochs = members, epochs
        self._settled: tuple[RunNumber, Ranks] | None = None
        """The last run whose ranks here were settled, and these ranks."""
        self._aim: Aim | None = None
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"Placing({self._aim})"

    def aim(self, run: RunNumber, room: CacheCapacity) -> Aim | None:
        """Return the aim of the next choice. None if the run has no active epoch, so that the last choice holds."""
        lives = [(epoch, live) for (number, epoch), live in self._epochs.lives.live() if number == run]
        if not lives:
            return None
        now, live = next(((epoch, live) for epoch, live in lives if live.begun), lives[0])
        ranks = Ranks(tuple(sorted(live.epoch.here)), live.epoch.division.replicas)
        if not ranks.here or not self._may_move(live, ranks, room):
            self._aim = Aim("even", run)
        elif not self._is_settled(run, ranks, live):
            self._aim = Aim("coming", run, ranks, now)
        elif room.placement == "auto" and self._too_small(ranks, room):
            self._aim = Aim("even", run)
        else:
            aim = Aim("frequency" if room.placement == "frequency" else "next", run, ranks, lives[0][0])
            self._aim = self._after(self._aim, [epoch for epoch, _ in lives]) if aim.same_draws_as(self._aim) else aim
        return self._aim

    def _after(self, last: Aim | None, epochs: list[int]) -> Aim:
        """Return the aim for the next epoch. Epochs are chosen in order, as each depends on the contents after the
        last one.
        """
        assert last is not None
        if last.way == "frequency":
            return last
        later = [epoch for epoch in epochs if epoch > last.epoch]
        return replace(last, epoch=later[0] if later else last.epoch if last.epoch in epochs else epochs[0])

    def _is_settled(self, run: RunNumber, ranks: Ranks, live: ActiveEpoch) -> bool:
        if self._settled != (run, ranks) and (ranks.all or (live.begun and live.epoch.progress.half_done)):
            self._settled = run, ranks
        return self._settled == (run, ranks)

    def _may_move(self, live: ActiveEpoch, ranks: Ranks, room: CacheCapacity) -> bool:
        """Return whether samples may be evicted, by all that is known before the ranks here are settled."""
        placement = room.placement
        if room.is_fixed or live.epoch.plan.grows:  # the next epochs of a growing order are unknown
            return False
        if self._members.nodes > 1 or live.epoch.division.batch:
            if placement != "auto":
                self._say(f"placement {placement!r} needs a single node without locality: this node uses 'even'")
            return False
        return placement != "auto" or not ranks.all

    def _too_small(self, ranks: Ranks, room: CacheCapacity) -> bool:
        seen = 1 - (1 - ranks.share) ** room.unit
        if room.unit_bytes >= CACHED_BYTES and seen <= MOST_SEEN:
            return False
        self._say(
            f"{len(ranks.here)} of {ranks.replicas} ranks draw here, but {room.unit} neighbouring samples are cached "
            "together, so the cache folder holds a random choice (placement 'even'). The next use can decide only for "
            "single samples of 64 KiB or more, with order='uniform'"
        )
        return True

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._epochs.runs.notice(text)
