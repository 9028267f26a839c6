"""What does every protocol make, and what follows from it?

A plan is two tables: which sample is drawn at each position, and which reads must be finished before which position.
The executor knows no protocol; it does the reads in the plan's order. Memory over time follows from the tables, so it
is known before anything is read: `peak`, and from it which samples can be kept in memory for good: `choose_kept`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.protocol.mapping import Mapping
from brand.protocol.random import Stream, permutation

READ = np.dtype([("deadline", "<i8"), ("chunk", "<i4"), ("first", "<i4"), ("count", "<i4")])
"""A read: it is finished before position `deadline` is drawn; samples `first` to `first + count - 1` of `chunk`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch."""

    mapping: Mapping
    sample_of: NDArray[Any]
    """Place of the sample drawn at each position, shape (samples,)."""
    reads: NDArray[np.void]
    """Of dtype `READ`, by deadline."""
    held: NDArray[Any] | None = None
    """Places that the reads hold in memory, one read after the other, shape (samples,); None: each read holds all."""
    held_ends: NDArray[np.int64] | None = None
    """Where the places of each read end in `held`, shape (reads,)."""

    def places_read(self, number: int) -> tuple[int, int]:
        """First place and end of what a read reads."""
        read = self.reads[number]
        first = int(read["chunk"]) * self.mapping.chunk_size + int(read["first"])
        return first, first + int(read["count"])

    def places_held(self, number: int) -> NDArray[Any]:
        """Places that a read holds, ascending."""
        if self.held is None or self.held_ends is None:
            return np.arange(*self.places_read(number))
        start = int(self.held_ends[number - 1]) if number else 0
        return self.held[start : int(self.held_ends[number])]


def read_of_sample(plan: Plan) -> NDArray[Any]:
    """The number of the read that brings each place into memory, shape (samples,)."""
    reads, result = plan.reads, np.empty(len(plan.sample_of), np.int32)
    if plan.held is not None and plan.held_ends is not None:
        result[plan.held] = np.repeat(np.arange(len(reads)), np.diff(plan.held_ends, prepend=0))
        return result
    first = reads["chunk"].astype(np.int64) * plan.mapping.chunk_size + reads["first"]
    order = np.argsort(first)
    return np.repeat(order.astype(np.int32), reads["count"][order])


def memory_over_time(plan: Plan, size_of: NDArray[Any]) -> NDArray[np.int64]:
    """Size held in memory just before each position is drawn, if every read happens at its deadline. Shape (samples,).

    `size_of` is the size of each place's sample in any unit: 1, bytes, or pages; 0 where it does not count.
    """
    samples = len(plan.sample_of)
    deadline = plan.reads["deadline"][read_of_sample(plan)]
    change = np.bincount(deadline, size_of, samples)
    change[1:] -= size_of[plan.sample_of[:-1]]
    return np.cumsum(change, out=change).astype(np.int64)


def peak(plan: Plan, size_of: NDArray[Any]) -> int:
    """The most that is ever held (see `memory_over_time`)."""
    return int(memory_over_time(plan, size_of).max())


def choose_kept(plan: Plan, size_of: NDArray[Any], room: int, stripe: int, seed: int) -> NDArray[np.bool_]:
    """Which places are never released, so that they and the rest of the epoch fit into `room`. Shape (samples,).

    Whole stripes in a random order, as many as fit. The more is kept, the less must be held for a while: with a share
    `k` kept, `k * all + (1 - k) * peak` is needed.
    """
    mapping = plan.mapping
    per_chunk = -(-mapping.chunk_size // stripe)
    place = np.arange(mapping.samples)
    stripe_of = place // mapping.chunk_size * per_chunk + place % mapping.chunk_size // stripe
    sizes = np.bincount(stripe_of, size_of, mapping.chunks * per_chunk)
    order = permutation(len(sizes), seed, Stream.KEPT)
    filled = np.cumsum(sizes[order])
    rank = np.empty(len(sizes), np.int64)
    rank[order] = np.arange(len(sizes))
    rank_of_place = rank[stripe_of]
    total, largest = int(size_of.sum()), peak(plan, size_of)
    if total <= room:
        return np.ones(mapping.samples, np.bool_)
    share = max(0.0, (room - largest) / max(1, total - largest))
    for _ in range(8):  # the peak of a part is not exactly its share of the peak
        kept: NDArray[np.bool_] = rank_of_place < np.searchsorted(filled, share * total, side="right")
        keeping = int(size_of[kept].sum())
        over = keeping + peak(plan, np.where(kept, 0, size_of)) - room
        if over <= 0:
            return kept
        share = max(0.0, (keeping - 1.1 * over) / total)
    return np.zeros(mapping.samples, np.bool_)
