"""Which of many like events get a line in the log? The first at once; the others are counted, and summed up later.

Pure: it knows no clock and writes nothing. Whoever has an event asks `tell`, and `overdue` now and then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(slots=True)
class _Since:
    """What came since the last line of its kind."""

    said_s: float
    count: int = 0

    def again(self) -> None:
        """One more has come."""
        self.count += 1


class Repeats(Generic[Kind]):
    """Events of the same kind have at most one line in `every_s` seconds; of more than `most` kinds the oldest goes."""

    def __init__(self, every_s: float, most: int = 1024) -> None:
        self._every_s, self._most = every_s, most
        self._since: dict[Kind, _Since] = {}
        """By kind, the one that has been silent longest first."""

    def tell(self, kind: Kind, now_s: float) -> bool:
        """An event: whether it gets a line of its own. If not, it is counted."""
        since = self._since.get(kind)
        if since is not None and (since.count or now_s - since.said_s < self._every_s):
            since.again()
            return False
        self._since.pop(kind, None)
        self._since[kind] = _Since(now_s)
        if len(self._since) > self._most:
            silent = next((kind for kind, since in self._since.items() if not since.count), None)
            self._since.pop(next(iter(self._since)) if silent is None else silent)
        return True

    def overdue(self, now_s: float) -> Iterator[tuple[Kind, int, float]]:
        """Kinds whose counted events are to be summed up now: kind, how many, and in how many seconds."""
        for kind in [k for k, s in self._since.items() if s.count and now_s - s.said_s >= self._every_s]:
            yield self._sum_up(kind, now_s)

    def rest(self, now_s: float) -> Iterator[tuple[Kind, int, float]]:
        """The same for all counted events, as nothing more is to come."""
        for kind in [k for k, s in self._since.items() if s.count]:
            yield self._sum_up(kind, now_s)

    @property
    def counted(self) -> int:
        """Events that no line has told of yet."""
        return sum(since.count for since in self._since.values())

    def _sum_up(self, kind: Kind, now_s: float) -> tuple[Kind, int, float]:
        since = self._since.pop(kind)
        self._since[kind] = _Since(now_s)
        return kind, since.count, now_s - since.said_s
