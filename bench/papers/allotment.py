"""How many threads does each queue of a node get? All queues share a budget (Lobster, sections 4.2 to 4.4).

Each rank has a queue of work for its next batch, whichever job the rank belongs to. The threads decode samples, or load
them in the papers' scenes. The input is the predicted state of the queues (`Queues`), the output the threads of each
queue:

    equal, by_requests      divisions that ignore the prediction, to compare with
    greedy                  the latest batch is ready as early as the budget allows
    least                   the fewest threads with which each batch is in time; if the budget is short, `greedy`
    algorithm_1             Lobster's Algorithm 1, repaired

Equation 2 of the paper makes loading and preprocessing take as long as training. So Algorithm 1 makes batches late
that could be in time; `least` does not. If there are more queues than threads, the latest queues get one thread each.
A queue without work is not counted: the caller omits it.

The server itself assigns threads one by one, each to the queue that is then the latest
(`brand.node.decide.decoding.queues`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.queues import SLACK

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


def greedy(queues: Queues) -> Allotment:
    """Give each thread to the queue that is then the latest.

    No other allotment within the budget makes the latest batch less late. Queues without a thread are served first.
    """
    threads = np.zeros(queues.requests.shape, np.int64)
    iteration = np.arange(len(threads))
    for _ in range(queues.budget):
        threads[iteration, late_s(queues, threads).argmax(axis=1)] += 1
    return threads


def least(queues: Queues, slack: float = SLACK) -> Allotment:
    """Give every queue the fewest threads that make its batch ready `slack` of its time early.

    If their sum exceeds the budget, the iteration is allotted by `greedy`.
    """
    in_time = queues.seconds <= queues.due[..., None] * (1 - slack)
    threads = np.where(in_time.any(axis=2), in_time.argmax(axis=2) + 1, queues.budget)
    short = threads.sum(axis=1) > queues.budget
    threads[short] = greedy(_only(queues, short))
    return threads


def algorithm_1(queues: Queues, tau: float = TAU) -> Allotment:
    """Allot by Lobster's Algorithm 1, repaired at the lines at which the printed version contradicts itself.

    A late queue gets more threads; line 12 gives it fewer. The search keeps the smallest absolute difference; line 18
    keeps the largest. The search ends when its interval is empty; the paper does not define `IsConsistent`. Every queue
    keeps one thread if the budget has that many. If the sum exceeds the budget, threads are removed one by one from the
    queue that is then the least late.
    """
    threads, _ = binary_search(queues, tau)
    while (over := threads.sum(axis=1) > queues.budget).any():
        fewer = np.where(threads > 0, late_s(queues, threads - 1), np.inf)
        threads[np.flatnonzero(over), fewer.argmin(axis=1)[over]] -= 1
    return threads


def binary_search(queues: Queues, tau: float = TAU) -> tuple[Allotment, NDArray[np.int64]]:
    """Return the threads that the search of `algorithm_1` finds, and the steps of each queue's search.

    The sum of the threads may exceed the budget.
    """
    now, tolerance = by_requests(queues), tau * queues.due
    late = ready_s(queues.seconds, now) - queues.due
    best, smallest, searching = now.copy(), np.abs(late), np.abs(late) >= tolerance
    low, high, steps = np.zeros_like(now), np.full_like(now, queues.budget), np.zeros_like(now)
    for _ in range(queues.budget):
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


ALLOTMENTS: Final[dict[str, Callable[[Queues], Allotment]]] = {
    "equal": equal,
    "by requests": by_requests,
    "algorithm 1": algorithm_1,
    "greedy": greedy,
    "least": least,
}
"""The allotments that keep to the budget, by name."""


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


def _only(queues: Queues, iterations: NDArray[np.bool_]) -> Queues:
    """Return the queues of some iterations."""
    return Queues(queues.seconds[iterations], queues.requests[iterations], queues.due[iterations])
