"""The size of a page of the arena, and the number of pages of each sample."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.page_memory import ROW_BYTES

SMALLEST_PAGE: Final = 128
LARGEST_PAGE: Final = 64 << 10

PageCounts = NDArray[np.unsignedinteger[Any]]
"""Pages of each sample, in the smallest type that holds the largest count: a sum needs a larger type."""


def page_bytes(mean_sample: float) -> int:
    """Return the bytes of a page: a power of two near a sixteenth of the mean sample.

    Larger pages waste more memory at the end of each sample; smaller pages make longer chains.
    """
    wanted = max(1.0, mean_sample / 16)
    return int(min(LARGEST_PAGE, max(SMALLEST_PAGE, 1 << round(np.log2(wanted)))))


def pages_needed(sizes: NDArray[Any], page: int) -> NDArray[np.uint32]:
    """Return the pages that samples of these stored sizes take, rows included."""
    return ((sizes.astype(np.int64) + (ROW_BYTES + page - 1)) // page).astype(np.uint32)


def arena_bytes(pages_of: PageCounts, page: int) -> int:
    """Return the memory that holds all samples at once, in bytes."""
    return (int(pages_of.sum(dtype=np.int64)) + 1) * page
