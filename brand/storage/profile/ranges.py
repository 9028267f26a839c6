"""Which ranges are read to measure a storage: which read sizes and depths fit the files, and at which offsets?

    file sizes -> cells (read size, reads in flight) that fit in them -> visits of these cells, round after round
               -> ranges: those of a visit are anywhere, ignore page boundaries, and never overlap

A round visits the cells of every other depth, and the next round the remaining depths, so that even on a slow storage
half of the table is measured well. Rounds are ordered by rising and by falling size in turn. So neighbours are alike,
a burst that a storage allows has little effect, and a slow drift cancels out. The ranges of as many visits as fit are
laid out together, so no byte is read twice before nearly all were read once. All of it is pure.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from typing import Final, NamedTuple

MOST_IN_FLIGHT: Final = 16 << 20
"""Maximum bytes that are read at the same time; this bounds the memory."""
MOST_READS: Final = 1024
"""Maximum reads of one visit, before they are rounded up to a multiple of the reads in flight."""
VISIT_BYTES: Final = 128 << 20
"""Bytes of one visit, if the files have space for them and time allows: a quarter of a second of 500 MB/s."""
VISITS: Final = 9
"""Visits of each cell, as far as time allows."""

_SHARE: Final = 0.8
"""Fraction of the files' bytes that is laid out at once; the rest is the space between ranges."""
_TRIES: Final = 8


class ProfileCell(NamedTuple):
    """One cell of the table: reads of `size` bytes, `depth` of them in flight."""

    size: int
    depth: int

    @property
    def least(self) -> int:
        return max(2, self.depth)


class Range(NamedTuple):
    """A piece of a file, by the file's position in the list of files."""

    file: int
    offset: int
    size: int


def cells_that_fit(
    files: Sequence[int], sizes: Sequence[int], depths: Sequence[int], most: int = MOST_IN_FLIGHT
) -> list[ProfileCell]:
    """Return the cells with at most `most` bytes in flight whose fewest reads fit twice into files of these sizes."""
    found = []
    for size in sizes:
        room = sum(file // size for file in files)
        cells = [ProfileCell(size, depth) for depth in depths]
        found += [c for c in cells if 2 * c.least <= room and size * c.depth <= most]
    return found


def rounds(cells: Sequence[ProfileCell], visits: int = VISITS) -> list[list[ProfileCell]]:
    """Return the order of the visits: every other depth by rising size, the other depths, then both by falling size."""
    depths = sorted({cell.depth for cell in cells})
    halves = [sorted(c for c in cells if c.depth in some) for some in (depths[::2], depths[1::2])]
    return [half if number % 2 == 0 else half[::-1] for number in range(visits) for half in halves if half]


def reads_of(cell: ProfileCell) -> int:
    """Return the reads of a visit: about `VISIT_BYTES` within limits, and a multiple of the reads in flight."""
    wanted = min(MOST_READS, max(cell.least, VISIT_BYTES // cell.size))
    return -(-wanted // cell.depth) * cell.depth


def layouts(
    files: Sequence[int],
    visits: Sequence[ProfileCell],
    rng: random.Random,
    reads: Callable[[ProfileCell], int] = reads_of,
) -> Iterator[tuple[ProfileCell, list[Range]]]:
    """Yield each visit with its ranges; `reads` returns their number.

    As many visits as fit are laid out together; then the files are used again.
    A visit that does not fit alone gets only the ranges that fit.
    """
    at, room = 0, _SHARE * sum(files)
    while at < len(visits):
        totals = accumulate(cell.size * reads(cell) for cell in visits[at:])
        count = max(1, sum(1 for _ in takewhile(lambda total: total <= room, totals)))
        while True:
            together = visits[at : at + count]
            placed = place(files, [cell.size for cell in together for _ in range(reads(cell))], rng)
            if count == 1 or None not in placed:
                break
            count //= 2
        ranges = iter(placed)
        for cell in together:
            yield cell, [piece for piece in islice(ranges, reads(cell)) if piece is not None]
        at += len(together)


def place(files: Sequence[int], wanted: Sequence[int], rng: random.Random) -> list[Range | None]:
    """Return a range in the files for each wanted size; None if no file has space left. Ranges do not overlap.

    Large ranges choose first. Each chooses a file with a probability in proportion to the file's size. The rest of a
    file is spread at random between its ranges.
    """
    free, ends = list(files), list(accumulate(files))
    chosen: list[list[int]] = [[] for _ in files]
    for number in sorted(range(len(wanted)), key=lambda n: -wanted[n]):
        file = _choose(free, ends, wanted[number], rng)
        if file is not None:
            chosen[file].append(number)
            free[file] -= wanted[number]
    placed: list[Range | None] = [None] * len(wanted)
    for file, numbers in enumerate(chosen):
        rng.shuffle(numbers)
        gaps = sorted(rng.randint(0, free[file]) for _ in numbers)
        used = 0
        for number, gap in zip(numbers, gaps, strict=True):
            placed[number] = Range(file, gap + used, wanted[number])
            used += wanted[number]
    return placed


def _choose(free: Sequence[int], ends: Sequence[int], size: int, rng: random.Random) -> int | None:
    for _ in range(_TRIES):
        file = bisect_right(ends, rng.randrange(ends[-1]))
        if free[file] >= size:
            return file
    return rng.choice([n for n, room in enumerate(free) if room >= size] or [None])
