"""What is one other node still to be sent of an epoch, and in which order?

Everything that its ranks will draw, in the order of their draws (`stripes`: nobody asks); or what it has asked for,
answers before what is sent along with them (`slots`: the paper, section 3.4).

A position is queued at most once, whatever the node says: a sample that was taken out of memory twice would give its
pages back twice.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.protocol.plan import Requests
from brand.protocol.random import index_dtype

LOOK: Final = 1024
"""Positions that are looked at together."""

_OPEN, _ALONG, _ASKED = range(3)
"""How far a position has come: it can be asked for, it will be sent along, it was asked for or sent."""


class Outgoing:
    """A queue for one node, of those of `positions` (ascending, all different) that it draws from `front` on.

    `requests` is the plan's table where the node has to ask, else None.
    """

    def __init__(self, positions: NDArray[np.int64], requests: Requests | None, front: int = 0) -> None:
        positions = positions.astype(index_dtype(int(positions.max(initial=0))))
        ahead, nothing = positions[np.searchsorted(positions, front) :], positions[:0]
        self._requests = requests
        self._known: NDArray[Any] = nothing if requests is None else positions
        """What can be asked for, ascending,"""
        self._stage = np.full(len(self._known), _OPEN, np.uint8)
        """and how far each of it has come."""
        self._first = ahead if requests is None else nothing
        self._second = nothing
        """Sent along with answers, after them."""
        self.urgent = 0
        """The node waits for so many, the next ones."""

    def ask(self, positions: NDArray[Any]) -> None:
        """The node draws these and does not have them: they come first.

        Where it has to ask, others are sent along; what the plan does not foresee as asked for comes alone. A position
        that was asked for or sent before, or that the node does not draw, is left out.
        """
        if self._requests is None:
            urgent, rest = self._first[: self.urgent], self._first[self.urgent :]
            waits = np.isin(rest, positions)
            self._first = np.concatenate((urgent, rest[waits], rest[~waits]))
            self.urgent += int(waits.sum())
            return
        asked = self._bring(positions, _ASKED)
        self._first = np.concatenate((self._first, asked))
        self.urgent = len(self._first)
        table = self._requests
        at = np.searchsorted(table.positions, asked)
        foreseen = at < len(table.positions)
        foreseen[foreseen] = table.positions[at[foreseen]] == asked[foreseen]
        along = np.concatenate((asked[:0], *(table.sent_with(number) for number in at[foreseen].tolist())))
        second = self._second[~np.isin(self._second, asked)]
        self._second = np.sort(np.concatenate((second, self._bring(along, _ALONG))))  # what is drawn next comes first

    @property
    def unanswered(self) -> NDArray[Any]:
        """Positions that the node has asked for and was not sent."""
        return self._first[: self.urgent]

    def next(self) -> NDArray[Any]:
        """Positions to send next, some of them."""
        return self._first[:LOOK] if len(self._first) else self._second[:LOOK]

    def advance(self, count: int) -> None:
        """So many of them are sent, or will never be."""
        if len(self._first):
            self._first = self._first[count:]
            self.urgent = max(0, self.urgent - count)
        else:
            self._bring(self._second[:count], _ASKED)
            self._second = self._second[count:]

    def front(self, samples: int) -> int:
        """No position before this one will be sent any more; `samples` where nothing will, as far as is known."""
        if self._requests is not None:
            return 0
        return int(self._first.min(initial=samples))

    def _bring(self, positions: NDArray[Any], stage: int) -> NDArray[Any]:
        """Bring positions to a stage; returns those that had not come so far, ascending, all different."""
        at = np.searchsorted(self._known, positions)
        known = at < len(self._known)
        known[known] = self._known[at[known]] == positions[known]
        found = np.unique(at[known])
        found = found[self._stage[found] < stage]
        self._stage[found] = stage
        return self._known[found]


def follows(requests: Requests | None, ranks: dict[int, int], nodes: int, replicas: int) -> Requests | None:
    """The table of requests where the ranks lie as it foresees, those of a node side by side; else None.

    Then, as after a resume, all is sent unasked, as in `stripes`.
    """
    return requests if all(node == rank * nodes // replicas for rank, node in ranks.items()) else None
