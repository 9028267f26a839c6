"""Which orders does a sampler draw for its `subset=` and `weights=`? The sampler asks, and so does `brand simulate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.part import RandomSubset, Subset
from brand.orders.mixtures.mixed_order import MixedOrder, numbered_seed
from brand.orders.mixtures.weights import MAX_TIMES, expectations, members_of
from brand.orders.order import Order
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.dataset.selection import selected
from brand.storage.dataset.weighting import describe, weights_by_index


def as_subset(data: Catalogue, subset: Any) -> Subset | None:
    """Return the places of `subset`: a mask, shape (samples,), indices, each once, or an expression. None: all samples.

    Deleted samples of a collection are in no subset, whatever a mask says of them. Raises `UsageError` if `subset` has
    another form or no sample, `DeletedError` if an index is that of a deleted sample.
    """
    if subset is None:
        drawn = data.drawn()
        return None if drawn is None else Subset.of(drawn)
    mask = data.places_of(selected(data, subset))
    return None if mask.all() else Subset.of(mask)


def of_subset(order: Order, subset: Subset | RandomSubset | None) -> Order:
    """Return an order of a subset. Raises `UsageError` if its policy draws all samples only."""
    if subset is not None and order.policy.no_part is not None:
        raise UsageError(order.policy.no_part)
    return replace(order, subset=subset)


def weighted_order(
    data: Catalogue, order: Order, weights: Any, num_samples: int | None, order_of: Callable[[int], Order]
) -> tuple[MixedOrder, NDArray[np.uint64]]:
    """Return the orders that a sampler with weights draws, and the expectation of each place. Raises `UsageError`.

    Args:
        data: The data set.
        order: The order of the sampler without weights, with its subset.
        weights: As `BrandSampler` takes them.
        num_samples: Samples of an epoch. None: as many as the subset has.
        order_of: Returns an order of all samples for a number of orders that are drawn at a time.
    """
    if order.shares:
        raise UsageError(
            f"order={order.policy.name!r} shares reads with other jobs, and weights= does not: give order='stripes'"
        )
    places = np.arange(order.samples) if order.ever is None else np.flatnonzero(order.ever.mask)
    indices = data.scanned_indices(places)
    draws = len(places) if num_samples is None else num_samples
    if not draws:
        raise UsageError("num_samples=0: an epoch has at least one sample")
    expected = np.zeros(order.samples, np.uint64)
    given = weights_by_index(data, weights, indices)[indices]
    times, most = draws * float(given.max() / given.sum()), int(indices[given.argmax()])
    try:
        expected[places] = expectations(given, draws)
    except ValueError:
        raise UsageError(
            f"weights=: {describe(data, most)} would be fetched {times:,.0f} times an epoch, and at most {MAX_TIMES:,} "
            "are possible"
        ) from None
    found = members_of(expected)
    held = -(-sum(len(each.samples) for each in found) // order.samples)
    own = order if held <= 1 else order_of(held)
    orders = tuple(
        replace(of_subset(own, each.samples), seed=numbered_seed(order.seed, number), times=each.times)
        for number, each in enumerate(found)
    )
    return MixedOrder.of(orders, draws, order.seed, tuple(float(each.draws) for each in found)), expected
