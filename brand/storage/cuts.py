"""Which ranges of chunk files are read for some samples, and where does each sample lie in them?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Cut(NamedTuple):
    """Ranges that cover some samples, and where each sample lies in them."""

    chunks: list[int]
    offsets: list[int]
    sizes: list[int]
    range_of: list[int]
    """For each sample, the number of its range in the lists above."""
    starts: list[int]
    """For each sample, where it begins in its range."""


def cut_ranges(chunks: NDArray[np.integer[Any]], rows: NDArray[np.void]) -> Cut:
    """One range for each run of samples that lie side by side in a chunk. A sample that occurs twice is read once.

    Pure.
    """
    offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
    order = np.lexsort((offsets, chunks))
    chunk, start = chunks[order], offsets[order]
    end = start + sizes[order]
    joins = (chunk[1:] == chunk[:-1]) & ((start[1:] == end[:-1]) | (start[1:] == start[:-1]))
    first = np.concatenate(([True], ~joins))
    heads = np.flatnonzero(first)
    range_sorted = np.cumsum(first) - 1
    range_of, within = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    range_of[order] = range_sorted
    within[order] = start - start[heads][range_sorted]
    lengths = np.maximum.reduceat(end, heads) - start[heads]
    return Cut(chunk[heads].tolist(), start[heads].tolist(), lengths.tolist(), range_of.tolist(), within.tolist())
