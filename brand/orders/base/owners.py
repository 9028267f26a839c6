"""Which node owns which chunk, which node caches a sample, and which node and rank draw at which position? Pure.

Groups are formed over the whole data set first and then given to nodes in contiguous runs, so that one plan serves any
number of nodes. A node reads the chunks of its own groups, and no other node reads them. By default ranks draw in turn,
whichever node owns a sample; with `split_near`, few samples cross the network.

Jobs of one data set may run on different nodes of a cluster. A sample that one job has in the memory of a node serves
another job, if both look for the sample on that node: `rendezvous` names this node. Its hash is
splitmix64's finalizer over whole numbers, so that the nodes are the same on every machine and in every version. Never
change it: nodes with different versions would look on different nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import BLOCK

MAX_NODES: Final = 1024
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


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


def split_near(
    owner_at: NDArray[np.integer[Any]], node_of_rank: NDArray[np.integer[Any]], batch: int
) -> NDArray[np.int16] | NDArray[np.int32]:
    """Return the rank that draws each position, shape (positions,).

    A rank first takes samples that its own node owns. A global batch is the same set of positions as without, and every
    rank takes the same number of them. Samples cross to other nodes only if a node owns more of a batch than its ranks
    take.

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
    """Return the node that draws each position of global batches, a row each. Node `d` gets `room[d]` of every row."""
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


def rendezvous(ids: NDArray[np.integer[Any]], nodes: Sequence[int]) -> NDArray[np.int16]:
    """Return the node of each sample, same shape, for a job on `nodes`. Raises ValueError if a node is named twice.

    Each node has a score for the sample, and the job's node with the highest score is returned. Two jobs agree if the
    best of all their nodes belongs to both: with probability |A & B| / |A or B|, the most that a hash with an even
    distribution can reach.
    """
    own = _checked(nodes)
    best, chosen = _hash(ids, int(own[0])), np.full(ids.shape, own[0], np.int16)
    for node in own[1:]:
        score = _hash(ids, int(node))
        better = score > best
        best[better], chosen[better] = score[better], node
    return chosen


def _checked(nodes: Sequence[int]) -> NDArray[np.int16]:
    """Return the nodes in ascending order, so that the order in which a job names them does not matter."""
    if not nodes or len(set(nodes)) < len(nodes) or not (min(nodes) >= 0 and max(nodes) < MAX_NODES):
        raise ValueError(f"nodes {list(nodes)!r}: give one or more of 0 to {MAX_NODES - 1:,}, each once")
    return np.array(sorted(nodes), np.int16)


def _hash(ids: NDArray[np.integer[Any]], salt: int) -> NDArray[np.uint64]:
    """Return 64 bits that depend on each id and the salt, same shape."""
    mixed = _finalized(ids.astype(np.uint64) * _GOLDEN)
    mixed ^= _finalized(np.array([salt + 1], np.uint64) * _GOLDEN)
    return _finalized(mixed)


def _finalized(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of the values, in place, and return the values."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        values ^= values >> np.uint64(shift)
        values *= factor
    values ^= values >> np.uint64(31)
    return values
