"""With how much memory, and how many processes, does a server prepare samples for its clients?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from brand.errors import UsageError
from brand.node.memory.allocator import Allocator
from brand.node.setup.memory import Memory, available_bytes, memory_bytes, parse_size
from brand.node.wire.preparer import PAGE

COMMON_SHARE: Final = 4
"""A common server has a quarter of its memory for samples once more, for prepared ones,"""
COMMON_LEAST: Final = 256 << 20
"""and at least so many bytes,"""
FREE_SHARE: Final = 2
"""and at most half of what is free beside its samples."""
LEAST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a server prepares with. Raises `UsageError` where that is too little."""

    memory: str | int
    """For prepared samples: `"2GB"`, or a number of bytes."""
    preparers: int | None = None
    """Processes that decode; None: as many as this process may use processors."""
    least_runs: int = 1
    """How many runs have to want the same thing before it is prepared."""

    def __post_init__(self) -> None:
        if self.preparers is not None and self.preparers < 1:
            raise UsageError("at least one preparer is needed")
        _ = self.allocator

    @property
    def allocator(self) -> Allocator:
        return Allocator(parse_size(self.memory) if isinstance(self.memory, str) else self.memory, PAGE)

    @property
    def count(self) -> int:
        """How many processes decode."""
        return self.preparers or len(os.sched_getaffinity(0))


def for_common(memory: Memory, data_bytes: int, free: int | None = None) -> Prepared:
    """What a common server prepares with, from the second job on, beside `memory` for samples of so many bytes.

    `free`: bytes that it may still allocate; None: as the system says. Raises `UsageError` for no memory.
    """
    samples = memory_bytes(memory, data_bytes)
    left = (available_bytes() if free is None else free) - samples
    return Prepared(max(LEAST, min(max(COMMON_LEAST, samples // COMMON_SHARE), left // FREE_SHARE)), least_runs=2)
