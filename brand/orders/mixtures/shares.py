"""Which member of a mixture does each position of its endless sequence draw, and how often was it drawn before?

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

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number
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

    def positions(self, member: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position at which a member with a weight is drawn after `counts` earlier draws of it.

        The inverse of `members`. Positions past the end of the sequence are `MAX_POSITION`.
        """
        for node, left in reversed(_way_to(self._tree, member)):
            counts = _inverse(counts, self._shares[node], left=left)
        return counts

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
        left, low = _counts_left(come, share)
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


def _way_to(tree: Tree, member: int) -> list[tuple[Any, bool]]:
    """Return the nodes above a member, from the root on, and whether it is on the left side of each."""
    if isinstance(tree, int):
        return []
    left = member in leaves(tree[0])
    return [(tree, left), *_way_to(tree[0] if left else tree[1], member)]


def _counts_left(come: NDArray[np.uint64], share: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return how many of the first `come` positions of a node go to its left side, and the rest of the rounding."""
    low = come * np.uint64(share) + np.uint64(_HALF)  # the fraction, modulo 1
    return _whole_part(come, share) + (low < np.uint64(_HALF)), low


def _inverse(counts: NDArray[np.int64], share: int, *, left: bool) -> NDArray[np.int64]:
    """Return the position of a node that goes to one side after `counts` others: the last one with that many before."""

    def before(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        come = positions.astype(np.uint64)
        on_left = _counts_left(come, share)[0]
        return (on_left if left else come - on_left).astype(np.int64)

    part = share / _ONE if left else (_ONE - share) / _ONE
    estimate = (counts + 0.5) / part
    found: NDArray[np.int64] = np.clip(estimate, 2, MAX_POSITION - 2).astype(np.int64) - 2
    for _ in range(3):  # the quotient has 53 bits, so it is away by less than 1, and rounded down by less than 1
        found += before(found + 1) <= counts
    found[estimate >= MAX_POSITION - 2] = MAX_POSITION
    return found


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


@lru_cache(1024)
def shares_of(weights: tuple[float, ...]) -> Shares:
    return Shares(weights)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The member of each position of the sequence. Raises ValueError if the stretches do not fit together."""

    stretches: tuple[Stretch, ...]
    before: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """How often each member was drawn before each stretch."""

    def __post_init__(self) -> None:
        firsts = [stretch.first for stretch in self.stretches]
        if not firsts or firsts[0] != 0 or any(one >= other for one, other in pairwise(firsts)):
            raise ValueError(f"weights from positions {firsts}: they begin at 0 and ascend")
        if len(firsts) > MAX_STRETCHES:
            raise ValueError(f"the weights change more than {MAX_STRETCHES - 1:,} times")
        if len({len(stretch.weights) for stretch in self.stretches}) > 1:
            raise ValueError("weights for different numbers of members")
        before = [(0,) * self.members]
        for one, other in pairwise(self.stretches):
            come = shares_of(one.weights).counts(other.first - one.first)
            before.append(tuple(map(sum, zip(before[-1], come, strict=True))))
        object.__setattr__(self, "before", tuple(before))

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.stretches[0].weights)

    def drawn(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the member at each position, and how often it was drawn before; shapes as `positions`, (n,)."""
        member, number = np.empty(len(positions), np.int16), np.empty(len(positions), np.int64)
        ends = [stretch.first for stretch in self.stretches[1:]] + [MAX_POSITION + 1]
        for stretch, end, before in zip(self.stretches, ends, self.before, strict=True):
            here = np.flatnonzero((stretch.first <= positions) & (positions < end))
            if len(here):
                some, come = shares_of(stretch.weights).members(positions[here] - stretch.first)
                member[here], number[here] = some, come + np.array(before)[some]
        return member, number

    def positions(self, member: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions at which draws of a member come: its draw `numbers`, shape (n,). Inverse of `drawn`.

        Draws that never come, or past the end of the sequence, have the position `MAX_POSITION`.
        """
        found = np.full(len(numbers), MAX_POSITION, np.int64)
        stretch_of = np.searchsorted([before[member] for before in self.before], numbers, side="right") - 1
        for at in np.unique(stretch_of).tolist():
            stretch = self.stretches[at]
            if stretch.weights[member]:
                here = np.flatnonzero(stretch_of == at)
                inside = shares_of(stretch.weights).positions(member, numbers[here] - self.before[at][member])
                found[here] = np.minimum(stretch.first + inside, MAX_POSITION)
        return found

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how often each member was drawn before a position."""
        at = self._at(position)
        come = shares_of(self.stretches[at].weights).counts(position - self.stretches[at].first)
        return tuple(map(sum, zip(self.before[at], come, strict=True)))

    def weights_at(self, position: int) -> tuple[float, ...]:
        """Return the weights at a position."""
        return self.stretches[self._at(position)].weights

    def changed(self, stretch: Stretch) -> Pattern:
        """Return the pattern with this stretch in place of all from its first position on."""
        if stretch in self.stretches:
            return self
        return Pattern((*(each for each in self.stretches if each.first < stretch.first), stretch))

    def to_json(self) -> list[list[Any]]:
        return [[stretch.first, list(stretch.weights)] for stretch in self.stretches]

    @classmethod
    def from_json(cls, value: Any) -> Pattern:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        stretches = []
        for each in value:
            match each:
                case [first, [*numbers]]:
                    stretches.append(Stretch(first, tuple(map(_float, numbers))))
                case _:
                    raise ValueError(f"{each!r}: weights have a first position and a number for each member")
        return cls(tuple(stretches))

    def _at(self, position: int) -> int:
        """Return the number of the stretch of a position."""
        return max(n for n, stretch in enumerate(self.stretches) if stretch.first <= position)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"weight {value!r}: a number is needed")
    return float(value)
