"""Which samples are held in memory here, and which may be sent to which node? A matter of their sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.residents import Residents


class Limits:
    """Sizes above which samples are not held, or not sent unasked, in pages.

    `largest` is the largest sample that is held on this node; `largest_sent` is the largest that can be sent to `node`,
    which is this one. Other nodes tell theirs (`learn`).
    """

    def __init__(self, residents: Residents, largest: int, node: int, largest_sent: int) -> None:
        self._residents, self._largest = residents, largest
        self._largest_sent = {node: largest_sent}

    def learn(self, node: int, largest_sent: int) -> None:
        """A node says how large a sample can be that is sent to it."""
        self._largest_sent[node] = largest_sent

    def largest_sent(self, node: int) -> int:
        """Pages of the largest sample that can be sent to a node; 0 where it has not said."""
        return self._largest_sent.get(node, 0)

    def need_no_read(self) -> NDArray[np.bool_]:
        """Places whose samples are kept in memory, or never held, shape (samples,)."""
        return (self._residents.pages_of > self._largest) | self._residents.kept()

    def too_large(self, node: int) -> NDArray[np.bool_]:
        """Places whose samples are never sent to a node unasked, shape (samples,)."""
        return self._residents.pages_of > self.largest_sent(node)
