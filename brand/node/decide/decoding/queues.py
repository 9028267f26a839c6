"""For which rank does an idle decode worker work next? For a rank with fewer workers than it needs to be in time.

Each rank of each run has a queue: its next samples that are not decoded (`DecodeQueue`). `Costs` predicts their decode
time, and the rank's draws determine when they are due. `next_queue` chooses the queue that is the latest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.ahead import DecodeAheadTable, NextToDecode, Queue
from brand.node.memory.decoded import PreparedMemory
from brand.node.memory.residents import Residents
from brand.reprs import Reprs

SLACK: Final = 0.05
"""Batches are due earlier than they are drawn, by this fraction of the time until then."""
WINDOW: Final = 64
"""Samples that are considered per queue: several batches, because several decode workers may serve a queue."""
AGAIN_S: Final = 0.25
"""Time until the next search for samples to decode, after one that found none, if there is no news."""
FIRST: Final = 5e-8
"""Seconds per byte before any report, measured with JPEG. At that time only the ratio of two predictions counts."""
HALF_LIFE: Final = 2000
MOST_OFF: Final = 10.0
BEGIN: Final = 2
FORGOTTEN: Final = 1e-3
"""A class is forgotten if fewer than this many of its samples count."""
LONGEST_S: Final = 3600.0
"""A report above this limit is ignored as wrong."""
_SHORTEST_S: Final = 1e-6
_CLASSES: Final = 65


class Costs:
    """The decode times of one decode spec.

    Decode times are learned from the reports of workers (Lobster, section 4.1). A size class has the samples of
    2**(k-1) to 2**k - 1 bytes. The model is piece-wise linear through the means of the classes. A single line would be
    too inaccurate: in a mixed data set, a small image takes seven times as long per byte as a large one.

    A report counts half as much after `HALF_LIFE` more reports. A report that is far off its prediction, because the
    machine was busy with other work, counts as a report that is `MOST_OFF` times off. A class begins as `BEGIN` samples
    that took the time predicted before. The same reports always give the same model.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((3, _CLASSES))
        """Samples, bytes and seconds of each size class; old reports have a smaller weight."""

    def __repr__(self) -> str:
        sizes, seconds = self._points()
        points = ", ".join(f"{size:.0f} B {1e3 * s:.2f} ms" for size, s in zip(sizes, seconds, strict=True))
        return f"Costs({points or 'no report'})"

    def predict(self, sizes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted seconds of each sample, given its bytes."""
        known, seconds = self._points()
        if not len(known):
            return np.maximum(FIRST * sizes, _SHORTEST_S)
        beyond = np.maximum(sizes / known[-1], 1)  # sizes beyond the largest class take proportionally longer
        predicted: NDArray[np.float64] = np.maximum(np.interp(sizes, known, seconds) * beyond, _SHORTEST_S)
        return predicted

    def observe(self, sizes: NDArray[Any], seconds: NDArray[np.float64]) -> None:
        """Record the seconds that samples of these sizes took. Values that cannot be seconds are ignored."""
        right = (seconds >= 0) & (seconds <= LONGEST_S)
        if not right.any():
            return
        sizes, seconds = np.maximum(sizes[right], 1), seconds[right]
        middle = max(float(np.median(seconds)), _SHORTEST_S)
        expected = self.predict(sizes) if self._sums.any() else np.clip(seconds, middle / MOST_OFF, middle * MOST_OFF)
        classes = np.frexp(sizes)[1]
        seconds = np.clip(seconds, expected / MOST_OFF, expected * MOST_OFF)

        def summed(values: NDArray[Any]) -> NDArray[np.float64]:
            return np.bincount(classes, values, _CLASSES).astype(np.float64)

        count, size = summed(np.ones(len(sizes))), summed(sizes)
        begin = np.stack([count, size, summed(expected)]) * (BEGIN / np.maximum(count, 1))
        before = np.where(self._sums[0] > 0, self._sums * 0.5 ** (len(sizes) / HALF_LIFE), begin)
        after = before + np.stack([count, size, summed(seconds)])
        self._sums = np.where(after[0] >= FORGOTTEN, after, 0)

    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean bytes, ascending, and the mean seconds of the known classes."""
        count, size, seconds = self._sums[:, self._sums[0] > 0]
        return size / count, seconds / count


class Allotting(Reprs, shows="_costs"):
    """The decode costs, by decode spec."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, Costs] = defaultdict(Costs)

    def record(self, want: int, sizes: NDArray[Any], seconds: float) -> None:
        """Record the decode time of samples of these sizes. It is divided in proportion to the predictions."""
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
        self._costs.pop(want, None)


class DecodeQueue(Reprs, shows="_allotting _empty_s"):
    """The samples that a node could decode next.

    A worker serves the queue that is the latest with its present workers; a queue without a worker comes before queues
    that have one. Workers that become idle one after the other are therefore divided as `least` of
    `bench.papers.allotment` divides them: each queue gets the fewest workers with which it is in time, before any queue
    gets more. If there are too few workers, they are divided as `greedy` divides them. No worker is idle while there is
    work. Within a queue, samples are decoded in the order of its draws.
    """

    def __init__(self, aheads: DecodeAheadTable, memory: PreparedMemory, residents: Residents) -> None:
        self._aheads, self._memory, self._residents = aheads, memory, residents
        self._allotting = Allotting()
        self._empty_s = -np.inf
        """The time of the last search that found nothing to decode; minus infinity if there may be new samples."""

    def on_news(self) -> None:
        """Search again at the next call of `next`, because there may be new samples to decode."""
        self._empty_s = -np.inf

    def record(self, want: int, places: NDArray[Any], seconds: float) -> None:
        self._allotting.record(want, self._bytes(places), seconds)

    def forget(self, want: int) -> None:
        self._allotting.forget(want)

    def next(self, working: Mapping[Queue, int], budget: int, batch: int, now_s: float) -> list[NextToDecode]:
        """Return the samples for the next of `budget` decode workers; if these may not fit, also those drawn soonest.

        `working`: number of workers on each queue. `batch`: limit on the samples of a batch.
        """
        if now_s - self._empty_s <= AGAIN_S:
            return []
        found = self._aheads.queues(self._memory, self._residents.kept, batch, WINDOW, now_s)
        self._empty_s = -np.inf if found else now_s
        return self.choose(found, working, budget)

    def choose(self, found: Sequence[NextToDecode], working: Mapping[Queue, int], budget: int) -> list[NextToDecode]:
        """Return those of these samples that the next of `budget` decode workers decodes, as `next`."""
        if len(found) < 2:
            return list(found)
        chosen = self._allotting.choose(found, [self._bytes(each.places) for each in found], working, budget)
        soonest = min(found, key=lambda each: each.lead)
        return [chosen] if chosen is soonest else [chosen, soonest]

    def _bytes(self, places: NDArray[Any]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._residents.pages_of[places].astype(np.int64)
        return found * self._residents.pool.allocator.page


def seconds_with(total_s: NDArray[np.float64], longest_s: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the seconds until pieces of work are done by 1 to `most` threads, shape (..., most).

    The pieces take `total_s` together, and the longest takes `longest_s`. Each free thread takes any piece that is
    left. Then the work takes no longer than this (Graham's bound), and never less than the mean.
    """
    threads = np.arange(1, most + 1)
    return total_s[..., None] / threads + longest_s[..., None] * (1 - 1 / threads)


def next_queue(seconds: NDArray[np.float64], due_s: NDArray[np.float64], working: NDArray[np.int64]) -> int:
    """Return the number of the queue that gets the next decode worker: the latest one with its present workers.

    `seconds`: time until the work of each queue is done by 1, 2, ... workers, shape (queues, workers); never rises.
    `working`: present workers of each queue, fewer than there are in all. A queue without a worker comes before queues
    that have one. Several of these are ordered by their lateness with one worker.
    """
    late = seconds[np.arange(len(seconds)), np.maximum(working - 1, 0)] - due_s * (1 - SLACK)
    return max(range(len(late)), key=lambda queue: (working[queue] == 0, late[queue]))
