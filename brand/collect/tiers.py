"""Which neighbouring segments become one? A pure function of the numbers of samples that they hold.

A segment is of tier `t` if it holds 8^t to 8^(t+1) - 1 samples. Eight segments of one tier, with nothing larger between
them, become one segment of a higher tier, together with the smaller ones between them:

    appends of 20    20 20 20 20 20 20 20 20   ->  160
    eight of these   160 160 ... 160           ->  1280

So a sample is copied at most once for each tier, and `N` equal appends leave at most seven segments of each tier. Their
number, and the number of copies of a sample, grow with the logarithm of `N`. Uneven sizes can leave more segments: if
more than `CROWD` would be left, the smallest neighbours are merged, too, until half as many are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FANOUT: Final = 8
"""Segments of one tier that become one: fewer copy each sample more often, more leave more segments."""
CROWD: Final = 64
"""More segments than these are too many, whatever their sizes."""

_Stretch = tuple[int, int, int]
"""Samples of a run of segments, its first segment, the segment after its last one."""


def tier(samples: int) -> int:
    """Return the whole part of the logarithm to base 8; -1 for no samples."""
    return (samples.bit_length() - 1) // 3


def merges(sizes: Sequence[int]) -> list[range]:
    """Return the runs of at least two segments that become one each, ascending, given the sizes of all in order.

    The sizes afterwards have no such run.
    """
    stretches = _tiered([(size, number, number + 1) for number, size in enumerate(sizes)])
    while len(stretches) > CROWD:
        stretches = _tiered(_thinned(stretches, CROWD // 2))
    return [range(first, end) for _, first, end in stretches if end - first > 1]


def _tiered(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Merge the segments of a tier as they fill it, from left to right, as if each had just been appended."""
    found: list[_Stretch] = []
    for stretch in stretches:
        found.append(stretch)
        while (first := _full(found)) is not None:
            found[first:] = [_as_one(found[first:])]
    return found


def _full(stretches: Sequence[_Stretch]) -> int | None:
    """Return the number of the first of eight stretches of the tier of the last one, with no larger one behind it."""
    last, left = tier(stretches[-1][0]), FANOUT
    for number in range(len(stretches) - 1, -1, -1):
        own = tier(stretches[number][0])
        if own > last:
            return None
        left -= own == last
        if not left:
            return number
    return None


def _thinned(stretches: Sequence[_Stretch], most: int) -> list[_Stretch]:
    """Merge the two neighbours that are smallest together, again and again, until `most` are left."""
    found = list(stretches)
    while len(found) > most:
        number = min(range(len(found) - 1), key=lambda at: found[at][0] + found[at + 1][0])
        found[number : number + 2] = [_as_one(found[number : number + 2])]
    return found


def _as_one(stretches: Sequence[_Stretch]) -> _Stretch:
    return sum(samples for samples, _, _ in stretches), stretches[0][1], stretches[-1][2]
