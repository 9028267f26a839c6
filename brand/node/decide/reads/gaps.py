"""Is what lies between the samples that a read brings read through, or are there two operations? Pure.

Bytes that nobody needs cost time, and so does an operation. A job that draws a part of the data set needs a few samples
of each stripe, and the gaps between them may be most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What decisions know of the storage."""

    busy_bytes: int = 0
    """Bytes in flight that keep it busy; 0: nothing is known."""
    gap_bytes: int = 1 << 40
    """It reads so many bytes in the time of one more operation: by default, more than any gap has."""


NOTHING_KNOWN: Final = StorageFacts()


def cut_at_gaps(
    sizes: NDArray[np.int64], held: NDArray[np.bool_], most: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the operations of a read begin and end, in neighbouring samples of these sizes, each shape (operations,).

    `held` are those that the read brings: the first and the last one, and any others. What lies between two operations
    has more than `most` bytes, and what lies within one has not.
    """
    at = np.flatnonzero(held)
    ends = np.cumsum(sizes)
    gaps = (ends - sizes)[at[1:]] - ends[at[:-1]]
    cuts = np.flatnonzero(gaps > most)
    return at[np.append(0, cuts + 1)], at[np.append(cuts, len(at) - 1)] + 1
