"""With how much memory, and how many processes, does a server prepare samples for its clients?"""

from __future__ import annotations

import os
from dataclasses import dataclass

from brand.errors import UsageError
from brand.node.memory.allocator import Allocator
from brand.node.setup.memory import parse_size
from brand.node.wire.preparer import PAGE


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a server prepares with. Raises `UsageError` where that is too little."""

    memory: str | int
    """For prepared samples: `"2GB"`, or a number of bytes."""
    preparers: int | None = None
    """Processes that decode; None: as many as this process may use processors."""

    def __post_init__(self) -> None:
        if self.preparers is not None and self.preparers < 1:
            raise UsageError("at least one preparer is needed")
        _ = self.allocator

    @property
    def allocator(self) -> Allocator:
        """The pages of the memory."""
        return Allocator(parse_size(self.memory) if isinstance(self.memory, str) else self.memory, PAGE)

    @property
    def count(self) -> int:
        """How many processes decode."""
        return self.preparers or len(os.sched_getaffinity(0))
