"""Which is the smallest type of numpy that holds these numbers? Tables with a row for each sample take it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def index_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """The smaller type that holds the numbers -1 to `count`."""
    return np.int32 if count < 1 << 31 else np.int64


def count_dtype(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest type that holds the numbers 0 to `most`."""
    return np.min_scalar_type(most)


def smallest(counts: NDArray[np.integer[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """The same numbers, none below 0, in the smallest type that holds them all."""
    return counts.astype(count_dtype(int(counts.max(initial=0))), copy=False)
