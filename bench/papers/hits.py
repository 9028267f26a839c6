"""How many of a node's draws does its cache answer, by the rule that decides which samples it caches?

The node reads for itself alone: no other node sends it anything. Its cache has capacity for `capacity` samples of one
size. Papers print a "hit ratio" without saying which of three ratios it is; `HitRatios` defines them. The functions
here count the first, the demand hits, for one rule each:

    lru               each drawn sample is cached; the sample that was drawn longest ago is evicted
    at_random         each drawn sample is cached; any sample is evicted
    static            the samples that are drawn first are cached; none is evicted (MinIO)
    frequency         the samples that the node draws most often in the whole run are cached when drawn; none is evicted
                      (HDMLP)
    prefetched        the same samples, all of them in the cache before the run begins
    next_use          after each epoch, the cache keeps the samples that the node draws again soonest
    belady            after each draw, the sample that the node draws again last is evicted: the most hits possible
    two_i_minus_h     the cache keeps only samples that the node draws again in the next epoch (one rule of Lobster's,
                      alone)

Each takes `draws`, shape (epochs, draws of an epoch), as `node_draws` makes them: no sample twice in an epoch. Each
returns which draws are hits, in the same shape.

Lobster (section 5.5) prints hit ratios of 24.5 % for PyTorch and 63.2 % for itself. `lru` and `next_use` have about
these for one of eight nodes that each cache 29.6 % of the data. Lobster names one node, but one node that draws
everything cannot have more than 29.6 %. So Lobster probably counts demand hits of eight such caches. This is a reading,
not a proof.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.placement import most_wanted

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HitRatios:
    """Three ratios over the same draws, 0 to 1."""

    demand: float
    """Draws whose sample was in this node's cache since an earlier draw of this node."""
    ready: float
    """Draws whose sample was in this node's memory when training asked for it, so that training did not wait."""
    cluster: float
    """Draws for which no node read storage: the sample was in this node's cache or was sent by another node."""


def hit_ratios(held: Mask, waited: Mask, sent: Mask) -> HitRatios:
    """Return the three ratios of the draws of a node. All arguments are by draw and have one shape.

    `held`: the sample was in the node's cache since an earlier draw. `waited`: training waited for it. `sent`: another
    node sent it.
    """
    return HitRatios(float(held.mean()), float(1 - waited.mean()), float((held | sent).mean()))


def lru(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of a cache that evicts the sample that was drawn longest ago.

    A sample is still cached if fewer than `capacity` other samples were drawn since. Within an epoch no sample is drawn
    twice. So these are all samples that this epoch has drawn so far, and those that were drawn later than the sample
    in earlier epochs and not yet in this one.
    """
    samples = _samples(draws, capacity)
    last, hits = np.full(samples, -1, np.int64), np.zeros(draws.shape, np.bool_)
    for epoch, drawn in enumerate(draws):
        newer = np.empty(samples, np.int64)
        newer[np.argsort(-last, kind="stable")] = np.arange(samples)  # how many were drawn later than each sample
        since = np.arange(len(drawn)) + newer[drawn] - _smaller_before(newer[drawn])
        hits[epoch] = (last[drawn] >= 0) & (since < capacity)
        last[drawn] = epoch * len(drawn) + np.arange(len(drawn))
    return hits


def at_random(draws: NDArray[Any], capacity: int, seed: int = 0) -> Mask:
    """Return the hits of a cache that evicts a sample chosen at random."""
    _samples(draws, capacity)
    chosen = np.random.default_rng(seed).integers(capacity, size=draws.size).tolist()
    lies: dict[int, int] = {}
    slots: list[int] = []
    hits = np.zeros(draws.size, np.bool_)
    for position, sample in enumerate(draws.ravel().tolist()):
        if sample in lies:
            hits[position] = True
        elif len(slots) < capacity:
            lies[sample] = len(slots)
            slots.append(sample)
        else:
            slot = chosen[position]
            del lies[slots[slot]]
            slots[slot], lies[sample] = sample, slot
    return hits.reshape(draws.shape)


def static(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of a cache that keeps the first `capacity` samples that are drawn (MinIO)."""
    return _placed(draws, capacity, np.zeros(_samples(draws, capacity), np.int64)) & ~_first_draws(draws)


def frequency(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of a cache that keeps the samples of `prefetched`, each from its first draw on (HDMLP)."""
    return prefetched(draws, capacity) & ~_first_draws(draws)


def prefetched(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of a cache that holds the samples that the node draws most often, from before the run to its end.

    If two samples have the same count, the sample that is drawn first is placed.
    """
    return _placed(draws, capacity, -np.bincount(draws.ravel(), minlength=_samples(draws, capacity)))


def next_use(draws: NDArray[Any], capacity: int, horizon: int | None = None) -> Mask:
    """Return the hits of a cache that after each epoch keeps the samples that the node draws again soonest.

    The cache chooses among the samples that it held or that the node drew. Time is counted in epochs; a fixed random
    order decides between samples of the same epoch. The cache keeps no sample that the node does not draw within
    `horizon` epochs; None looks ahead to the end. A sample that is not to be kept is evicted when this epoch has drawn
    it, or when the epoch begins. So within an epoch the cache may hold more than `capacity`: 0.7 % more with eight
    nodes, 20,000 samples and a capacity of 29.6 %.
    """
    samples, epochs = _samples(draws, capacity), len(draws)
    until = np.empty((epochs, samples), np.int64)
    until[-1] = epochs
    for epoch in range(epochs - 1, 0, -1):
        until[epoch - 1] = until[epoch] + 1
        until[epoch - 1, draws[epoch]] = 1
    most = epochs - 1 if horizon is None else min(horizon, epochs - 1)  # farther away: never drawn again
    held, hits, size = np.zeros(samples, np.bool_), np.zeros(draws.shape, np.bool_), np.ones(samples, np.int64)
    for epoch, drawn in enumerate(draws):
        hits[epoch] = held[drawn]
        held[drawn] = True
        held = most_wanted(until[epoch], held & (until[epoch] <= most), size, np.array([capacity]), seed=0) > 0
    return hits


def two_i_minus_h(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of Lobster's reuse-distance rule alone (section 4.4).

    After iteration h of an epoch of I iterations, the rule evicts each sample whose next draw is more than 2I - h
    iterations away. So the cache holds only samples of the next epoch: one draw in N, however large the cache is.
    """
    return next_use(draws, capacity, horizon=1)


def belady(draws: NDArray[Any], capacity: int) -> Mask:
    """Return the hits of a cache that, when full, evicts the sample that the node draws again last.

    This may be the sample that was just drawn. No cache of `capacity` samples that begins empty has more demand hits.
    `next_use` may have a few more, because it may hold more samples within an epoch.
    """
    never = draws.size
    following = _next_draws(draws)
    lies: dict[int, int] = {}  # sample -> position of its next draw
    latest: list[tuple[int, int]] = []  # (-position, sample), a heap; valid while `lies` agrees
    hits = np.zeros(draws.size, np.bool_)
    _samples(draws, capacity)
    for position, (sample, again) in enumerate(zip(draws.ravel().tolist(), following.tolist(), strict=True)):
        hits[position] = lies.pop(sample, None) is not None
        if again == never:
            continue
        lies[sample] = again
        heapq.heappush(latest, (-again, sample))
        if len(lies) > capacity:
            while lies.get(latest[0][1]) != -latest[0][0]:
                heapq.heappop(latest)
            del lies[heapq.heappop(latest)[1]]
    return hits.reshape(draws.shape)


RULES: Final[dict[str, Callable[[NDArray[Any], int], Mask]]] = {
    "lru": lru,
    "random": at_random,
    "static": static,
    "frequency": frequency,
    "frequency, prefetched": prefetched,
    "next use": next_use,
    "belady": belady,
    "2I - h": two_i_minus_h,
}
"""All rules, by name."""


def _samples(draws: NDArray[Any], capacity: int) -> int:
    """Return one more than the highest sample. Raises `UsageError` if the capacity is below 1."""
    if capacity < 1:
        raise UsageError(f"a cache of {capacity} samples: give room for 1 or more")
    return int(draws.max()) + 1


def _placed(draws: NDArray[Any], capacity: int, key: NDArray[np.int64]) -> Mask:
    """Return which draws draw one of the `capacity` samples with the smallest keys.

    If samples have equal keys, the sample that is drawn first wins.
    """
    sample, first = np.unique(draws, return_index=True)
    placed = np.zeros(len(key), np.bool_)
    placed[sample[np.lexsort((first, key[sample]))[:capacity]]] = True
    found: Mask = placed[draws]
    return found


def _first_draws(draws: NDArray[Any]) -> Mask:
    first = np.zeros(draws.size, np.bool_)
    first[np.unique(draws, return_index=True)[1]] = True
    return first.reshape(draws.shape)


def _next_draws(draws: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position at which each draw's sample is drawn again, shape (draws,).

    The position is the number of all draws if the sample is not drawn again.
    """
    by_sample = np.argsort(draws, axis=None, kind="stable")
    again = np.flatnonzero(np.diff(draws.ravel()[by_sample]) == 0)
    following = np.full(draws.size, draws.size, np.int64)
    following[by_sample[again]] = by_sample[again + 1]
    return following


def _smaller_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the earlier values that are smaller than each value, shape (len(values),). All values differ.

    Bit by bit of the ranks: an earlier value is smaller if, at the highest bit at which the two differ, it has the 0.
    """
    count = len(values)
    rank = np.empty(count, np.int64)
    rank[np.argsort(values)] = np.arange(count)
    result = np.zeros(count, np.int64)
    for bit in range(max(0, count - 1).bit_length()):
        order = np.argsort(rank >> (bit + 1), kind="stable")  # equal in all higher bits, and then by position
        group, one = (rank >> (bit + 1))[order], (rank >> bit & 1)[order]
        zeros = np.cumsum(1 - one)
        before_group = np.concatenate(([0], zeros))[np.searchsorted(group, group)]
        result[order] += one * (zeros - before_group)
    return result
