"""How far a pass over all chunks is, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable

OnChunk = Callable[[int, int, int], None]
"""Called after each chunk with (chunks done, chunks in all, bytes or files of this step)."""


def silent(*_: int) -> None:
    """Tell nobody."""
