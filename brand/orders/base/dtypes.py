"""The smallest types of numpy that hold given numbers, for tables with a row for each sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def index_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the smaller type that holds the numbers -1 to `count`."""
    return np.int32 if count < 1 << 31 else np.int64


def count_dtype(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest type that holds the numbers 0 to `most`."""
    return np.min_scalar_type(most)


def smallest(counts: NDArray[np.integer[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Return numbers, none below 0, in the smallest type that holds them all."""
    return counts.astype(count_dtype(int(counts.max(initial=0))), copy=False)
