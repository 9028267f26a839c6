"""Which rank draws which position of a global batch, so that few samples cross the network?

By default ranks draw in turn, whichever node owns a sample. Here a rank first takes samples that its own node owns. A
global batch is the same set of positions either way, and every rank takes the same number of them. Samples cross to
other nodes only if a node owns more of a batch than its ranks take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.owners import MAX_NODES
from brand.orders.base.random import BLOCK


def split_near(
    owner_at: NDArray[np.integer[Any]], node_of_rank: NDArray[np.integer[Any]], batch: int
) -> NDArray[np.int16] | NDArray[np.int32]:
    """Return the rank that draws each position, shape (positions,).

    `owner_at` is the node that owns the sample of each position from the start of the iteration on, shape (positions,).
    `node_of_rank` is the node of each rank, shape (ranks,). `batch` is the number of samples that a rank takes of each
    global batch.

    Each rank gets exactly `batch` positions of a whole global batch. A node keeps the first positions that it owns, as
    many as its ranks take. Its surplus goes to the nodes that lack positions, lowest node first. The ranks of a node
    take its positions in turn. All ranks take the positions of a last, incomplete global batch in turn. Raises
    ValueError if a number is out of range.
    """
    ranks = len(node_of_rank)
    if ranks < 1 or batch < 1:
        raise ValueError(f"{ranks} ranks with batches of {batch}: give 1 or more of both")
    _check_nodes("owner_at", owner_at)
    _check_nodes("node_of_rank", node_of_rank)
    kind = np.int16 if ranks <= np.iinfo(np.int16).max + 1 else np.int32
    rank_at: NDArray[Any] = (np.arange(len(owner_at)) % ranks).astype(kind)
    size = batch * ranks
    whole = len(owner_at) // size
    if whole:
        owner, rank = (at[: whole * size].reshape(whole, size) for at in (owner_at, rank_at))
        _split_whole(owner.astype(np.int16), node_of_rank.astype(np.int16), batch, rank)
    return rank_at


def _check_nodes(name: str, nodes: NDArray[np.integer[Any]]) -> None:
    """Raise ValueError if a number of a node is out of range."""
    if len(nodes) and not (nodes.min() >= 0 and nodes.max() < MAX_NODES):
        raise ValueError(f"{name} has nodes from {nodes.min()} to {nodes.max()}: give 0 to {MAX_NODES - 1:,}")


def _split_whole(owner: NDArray[np.int16], node_of_rank: NDArray[np.int16], batch: int, rank: NDArray[Any]) -> None:
    """Fill in the ranks of whole global batches, a row each."""
    nodes = 1 + max(int(node_of_rank.max()), int(owner.max()))
    room = batch * np.bincount(node_of_rank, minlength=nodes)
    # Sorted by drawing node and then by position, every row has the same ranks: those of each node in turn.
    in_turn = np.concatenate([np.tile(np.flatnonzero(node_of_rank == node), batch) for node in np.unique(node_of_rank)])
    rows = max(1, BLOCK // max(owner.shape[1], nodes))
    for first in range(0, len(owner), rows):
        drawer = _drawers(owner[first : first + rows], room)
        order = np.argsort(drawer, axis=1, kind="stable")
        np.put_along_axis(rank[first : first + rows], order, in_turn[None].astype(rank.dtype), axis=1)


def _drawers(owner: NDArray[np.int16], room: NDArray[np.intp]) -> NDArray[np.int16]:
    """Return the node that draws each position of some global batches, a row each.

    Node `d` gets `room[d]` positions of every row.
    """
    rows, size = owner.shape
    nodes = len(room)
    own = np.bincount((np.arange(rows)[:, None] * nodes + owner).ravel(), minlength=rows * nodes).reshape(rows, nodes)
    # Sorted by owner and then by position, each owner's positions from the `room`-th on are surplus.
    order = np.argsort(owner, axis=1, kind="stable")
    over_from = np.cumsum(own, axis=1) - own + room
    over = np.empty((rows, size), np.bool_)
    in_order = np.arange(size) >= np.repeat(over_from.ravel(), own.ravel()).reshape(rows, size)
    np.put_along_axis(over, order, in_order, axis=1)
    # A row has as many surplus positions as its nodes lack.
    lacks = np.maximum(room - own, 0)
    drawer = owner.copy()
    drawer[over] = np.repeat(np.tile(np.arange(nodes, dtype=np.int16), rows), lacks.ravel())
    return drawer
