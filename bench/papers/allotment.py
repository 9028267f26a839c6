"""Allotments of threads to compare with those of a server, which `brand.node.decide.decoding.allotment` has.

Each rank has a queue of work for its next batch, whichever job the rank belongs to. The threads decode samples, or load
them in the papers' scenes.

    greedy                  the latest batch is ready as early as the budget allows
    least                   the fewest threads with which each batch is in time; if the budget is short, `greedy`

The server itself assigns threads one by one, each to the queue that is then the latest
(`brand.node.decide.decoding.queues`): that is `least`, or `greedy` if the budget is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.allotment import Allotment, Queues, algorithm_1, by_requests, equal, late_s
from brand.node.decide.decoding.queues import SLACK


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


ALLOTMENTS: Final[dict[str, Callable[[Queues], Allotment]]] = {
    "equal": equal,
    "by requests": by_requests,
    "algorithm 1": algorithm_1,
    "greedy": greedy,
    "least": least,
}
"""The allotments that keep to the budget, by name."""


def _only(queues: Queues, iterations: NDArray[np.bool_]) -> Queues:
    """Return the queues of some iterations."""
    return Queues(queues.seconds[iterations], queues.requests[iterations], queues.due[iterations])
