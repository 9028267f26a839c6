"""Which of a job's nodes has a sample, so that jobs with different nodes agree where they can? Two ways; pure.

Jobs of one data set may run on different nodes of a cluster. What one job has in the memory of a node serves another
one, if both look for the sample there.

- `double_hashed` is JOADER's: a first hash over all nodes of the cluster; where the job is not there, a second one over
  the job's own nodes. Two jobs agree where the first hash meets a node of both.
- `rendezvous` gives each node a score for the sample, and takes the job's node with the highest one. Two jobs agree
  where the best node of both together belongs to both: with |A & B| / |A or B|, which is the most that hashes of even
  shares can reach.

The hash is splitmix64's finalizer over whole numbers, so that places are the same on every machine and in every
version. Never change it: nodes with different versions would look in different places.
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
"""The salt of the second hash of `double_hashed`; smaller ones are those of nodes."""


def double_hashed(ids: NDArray[np.integer[Any]], nodes: Sequence[int], cluster: int) -> NDArray[np.int16]:
    """The node of each sample, same shape, for a job on `nodes` of a cluster with nodes 0 to `cluster` - 1.

    Raises ValueError.
    """
    own = _checked(nodes, cluster)
    first = (_hash(ids, 0) % np.uint64(cluster)).astype(np.int16)
    second = own[_hash(ids, _SECOND) % np.uint64(len(own))]
    return np.where(np.isin(first, own), first, second)


def rendezvous(ids: NDArray[np.integer[Any]], nodes: Sequence[int]) -> NDArray[np.int16]:
    """The node of each sample, same shape, for a job on `nodes`. Raises ValueError."""
    own = _checked(nodes, MAX_NODES)
    best, chosen = _hash(ids, int(own[0])), np.full(ids.shape, own[0], np.int16)
    for node in own[1:]:
        score = _hash(ids, int(node))
        better = score > best
        best[better], chosen[better] = score[better], node
    return chosen


def _checked(nodes: Sequence[int], cluster: int) -> NDArray[np.int16]:
    """The nodes, ascending, so that the order in which a job names them does not matter."""
    if not 1 <= cluster <= MAX_NODES:
        raise ValueError(f"a cluster of {cluster} nodes: give 1 to {MAX_NODES:,}")
    if not nodes or len(set(nodes)) < len(nodes) or not (min(nodes) >= 0 and max(nodes) < cluster):
        raise ValueError(f"nodes {list(nodes)!r}: give one or more of 0 to {cluster - 1:,}, each once")
    return np.array(sorted(nodes), np.int16)


def _hash(ids: NDArray[np.integer[Any]], salt: int) -> NDArray[np.uint64]:
    """64 bits that depend on each id and the salt, same shape."""
    mixed = _finalized(ids.astype(np.uint64) * _GOLDEN)
    mixed ^= _finalized(np.array([salt + 1], np.uint64) * _GOLDEN)
    return _finalized(mixed)


def _finalized(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The values with their bits mixed, in place."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        values ^= values >> np.uint64(shift)
        values *= factor
    values ^= values >> np.uint64(31)
    return values
