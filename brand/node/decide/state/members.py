"""Which nodes serve a data set together, which of them is this node, and which node owns which sample?

Groups are formed over the whole data set and then assigned to nodes, so that one plan serves any number of nodes. If
the data set is partitioned over the nodes' disks, a sample's owner is the node that has its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.residents import Residents
from brand.node.wire.numbers import FIRST_NODE, NodeNumber
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import owner_of_chunk, rendezvous
from brand.orders.base.policy import Foreseen
from brand.orders.order import Order

LARGEST_SENT: Final = 4
"""A sample larger than `1 / LARGEST_SENT` of a node's capacity is never sent without a request."""


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of chunks and places, seen from one node."""

    node: NodeNumber
    """This node."""
    of_chunk: NDArray[np.int32] | None
    """The node that owns each chunk, shape (chunks,). None if there is no other node."""
    chunk_size: int

    def of(self, places: NDArray[Any]) -> NDArray[np.int32]:
        """Return the node that owns each place, same shape."""
        if self.of_chunk is None:
            return np.full(len(places), self.node, np.int32)
        found: NDArray[np.int32] = self.of_chunk[places // self.chunk_size]
        return found

    def near(self, places: NDArray[Any], ranks: dict[int, NodeNumber]) -> NDArray[np.int32]:
        """Return the node whose ranks should draw each place: its owner, if ranks draw there.

        Otherwise it is a node of the ranks that is, as far as possible, the same for all jobs, also on other nodes.
        """
        nearest, nodes = self.of(places), sorted(set(ranks.values()))
        away = ~np.isin(nearest, nodes)
        if away.any():
            nearest = nearest.copy()
            nearest[away] = rendezvous(places[away], nodes)
        return nearest

    def mine(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        owned: NDArray[np.bool_] = self.of(places) == self.node
        return owned


@dataclass(frozen=True, slots=True)
class Members:
    """The nodes of a cluster, 0 to `nodes` - 1, seen from one of them."""

    node: NodeNumber = FIRST_NODE
    """This node."""
    nodes: int = 1
    share_chunks: int | None = None
    """Chunks that are stored together in a partitioned data set (`brand partition`). None if it is not partitioned."""

    @property
    def others(self) -> list[NodeNumber]:
        return [node for node in map(NodeNumber, range(self.nodes)) if node != self.node]

    def foreseen_by(self, order: Order) -> Foreseen | None:
        """Return the nodes and ranks that the plans of an order foresee.

        Returns None if the plans foresee nothing, or if the actual nodes or owners differ.
        """
        foreseen, together = order.policy.foreseen, order.policy.group_chunks
        if foreseen is None or foreseen.nodes != self.nodes or self.share_chunks not in (None, together):
            return None
        return foreseen

    def owners(self, mapping: Mapping) -> Owners:
        """Return the owners in a run with these groups."""
        together = mapping.group_chunks if self.share_chunks is None else self.share_chunks
        of_chunk = owner_of_chunk(mapping.chunks, together, self.nodes) if self.nodes > 1 else None
        return Owners(self.node, of_chunk, mapping.chunk_size)


ALONE: Final = Members()


def largest_sent(room: int, nodes: int) -> int:
    """Return the pages of the largest sample that other nodes, which may fill `room` pages, send without a request."""
    return room // max(1, nodes - 1) // LARGEST_SENT


class SampleLimits:
    """Sizes in pages above which a node does not hold a sample, or other nodes do not send it without a request.

    `largest` is the largest sample that this node holds. `largest_sent` is the largest that other nodes can send to
    this node, which is `node`. Other nodes announce their own limits (`learn`).
    """

    def __init__(self, residents: Residents, largest: int, node: NodeNumber, largest_sent: int) -> None:
        self._residents, self._largest = residents, largest
        self._largest_sent = {node: largest_sent}

    def learn(self, node: NodeNumber, largest_sent: int) -> None:
        self._largest_sent[node] = largest_sent

    def largest_sent(self, node: NodeNumber) -> int:
        """Return the pages of the largest sample that can be sent to a node. 0 if the node has not announced it."""
        return self._largest_sent.get(node, 0)

    def need_no_read(self, places: NDArray[Any] | slice = slice(None)) -> NDArray[np.bool_]:
        """Return a mask of places that need no read: cached, left in the page cache, or never held. Shape (places,)."""
        return self.never_held(places) | self._residents.kept(places) | self._residents.left.mask()[places]

    def never_held(self, places: NDArray[Any] | slice = slice(None)) -> NDArray[np.bool_]:
        """Return a mask of the places with samples that are too large for this node, shape (places,)."""
        return self._larger(places, self._largest)

    def too_large(self, node: NodeNumber, places: NDArray[Any] | slice = slice(None)) -> NDArray[np.bool_]:
        """Return a mask of the samples that are too large to be sent to a node without a request, shape (places,)."""
        return self._larger(places, self.largest_sent(node))

    def _larger(self, places: NDArray[Any] | slice, pages: int) -> NDArray[np.bool_]:
        """Return a mask of the samples that take more than `pages` pages, shape (places,)."""
        pool = self._residents.pool
        if pool.most_pages <= pages:  # as nearly always
            count = len(range(*places.indices(len(pool.pages_of)))) if isinstance(places, slice) else len(places)
            return np.zeros(count, np.bool_)
        return pool.pages_of[places] > pages
