"""How many large reads are under way, and how many may start as one?"""

from __future__ import annotations

from brand.node.decide.tasks import Read


class UnderWay:
    """Reads that have started and not ended."""

    def __init__(self) -> None:
        self.count = 0
        """A bundle is one; stripes that start together are as many."""
        self._ended = 0
        """Reads that have ended since the last call of `together`, counted as above."""

    def __repr__(self) -> str:
        return f"UnderWay({self.count})"

    def starts(self, read: Read) -> None:
        """A read has started."""
        self.count += read.count

    def ends(self, read: Read) -> None:
        """A read has ended."""
        self.count -= read.count
        self._ended += read.count

    def together(self) -> int:
        """How many reads may start as one: one less than have ended since the last call.

        Where the storage is faster than the loop, several have. Where it is slower, they end one by one, so fewer
        start together each time, until each starts alone: samples come when all of their read is there.
        """
        ended, self._ended = self._ended, 0
        return max(1, ended - 1)
