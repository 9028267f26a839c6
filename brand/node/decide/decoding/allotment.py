"""How late is each queue of decode workers if a given number of workers serves it (Lobster, sections 4.2 to 4.4)?

Each rank of each job has a queue: the work for its next batch. The inputs are predictions of the queues (`Queues`);
`late_s` returns how late each queue is then.

The number of workers changes when a sample is decoded, never which sample a rank gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SLACK: Final = 0.05
"""Batches are due earlier than they are drawn, by this fraction of the time until then."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Predictions for the queues of a node before each of some iterations. A server uses one iteration."""

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


def seconds_with(total_s: NDArray[np.float64], longest_s: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the seconds until pieces of work are done by 1 to `most` threads, shape (..., most).

    The pieces take `total_s` together, and the longest takes `longest_s`. Each free thread takes any piece that is
    left. Then the work takes no longer than this (Graham's bound), and never less than the mean.
    """
    threads = np.arange(1, most + 1)
    return total_s[..., None] / threads + longest_s[..., None] * (1 - 1 / threads)


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
