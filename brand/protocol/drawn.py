"""Which samples has a job drawn before a position of an epoch? As a state tells it, where no plan can say it.

A bit for each place, compressed, as a text for JSON. A reader distrusts it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_drawn(places: NDArray[np.integer[Any]], samples: int) -> str:
    """These places of a data set of `samples`."""
    mask = np.zeros(samples, np.bool_)
    mask[places] = True
    return base64.b64encode(zlib.compress(np.packbits(mask, bitorder="little").tobytes())).decode()


def unpack_drawn(text: Any, samples: int) -> NDArray[np.int32]:
    """Inverse of `pack_drawn`, ascending. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"what was drawn is {text!r:.20}, no text")
    size = -(-samples // 8)
    unpacker = zlib.decompressobj()
    try:
        bits = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(f"what was drawn cannot be unpacked: {error}") from None
    if len(bits) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"what was drawn has not one bit for each of {samples:,} samples")
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    if mask[samples:].any():
        raise ValueError(f"what was drawn has more than {samples:,} samples")
    return np.flatnonzero(mask).astype(np.int32)
