"""Is a gap between the samples of a read read as well, or are there two operations? Pure.

Reading unneeded bytes takes time, and so does a further operation. A job that draws a subset of the data set needs a
few samples of each stripe, and the gaps between them may be most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """Facts about the storage for decisions."""

    busy_bytes: int = 0
    """Bytes in flight that keep the storage busy. 0 if they are not known."""
    gap_bytes: int = 1 << 40
    """Bytes that the storage reads in the time of one more operation. The default is larger than any gap."""


NOTHING_KNOWN: Final = StorageFacts()


def cut_at_gaps(
    sizes: NDArray[np.int64], held: NDArray[np.bool_], most: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the beginnings and ends of the operations of a read, each shape (operations,).

    The read covers neighbouring samples of these sizes. `held` is a mask of the samples to load: the first and the last
    one, and any others. A gap of more than `most` bytes separates two operations. A smaller gap is read.
    """
    at = np.flatnonzero(held)
    ends = np.cumsum(sizes)
    gaps = (ends - sizes)[at[1:]] - ends[at[:-1]]
    cuts = np.flatnonzero(gaps > most)
    return at[np.append(0, cuts + 1)], at[np.append(cuts, len(at) - 1)] + 1
