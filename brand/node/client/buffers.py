"""Memory into which a client copies samples: buffers that are used again as soon as no view of them is alive.

Fresh pages would cost more than the copy.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 64
"""Maximum number of buffers of a pool; if all are in use, a new buffer replaces the oldest."""


class Buffers:
    """A pool of byte arrays. Views of a buffer prevent its reuse. Not safe for concurrent threads."""

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return an array of `size` bytes, with any content."""
        for number in range(len(self._buffers)):
            # The list and getrefcount's argument are the only references: no view is alive.
            if sys.getrefcount(self._buffers[number]) == 2 and self._buffers[number].size >= size:
                return self._buffers[number][:size]
        buffer = np.empty(max(1, size + size // 4), np.uint8)
        if len(self._buffers) == MOST:
            self._buffers.pop(0)
        self._buffers.append(buffer)
        return buffer[:size]
