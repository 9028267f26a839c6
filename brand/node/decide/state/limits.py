"""Which samples are small enough to be held by this node, or to be sent to a node?"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber

MESSAGE_BYTES: Final = 1 << 20
"""Most bytes of samples in one message to another node."""
LARGEST_SENT: Final = 4
"""A sample larger than `1 / LARGEST_SENT` of a message, or of a node's capacity, is never sent without a request."""


def largest_sent(room: int, nodes: int, page: int) -> int:
    """Return the pages of the largest sample that other nodes send to this one without a request.

    They may fill `room` of its pages.
    """
    return min(room // max(1, nodes - 1), MESSAGE_BYTES // page) // LARGEST_SENT


class SampleLimits:
    """Sizes in pages above which a node does not hold a sample, or other nodes do not send it without a request.

    `largest` is the largest sample that this node holds. `largest_sent` is the largest that other nodes can send to
    this node, which is `node`. Other nodes announce their own limits (`learn`).
    """

    def __init__(self, residents: Residents, largest: int, node: NodeNumber, largest_sent: int) -> None:
        self._residents, self._largest = residents, largest
        self._largest_sent = {node: largest_sent}

    def learn(self, node: NodeNumber, largest_sent: int) -> None:
        """Record the pages of the largest sample that can be sent to a node."""
        self._largest_sent[node] = largest_sent

    def largest_sent(self, node: NodeNumber) -> int:
        """Return the pages of the largest sample that can be sent to a node. 0 if the node has not announced it."""
        return self._largest_sent.get(node, 0)

    def need_no_read(self, places: slice = slice(None)) -> NDArray[np.bool_]:
        """Return a mask of the places that need no read: cached, left in the page cache, or never held. Shape
        (places,).
        """
        return self.never_held(places) | self._residents.kept(places) | self._residents.left.mask()[places]

    def never_held(self, places: slice = slice(None)) -> NDArray[np.bool_]:
        """Return a mask of the places with samples that are too large for this node, shape (places,)."""
        return self._residents.pages_of[places] > self._largest

    def too_large(self, node: NodeNumber) -> NDArray[np.bool_]:
        """Return a mask of the samples that are too large to be sent to a node without a request, shape (samples,)."""
        return self._residents.pages_of > self.largest_sent(node)
