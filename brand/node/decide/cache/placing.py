"""Which placement has the cache folder, and for which epoch is it to be chosen?

    even         a random choice that stays: where this node draws everything, or nodes draw from each other
    next         what the ranks of this node draw again soonest, chosen for each epoch: where the node is alone
    frequency    what they draw most often in all epochs, chosen once

Which ranks draw here is settled when all ranks of the run do, or else when half of an epoch is drawn, as ranks begin
one after the other. Until then what comes has a place, as far as there is room, and nothing leaves the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.choosing import Placement, Way
from brand.node.decide.state.lives import ActiveEpoch
from brand.node.decide.state.members import Members
from brand.node.wire.numbers import RunNumber
from brand.orders.base.placement import CACHED_BYTES
from brand.orders.nextuse import Ranks

MOST_SEEN: Final = 0.75
"""Where so much of all units is drawn in each epoch, the next draws of units hardly differ, and `even` is as good."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What the placement is to be chosen for."""

    way: Way | Literal["even"]
    run: RunNumber
    ranks: Ranks | None = None
    epoch: int = 0

    def follows(self, other: Aim | None) -> bool:
        """Whether this is for the same draws as another one, in a later epoch or in the same one."""
        return other is not None and (self.way, self.run, self.ranks) == (other.way, other.run, other.ranks)


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """What the placement depends on, beside the ranks."""

    placement: Placement
    all_fits: bool
    """Whether the folder has room for all samples."""
    unit: int
    """Samples that are placed together."""
    unit_bytes: float

    @property
    def stays(self) -> bool:
        """Whether no sample ever leaves the folder."""
        return self.placement == "even" or self.all_fits


class Placing:
    """The placement of one node's cache folder."""

    def __init__(self, members: Members, epochs: Epochs) -> None:
        self._members, self._epochs = members, epochs
        self._settled: tuple[RunNumber, Ranks] | None = None
        """The last run and its ranks here that were settled."""
        self._aim: Aim | None = None
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"Placing({self._aim})"

    def aim(self, run: RunNumber, room: CacheCapacity) -> Aim | None:
        """What to choose for now; None: the run has no live epoch, so the last choice holds."""
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
            self._aim = self._after(self._aim, [epoch for epoch, _ in lives]) if aim.follows(self._aim) else aim
        return self._aim

    def _after(self, last: Aim | None, epochs: list[int]) -> Aim:
        """The epoch to choose for: one after the other, as each depends on what the last one leaves."""
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
        """Whether samples may leave the folder again, by all that is known before the ranks here are settled."""
        placement = room.placement
        if room.stays or live.epoch.plan.grows:  # of a growing order nobody knows the next epochs
            return False
        if self._members.nodes > 1 or live.epoch.division.batch:
            if placement != "auto":
                self._say(f"placement {placement!r} is for a node that reads for itself alone: here it is 'even'")
            return False
        return placement != "auto" or not ranks.all

    def _too_small(self, ranks: Ranks, room: CacheCapacity) -> bool:
        seen = 1 - (1 - ranks.share) ** room.unit
        if room.unit_bytes >= CACHED_BYTES and seen <= MOST_SEEN:
            return False
        self._say(
            f"{len(ranks.here)} of {ranks.replicas} ranks draw here, but {room.unit} neighbouring samples are cached "
            "together, so the cache folder holds a random choice (placement 'even'). Single samples of 64 KiB or more, "
            "with order='uniform', could be chosen by their next use"
        )
        return True

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._epochs.runs.notice(text)
