"""How many decode workers does each rank's queue get, if it is not the latest queue that gets the next one?

Lobster (sections 4.2 to 4.4) gives each queue of a node threads for its next batch. The input is the predicted state of
the queues (`Queues`), the output the threads of each queue:

    algorithm_1             Lobster's Algorithm 1, repaired; it begins with `by_requests`
    by_requests             in proportion to the pending requests
    equal                   the same number for each queue

Equation 2 of the paper makes loading and preprocessing take as long as training. So Algorithm 1 leaves threads idle,
and makes batches late that could be in time. The default of a server does not (`brand.node.decide.decoding.queues`). If
there are more queues than threads, the latest queues get one thread each. The caller omits queues without work.

`WorkerAllotment` applies an allotment to decode workers that become idle one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.ahead import Queue
from brand.reprs import Reprs

TAU: Final = 0.05
"""Algorithm 1 accepts a batch that is this fraction of the training time early or late. The paper gives no value."""
Allotment = NDArray[np.int64]
"""Threads for each queue, shape (iterations, queues)."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Predictions for the queues of a node before each of some iterations."""

    seconds: NDArray[np.float64]
    """Seconds until the batch is ready, with 1, 2, ... `budget` threads, shape (iterations, queues, budget); never
    rises.
    """
    requests: NDArray[np.float64]
    """Pending requests, shape (iterations, queues)."""
    due_s: NDArray[np.float64] | float
    """Seconds until the batch is due: one number, or shape (iterations, queues)."""

    @property
    def queues(self) -> int:
        """Number of queues."""
        return int(self.seconds.shape[1])

    @property
    def budget(self) -> int:
        """Number of threads for all queues together."""
        return int(self.seconds.shape[2])

    @property
    def due(self) -> NDArray[np.float64]:
        """Seconds until each batch is due, shape (iterations, queues)."""
        return np.broadcast_to(np.asarray(self.due_s, np.float64), self.requests.shape)


def equal(queues: Queues) -> Allotment:
    """Give every queue the same number of threads; the first queues share the remainder."""
    each, over = divmod(queues.budget, queues.queues)
    return np.broadcast_to(each + (np.arange(queues.queues) < over), queues.requests.shape).astype(np.int64)


def by_requests(queues: Queues) -> Allotment:
    """Give every queue threads in proportion to its pending requests. Largest remainders round up.

    Each queue gets at least one thread if the budget has that many.
    """
    fewest = int(queues.budget >= queues.queues)
    weight = queues.requests + (queues.requests.sum(axis=1, keepdims=True) == 0)
    share = queues.budget * weight / weight.sum(axis=1, keepdims=True)
    threads: Allotment = np.maximum(np.floor(share).astype(np.int64), fewest)
    iteration = np.arange(len(threads))
    while (missing := np.sign(queues.budget - threads.sum(axis=1))).any():
        most_due = np.where(missing[:, None] > 0, share - threads, np.where(threads > 1, threads - share, -np.inf))
        threads[iteration, most_due.argmax(axis=1)] += missing
    return threads


def algorithm_1(queues: Queues, tau: float = TAU) -> Allotment:
    """Allot by Lobster's Algorithm 1, repaired at the lines at which the printed version contradicts itself.

    A late queue gets more threads; line 12 gives it fewer. The search keeps the smallest absolute difference; line 18
    keeps the largest. The search ends when its interval is empty; the paper does not define `IsConsistent`. Every queue
    keeps one thread if the budget has that many. If the sum exceeds the budget, threads are removed one by one from the
    queue that is then the least late.
    """
    threads, _ = binary_search(queues, tau)
    # Seconds never rise with the number of threads. So the threads removed one by one are those with the smallest
    # lateness after their removal, and one sort finds them. If some are equal, the first queue loses first.
    none = late_s(queues, np.zeros_like(threads))[..., None]
    late = np.concatenate([queues.seconds[..., -2::-1] - queues.due[..., None], none], axis=2)
    left = np.arange(queues.budget - 1, -1, -1)
    late = np.where(left < threads[..., None], late, np.inf).reshape(len(threads), -1)
    order = np.argsort(late, axis=1, kind="stable")
    over = np.maximum(threads.sum(axis=1) - queues.budget, 0)
    removed = np.zeros(late.shape, np.bool_)
    np.put_along_axis(removed, order, np.arange(late.shape[1]) < over[:, None], axis=1)
    fewer: Allotment = threads - removed.reshape(*threads.shape, -1).sum(axis=2)
    return fewer


def binary_search(queues: Queues, tau: float = TAU) -> tuple[Allotment, NDArray[np.int64]]:
    """Return the threads that the search of `algorithm_1` finds, and the steps of each queue's search.

    The sum of the threads may exceed the budget.
    """
    now, tolerance = by_requests(queues), tau * queues.due
    late = ready_s(queues.seconds, now) - queues.due
    best, smallest, searching = now.copy(), np.abs(late), np.abs(late) >= tolerance
    low, high, steps = np.zeros_like(now), np.full_like(now, queues.budget), np.zeros_like(now)
    for _ in range(queues.budget):
        if not searching.any():
            break
        steps += searching
        low, high = np.where(late > 0, now, low), np.where(late > 0, high, now)
        middle = np.maximum(1, low + (high - low) // 2)
        searching &= middle != now
        now = np.where(searching, middle, now)
        late = ready_s(queues.seconds, now) - queues.due
        better = searching & (np.abs(late) < smallest)
        best, smallest = np.where(better, now, best), np.where(better, np.abs(late), smallest)
        searching &= np.abs(late) >= tolerance
    return best, steps


def ready_s(seconds: NDArray[np.float64], threads: Allotment) -> NDArray[np.float64]:
    """Return the seconds until each batch is ready, shape (iterations, queues); infinite if a queue has no thread.

    `seconds` is by the number of threads, as in `Queues.seconds`.
    """
    return np.where(threads > 0, seconds_taken(seconds, threads), np.inf)


def late_s(queues: Queues, threads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the seconds that each batch is late, negative if it is early, shape (iterations, queues).

    A queue without a thread is later than each queue with a thread. Several queues without a thread are ordered by
    their lateness with one thread.
    """
    late = seconds_taken(queues.seconds, threads) - queues.due
    longest_s, shortest_s = np.max(queues.seconds, initial=0), np.min(queues.seconds, initial=0)
    beyond = longest_s - shortest_s + np.ptp(queues.due) + 1 if late.size else 0.0
    return np.where(threads > 0, late, late + beyond)


def seconds_taken(seconds: NDArray[np.float64], threads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the seconds with this number of threads; those with one thread for a queue without any."""
    return np.take_along_axis(seconds, np.maximum(threads - 1, 0)[..., None], axis=2)[..., 0]


BY_NAME: Final[dict[str, Callable[[Queues], Allotment]]] = {"lobster": algorithm_1, "equal": equal}
"""The allotments that a server can use, by name. `least` is not one of them: it needs no allotment."""


class WorkerAllotment(Reprs, shows="_allot"):
    """Divides decode workers by an allotment: each queue has at most as many workers as it gets threads.

    A worker that is in excess stays idle, as in the paper. So `equal` and `lobster` compare with `least` as published.
    """

    def __init__(self, allot: Callable[[Queues], Allotment]) -> None:
        self._allot = allot
        self._chosen: dict[Queue, int] = {}
        """Number of the choice that chose a queue last, for the queues that had work at the last choice."""
        self._choices = 0

    def next_queue(
        self,
        names: Sequence[Queue],
        seconds: NDArray[np.float64],
        pending: NDArray[np.int64],
        due_s: NDArray[np.float64],
        working: NDArray[np.int64],
    ) -> int | None:
        """Return the number of the queue that lacks most workers; of several, the one chosen least recently.

        None if each queue has its workers. `seconds`: as `next_queue` of `queues`, shape (queues, workers).
        `pending`: samples of each queue that are not decoded. `working`: present workers of each queue.
        """
        order = np.array(sorted(range(len(names)), key=lambda queue: self._chosen.get(names[queue], 0)))
        known = Queues(seconds[order][None], pending[order][None].astype(np.float64), due_s[order][None])
        lacking = self._allot(known)[0] - working[order]
        if lacking.max() <= 0:
            return None
        chosen = int(order[lacking.argmax()])
        self._choices += 1
        self._chosen = {name: self._chosen.get(name, 0) for name in names} | {names[chosen]: self._choices}
        return chosen
