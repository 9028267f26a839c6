"""Which samples have all ranks of a model-parallel group drawn?

Each of the ranks draws all positions of the group. The epoch holds a sample until the last of them has drawn it, so it
is read once. If one of them is far behind, memory gives up its samples as it does those of skipped positions, and that
rank reads them directly.

If a group has ranks on several nodes, the owner of a sample holds it until it was sent to all of the other nodes
(`Deliveries`), and each node until its own ranks have drawn it (`Takes`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.numbers import NodeNumber
from brand.reprs import Reprs

MOST_NODES: Final = 64
"""The most nodes of a job that has groups on several of them: a word has a bit for each."""


class Takes(Reprs, shows="copies"):
    """How often each sample of an epoch was drawn by the ranks of a group of `copies` ranks, by place."""

    def __init__(self, samples: int, copies: int) -> None:
        self.copies = copies
        self._drawn = np.zeros(samples, np.uint8)

    def note(self, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Record a draw. Return a mask of the samples that all ranks of the group have drawn."""
        drawn = np.minimum(self._drawn[places], self.copies - 1) + np.uint8(1)
        self._drawn[places] = drawn
        done: NDArray[np.bool_] = drawn == self.copies
        return done


class Deliveries(Reprs, shows="spans"):
    """The nodes that have got each sample of an epoch, by place, or that need it no more. A group has `spans` nodes."""

    def __init__(self, samples: int, nodes: int, spans: int) -> None:
        self.spans = spans
        self._nodes = np.zeros(samples, np.min_scalar_type((1 << nodes) - 1))

    def note(self, node: NodeNumber, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Record that a node has got these samples. Return a mask of those that all nodes of the group have got."""
        got = self._nodes[places] | self._bit(node)
        self._nodes[places] = got
        done: NDArray[np.bool_] = np.bitwise_count(got) >= self.spans
        return done

    def forget(self, node: NodeNumber, places: NDArray[np.integer[Any]]) -> None:
        """Note that a node needs these samples, again or for the first time."""
        self._nodes[places] &= ~self._bit(node)

    def _bit(self, node: NodeNumber) -> Any:
        return self._nodes.dtype.type(1 << node)
