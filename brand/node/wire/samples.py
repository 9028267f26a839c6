"""Packing of the stored bytes of several samples, some of which may be missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError


def pack_samples(samples: list[bytes | None]) -> bytes:
    """Return a byte for each sample (1 if it is present, 0 if not), then the stored bytes of the present samples."""
    return b"".join((bytes(sample is not None for sample in samples), *(s for s in samples if s is not None)))


def unpack_samples(data: memoryview, sizes: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[bytes]]:
    """Return which samples are present, shape (samples,), and the bytes of each present sample. Raises `ProtocolError`.

    `sizes` are the stored sizes of all samples, shape (samples,).
    """
    if len(data) < len(sizes):
        raise ProtocolError("an incomplete answer")
    flags = np.frombuffer(data[: len(sizes)], np.uint8)
    present = flags == 1
    ends = len(sizes) + np.cumsum(np.where(present, sizes, 0))
    if (flags > 1).any() or len(data) != ends[-1]:
        raise ProtocolError("an answer whose parts do not add up")
    starts = ends - sizes
    return present, [bytes(data[starts[k] : ends[k]]) for k in np.flatnonzero(present).tolist()]
