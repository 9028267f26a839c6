"""How many large reads are under way, and do they end faster than the loop starts new ones?"""

from __future__ import annotations

from brand.node.decide.tasks import Read


class UnderWay:
    """Reads that have started and not ended."""

    def __init__(self) -> None:
        self.count = 0
        """A bundle is one; stripes that start together are as many."""
        self._ended = 0
        """Reads that have ended since the last call of `outrun`, counted as above."""

    def __repr__(self) -> str:
        return f"UnderWay({self.count})"

    def starts(self, read: Read) -> None:
        """A read has started."""
        self.count += read.count

    def ends(self, read: Read) -> None:
        """A read has ended."""
        self.count -= read.count
        self._ended += read.count

    def outrun(self) -> bool:
        """Whether the storage is faster than the loop: several reads have ended since the last call."""
        ended, self._ended = self._ended, 0
        return ended > 1
