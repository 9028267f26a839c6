"""How often does a node draw a sample if each epoch shards all samples again?

In each epoch one of N nodes draws a sample, each with the same chance. So over E epochs the number of a node's draws of
a sample is binomial: E trials, chance 1/N (HDMLP, section 3.1). A node that caches the samples that it draws most often
gains from the spread of this number. Each closed form has a count on real permutations next to it, so that each checks
the other.

    node_draws          the draws of one node, in order
    expected_above      how many samples a node draws more often than (1 + delta) times the mean: expected
    counted_above       the same number, counted for each node
    often, seldom       Lemma 1: what the draws of one node say about another node's
    lemma_1             both bounds for all numbers of nodes, epochs and draws
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.random import RandomStream, permutation


def node_draws(samples: int, nodes: int, epochs: int, seed: int, node: int = 0) -> NDArray[Any]:
    """Return the samples that one node draws, epoch by epoch and in order, shape (epochs, samples // nodes).

    Nodes draw in turn from a permutation of all samples. The last turn of an epoch is dropped if it has too few
    samples for all nodes. Raises `UsageError` if there are fewer samples than nodes.
    """
    _check(nodes, epochs)
    if samples < nodes:
        raise UsageError(f"{nodes} nodes cannot share {samples} samples: give at least as many samples as nodes")
    return np.stack([_deal(samples, nodes, seed, epoch)[:, node] for epoch in range(epochs)])


def _deal(samples: int, nodes: int, seed: int, epoch: int) -> NDArray[Any]:
    """Return the samples of an epoch by turn and node, shape (samples // nodes, nodes)."""
    turns = samples // nodes
    return permutation(samples, seed, RandomStream.ACCESS, epoch)[: turns * nodes].reshape(turns, nodes)


def _counts(samples: int, nodes: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Count how often each node draws each sample, shape (nodes, samples)."""
    _check(nodes, epochs)
    counts = np.zeros((nodes, samples), np.int64)
    for epoch in range(epochs):
        counts[np.arange(nodes), _deal(samples, nodes, seed, epoch)] += 1
    return counts


def draw_counts(nodes: int, epochs: int) -> NDArray[np.float64]:
    """Return the chance that a node draws a sample 0, 1, ... `epochs` times in `epochs` epochs, shape (epochs + 1,)."""
    _check(nodes, epochs)
    if nodes == 1:
        return np.append(np.zeros(epochs), 1.0)
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, epochs + 1))))
    ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    count = np.arange(epochs + 1)
    chances: NDArray[np.float64] = np.exp(ways + (epochs - count) * math.log(nodes - 1) - epochs * math.log(nodes))
    return chances


def expected_above(samples: int, nodes: int, epochs: int, delta: Fraction) -> float:
    """Return how many samples a node is expected to draw more than (1 + delta) epochs / nodes times.

    "More" is strict, as in the paper's text and on its left side. The paper's sum begins at the ceiling of that limit.
    If the limit is a whole number, the ceiling also counts the samples that are drawn exactly that often. For 10,000
    samples, 4 nodes, 1,000 epochs and a delta of 1/10, this function gives 322.9 and the printed sum 378.2; the paper
    itself says 323. `delta` is a fraction, because 1.1 as a float is not 11/10 and may move the limit. Raises
    `UsageError` if an argument is out of range.
    """
    return float(samples * draw_counts(nodes, epochs)[_above(nodes, epochs, delta) :].sum())


def counted_above(samples: int, nodes: int, epochs: int, delta: Fraction, seed: int) -> NDArray[np.int64]:
    """Count the samples that each node drew more than (1 + delta) epochs / nodes times, shape (nodes,).

    This is the Monte Carlo count for `expected_above`, over real permutations. Raises `UsageError` if an argument is
    out of range.
    """
    least = _above(nodes, epochs, delta)
    above: NDArray[np.int64] = (_counts(samples, nodes, epochs, seed) >= least).sum(axis=1)
    return above


def from_other_nodes(samples: int, nodes: int, epochs: int, seed: int) -> float:
    """Count the fraction of all draws that come from another node if each sample is where it is drawn most often.

    Each sample has one copy in the cluster. Placed without regard to draws, the fraction is 1 - 1 / nodes. Raises
    `UsageError` if an argument is out of range.
    """
    counts = _counts(samples, nodes, epochs, seed)
    return float(1 - counts.max(axis=0).sum() / counts.sum())


@dataclass(frozen=True, slots=True)
class Another:
    """One statement of Lemma 1 (HDMLP, section 3.1)."""

    draws: int
    """How often the node draws the sample."""
    bound: int
    """At least one other node draws the sample at most (`often`) or at least (`seldom`) this many times."""


def often(nodes: int, epochs: int, delta: Fraction) -> Another:
    """Bound the draws of other nodes by Lemma 1, if a node draws a sample (1 + delta) times the mean, rounded up.

    The other nodes then draw it less often: at least one of them draws it at most `bound` times. `delta` is 0 to
    nodes - 1. Raises `UsageError` if it is not, or if there are fewer than 2 nodes.
    """
    _check_lemma(nodes, epochs, delta, nodes - 1)
    mean = Fraction(epochs, nodes)
    return Another(math.ceil((1 + delta) * mean), math.ceil((nodes - 1 - delta) / (nodes - 1) * mean))


def seldom(nodes: int, epochs: int, delta: Fraction) -> Another:
    """Bound the draws of other nodes by Lemma 1, if a node draws a sample (1 - delta) times the mean, rounded down.

    The other nodes then draw it more often: at least one of them draws it at least `bound` times. `delta` is 0 to 1.
    Raises `UsageError` if it is not, or if there are fewer than 2 nodes.
    """
    _check_lemma(nodes, epochs, delta, 1)
    mean = Fraction(epochs, nodes)
    return Another(math.floor((1 - delta) * mean), math.floor((nodes - 1 + delta) / (nodes - 1) * mean))


def lemma_1(most_nodes: int, most_epochs: int) -> tuple[int, int]:
    """Check both bounds of Lemma 1 for all numbers of nodes, epochs and draws; return the cases, and those it fails.

    The other nodes share the rest as evenly as they can: no other way has fewer draws at the node that draws most, or
    more at the node that draws least.
    """
    cases = wrong = 0
    for nodes in range(2, most_nodes + 1):
        for epochs in range(1, most_epochs + 1):
            mean = Fraction(epochs, nodes)
            for draws in range(epochs + 1):
                rest = Fraction(epochs - draws, nodes - 1)
                if draws >= mean:
                    cases += 1
                    wrong += math.floor(rest) > often(nodes, epochs, draws / mean - 1).bound
                if draws <= mean:
                    cases += 1
                    wrong += math.ceil(rest) < seldom(nodes, epochs, 1 - draws / mean).bound
    return cases, wrong


def _above(nodes: int, epochs: int, delta: Fraction) -> int:
    """Return the smallest number of draws that is strictly more than (1 + delta) times the mean."""
    _check(nodes, epochs)
    if delta < -1:
        raise UsageError(f"delta is {delta}, and a node cannot draw less than nothing: give -1 or more")
    return math.floor((1 + delta) * Fraction(epochs, nodes)) + 1


def _check(nodes: int, epochs: int) -> None:
    if min(nodes, epochs) < 1:
        raise UsageError(f"{nodes} nodes and {epochs} epochs: give 1 or more of both")


def _check_lemma(nodes: int, epochs: int, delta: Fraction, most: int) -> None:
    _check(nodes, epochs)
    if nodes < 2:
        raise UsageError("Lemma 1 compares a node with another one: give 2 nodes or more")
    if not 0 <= delta <= most:
        raise UsageError(f"delta is {delta}: give 0 to {most}")
