"""TAKEN, which tells a server the samples that a client has read itself.

    TAKEN    u32 run | u32 epoch | u32 samples | i64 each position | u64 each entry

The message has the entries of the directory that the client has found if the client has checked checksums; if not, it
has no entries.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.wire.messages import MAX_DRAW, Kind, frame

MOST_TAKEN: Final = MAX_DRAW // 2
"""Maximum number of samples of one TAKEN."""

_TAKEN: Final = struct.Struct("<III")
_NO_ENTRIES: Final = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class DirectHits:
    """The samples that a client has read itself, as a server reads them. Arrays are views of the message."""

    run: int
    epoch: int
    positions: NDArray[np.int64]
    entries: NDArray[np.uint64]
    """The entry of each sample, or none at all."""


def repeat(positions: NDArray[np.int64]) -> bool:
    """Return whether a position occurs twice. Positions mostly ascend; planned batches have them in any order."""
    return bool((np.diff(positions) <= 0).any()) and len(np.unique(positions)) < len(positions)


def pack_taken(run: int, epoch: int, positions: NDArray[np.int64], entries: NDArray[np.uint64] = _NO_ENTRIES) -> bytes:
    """Return a `TAKEN`."""
    return frame(Kind.TAKEN, _TAKEN.pack(run, epoch, len(positions)), positions.tobytes(), entries.tobytes())


def unpack_taken(body: bytes | memoryview) -> DirectHits:
    """Invert `pack_taken`, with validation. Raises `ProtocolError`."""
    if len(body) < _TAKEN.size:
        raise ProtocolError("an incomplete TAKEN")
    run, epoch, samples = _TAKEN.unpack_from(body)
    rest = len(body) - _TAKEN.size
    if not 0 < samples <= MOST_TAKEN or rest not in (8 * samples, 16 * samples):
        raise ProtocolError(f"{samples} direct hits, in a message of {len(body)} bytes")
    positions = np.frombuffer(body, np.int64, samples, _TAKEN.size)
    return DirectHits(run, epoch, positions, np.frombuffer(body, np.uint64, offset=_TAKEN.size + 8 * samples))
