"""After how many iterations does a node draw the same sample again?

A node draws a sample in each epoch with chance 1/N. So its next draw is e epochs later with chance
1/N (1 - 1/N)^(e - 1). Each of the two draws is in any of the I iterations of its epoch, with the same chance. So the
distance is e I plus the difference of two uniform numbers, whose distribution is a triangle from -I to I (Lobster,
section 3, observation 4 and figure 4).

A run of E epochs shows only the distances whose two ends are in it: a distance of e epochs can begin in E - e of
them. So a run shows fewer long distances than a run without an end. Lobster does not say which fraction it prints; its
80 % beyond 1,000 iterations is the figure of a run of 30 epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError


def share_longer(distance: int, nodes: int, iterations: int, epochs: int | None = None) -> float:
    """Return the fraction of reuse distances of more than `distance` iterations, 0 to 1.

    `iterations` are those of an epoch. `epochs` is the length of the run; None is a run without end. Raises
    `UsageError` if an argument is out of range.
    """
    if distance < 0 or min(nodes, iterations) < 1:
        raise UsageError(
            f"a distance of {distance}, {nodes} nodes, {iterations} iterations an epoch: "
            "give 0 or more, 1 or more, and 1 or more"
        )
    if epochs is not None and epochs < 2:
        raise UsageError(f"a run of {epochs} epochs draws no sample twice: give 2 or more")
    sure = distance // iterations + 1  # a draw more than `sure` epochs later is always farther away
    apart = np.arange(1, sure + 1 if epochs is None else epochs)
    chance = (1 - 1 / nodes) ** (apart - 1.0) / nodes
    longer = _triangle_above(distance - apart * iterations, iterations)
    if epochs is None:
        return float((chance * longer).sum() + (1 - 1 / nodes) ** sure)
    seen = chance * (epochs - apart)
    return float((seen * longer).sum() / seen.sum())


def reuse_distances(draws: NDArray[Any], iterations: int) -> NDArray[np.int64]:
    """Return all reuse distances in a node's draws, in iterations, unordered. Shape (draws that are not first,).

    `draws` has the samples that the node draws, shape (epochs, draws of an epoch), as `node_draws` makes them. Each
    epoch has `iterations` iterations of as equal length as possible. Raises `UsageError` if it has too few draws for
    them.
    """
    epochs, each = draws.shape
    if not 1 <= iterations <= each:
        raise UsageError(f"{each} draws an epoch cannot have {iterations} iterations: give 1 to {each}")
    iteration = np.arange(epochs)[:, None] * iterations + np.arange(each) * iterations // each
    by_sample = np.argsort(draws, axis=None, kind="stable")
    again = np.diff(draws.ravel()[by_sample]) == 0
    distances: NDArray[np.int64] = np.diff(iteration.ravel()[by_sample])[again]
    return distances


def _triangle_above(limit: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """Return the chance that a number exceeds another by more than each limit, both uniform over 0 to width - 1."""
    beyond = np.clip(width - 1 - limit, 0, width)  # how many differences on the short side are left out or counted
    rest = np.clip(width + limit, 0, width)
    total = 2.0 * width * width
    return np.where(limit >= 0, beyond * (beyond + 1) / total, 1 - rest * (rest + 1) / total)
