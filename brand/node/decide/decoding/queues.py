"""For which rank does an idle decode worker work next? For a rank with fewer workers than it needs to be in time.

Each rank of each run has a queue: its next samples that are not decoded (`DecodeQueue`). `Costs` predicts their decode
time, and the rank's draws determine when they are due. `next_queue` chooses the queue that is the latest. A server that
was started with another allotment consults that one (`Allots`; `brand.node.decide.decoding.allotment`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

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
REACH: Final = 16_384
"""Samples of a queue that are counted at most, if an allotment takes account of their number."""
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


class Allots(Protocol):
    """Divides decode workers among queues in another way than `next_queue` does."""

    def next_queue(
        self,
        names: Sequence[Queue],
        seconds: NDArray[np.float64],
        pending: NDArray[np.int64],
        due_s: NDArray[np.float64],
        working: NDArray[np.int64],
    ) -> int | None:
        """Return the number of the queue that gets the next decode worker; None if no queue may have one more.

        `names`: the queues. `pending`: the number of their samples that are not decoded, at most `REACH`. The other
        arguments are as for the function `next_queue`.
        """


class Allotting(Reprs, shows="_costs _allots"):
    """The decode costs, by decode spec, and the allotment if it is not `least`."""

    def __init__(self, allots: Allots | None = None) -> None:
        self._costs: defaultdict[int, Costs] = defaultdict(Costs)
        self._allots = allots

    def record(self, want: int, sizes: NDArray[Any], seconds: float) -> None:
        """Record the decode time of samples of these sizes. It is divided in proportion to the predictions."""
        predicted = self._costs[want].predict(sizes)
        self._costs[want].observe(sizes, seconds * predicted / predicted.sum())

    def choose(
        self,
        found: Sequence[NextToDecode],
        sizes: Sequence[NDArray[Any]],
        working: Mapping[Queue, int],
        budget: int,
        pending: Mapping[Queue, int] | None = None,
    ) -> NextToDecode | None:
        """Return the queue for which the next of `budget` decode workers works; None if it stays idle.

        `sizes`: bytes of the samples of each queue. `working`: number of workers on each queue. `pending`: number of
        samples of each queue that are not decoded, if it is not that of the sizes.
        """
        each = [self._costs[queue.want].predict(size) for queue, size in zip(found, sizes, strict=True)]
        total, longest = np.array([seconds.sum() for seconds in each]), np.array([seconds.max() for seconds in each])
        due_s = np.array([queue.due_s for queue in found])
        busy = np.array([working.get(queue.queue, 0) for queue in found], np.int64)
        seconds = seconds_with(total, longest, budget)
        if self._allots is None:
            return found[next_queue(seconds, due_s, busy)]
        names = [queue.queue for queue in found]
        counts = np.array([(pending or {}).get(name, len(size)) for name, size in zip(names, sizes, strict=True)])
        chosen = self._allots.next_queue(names, seconds, counts, due_s, busy)
        return None if chosen is None else found[chosen]

    def forget(self, want: int) -> None:
        self._costs.pop(want, None)


class DecodeQueue(Reprs, shows="_allotting _empty_s"):
    """The samples that a node could decode next.

    A worker serves the queue that is the latest with its present workers; a queue without a worker comes before queues
    that have one. Workers that become idle one after the other are therefore divided as `least` of
    `bench.papers.allotment` divides them: each queue gets the fewest workers with which it is in time, before any queue
    gets more. If there are too few workers, they are divided as `greedy` divides them. No worker is idle while there is
    work. Within a queue, samples are decoded in the order of its draws.

    `allots` divides the workers instead. Then samples that waiting draws lack come first within the queue of their rank
    only, and a worker stays idle if no queue may have one more.
    """

    def __init__(
        self, aheads: DecodeAheadTable, memory: PreparedMemory, residents: Residents, allots: Allots | None = None
    ) -> None:
        self._aheads, self._memory, self._residents = aheads, memory, residents
        self._allotting, self._all_ranks = Allotting(allots), allots is not None
        self._empty_s = -np.inf
        """The time of the last search that found nothing to decode; minus infinity if there may be new samples."""
        self._working: Mapping[Queue, int] = {}
        """Number of workers on each queue at the last search."""

    def on_news(self) -> None:
        """Search again at the next call of `next`, because there may be new samples to decode."""
        self._empty_s = -np.inf

    def record(self, want: int, places: NDArray[Any], seconds: float) -> None:
        self._allotting.record(want, self._bytes(places), seconds)

    def forget(self, want: int) -> None:
        self._allotting.forget(want)

    def next(
        self, waiting: Sequence[NextToDecode], working: Mapping[Queue, int], budget: int, batch: int, now_s: float
    ) -> list[NextToDecode]:
        """Return the samples for the next of `budget` decode workers; if these may not fit, also those drawn soonest.

        `waiting`: samples that waiting draws lack. `working`: number of workers on each queue. `batch`: limit on the
        samples of a batch.
        """
        if waiting and not self._all_ranks:
            return self._choose(waiting, working, budget)
        unchanged = not self._all_ranks or working == self._working
        if not waiting and unchanged and now_s - self._empty_s <= AGAIN_S:
            return []
        window = REACH if self._all_ranks else WINDOW
        found = self._aheads.queues(self._memory, self._residents.kept, batch, window, now_s)
        pending = {each.queue: len(each.places) for each in found}
        found = [replace(each, places=each.places[:WINDOW]) for each in found]
        chosen = self._choose(list(waiting_first(found, waiting)), working, budget, pending)
        self._empty_s, self._working = -np.inf if chosen else now_s, working
        return chosen

    def _choose(
        self,
        found: Sequence[NextToDecode],
        working: Mapping[Queue, int],
        budget: int,
        pending: Mapping[Queue, int] | None = None,
    ) -> list[NextToDecode]:
        """Return those of these samples that the next of `budget` decode workers decodes, as `next`."""
        if len(found) < 2:
            return list(found)
        sizes = [self._bytes(each.places) for each in found]
        chosen = self._allotting.choose(found, sizes, working, budget, pending)
        if chosen is None:
            return []
        soonest = min(found, key=lambda each: each.lead)
        return [chosen] if chosen is soonest else [chosen, soonest]

    def _bytes(self, places: NDArray[Any]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._residents.pages_of[places].astype(np.int64)
        return found * self._residents.pool.allocator.page


def waiting_first(found: Sequence[NextToDecode], waiting: Sequence[NextToDecode]) -> Iterator[NextToDecode]:
    """Yield the samples of each queue, with those first that a waiting draw of its rank lacks."""
    lacking = {each.queue: each for each in waiting}
    for each in found:
        first = lacking.pop(each.queue, each)
        if first is not each and first.want == each.want:
            others = each.places[~np.isin(each.places, first.places)]
            first = replace(first, places=np.concatenate([first.places, others])[:WINDOW])
        yield first
    yield from lacking.values()


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
