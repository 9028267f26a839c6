"""How much does a policy ask of storage, local tiers and other nodes, in each iteration?

    policy(scene, draws) -> Demand        no seconds                    (`bench.papers.policies`)
    clock(scene, demand, draws) -> seconds                              (`bench.papers.clock`)

Sources are numbers: 0 is storage; 1, 2, ... are the local tiers of a node, fastest first; `PEERS` and `READY`
count from the end of the axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.papers.scene import Scene

STORAGE: Final = 0
"""The storage that all nodes share."""
READY: Final = -2
"""Nothing is read: the samples are in the staging buffer, decoded."""
PEERS: Final = -1
"""The memory of other nodes."""


@dataclass(frozen=True, slots=True)
class Preload:
    """Reads of the nodes from storage into their tiers before training."""

    mb: NDArray[np.float64]
    """MB of each tier and node, shape (tiers, nodes)."""
    alone: bool = False
    """Whether a node's tiers are the only readers of storage, for example if every node copies all data by itself."""
    iterations: int = 0
    """The first iterations, this many, train during loading, and `mb` of the demand counts their samples as loaded."""


@dataclass(frozen=True, slots=True)
class Fills:
    """Tiers that have threads of their own, which read from storage during training."""

    order: tuple[tuple[NDArray[Any], ...], ...]
    """Samples in the order in which a thread reads them, [tier][node]. A node has a sample in at most one tier."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The MB and reads that are due in each iteration, by source and node."""

    mb: NDArray[np.float64]
    """MB, shape (sources, iterations of all epochs, nodes). Sources: storage, the local tiers, `READY`, `PEERS`."""
    ops: NDArray[np.float64] | None = None
    """Reads, in the shape of `mb`. None if MB/s alone decide."""
    preload: Preload | None = None
    """Reads before training; None if there are none."""
    staged: bool = True
    """Whether samples are read ahead into the staging buffer. Otherwise one thread reads a sample when it is due."""
    fills: Fills | None = None
    """Reads of the tiers' own threads; None if there are none. Then `mb` counts the reads that are due if a node
    stores a sample when it first draws it, as `fair` assumes; the clock `in_turn` follows the threads instead.
    """
    trained: NDArray[np.float64] | None = None
    """MB that each node decodes and trains, shape (iterations of all epochs, nodes). None: all MB that are due. They
    are fewer if a node also reads samples that other nodes draw, or samples that it draws later.
    """

    @property
    def trained_mb(self) -> NDArray[np.float64]:
        """MB that each node decodes and trains, shape (iterations of all epochs, nodes)."""
        return self.mb.sum(axis=0) if self.trained is None else self.trained


def by_source(
    scene: Scene, draws: NDArray[Any], source: NDArray[np.int8] | int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the fields `mb` and `ops` of a demand, from the source of each draw.

    `draws` has the shape of `Scene.draws`; `source` has the same shape, or is one source for all. One sample is one
    read.
    """
    epochs, iterations, nodes, each = draws.shape
    count = scene.tiers + 3
    shape = (count, epochs * iterations, nodes)
    batches = np.repeat(np.arange(math.prod(shape[1:])), each)
    cells = np.broadcast_to(source, draws.shape).ravel().astype(np.intp) % count * math.prod(shape[1:]) + batches
    mb = np.bincount(cells, scene.sizes()[draws].ravel(), math.prod(shape)).reshape(shape)
    ops = np.bincount(cells, minlength=math.prod(shape)).reshape(shape)
    return mb.astype(np.float64, copy=False), ops.astype(np.float64)
