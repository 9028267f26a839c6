"""The order of a mixture: the orders of its members, and the positions from which weights apply.

A mixture has one endless sequence of positions. Its epochs are cuts of it, `samples` positions each: the sequence
continues from one epoch to the next. Each position draws from one member (`brand.orders.mixtures.shares`). Draw number
`d` of a member is position `d % n` of epoch `d // n` in the member's own order of `n` samples. So a member that is
exhausted continues with its next epoch: each of its samples is drawn once before any is drawn twice.

Weights may change at a position. From there on the counts begin again, and each member continues its order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number, check_type
from brand.orders.base.random import RandomStream, bits
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.mixtures.shares import MAX_POSITION, Shares, check_weights
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order

MAX_STRETCHES: Final = 4096


@dataclass(frozen=True, slots=True)
class Stretch:
    """A section of the sequence with constant weights. Raises ValueError if a number is out of range."""

    first: int
    """Its first position; it ends at the beginning of the next stretch."""
    weights: tuple[float, ...]
    """By member."""

    def __post_init__(self) -> None:
        check_number("first", self.first, 0, MAX_POSITION)
        check_weights(self.weights)


@dataclass(frozen=True, slots=True)
class MixedDraws:
    """The members, epochs and positions that a mixture draws; all shapes are (positions,)."""

    member: NDArray[np.int16]
    epoch: NDArray[np.int64]
    """Epoch of the member."""
    position: NDArray[np.int64]
    """Position in that epoch."""


@dataclass(frozen=True, slots=True)
class MixedOrder:
    """The order of all epochs of a mixture. Raises ValueError if its numbers do not fit together."""

    orders: tuple[Order, ...]
    """By member."""
    samples: int
    """Positions of an epoch."""
    seed: int
    stretches: tuple[Stretch, ...]
    before: tuple[tuple[int, ...], ...] = field(init=False)
    """How often each member was drawn before each stretch."""

    def __post_init__(self) -> None:
        check_number("samples", self.samples, 1, MAX_POSITIONS)
        check_type("seed", self.seed, int)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed {self.seed} is not from 0 to 2**128 - 1")
        firsts = [stretch.first for stretch in self.stretches]
        if not firsts or firsts[0] != 0 or any(one >= other for one, other in pairwise(firsts)):
            raise ValueError(f"weights from positions {firsts}: they begin at 0 and ascend")
        if len(firsts) > MAX_STRETCHES:
            raise ValueError(f"the weights change more than {MAX_STRETCHES - 1:,} times")
        if any(len(stretch.weights) != len(self.orders) for stretch in self.stretches):
            raise ValueError(f"weights for another number of members: there are {len(self.orders)}")
        before = [(0,) * len(self.orders)]
        for one, other in pairwise(self.stretches):
            come = shares_of(one.weights).counts(other.first - one.first)
            before.append(tuple(map(sum, zip(before[-1], come, strict=True))))
        object.__setattr__(self, "before", tuple(before))

    def draws(self, epoch: int, positions: NDArray[np.int64]) -> MixedDraws:
        """Return the draws at positions of an epoch.

        Raises ValueError if a member would begin more epochs than it has.
        """
        first = epoch * self.samples
        if first + self.samples - 1 > MAX_POSITION:
            raise ValueError(
                f"epoch {epoch} of {self.samples:,} samples: the sequence has at most {MAX_POSITION + 1:,}"
            )
        absolute = first + positions
        member, number = np.empty(len(positions), np.int16), np.empty(len(positions), np.int64)
        ends = [stretch.first for stretch in self.stretches[1:]] + [MAX_POSITION + 1]
        for stretch, end, before in zip(self.stretches, ends, self.before, strict=True):
            here = np.flatnonzero((stretch.first <= absolute) & (absolute < end))
            if len(here):
                some, come = shares_of(stretch.weights).members(absolute[here] - stretch.first)
                member[here], number[here] = some, come + np.array(before)[some]
        sizes = np.array([order.draws for order in self.orders])[member]
        found = MixedDraws(member, *np.divmod(number, sizes))
        if len(positions) and int(found.epoch.max()) > MAX_EPOCH:
            which_one = int(member[found.epoch.argmax()])
            raise ValueError(
                f"member {which_one} has {self.orders[which_one].draws:,} samples and would begin its epoch "
                f"{MAX_EPOCH + 1:,}, the last one is {MAX_EPOCH:,}: give it a smaller weight"
            )
        return found

    def counts(self, epoch: int, position: int) -> tuple[int, ...]:
        """Return how often each member was drawn before a position of an epoch."""
        absolute = epoch * self.samples + position
        each = max(n for n, stretch in enumerate(self.stretches) if stretch.first <= absolute)
        come = shares_of(self.stretches[each].weights).counts(absolute - self.stretches[each].first)
        return tuple(map(sum, zip(self.before[each], come, strict=True)))

    def weights_at(self, epoch: int, position: int) -> tuple[float, ...]:
        """Return the weights at a position of an epoch."""
        absolute = epoch * self.samples + position
        return [stretch.weights for stretch in self.stretches if stretch.first <= absolute][-1]

    def with_weights(self, weights: Sequence[float], epoch: int, position: int) -> MixedOrder:
        """Return the order with these weights from a position of an epoch on, in place of all weights from there on.

        If these weights apply there already, nothing changes: a restarted program may repeat the call.
        """
        stretch = Stretch(epoch * self.samples + position, tuple(map(float, weights)))
        if stretch in self.stretches:
            return self
        return replace(self, stretches=(*(s for s in self.stretches if s.first < stretch.first), stretch))

    def to_json(self) -> dict[str, Any]:
        return {
            "members": [order.to_json() for order in self.orders],
            "samples": self.samples,
            "seed": self.seed,
            "weights": [[stretch.first, list(stretch.weights)] for stretch in self.stretches],
        }

    @classmethod
    def from_json(cls, value: Any) -> MixedOrder:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        match value:
            case {"members": [*members], "samples": samples, "seed": seed, "weights": [*weights]} if len(value) == 4:
                orders = tuple(map(Order.from_json, members))
            case _:
                raise ValueError("the order of a mixture has members, samples, seed and weights")
        stretches = []
        for each in weights:
            match each:
                case [first, [*numbers]]:
                    stretches.append(Stretch(first, tuple(map(_float, numbers))))
                case _:
                    raise ValueError(f"{each!r}: weights have a first position and a number for each member")
        return cls(orders, samples, seed, tuple(stretches))


def ranks_of_rounds(seed: int, epoch: int, start: int, rounds: range, replicas: int) -> NDArray[np.int64]:
    """Return the rotation of the ranks in each round, 0 to `replicas` - 1, shape (len(rounds),).

    Rank `r` draws number `(r + rotation) % replicas` of a round's positions. Members follow a pattern: without the
    rotation, a rank could always draw from the same members.
    """
    first = rounds.start // 4 * 4
    words = bits(rounds.stop - first, seed, RandomStream.MIXED_RANKS, epoch, start, first=first)[rounds.start - first :]
    return (words % np.uint64(replicas)).astype(np.int64)


def seed_of_member(seed: int, member: int) -> int:
    """Return the seed of a member's own order, so that members of one size have different orders."""
    return int.from_bytes(hashlib.blake2s(f"{seed} {member}".encode(), digest_size=16).digest())


@lru_cache(1024)
def shares_of(weights: tuple[float, ...]) -> Shares:
    return Shares(weights)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"weight {value!r}: a number is needed")
    return float(value)
