"""The memory and the processes with which a server decodes samples for its clients."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from brand.available import available_bytes
from brand.errors import UsageError
from brand.node.memory.allocator import Allocator
from brand.node.setup.memory import Memory, memory_bytes, parse_size
from brand.node.wire.decoding import PAGE

COMMON_SHARE: Final = 4
"""A common server has a quarter of its memory for samples in addition, for decoded samples,"""
COMMON_LEAST: Final = 256 << 20
"""and at least this many bytes,"""
FREE_SHARE: Final = 2
"""and at most half of the memory that is free next to its samples."""
LEAST: Final = 1 << 20
ALLOTMENTS: Final = ("least", "lobster", "equal")
"""How decode workers can be divided among ranks. The first one is the default."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The resources with which a server decodes. Raises `UsageError` if they are too small."""

    memory: str | int
    """Memory for decoded samples: `"2GB"`, or a number of bytes."""
    preparers: int | None = None
    """Number of decode workers; None for one per processor that this process may use."""
    least_runs: int = 1
    """Minimum number of runs that ask for the same decode spec before the server decodes it."""
    allotment: str = ALLOTMENTS[0]
    """How the decode workers are divided among ranks, one of `ALLOTMENTS`."""

    def __post_init__(self) -> None:
        if self.allotment not in ALLOTMENTS:
            raise UsageError(f"allotment={self.allotment!r} of decode workers: give 'least', 'lobster' or 'equal'")
        if self.preparers is not None and self.preparers < 1:
            raise UsageError("at least one decode worker is needed")
        _ = self.allocator

    @property
    def allocator(self) -> Allocator:
        return Allocator(parse_size(self.memory) if isinstance(self.memory, str) else self.memory, PAGE)

    @property
    def count(self) -> int:
        return self.preparers or len(os.sched_getaffinity(0))


def for_common(memory: Memory, data_bytes: int, free: int | None = None) -> Prepared:
    """Return the resources with which a common server decodes, from the second job on.

    They are in addition to `memory` for samples of `data_bytes` bytes. `free`: bytes that it may still allocate; None
    to ask the system. Raises `UsageError` if `memory` is invalid.
    """
    samples = memory_bytes(memory, data_bytes)
    left = (available_bytes() if free is None else free) - samples
    return Prepared(max(LEAST, min(max(COMMON_LEAST, samples // COMMON_SHARE), left // FREE_SHARE)), least_runs=2)
