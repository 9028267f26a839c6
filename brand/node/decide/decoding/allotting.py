"""For which rank does an idle preparer work next? For one that has fewer preparers than it needs to be in time.

Each rank of each run has a queue: its next samples that are not prepared. `Costs` predict how long these take, and the
rank's draws say when it wants them. A preparer works for the queue that is the latest with the preparers that it has; a
queue that has none comes before those that have one. So preparers that come one after the other are divided as `least`
divides them: each queue gets the fewest with which it is in time, before any gets more, and where they are too few, as
`greedy` does. No preparer is idle while there is work.

Within a queue samples are prepared in the order of its draws. `Allotting` owns what has been learnt of the seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.ahead import DecodeAheadTable, NextToDecode, Queue
from brand.node.decide.decoding.allotment import SLACK, Queues, late_s, seconds_with
from brand.node.decide.decoding.costs import Costs
from brand.node.memory.prepared import PreparedMemory
from brand.node.memory.residents import Residents

WINDOW: Final = 64
"""Samples of a queue that are looked at: several batches, as several preparers may work for a queue."""

AGAIN_S: Final = 0.25
"""How long after it found nothing to prepare a node looks again, without news."""


class Allotting:
    """What preparations cost, by want."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, Costs] = defaultdict(Costs)

    def __repr__(self) -> str:
        return f"Allotting({dict(self._costs)})"

    def took(self, want: int, sizes: NDArray[Any], seconds: float) -> None:
        """Samples of so many bytes took so long together: each its share, as was predicted."""
        predicted = self._costs[want].predict(sizes)
        self._costs[want].observe(sizes, seconds * predicted / predicted.sum())

    def choose(
        self, found: Sequence[NextToDecode], sizes: Sequence[NDArray[Any]], working: Mapping[Queue, int], budget: int
    ) -> NextToDecode:
        """The queue for which the next of `budget` preparers works.

        `sizes`: bytes of the samples of each queue. `working`: how many preparers work for each.
        """
        each = [self._costs[queue.want].predict(size) for queue, size in zip(found, sizes, strict=True)]
        total, longest = np.array([seconds.sum() for seconds in each]), np.array([seconds.max() for seconds in each])
        due_s = np.array([queue.due_s for queue in found])
        busy = np.array([working.get(queue.queue, 0) for queue in found], np.int64)
        return found[next_queue(seconds_with(total, longest, budget), due_s, busy)]

    def forget(self, want: int) -> None:
        """A want is gone."""
        self._costs.pop(want, None)


class DecodeQueue:
    """What a node could prepare next."""

    def __init__(self, aheads: DecodeAheadTable, memory: PreparedMemory, residents: Residents) -> None:
        self._aheads, self._memory, self._residents = aheads, memory, residents
        self._allotting = Allotting()
        self._empty_s = -np.inf
        """When there was last nothing to prepare; minus infinity: something may have come since."""

    def __repr__(self) -> str:
        return f"DecodeQueue({self._allotting!r}, nothing to prepare at {self._empty_s})"

    def news(self) -> None:
        """Something may have come that can be prepared."""
        self._empty_s = -np.inf

    def took(self, want: int, places: NDArray[Any], seconds: float) -> None:
        """A preparer took so long for these samples."""
        self._allotting.took(want, self._bytes(places), seconds)

    def forget(self, want: int) -> None:
        """A want is gone."""
        self._allotting.forget(want)

    def next(self, working: Mapping[Queue, int], budget: int, batch: int, now_s: float) -> list[NextToDecode]:
        """What the next of `budget` preparers prepares, and what else where that has no room: what is drawn soonest.

        `working`: how many work for each queue. `batch`: the most samples of a batch.
        """
        if now_s - self._empty_s <= AGAIN_S:
            return []
        found = self._aheads.queues(self._memory, self._residents.kept, batch, WINDOW, now_s)
        self._empty_s = -np.inf if found else now_s
        if len(found) < 2:
            return found
        chosen = self._allotting.choose(found, [self._bytes(each.places) for each in found], working, budget)
        soonest = min(found, key=lambda each: each.lead)
        return [chosen] if chosen is soonest else [chosen, soonest]

    def _bytes(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """About how many bytes samples have."""
        found: NDArray[np.int64] = self._residents.pages_of[places].astype(np.int64)
        return found * self._residents.pool.allocator.page


def next_queue(seconds: NDArray[np.float64], due_s: NDArray[np.float64], working: NDArray[np.int64]) -> int:
    """The number of the queue that gets the next preparer: the one that is the latest with those that it has.

    `seconds` until its work is done by 1, 2, ... preparers, shape (queues, preparers); never rises. `working`: how many
    it has, fewer than there are in all.
    """
    known = Queues(seconds[None], np.ones((1, len(seconds))), due_s[None] * (1 - SLACK))
    return int(late_s(known, working[None])[0].argmax())
