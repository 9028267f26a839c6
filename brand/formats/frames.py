"""Which zstd frames are so simple that all of them may be unpacked in one call? (RFC 8878, section 3.1.1)

    magic (4) | descriptor (1) | window (0 or 1) | dictionary id (0 to 4) | content size (1 to 8) | block ... | checksum

A simple frame states its content size, and its first block ends where its stored bytes end. So it has one block, holds
128 KiB at the most, and nothing follows it; the call that unpacks many frames at once checks none of this.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_BLOCK: Final = 128 << 10
"""Bytes that one block can hold."""

_DESCRIPTOR_AT: Final = 4
_LONGEST_HEADER: Final = 18
_BLOCK_HEADER: Final = 3
_CHECKSUM: Final = 4
_REPEATED: Final = 1
"""Kind of a block that is one byte, repeated."""


def _header_bytes(descriptor: int) -> int:
    """Length of a frame's header, by its fifth byte; 0 where it states no content size."""
    single = descriptor >> 5 & 1
    content_size = (single, 2, 4, 8)[descriptor >> 6]
    return 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + content_size if content_size else 0


_HEADER_BYTES: Final = np.array([_header_bytes(descriptor) for descriptor in range(256)])


def simple_frames(memory: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the stored bytes of each sample, if they are a frame at all, are a simple one. Shape (len(starts),).

    The bytes may be anything: zstd checks the magic and the content.
    """
    if not memory.size:
        return np.zeros(len(starts), np.bool_)
    front = memory.take(starts[:, None] + np.arange(_LONGEST_HEADER + _BLOCK_HEADER), mode="clip")
    descriptors = front[:, _DESCRIPTOR_AT]
    headers = _HEADER_BYTES[descriptors]
    low, middle, high = (_column(front, headers + number) for number in range(_BLOCK_HEADER))
    block = low | middle << 8 | high << 16
    kind, length = block >> 1 & 3, block >> 3
    ends = headers + _BLOCK_HEADER + np.where(kind == _REPEATED, 1, length) + (descriptors >> 2 & 1) * _CHECKSUM
    simple: NDArray[np.bool_] = (headers > 0) & (ends == sizes)
    return simple


def _column(front: NDArray[np.uint8], at: NDArray[Any]) -> NDArray[np.int64]:
    """One byte of each row."""
    column: NDArray[np.int64] = front[np.arange(len(front)), at].astype(np.int64)
    return column
