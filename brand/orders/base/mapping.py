"""How are samples divided into chunks and groups? The data mapping mechanism (paper, section 3.2).

`n` consecutive chunks form a group, which shares one abstract chunk: memory for `chunk_size` samples. All abstract
chunks together are the abstract memory of `M = memory / mean sample size` samples, so that `n = ceil(N / M)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_LISTED: Final = 1 << 22
"""Samples of the largest data set for which a start, or a choice of cached samples, may take time for each sample."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """The mapping from places to chunks to groups. The last chunk and the last group may be short."""

    samples: int
    chunk_size: int
    group_chunks: int
    """`n`: chunks in a group."""

    def __post_init__(self) -> None:
        if min(self.samples, self.chunk_size, self.group_chunks) < 1:
            raise ValueError(f"a number of a mapping is below 1: {self}")

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)

    @property
    def groups(self) -> int:
        return -(-self.chunks // self.group_chunks)

    @property
    def group_size(self) -> int:
        """Samples in every group but the last, which may hold fewer."""
        return self.group_chunks * self.chunk_size

    def group_of(self, places: NDArray[np.integer[Any]]) -> NDArray[Any]:
        return places // self.group_size

    def chunk_samples(self) -> NDArray[np.int64]:
        """Return each chunk's number of samples, padded with zeros to whole groups. Shape (groups * group_chunks,)."""
        first = np.arange(self.groups * self.group_chunks, dtype=np.int64) * self.chunk_size
        return np.clip(self.samples - first, 0, self.chunk_size)


def chunks_per_group(samples: int, chunk_size: int, abstract_memory: float) -> int:
    """Return `n` for an abstract memory of `abstract_memory` samples: from 1 to the number of chunks."""
    wanted = -(-samples // max(1, int(abstract_memory)))
    return int(min(max(1, wanted), -(-samples // chunk_size)))
