"""Limits the log lines about similar events: the first event is logged at once, later ones are counted and summed up.

Pure: the module reads no clock and writes nothing. The caller calls `tell` for each event, and `overdue` regularly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(slots=True)
class _Since:
    """Events since the last line of their kind."""

    said_s: float
    count: int = 0

    def again(self) -> None:
        self.count += 1


class Repeats(Generic[Kind]):
    """At most one line for events of the same kind in `every_s` seconds. Remembers at most `most` kinds."""

    def __init__(self, every_s: float, most: int = 1024) -> None:
        self._every_s, self._most = every_s, most
        self._since: dict[Kind, _Since] = {}
        """The events of each kind. The kind with the oldest last line is the first."""

    def tell(self, kind: Kind, now_s: float) -> bool:
        """Add an event. Returns whether it gets its own line; if not, it is counted."""
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
        """Yield the kinds to sum up now: kind, number of events, and the seconds in which they happened."""
        for kind in [k for k, s in self._since.items() if s.count and now_s - s.said_s >= self._every_s]:
            yield self._sum_up(kind, now_s)

    def rest(self, now_s: float) -> Iterator[tuple[Kind, int, float]]:
        """Yield all kinds with counted events, as `overdue` does. Called when no further events can happen."""
        for kind in [k for k, s in self._since.items() if s.count]:
            yield self._sum_up(kind, now_s)

    @property
    def counted(self) -> int:
        return sum(since.count for since in self._since.values())

    def _sum_up(self, kind: Kind, now_s: float) -> tuple[Kind, int, float]:
        since = self._since.pop(kind)
        self._since[kind] = _Since(now_s)
        return kind, since.count, now_s - since.said_s
