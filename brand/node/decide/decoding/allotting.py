"""For which rank does an idle decode worker work next? For a rank with fewer workers than it needs to be in time.

Each rank of each run has a queue: its next samples that are not decoded. `Costs` predicts their decode time, and the
rank's draws determine when they are due. A worker serves the queue that is the latest with its present workers; a queue
without a worker comes before queues that have one. Workers that become idle one after the other are therefore divided
as `least` divides them: each queue gets the fewest workers with which it is in time, before any queue gets more. If
there are too few workers, they are divided as `greedy` divides them. No worker is idle while there is work.

Within a queue, samples are decoded in the order of its draws. `Allotting` owns the measured costs.
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
from brand.node.memory.decoded import PreparedMemory
from brand.node.memory.residents import Residents

WINDOW: Final = 64
"""Samples that are considered per queue: several batches, because several decode workers may serve a queue."""

AGAIN_S: Final = 0.25
"""Time until the next search for samples to decode, after one that found none, if there is no news."""


class Allotting:
    """The decode costs, by decode spec."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, Costs] = defaultdict(Costs)

    def __repr__(self) -> str:
        return f"Allotting({dict(self._costs)})"

    def record(self, want: int, sizes: NDArray[Any], seconds: float) -> None:
        """Record the decode time of samples with these numbers of bytes. It is divided among them in proportion to the
        predictions.
        """
        predicted = self._costs[want].predict(sizes)
        self._costs[want].observe(sizes, seconds * predicted / predicted.sum())

    def choose(
        self, found: Sequence[NextToDecode], sizes: Sequence[NDArray[Any]], working: Mapping[Queue, int], budget: int
    ) -> NextToDecode:
        """Return the queue for which the next of `budget` decode workers works.

        `sizes`: bytes of the samples of each queue. `working`: number of workers on each queue.
        """
        each = [self._costs[queue.want].predict(size) for queue, size in zip(found, sizes, strict=True)]
        total, longest = np.array([seconds.sum() for seconds in each]), np.array([seconds.max() for seconds in each])
        due_s = np.array([queue.due_s for queue in found])
        busy = np.array([working.get(queue.queue, 0) for queue in found], np.int64)
        return found[next_queue(seconds_with(total, longest, budget), due_s, busy)]

    def forget(self, want: int) -> None:
        """Forget a decode spec."""
        self._costs.pop(want, None)


class DecodeQueue:
    """The samples that a node could decode next."""

    def __init__(self, aheads: DecodeAheadTable, memory: PreparedMemory, residents: Residents) -> None:
        self._aheads, self._memory, self._residents = aheads, memory, residents
        self._allotting = Allotting()
        self._empty_s = -np.inf
        """The time of the last search that found nothing to decode; minus infinity if there may be new samples."""

    def __repr__(self) -> str:
        return f"DecodeQueue({self._allotting!r}, nothing to decode at {self._empty_s})"

    def on_news(self) -> None:
        """Search again at the next call of `next`, because there may be new samples to decode."""
        self._empty_s = -np.inf

    def record(self, want: int, places: NDArray[Any], seconds: float) -> None:
        """Record the time that a decode worker took for these samples."""
        self._allotting.record(want, self._bytes(places), seconds)

    def forget(self, want: int) -> None:
        """Forget a decode spec."""
        self._allotting.forget(want)

    def next(self, working: Mapping[Queue, int], budget: int, batch: int, now_s: float) -> list[NextToDecode]:
        """Return the samples for the next of `budget` decode workers, and an alternative if memory has no space for
        these: the samples that are drawn soonest.

        `working`: number of workers on each queue. `batch`: limit on the samples of a batch.
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
        """Return the approximate bytes of each sample."""
        found: NDArray[np.int64] = self._residents.pages_of[places].astype(np.int64)
        return found * self._residents.pool.allocator.page


def next_queue(seconds: NDArray[np.float64], due_s: NDArray[np.float64], working: NDArray[np.int64]) -> int:
    """Return the number of the queue that gets the next decode worker: the latest one with its present workers.

    `seconds`: time until the work of each queue is done by 1, 2, ... workers, shape (queues, workers); never rises.
    `working`: present workers of each queue, fewer than there are in all.
    """
    known = Queues(seconds[None], np.ones((1, len(seconds))), due_s[None] * (1 - SLACK))
    return int(late_s(known, working[None])[0].argmax())
