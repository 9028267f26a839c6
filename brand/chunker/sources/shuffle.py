"""In which order are N samples stored, if N does not fit in memory?

Each index gets a random 64-bit key from a counter-based stream (Philox, seeded); the order is the indices sorted by
key, ties by index. Every permutation is equally likely, sample `i`'s key is known before `N` is, and sorting works in
buckets of key ranges, so memory is bounded by `BLOCK` entries whatever `N` is.

A source may consist of *stretches* that are read independently of each other. Each has a stream of its own, so a
process that reads one knows the keys of its samples before the others are counted.

Facts of the samples, such as the spans of a spool, are sorted along: who reads the samples in this order then reads
their facts from front to back, where looking each up by its index would touch all pages of a large file for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from brand.formats.arrays import map_array
from brand.formats.buckets import BucketFile

BLOCK: Final = 1 << 19
"""Keys sorted at a time: 8 MiB with their indices, 20 MiB with the spans of a spool."""

_INDEX: Final = np.dtype("<u8")


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


@dataclass(frozen=True)
class Along:
    """Facts of the samples that are stored in the same order as their indices."""

    dtype: np.dtype[Any]
    read: Callable[[int, int, int], NDArray[np.void]]
    """From stretch, first sample in it and number of samples to their rows."""
    path: Path
    """The file that is written."""


def write_order(path: Path, stretches: Sequence[int], seed: int, along: Along | None = None) -> None:
    """Write the order of a source whose stretches have these numbers of samples.

    The file holds the index at each place, little-endian u64. With `along`, a second file holds the rows of the
    samples in that order.
    """
    scratch = path.with_suffix(".buckets")
    with ExitStack() as files:
        order = files.enter_context(path.open("wb"))
        beside = None if along is None else files.enter_context(along.path.open("wb"))
        for rows in _buckets(scratch, stretches, seed, along):
            places = sorted_places(np.ascontiguousarray(rows["key"]))
            order.write(rows["index"].take(places).data)
            if beside is not None:
                beside.write(rows["along"].take(places).view(np.uint8).data)
    scratch.unlink(missing_ok=True)


def open_order(path: Path, samples: int) -> NDArray[np.uint64]:
    """Map the file that `write_order` wrote."""
    return map_array(path, _INDEX, length=samples)


def _buckets(scratch: Path, stretches: Sequence[int], seed: int, along: Along | None) -> Iterator[NDArray[np.void]]:
    """Yield key, index and row along of all samples, in buckets of about a block: ranges of keys that ascend."""
    samples = sum(stretches)
    dtype = np.dtype([("key", _INDEX), ("index", _INDEX), *([("along", along.dtype)] if along is not None else [])])
    bits = (samples // BLOCK).bit_length()
    buckets = BucketFile(scratch, dtype, 1 << bits)
    first = 0
    for stretch, start, keys in _blocks(seed, stretches):
        rows = np.empty(len(keys), dtype)
        rows["key"], rows["index"] = keys, np.arange(first, first + len(keys))
        if along is not None:
            rows["along"] = along.read(stretch, start, len(keys))
        buckets.add(keys >> np.uint64(64 - bits) if bits else np.zeros(len(keys), np.uint8), rows)
        first += len(keys)
    for bucket in range(buckets.buckets):
        yield buckets.read(bucket)


def _blocks(seed: int, stretches: Sequence[int]) -> Iterator[tuple[int, int, NDArray[np.uint64]]]:
    """Yield the keys of all samples, with their stretch and the number of samples before them in it."""
    for stretch, samples in enumerate(stretches):
        keys = SortKeys(seed, stretch)
        for start in range(0, samples, BLOCK):
            yield stretch, start, keys.next(min(BLOCK, samples - start))
