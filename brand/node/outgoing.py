"""What is one other node still to be sent of an epoch, and in which order?

Everything that its ranks will draw, in the order of their draws (`stripes`: nobody asks); or what it has asked for,
answers before what is sent along with them (`slots`: the paper, section 3.4).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.protocol.plan import Requests

LOOK: Final = 1024
"""Positions that are looked at together."""


class Outgoing:
    """A queue of positions for one node. `requests` is the plan's table where the node has to ask, else None."""

    def __init__(self, positions: NDArray[np.int64], requests: Requests | None) -> None:
        nothing = positions[:0]
        self._requests = requests
        self._first = positions if requests is None else nothing
        self._second = nothing
        """Sent along with answers, after them."""
        self.urgent = 0
        """The node waits for so many, the next ones."""

    def ask(self, positions: NDArray[np.int64]) -> None:
        """The node draws these and does not have them: they come first.

        Where it has to ask, others are sent along; what the plan does not foresee as asked for comes alone.
        """
        if self._requests is None:
            urgent, rest = self._first[: self.urgent], self._first[self.urgent :]
            waits = np.isin(rest, positions)
            self._first = np.concatenate((urgent, rest[waits], rest[~waits]))
            self.urgent += int(waits.sum())
            return
        table = self._requests
        self._first = np.concatenate((self._first, positions))
        self.urgent = len(self._first)
        at = np.searchsorted(table.positions, positions)
        known = at < len(table.positions)
        known[known] = table.positions[at[known]] == positions[known]
        along = [table.sent_with(number) for number in at[known].tolist()]
        self._second = np.sort(np.concatenate((self._second, *along))).astype(
            np.int64
        )  # what is drawn next comes first

    def next(self) -> NDArray[np.int64]:
        """Positions to send next, some of them."""
        return self._first[:LOOK] if len(self._first) else self._second[:LOOK]

    def advance(self, count: int) -> None:
        """So many of them are sent, or will never be."""
        if len(self._first):
            self._first = self._first[count:]
            self.urgent = max(0, self.urgent - count)
        else:
            self._second = self._second[count:]

    def front(self, samples: int) -> int:
        """No position before this one will be sent any more; `samples` where nothing will, as far as is known."""
        if self._requests is not None:
            return 0
        return int(self._first.min(initial=samples))


def follows(requests: Requests | None, ranks: dict[int, int], nodes: int, replicas: int) -> Requests | None:
    """The table of requests where the ranks lie as it foresees, those of a node side by side; else None.

    Then, as after a resume, all is sent unasked, as in `stripes`.
    """
    return requests if all(node == rank * nodes // replicas for rank, node in ranks.items()) else None
