"""How late is each queue of decode workers if a given number of workers is on it (Lobster, sections 4.2 to 4.4)?

Each rank has a queue of work for its next batch, of whichever job it is. Predictions of the queues (`Queues`) go in;
`late_s` says which queue is then the latest.

Workers change when a sample is decoded, never which sample a rank gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SLACK: Final = 0.05
"""Batches are wanted ready this share of the time until they are due early."""


@dataclass(frozen=True, slots=True)
class Queues:
    """What is predicted of the queues of a node before each of some iterations; a server looks at one."""

    seconds: NDArray[np.float64]
    """Until the batch is ready, with 1, 2, ... `budget` threads, shape (iterations, queues, budget); never rises."""
    requests: NDArray[np.float64]
    """Pending requests, shape (iterations, queues)."""
    due_s: NDArray[np.float64] | float
    """Seconds until the batch is wanted: one number, or shape (iterations, queues)."""

    @property
    def queues(self) -> int:
        """How many queues there are."""
        return int(self.seconds.shape[1])

    @property
    def budget(self) -> int:
        """How many threads there are for all queues together."""
        return int(self.seconds.shape[2])

    @property
    def due(self) -> NDArray[np.float64]:
        """Seconds until each batch is wanted, shape (iterations, queues)."""
        return np.broadcast_to(np.asarray(self.due_s, np.float64), self.requests.shape)


def seconds_with(total_s: NDArray[np.float64], longest_s: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Seconds until pieces of work are done by 1 to `most` threads, shape (..., most).

    The pieces take `total_s` together, and the longest takes `longest_s`. Each free thread takes any piece that is
    left. Then the work takes no longer than this (Graham's bound), and never less than the mean.
    """
    threads = np.arange(1, most + 1)
    return total_s[..., None] / threads + longest_s[..., None] * (1 - 1 / threads)


def late_s(queues: Queues, threads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds that each batch is late, negative where it is early, shape (iterations, queues).

    A queue without a thread is later than each that has one; of several, the later one is that which would be later
    with one thread.
    """
    late = seconds_taken(queues.seconds, threads) - queues.due
    longest_s, shortest_s = np.max(queues.seconds, initial=0), np.min(queues.seconds, initial=0)
    beyond = longest_s - shortest_s + np.ptp(queues.due) + 1 if late.size else 0.0
    return np.where(threads > 0, late, late + beyond)


def seconds_taken(seconds: NDArray[np.float64], threads: NDArray[np.int64]) -> NDArray[np.float64]:
    """The seconds with so many threads; with one, where there is none."""
    return np.take_along_axis(seconds, np.maximum(threads - 1, 0)[..., None], axis=2)[..., 0]
