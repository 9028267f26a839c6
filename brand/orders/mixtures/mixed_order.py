"""The order of a mixture: the orders of its members, and the positions from which weights apply.

A mixture has one endless sequence of positions. Its epochs are cuts of it, `samples` positions each: the sequence
continues from one epoch to the next. Each position draws from one member (`Shares`). Draw number
`d` of a member is position `d % n` of epoch `d // n` in the member's own order of `n` samples. So a member that is
exhausted continues with its next epoch: each of its samples is drawn once before any is drawn twice.

Weights may change at a position. From there on the counts begin again, and each member continues its order.

The members are the leaves of a binary tree. At each inner node the positions are divided between left and right:

    of the first t positions of the node, floor(t * share + 1/2) go to the left

so the left side is never more than half a position away from its share. The nodes below divide their positions in the
same way. So any position is found in as many steps as the tree is deep, without the positions before it, and nothing is
random. The counts of members in the first t positions follow:

- if t * weight is whole for all members, they are exactly that; so are those of any t positions in a row
- else each is away from t * weight by at most `Shares.away`, which is below 1 with up to four members

How far a leaf can be away depends on the tree: (1 + weight * sum of 1 / weight of the inner nodes above it) / 2,
without the root. `tree_of` searches for the tree in which no leaf has 1 or more. Up to `SEARCHED` members it tries all
trees; if there are more, the lightest are joined first.

A share is a fraction of 2 ** 64, so sums are exact whole numbers, the same on every machine. Never change the tree nor
the rounding: they fix orders that users resume.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number, check_type
from brand.orders.base.random import RandomStream, bits
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order
from brand.reprs import Reprs

MAX_MEMBERS: Final = 256
MAX_POSITION: Final = (1 << 48) - 1
SEARCHED: Final = 6
"""The most members for which all trees are tried."""
_ONE: Final = 1 << 64
_HALF: Final = 1 << 63
_LOW: Final = np.uint64((1 << 32) - 1)
_BITS: Final = np.uint64(32)

Tree = int | tuple[Any, Any]
"""A member, or a node: its left and its right side."""
MAX_STRETCHES: Final = 4096
_NUMBER_BITS: Final = 8
"""Bits of a number below `MAX_MEMBERS`."""


class Shares(Reprs, shows="weights"):
    """The shares of members with these weights. Raises ValueError if the weights are invalid."""

    def __init__(self, weights: Sequence[float]) -> None:
        check_weights(weights)
        self.weights = tuple(map(float, weights))
        self._tree = tree_of({member: weight for member, weight in enumerate(self.weights) if weight})
        self._shares = {node: self._share(node) for node in _nodes(self._tree)}
        """The fraction of a node's positions on its left side, of 2 ** 64."""
        total = sum(map(Fraction, self.weights))
        self.parts = tuple(float(Fraction(weight) / total) for weight in self.weights)
        """The fraction of all positions that each member has; the sum is 1."""
        self.away = max(_away(self._tree, self.weights, above=None))
        """The largest difference between a count and its share."""

    def members(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the member at each position, and how often it was drawn before; shapes as `positions`, (n,)."""
        member, before = np.empty(len(positions), np.int16), np.empty(len(positions), np.int64)
        self._fill(self._tree, positions.astype(np.uint64), np.arange(len(positions)), member, before)
        return member, before

    def counts(self, positions: int) -> tuple[int, ...]:
        """Return how often each member is drawn in the first `positions` positions."""
        found = [0] * len(self.weights)

        def count(tree: Tree, come: int) -> None:
            if isinstance(tree, int):
                found[tree] = come
                return
            left = (come * self._shares[tree] + _HALF) >> 64
            count(tree[0], left)
            count(tree[1], come - left)

        count(self._tree, positions)
        return tuple(found)

    def _fill(
        self,
        tree: Tree,
        come: NDArray[np.uint64],
        where: NDArray[np.intp],
        member: NDArray[np.int16],
        before: NDArray[np.int64],
    ) -> None:
        """Set member and count of the positions `where` that reach a node after `come` others."""
        if isinstance(tree, int):
            member[where], before[where] = tree, come
            return
        share = self._shares[tree]
        low = come * np.uint64(share) + np.uint64(_HALF)  # the fraction, modulo 1
        left = _whole_part(come, share) + (low < np.uint64(_HALF))
        goes_left = low + np.uint64(share) < np.uint64(share)  # the next position is one of the left side
        self._fill(tree[0], left[goes_left], where[goes_left], member, before)
        self._fill(tree[1], (come - left)[~goes_left], where[~goes_left], member, before)

    def _share(self, tree: tuple[Any, Any]) -> int:
        left, right = (sum(Fraction(self.weights[leaf]) for leaf in leaves(side)) for side in tree)
        return min(max(1, round(left / (left + right) * _ONE)), _ONE - 1)


def check_weights(weights: Sequence[float]) -> None:
    """Raise ValueError unless these are weights of members: finite, none below 0, not all of them 0."""
    if not 1 <= len(weights) <= MAX_MEMBERS:
        raise ValueError(f"{len(weights)} members: a mixture has 1 to {MAX_MEMBERS}")
    for weight in weights:
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weight {weight!r}: a finite number is needed, 0 or more")
    if not any(weights):
        raise ValueError("all weights are 0")


def tree_of(weights: dict[int, float]) -> Tree:
    """Return the tree of members with these weights, each above 0."""
    sides: list[tuple[float, Tree]] = [(weight, member) for member, weight in weights.items()]
    while len(sides) > SEARCHED:
        sides.sort(key=lambda side: (side[0], str(side[1])))
        (one, left), (other, right), *sides = sides
        sides.append((one + other, (left, right)))
    sums = [math.fsum(w for i, (w, _) in enumerate(sides) if group >> i & 1) for group in range(1 << len(sides))]

    @cache
    def best(group: int) -> tuple[float, Tree]:
        """Return the largest sum of 1 / weight of the nodes above for which no leaf is away by 1; and the tree."""
        if group.bit_count() == 1:
            weight, tree = sides[group.bit_length() - 1]
            return 1 / weight, tree
        lowest, found = group & -group, list[tuple[float, Tree]]()
        side = (group - 1) & group
        while side:
            if side & lowest:
                (one, left), (other, right) = best(side), best(group ^ side)
                found.append((min(one, other), (left, right)))
            side = (side - 1) & group
        room, tree = max(found, key=lambda each: each[0])
        return room - 1 / sums[group], tree

    return best((1 << len(sides)) - 1)[1]


def leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [*leaves(tree[0]), *leaves(tree[1])]


def _nodes(tree: Tree) -> list[tuple[Any, Any]]:
    return [] if isinstance(tree, int) else [tree, *_nodes(tree[0]), *_nodes(tree[1])]


def _away(tree: Tree, weights: Sequence[float], above: float | None) -> list[float]:
    """Return how far each leaf can be away. `above`: the sum of 1 / weight of the nodes above; None for the root."""
    if isinstance(tree, int):
        return [0.0 if above is None else (1 + weights[tree] * above) / 2]
    more = 0.0 if above is None else above + 1 / sum(weights[leaf] for leaf in leaves(tree))
    return [*_away(tree[0], weights, more), *_away(tree[1], weights, more)]


def _whole_part(numbers: NDArray[np.uint64], share: int) -> NDArray[np.uint64]:
    """Return the whole part of numbers below 2 ** 48 times a share of 2 ** 64."""
    high, low = numbers >> _BITS, numbers & _LOW
    share_high, share_low = np.uint64(share >> 32), np.uint64(share & int(_LOW))
    middle = high * share_low + (low * share_low >> _BITS)
    other = low * share_high + (middle & _LOW)
    found: NDArray[np.uint64] = high * share_high + (middle >> _BITS) + (other >> _BITS)
    return found


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

    orders: tuple[Order | MixedOrder, ...]
    """By member. One that is mixed itself draws all samples of an epoch before it draws one again."""
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
        """Return draws at positions of an epoch. Raises ValueError if a member would begin more epochs than it has."""
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
        sizes = np.array(self.sizes)[member]
        found = MixedDraws(member, *np.divmod(number, sizes))
        if len(positions) and int(found.epoch.max()) > MAX_EPOCH:
            which_one = int(member[found.epoch.argmax()])
            raise ValueError(
                f"member {which_one} has {self.sizes[which_one]:,} samples and would begin its epoch "
                f"{MAX_EPOCH + 1:,}, the last one is {MAX_EPOCH:,}: give it a smaller weight"
            )
        return found

    @property
    def sizes(self) -> tuple[int, ...]:
        """The draws of an epoch of each member."""
        return tuple(order.samples if isinstance(order, MixedOrder) else order.draws for order in self.orders)

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
    def from_json(cls, value: Any, mixed: Mapping[int, MixedOrder] | None = None) -> MixedOrder:
        """Read the output of `to_json`, but for the members that are `mixed`. Raises ValueError if it is invalid."""
        match value:
            case {"members": [*members], "samples": samples, "seed": seed, "weights": [*weights]} if len(value) == 4:
                known = mixed or {}
                orders = tuple(known[n] if n in known else Order.from_json(each) for n, each in enumerate(members))
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


def numbered_seed(seed: int, member: int) -> int:
    """Return the same with the member's number in it: any process finds it by `member_of_seed`.

    It is for members that are orders of one data set, which a ticket does not tell apart.
    """
    return seed_of_member(seed, member) >> _NUMBER_BITS << _NUMBER_BITS | member


def member_of_seed(seed: int) -> int:
    """Return the number of the member that has a `numbered_seed`."""
    return seed & ((1 << _NUMBER_BITS) - 1)


@lru_cache(1024)
def shares_of(weights: tuple[float, ...]) -> Shares:
    return Shares(weights)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"weight {value!r}: a number is needed")
    return float(value)
