"""Which nodes serve a data set together, which one is this node, and which node owns which sample?

Groups are formed over the whole data set and then given to nodes, so one plan serves any number of nodes. Where the
data set is partitioned over the nodes' disks, a sample's owner is the node that has its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.numbers import FIRST_NODE, NodeNumber
from brand.orders.base.hashing import rendezvous
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import owner_of_chunk
from brand.orders.base.policy import Foreseen
from brand.orders.order import Order


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of chunks and places, seen from one node."""

    node: NodeNumber
    """This node."""
    of_chunk: NDArray[np.int32] | None
    """The node that owns each chunk, shape (chunks,); None: there is no other node."""
    chunk_size: int

    def of(self, places: NDArray[Any]) -> NDArray[np.int32]:
        """The node that owns each place, same shape."""
        if self.of_chunk is None:
            return np.full(len(places), self.node, np.int32)
        found: NDArray[np.int32] = self.of_chunk[places // self.chunk_size]
        return found

    def near(self, places: NDArray[Any], ranks: dict[int, NodeNumber]) -> NDArray[np.int32]:
        """The node whose ranks best draw each place: its owner, where ranks are there.

        Else it is a node of the ranks on which jobs with other nodes agree as far as they can.
        """
        nearest, nodes = self.of(places), sorted(set(ranks.values()))
        away = ~np.isin(nearest, nodes)
        if away.any():
            nearest = nearest.copy()
            nearest[away] = rendezvous(places[away], nodes)
        return nearest

    def mine(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these places this node owns."""
        owned: NDArray[np.bool_] = self.of(places) == self.node
        return owned


@dataclass(frozen=True, slots=True)
class Members:
    """The nodes of a cluster, 0 to `nodes` - 1, seen from one of them."""

    node: NodeNumber = FIRST_NODE
    """This node."""
    nodes: int = 1
    share_chunks: int | None = None
    """Chunks that stay together in a partitioned data set (`brand partition`); None: each node has all chunks."""

    @property
    def others(self) -> list[NodeNumber]:
        """All nodes but this one."""
        return [node for node in map(NodeNumber, range(self.nodes)) if node != self.node]

    def foreseen_by(self, order: Order) -> Foreseen | None:
        """The nodes and ranks that the plans of an order foresee.

        None where the plans foresee nothing, or where the real nodes or owners are different ones.
        """
        foreseen, together = order.policy.foreseen, order.policy.group_chunks
        if foreseen is None or foreseen.nodes != self.nodes or self.share_chunks not in (None, together):
            return None
        return foreseen

    def owners(self, mapping: Mapping) -> Owners:
        """The owners in a run with these groups."""
        together = mapping.group_chunks if self.share_chunks is None else self.share_chunks
        of_chunk = owner_of_chunk(mapping.chunks, together, self.nodes) if self.nodes > 1 else None
        return Owners(self.node, of_chunk, mapping.chunk_size)


ALONE: Final = Members()
