"""How do the stored bytes of samples travel together, some of which may be missing?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError


def pack_samples(samples: list[bytes | None]) -> bytes:
    """A byte for each sample (1 where it is there, else 0), then the stored bytes of the samples that are there."""
    return b"".join((bytes(sample is not None for sample in samples), *(s for s in samples if s is not None)))


def unpack_samples(data: memoryview, sizes: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[bytes]]:
    """Which samples are there, shape (samples,), and the bytes of each that is there. Raises `ProtocolError`.

    `sizes` are the stored sizes of all samples, shape (samples,).
    """
    if len(data) < len(sizes):
        raise ProtocolError("half an answer")
    flags = np.frombuffer(data[: len(sizes)], np.uint8)
    present = flags == 1
    ends = len(sizes) + np.cumsum(np.where(present, sizes, 0))
    if (flags > 1).any() or len(data) != ends[-1]:
        raise ProtocolError("an answer whose parts do not add up")
    starts = ends - sizes
    return present, [bytes(data[starts[k] : ends[k]]) for k in np.flatnonzero(present).tolist()]
