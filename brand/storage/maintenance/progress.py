"""Progress of a pass over all chunks, reported to a function of the caller."""

from __future__ import annotations

from collections.abc import Callable

OnChunk = Callable[[int, int, int], None]
"""Called after each chunk with (chunks done, chunks in all, bytes or files of this step)."""


def silent(*_: int) -> None:
    """Show nothing."""
