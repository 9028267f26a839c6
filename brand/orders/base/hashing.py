"""Which node of a job caches a sample, so that jobs on different nodes agree if they can? Two hashes; pure.

Jobs of one data set may run on different nodes of a cluster. A sample that one job has in the memory of a node serves
another job, if both look for the sample on that node.

- `double_hashed` is JOADER's: a first hash over all nodes of the cluster; if the job does not run on that node, a
  second hash over the job's own nodes. Two jobs agree if the first hash meets a node of both.
- `rendezvous` gives each node a score for the sample, and takes the job's node with the highest score. Two jobs agree
  if the best of all their nodes belongs to both: with probability |A & B| / |A or B|, the most that a hash with an even
  distribution can reach.

The hash is splitmix64's finalizer over whole numbers, so that the nodes are the same on every machine and in every
version. Never change it: nodes with different versions would look on different nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.owners import MAX_NODES

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SECOND: Final = MAX_NODES
"""The salt of the second hash of `double_hashed`; smaller salts are numbers of nodes."""


def double_hashed(ids: NDArray[np.integer[Any]], nodes: Sequence[int], cluster: int) -> NDArray[np.int16]:
    """Return the node of each sample, same shape, for a job on `nodes` of a cluster with nodes 0 to `cluster` - 1.

    Raises ValueError if a node is not one of the cluster, or is named twice.
    """
    own = _checked(nodes, cluster)
    first = (_hash(ids, 0) % np.uint64(cluster)).astype(np.int16)
    second = own[_hash(ids, _SECOND) % np.uint64(len(own))]
    return np.where(np.isin(first, own), first, second)


def rendezvous(ids: NDArray[np.integer[Any]], nodes: Sequence[int]) -> NDArray[np.int16]:
    """Return the node of each sample, same shape, for a job on `nodes`. Raises ValueError if a node is named twice."""
    own = _checked(nodes, MAX_NODES)
    best, chosen = _hash(ids, int(own[0])), np.full(ids.shape, own[0], np.int16)
    for node in own[1:]:
        score = _hash(ids, int(node))
        better = score > best
        best[better], chosen[better] = score[better], node
    return chosen


def _checked(nodes: Sequence[int], cluster: int) -> NDArray[np.int16]:
    """Return the nodes in ascending order, so that the order in which a job names them does not matter."""
    if not 1 <= cluster <= MAX_NODES:
        raise ValueError(f"a cluster of {cluster} nodes: give 1 to {MAX_NODES:,}")
    if not nodes or len(set(nodes)) < len(nodes) or not (min(nodes) >= 0 and max(nodes) < cluster):
        raise ValueError(f"nodes {list(nodes)!r}: give one or more of 0 to {cluster - 1:,}, each once")
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
