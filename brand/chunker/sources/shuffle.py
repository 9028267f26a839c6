"""In which order are N samples stored, if N does not fit in memory?

Each index gets a random 64-bit key from a counter-based stream (Philox, seeded); the order is the indices sorted by
key, ties by index. Every permutation is equally likely, sample `i`'s key is known before `N` is, and sorting works in
buckets of key ranges, so memory is bounded by `BLOCK` entries whatever `N` is.

A source may consist of *stretches* that are read independently of each other. Each has a stream of its own, so a
process that reads one knows the keys of its samples before the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from brand.formats.arrays import map_array, release

BLOCK: Final = 1 << 20
"""Keys sorted at a time: 16 MiB with their indices."""

_INDEX: Final = np.dtype("<u8")
_PAIR: Final = np.dtype([("key", "<u8"), ("index", "<u8")])


class SortKeys:
    """The keys of the samples of one stretch, in turn."""

    def __init__(self, seed: int, stretch: int = 0) -> None:
        self._stream = Philox(key=np.array([seed, stretch], np.uint64))

    def next(self, count: int) -> NDArray[np.uint64]:
        """Return the keys of the next `count` samples."""
        return self._stream.random_raw(count).astype(np.uint64, copy=False)


def sorted_places(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the places of the keys, sorted by key, ties by place.

    The stable sort takes six times as long as the other, so it runs only if two keys are equal.
    """
    places = np.argsort(keys)
    ordered = keys[places]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else places


def write_order(path: Path, stretches: Sequence[int], seed: int, *, block: int = BLOCK) -> None:
    """Write the order of a source whose stretches have these numbers of samples.

    The file holds the index at each place, little-endian u64.
    """
    samples = sum(stretches)
    order = map_array(path, _INDEX, "w+", samples)
    if samples <= block:
        order[:] = sorted_places(np.concatenate([np.empty(0, np.uint64), *_blocks(seed, stretches, block)]))
    else:
        _sort_by_bucket(order, path.with_suffix(".pairs"), stretches, seed, block)
    release(order)


def open_order(path: Path, samples: int) -> NDArray[np.uint64]:
    """Map the file that `write_order` wrote."""
    return map_array(path, _INDEX, length=samples)


def _sort_by_bucket(order: NDArray[np.uint64], scratch: Path, stretches: Sequence[int], seed: int, block: int) -> None:
    samples = len(order)
    bits = max(1, (2 * samples // block).bit_length())
    shift = np.uint64(64 - bits)
    counts = np.zeros(1 << bits, np.int64)
    for keys in _blocks(seed, stretches, block):
        counts += np.bincount((keys >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    cursors = ends - counts
    pairs = map_array(scratch, _PAIR, "w+", samples)
    first = 0
    for keys in _blocks(seed, stretches, block):
        by_bucket = np.argsort(keys >> shift, kind="stable")
        here = np.bincount((keys >> shift).astype(np.int64), minlength=len(counts))
        within = np.arange(len(keys)) - np.repeat(np.cumsum(here) - here, here)
        target = np.repeat(cursors, here) + within
        pairs["key"][target] = keys[by_bucket]
        pairs["index"][target] = by_bucket + first
        cursors += here
        first += len(keys)
        release(pairs)
    for start, end in zip(ends - counts, ends, strict=True):
        bucket = pairs[start:end]
        order[start:end] = bucket["index"][sorted_places(bucket["key"])]
        release(order, pairs)
    scratch.unlink()


def _blocks(seed: int, stretches: Sequence[int], block: int) -> Iterator[NDArray[np.uint64]]:
    for stretch, samples in enumerate(stretches):
        keys = SortKeys(seed, stretch)
        for start in range(0, samples, block):
            yield keys.next(min(block, samples - start))
