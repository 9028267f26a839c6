"""Which reads does a first epoch make if misses read whole units for the cache folder?

The first miss of a unit with a place in the folder reads all of it. The other samples are read from the folder when
they are due, or are in memory, if it caches them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WholeReads:
    """Large reads in the order in which they start. Arrays have the shape (reads,)."""

    sizes: NDArray[np.int64]
    """In bytes."""
    pages: NDArray[np.int64]
    """Pages that each read takes."""
    spans: NDArray[np.int64]
    """Samples that are read."""
    samples: NDArray[np.int32]
    """Samples of these reads that are stored in memory."""
    deadlines: NDArray[np.int64]
    from_cache: NDArray[np.bool_]

    def of(self, which: NDArray[np.bool_]) -> WholeReads:
        return WholeReads(*(getattr(self, field.name)[which] for field in fields(self)))


def first_reads(
    alone: WholeReads, unit_of: NDArray[Any], placed: NDArray[np.bool_], keeps: NDArray[np.bool_]
) -> WholeReads:
    """Return the reads of a first epoch, made of reads of single samples, all of which are due.

    All arrays are by read: its unit, whether its sample has a place in the folder, and whether memory caches it.
    """
    has_place = np.isin(unit_of, unit_of[placed])
    whole = np.flatnonzero(has_place & (placed | keeps))
    units, first, number = np.unique(unit_of[whole], return_index=True, return_inverse=True)
    lead = whole[first]
    early = np.setdiff1d(whole, lead, assume_unique=True)
    from_cache = alone.from_cache.copy()
    from_cache[early] = True

    def together(each: NDArray[Any]) -> NDArray[Any]:
        found = each.copy()
        found[lead] = np.bincount(number, each[whole], len(units))
        return found

    sizes, pages, spans, samples = (together(each) for each in (alone.sizes, alone.pages, alone.spans, alone.samples))
    in_memory = np.zeros(len(unit_of), np.bool_)
    in_memory[early] = keeps[early]
    return WholeReads(sizes, pages, spans, samples, alone.deadlines, from_cache).of(~in_memory)
