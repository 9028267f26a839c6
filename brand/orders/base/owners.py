"""Which node owns which chunk, and which node draws at which position?

Groups are formed over the whole data set first and then given to nodes in contiguous runs, so that one plan serves any
number of nodes. A node reads the chunks of its own groups, and no other node reads them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_NODES: Final = 1024


def owner_of_group(groups: int, nodes: int) -> NDArray[np.int32]:
    """Return the node that owns each group, ascending, shape (groups,). Partitions differ by at most one group.

    If there are fewer groups than nodes, some nodes own none. Raises ValueError if a number is out of range.
    """
    if groups < 1:
        raise ValueError(f"{groups} groups: give 1 or more")
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(f"{nodes} nodes: give 1 to {MAX_NODES:,}")
    return (np.arange(groups, dtype=np.int64) * nodes // groups).astype(np.int32)


def owner_of_chunk(chunks: int, group_chunks: int, nodes: int) -> NDArray[np.int32]:
    """Return the node that owns each chunk, shape (chunks,): the owner of its group of `group_chunks` chunks.

    Raises ValueError if a number is out of range.
    """
    if min(chunks, group_chunks) < 1:
        raise ValueError(f"{chunks} chunks in groups of {group_chunks}: give 1 or more of both")
    return owner_of_group(-(-chunks // group_chunks), nodes)[np.arange(chunks) // group_chunks]


def drawer_of(positions: NDArray[np.integer[Any]], nodes: int, ranks: int) -> NDArray[Any]:
    """Return the node that draws at each position, if ranks draw in turn and are on nodes in contiguous blocks.

    Launchers place ranks like this: ranks 0 to `ranks // nodes - 1` are on node 0, and so on. Same shape and type.
    """
    return positions % ranks * nodes // ranks
