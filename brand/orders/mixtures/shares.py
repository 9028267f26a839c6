"""Which member of a mixture has a position, and how often was it drawn before? A function of position and weights.

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
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
    """Return how far each leaf can be away.

    `above`: the sum of 1 / weight of the nodes above; None if `tree` is the whole.
    """
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
