"""Which samples are cached after their draw, and in which tier?

A tier is a place that is nearer than the storage: memory, or a folder on a local disk. `place` fills tiers with the
most wanted samples. `choose_kept` chooses the samples that memory caches, so that the other samples of the plan still
fit next to them; `choose_cached` chooses which of the rest each folder holds. Both take whole units of consecutive
samples, in one random order: every sample is drawn once an epoch, so no choice reads less than another choice of equal
size. If a node draws only some samples in an epoch, some are wanted more than others (`nextuse`), and `most_wanted`
chooses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import Mask, index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, peak, read_of_sample
from brand.orders.base.random import RandomStream, blocks, permutation

CACHED_BYTES: Final = 64 << 10
"""The smallest run of consecutive samples in a cache folder, in bytes: a file system allocates whole blocks."""


def place(key: NDArray[Any], size: NDArray[Any], rooms: NDArray[Any]) -> NDArray[np.int8]:
    """Return the tier of each unit, from 1 on; 0 if no tier has space for it. Shape (units,).

    Tiers are filled in the order of `key`, smallest first; equal keys keep their order. A tier is full at the first
    unit that does not fit. `size` are the sizes of units, `rooms` the capacities of tiers.
    """
    order = np.argsort(key, kind="stable")
    filled = np.concatenate(([0], np.cumsum(size[order])))
    placed, first = np.zeros(len(key), np.int8), 0
    for tier, room in enumerate(rooms, 1):
        end = int(np.searchsorted(filled, filled[first] + room, side="right")) - 1
        placed[order[first:end]] = tier
        first = end
    return placed


@dataclass(frozen=True, slots=True, eq=False)
class CachedUnits:
    """A choice of whole units of `unit` consecutive samples of a chunk: an entry for each unit, not for each sample."""

    mapping: Mapping
    unit: int
    chosen: Mask
    """Whether each unit is chosen, shape (units,)."""
    within: Subset | None = None
    """The samples that may be chosen. None if all may."""

    def at(self, places: NDArray[np.integer[Any]]) -> Mask:
        """Return which of these places are in chosen units."""
        found: Mask = self.chosen[unit_at(self.mapping, self.unit, places)]
        return found if self.within is None else found & self.within.at(places)

    def part(self, part: slice = slice(None)) -> Mask:
        """Return the same for the places of a slice."""
        return self.at(np.arange(*part.indices(self.mapping.samples)))

    def without(self, chunks: NDArray[np.integer[Any]], chunk_size: int) -> CachedUnits:
        """Return the choice without the units of these chunks, whose size is that of the mapping."""
        assert chunk_size == self.mapping.chunk_size
        chosen = self.chosen.copy()
        chosen.reshape(self.mapping.chunks, -1)[chunks] = False
        return CachedUnits(self.mapping, self.unit, chosen, self.within)


def choose_kept(
    plan: EpochPlan,
    size_of: NDArray[Any],
    room: int,
    unit: int,
    seed: int,
    read_of: NDArray[Any] | None = None,
    key: NDArray[Any] | None = None,
) -> Mask:
    """Return a mask of the places to cache, so that they and the rest of the epoch fit into `room`. Shape (samples,).

    Caches as many whole units of `unit` samples of a chunk as fit, in the order of `key`, shape (units,), smallest
    first. Without a key, and among units with equal keys, the order is random and depends on the seed only. The more
    samples are cached, the fewer wait in the buffer: with a fraction `k` cached, `k * all + (1 - k) * peak` is needed.
    """
    mapping, total = plan.mapping, int(size_of.sum(dtype=np.int64))
    if total <= room:
        return np.ones(mapping.samples, np.bool_)
    read_of = read_of_sample(plan) if read_of is None else read_of
    unit_of, sizes = units(mapping, size_of, unit)
    largest = peak(plan, size_of, read_of)
    share = _kept_share(total, largest, room)
    for _ in range(8):  # the peak of a subset is not exactly its fraction of the peak
        kept: Mask = _first_units(sizes, share * total, seed, key)[unit_of]
        keeping = int(size_of[kept].sum(dtype=np.int64))
        over = keeping + peak(plan, np.where(kept, 0, size_of), read_of) - room
        if over <= 0:
            return kept
        share = max(0.0, (keeping - 1.1 * over) / max(1, total))  # a tenth more than needed saves rounds
    return np.zeros(mapping.samples, np.bool_)


def choose_units(sizes: NDArray[np.int64], held: int, room: int, seed: int, key: NDArray[Any] | None = None) -> Mask:
    """Return the units to cache, in time and memory that depend on their number alone. Shape (units,).

    `sizes` are the sizes of the units, and `held` is the size that an epoch holds at a time if nothing is cached.
    Otherwise as `choose_kept`, which knows the plan and therefore the peak of what the epoch holds.
    """
    total = int(sizes.sum())
    if total <= room:
        return np.ones(len(sizes), np.bool_)
    return _first_units(sizes, _kept_share(total, held, room) * total, seed, key)


def _kept_share(total: int, held: int, room: int) -> float:
    """Return the fraction of all samples to cache: `share * total + (1 - share) * held = room`, but at least 0."""
    return max(0.0, (room - held) / max(1, total - held))


def _first_units(sizes: NDArray[np.int64], most: float, seed: int, key: NDArray[Any] | None) -> Mask:
    """Return the units that come first by their keys, then by a random order, of a size of at most `most` together."""
    order = permutation(len(sizes), seed, RandomStream.KEPT)
    if key is not None:
        order = order[np.argsort(key[order], kind="stable")]
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[order[: int(np.searchsorted(np.cumsum(sizes[order]), most, side="right"))]] = True
    return chosen


def choose_cached(
    mapping: Mapping,
    size_of: NDArray[Any],
    held: NDArray[np.int8],
    limits: NDArray[np.int64],
    unit: int,
    seed: int,
    later: Mask | None = None,
) -> NDArray[np.int8]:
    """Return the cache folder of each place, from 1 on; 0 if none has space for it. Shape (samples,).

    `size_of`: stored bytes of each place; 0 for samples that are in a nearer tier, or that another node reads, unless a
    folder holds them. `held`: the folder that holds each place; 0 if none does. `limits`: bytes of each folder, the
    fastest one first.

    Units of which a folder holds a part are completed there, in the fastest such folder, because a read uses a folder
    that holds all of it. Other units follow each other in the order of `choose_kept`, so folders hold the units that
    memory would cache next. Units with a sample of the mask `later` follow the others.
    """
    here = held > 0
    unit_of, sizes = units(mapping, size_of, unit)
    folder_of = held_units(held, unit_of, len(sizes))
    key = np.zeros(len(sizes), np.int8)
    if later is not None:
        key[unit_of[later]] = 1
    folder_of += most_wanted(key, folder_of == 0, sizes, room_left(limits, folder_of, sizes), seed)
    return np.where(here | (size_of > 0), folder_of[unit_of], np.int8(0))


def held_units(held: NDArray[np.int8], unit_of: NDArray[Any], count: int) -> NDArray[np.int8]:
    """Return the fastest folder that holds a sample of each unit; 0 if none does. Shape (`count`,).

    `held` is the folder of each place, 0 if none holds it; `unit_of` the unit of each place.
    """
    found, here = np.full(count, np.iinfo(np.int8).max, np.int8), held > 0
    np.minimum.at(found, unit_of[here], held[here])
    found[found == np.iinfo(np.int8).max] = 0
    return found


def room_left(limits: NDArray[np.int64], folder_of: NDArray[np.int8], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that remain of each folder's limit, shape (folders,). `folder_of`: the folder of each unit."""
    taken = [int(sizes[folder_of == folder].sum()) for folder in range(1, len(limits) + 1)]
    return np.maximum(0, limits - np.array(taken, np.int64))


def most_wanted(
    key: NDArray[Any], wanted: Mask, sizes: NDArray[np.int64], rooms: NDArray[Any], seed: int
) -> NDArray[np.int8]:
    """Return the tier that is to hold each unit, from 1 on; 0 if none is. Shape (units,).

    Tiers of the capacities `rooms` hold the wanted units with the smallest keys, as many as fit. Units with equal keys
    are taken in a random order that depends on the seed only.
    """
    order = permutation(len(key), seed, RandomStream.KEPT)
    order = order[wanted[order]]
    held = np.zeros(len(key), np.int8)
    held[order] = place(key[order], sizes[order], rooms)
    return held


def cached_unit(kept_unit: int | None, chunk_size: int, mean_bytes: float) -> int:
    """Return how many consecutive samples of a chunk a cache folder holds or drops together.

    The number is a multiple of the unit of the memory cache.
    """
    unit = kept_unit or chunk_size
    return min(chunk_size, -(-math.ceil(CACHED_BYTES / max(1.0, mean_bytes)) // unit) * unit)


def unit_count(mapping: Mapping, unit: int) -> int:
    """Return the number of units of `unit` consecutive samples, as if the last chunk were full."""
    return mapping.chunks * -(-mapping.chunk_size // unit)


def unit_at(mapping: Mapping, unit: int, places: NDArray[Any]) -> NDArray[Any]:
    """Return the unit of each of these places, same shape."""
    per_chunk = -(-mapping.chunk_size // unit)
    found: NDArray[Any] = places // mapping.chunk_size * per_chunk + places % mapping.chunk_size // unit
    return found


def unit_lengths(mapping: Mapping, unit: int, subset: Subset | None = None) -> NDArray[np.int64]:
    """Return the samples of each unit, those of the subset if there is one, shape (units,).

    0 for a unit that the last chunk does not have.
    """
    chunk, first = np.arange(mapping.chunks)[:, None] * mapping.chunk_size, np.arange(0, mapping.chunk_size, unit)
    end = np.minimum(chunk + np.minimum(first + unit, mapping.chunk_size), mapping.samples).ravel()
    first = np.minimum((chunk + first).ravel(), mapping.samples)
    return end - first if subset is None else subset.counts(first, end)


def unit_sums(mapping: Mapping, size_of: NDArray[Any], unit: int) -> NDArray[np.int64]:
    """Return the size of each unit, shape (units,), in memory for the units only."""
    sizes = np.zeros(unit_count(mapping, unit), np.int64)
    for part in blocks(mapping.samples):
        numbers = unit_at(mapping, unit, np.arange(part.start, part.stop))
        np.add.at(sizes, numbers, size_of[part].astype(np.int64))
    return sizes


def units(mapping: Mapping, size_of: NDArray[Any], unit: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the unit of each place, shape (samples,), and the size of each unit.

    A unit is `unit` consecutive samples of a chunk.
    """
    unit_of = np.empty(mapping.samples, index_dtype(mapping.samples))
    for part in blocks(mapping.samples):
        unit_of[part] = unit_at(mapping, unit, np.arange(part.start, part.stop))
    return unit_of, unit_sums(mapping, size_of, unit)
