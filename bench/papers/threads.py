"""How evenly do allotments of loading threads load the GPUs of Lobster's node?

Each GPU has a queue of requests for its next batch, and all queues share a budget of loading threads
(`brand.node.decide.decoding.allotment` and `bench.papers.allotment` have the ways to allot them). Training takes the
same time on every GPU, and the slowest batch decides when the iteration ends.

    Throughput, Portfolio   how long loading takes with k threads, and preprocessing      (equation 1; section 4.1)
    ThreadScene             a synthetic node: the paper does not publish its tables
    algorithm_1_as_printed  Lobster's Algorithm 1 as its lines say
    outcome                 time and imbalance of the iterations under an allotment
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.decoding.allotment import TAU, Allotment, Queues, by_requests, ready_s

GAP: Final = 0.1
"""An iteration is imbalanced if its GPUs could begin this fraction of the training time apart."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """MB/s of each thread by the number of threads that load for a queue: T_l, T_r and T_PFS of the paper's table 1.

    Between two numbers of threads, the rate is linear.
    """

    threads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Numbers of threads, rising from 1."""
    local: tuple[float, ...] = (4000, 3850, 3350, 2450, 1450, 700)
    """MB/s from this node's cache."""
    remote: tuple[float, ...] = (900, 850, 700, 480, 260, 120)
    """MB/s from another node's cache."""
    storage: tuple[float, ...] = (60, 58, 52, 41, 26, 14)
    """MB/s from the parallel file system."""

    def seconds(self, mb: NDArray[np.float64], most: int) -> NDArray[np.float64]:
        """Return the seconds to load `mb` MB with 1 to `most` threads, shape (..., most).

        `mb` has the shape (..., 3): local, remote, storage. Equation 1: a source takes its MB over k T(k), and the
        sources follow each other. If more threads would be slower, the remaining threads are idle.
        """
        k = np.arange(1, most + 1)
        rates = np.stack([k * np.interp(k, self.threads, rate) for rate in (self.local, self.remote, self.storage)])
        return mb @ (1 / np.maximum.accumulate(rates, axis=1))


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The duration of preprocessing: for each size class of samples, a piece-wise linear model (Lobster, section 4.1).

    The default is synthetic. As in the paper's figure 6, six threads are the fastest.
    """

    size_kb: tuple[float, ...] = (15, 105, 400)
    """The size classes, in kB."""
    threads: tuple[int, ...] = (1, 2, 4, 6, 8, 16)
    """Numbers of threads, rising."""
    seconds: tuple[tuple[float, ...], ...] = (
        (95e-6, 49e-6, 26e-6, 21e-6, 21e-6, 24e-6),
        (560e-6, 285e-6, 150e-6, 121e-6, 123e-6, 136e-6),
        (2100e-6, 1070e-6, 570e-6, 460e-6, 470e-6, 520e-6),
    )
    """Seconds per sample, [size class][number of threads]."""

    def a_sample(self, size_kb: float, threads: int) -> float:
        """Return the seconds that a sample takes with `threads` threads, by the model of the nearest size class."""
        nearest = int(np.argmin(np.abs(np.asarray(self.size_kb) - size_kb)))
        return float(np.interp(threads, self.threads, self.seconds[nearest]))

    def fastest(self, size_kb: float, most: int) -> int:
        """Return the fewest threads, 1 to `most`, with which preprocessing is fastest."""
        return 1 + int(np.argmin([self.a_sample(size_kb, threads) for threads in range(1, most + 1)]))


@dataclass(frozen=True, slots=True)
class ThreadScene:
    """A synthetic node of eight GPUs, and how its batches are spread over the sources.

    Lobster publishes none of these numbers. This project's design has the fractions, the ends of the throughput curves
    and a table of results. The points between the ends, the time of preprocessing, `TAU`, `SLACK` and the form of a
    prediction's error are chosen so that they reproduce this table.
    """

    local: float = 0.3
    """Fraction of samples in this node's cache."""
    remote: float = 0.4
    """Fraction of samples in another node's cache; storage has the rest."""
    budget: int = 32
    """Loading threads."""
    prediction_error: float = 0.0
    """The error e of a prediction, which is 1 - e to 1 / (1 - e) times the seconds that a batch really takes."""
    gpus: int = 8
    """GPUs of the node; each has a queue of its own."""
    batch: int = 256
    """Samples that a GPU trains in one iteration."""
    sample_mb: float = 0.105
    """Size of every sample in MB."""
    concentration: float = 3.0
    """Concentration of the Dirichlet distribution of a batch over the sources: the smaller, the more bursts."""
    train_s: float = 0.1
    """Seconds of training in an iteration."""
    throughput: Throughput = field(default_factory=Throughput)
    """Throughput of the sources."""
    portfolio: Portfolio = field(default_factory=Portfolio)
    """Duration of preprocessing."""
    preprocessing_threads: int = 16
    """Threads that preprocessing may use. It uses the number that is fastest."""
    iterations: int = 4000
    """Iterations that are drawn, each independent of the others."""
    seed: int = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        if min(self.shares) <= 0:
            raise UsageError(
                f"shares of {self.local} local and {self.remote} remote: give numbers above 0 with a sum below 1"
            )
        if self.gpus > self.budget:
            raise UsageError(f"{self.budget} threads for {self.gpus} queues: give each queue one thread or more")
        if not 0 <= self.prediction_error < 1:
            raise UsageError(f"a prediction error of {self.prediction_error}: give 0 or more, and less than 1")

    @property
    def shares(self) -> tuple[float, float, float]:
        """Fractions of samples: local, remote, storage."""
        return self.local, self.remote, 1 - self.local - self.remote

    def draw(self) -> tuple[NDArray[np.float64], Queues]:
        """Draw the seconds that each queue really takes, in the shape of `Queues.seconds`, and their prediction."""
        random = np.random.default_rng(self.seed)
        spread = random.dirichlet(self.concentration * np.array(self.shares), (self.iterations, self.gpus))
        samples = np.rint(self.batch * spread)
        threads = self.portfolio.fastest(1000 * self.sample_mb, self.preprocessing_threads)
        preprocessing = self.batch * self.portfolio.a_sample(1000 * self.sample_mb, threads)
        seconds = self.throughput.seconds(self.sample_mb * samples, self.budget) + preprocessing
        factor = (1 - self.prediction_error) ** random.uniform(-1, 1, (self.iterations, self.gpus, 1))
        requests = samples[..., 1:].sum(axis=-1)  # local samples are not requests to wait for
        return seconds, Queues(seconds * factor, requests, self.train_s)


def algorithm_1_as_printed(queues: Queues, tau: float = TAU) -> Allotment:
    """Allot by Lobster's Algorithm 1 as its lines say. It removes all threads from late queues.

    Three readings fill gaps of the printed version. `IsConsistent` is true. Lines 13 and 15 use the number that line 16
    made. A queue within tau keeps its first allotment.
    """
    allotment = by_requests(queues)
    for iteration, queue in np.ndindex(*allotment.shape):
        seconds = np.append(np.inf, queues.seconds[iteration, queue])  # by the number of threads, from none on
        due = queues.due[iteration, queue]
        low, high, now = 0, queues.budget, int(allotment[iteration, queue])
        difference = kept = seconds[now] - due
        for _ in range(queues.budget):
            if abs(difference) < tau * due:
                break
            if difference < 0:
                low = now
            else:
                high = now
            now = low + (high - low) // 2
            difference = seconds[now] - due
            if kept <= difference:
                allotment[iteration, queue], kept = now, difference
    return allotment


@dataclass(frozen=True, slots=True)
class Outcome:
    """Time and imbalance of the iterations under an allotment."""

    time: float
    """Mean duration of an iteration over that of training: 1.0 if no batch is late."""
    imbalance: float
    """Fraction of imbalanced iterations (`imbalance`)."""
    threads: float
    """Mean number of threads that all queues together use."""


def outcome(seconds: NDArray[np.float64], threads: Allotment, train_s: float) -> Outcome:
    """Return the outcome of an allotment for iterations that really need `seconds`.

    `seconds` has the shape (iterations, queues, budget).
    """
    ready = ready_s(seconds, threads)
    time = np.maximum(ready.max(axis=1), train_s).mean() / train_s
    return Outcome(float(time), imbalance(ready, train_s), float(threads.sum(axis=1).mean()))


def imbalance(ready: NDArray[np.float64], train_s: float, gap: float = GAP) -> float:
    """Return the fraction of iterations whose batches are ready more than `gap` of the training time apart.

    `ready` is in seconds, shape (iterations, queues). A batch that is ready while the one before is trained counts as
    ready when that training ends: its GPU does not wait. The paper counts imbalanced iterations and does not define
    them.
    """
    begin = np.maximum(ready, train_s)
    return float((begin.max(axis=1) - begin.min(axis=1) > gap * train_s).mean())
