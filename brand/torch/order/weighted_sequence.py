"""Which ticket does a sampler with weights yield? At each position, the next ticket of one of a few orders.

`brand.orders.mixtures.weights` says which orders. Each draws a sample once in an epoch of its own, so a data server
serves them as any others, and a mixture of them draws each sample as often as its weight says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from brand.errors import UsageError
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.mixtures.mixed_order import MixedOrder, member_of_seed, numbered_seed
from brand.orders.mixtures.weights import MAX_ORDERS, MAX_TIMES, expectations, members_of
from brand.reprs import Reprs
from brand.storage.dataset.weighting import describe, weights_by_index
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.mixed_sequence import MixedSequence, MixtureMembers, loaded_order
from brand.torch.order.sequence import SequenceOptions, other_data_set, whole

_OTHER: Final = "the state is of other weights: give the sampler the same weights=, num_samples= and subset= as before"


class WeightedOrders(MixtureMembers, Reprs, shows="port"):
    """The orders of samplers with weights as the members of mixtures, all of them of one data set."""

    what = "weights="

    def __init__(self, port: DrawPort) -> None:
        super().__init__(range(MAX_ORDERS), [port] * MAX_ORDERS)
        self.port = port

    def member_of(self, tag: int) -> int:
        """Return the number of the order with this tag. Raises `UsageError`."""
        return member_of_seed(self.port.fetcher.order_of(tag).seed)


def weighted_sequence(members: WeightedOrders, options: SequenceOptions) -> WeightedSequence:
    """Return the sequence of a sampler with weights. Raises `UsageError`."""
    port, data = members.port, members.port.data
    whole_order = port.order(options.seed, options.subset, replicas=options.replicas)
    if whole_order.shares:
        raise UsageError(
            f"order={whole_order.policy.name!r} shares reads with other jobs, and weights= does not: "
            "give order='stripes'"
        )
    places = np.arange(whole_order.samples) if whole_order.ever is None else np.flatnonzero(whole_order.ever.mask)
    indices = data.scanned_indices(places)
    asked = options.num_samples
    draws = len(places) if asked is None else whole("num_samples", asked, MAX_POSITIONS)
    if not draws:
        raise UsageError("num_samples=0: an epoch has at least one sample")
    expected = np.zeros(whole_order.samples, np.uint64)
    given = weights_by_index(data, options.weights, indices)[indices]
    times, most = draws * float(given.max() / given.sum()), int(indices[given.argmax()])
    try:
        expected[places] = expectations(given, draws)
    except ValueError:
        raise UsageError(
            f"weights=: {describe(data, most)} would be fetched {times:,.0f} times an epoch, and at most {MAX_TIMES:,} "
            "are possible"
        ) from None
    found = members_of(expected)
    held = -(-sum(len(each.samples) for each in found) // whole_order.samples)
    own = whole_order if held <= 1 else port.order(options.seed, replicas=options.replicas, at_a_time=held)
    orders = tuple(
        replace(own, seed=numbered_seed(options.seed, number), subset=each.samples, times=each.times)
        for number, each in enumerate(found)
    )
    shares = tuple(float(each.draws) for each in found)
    digest = hashlib.blake2s(expected.tobytes(), digest_size=16).hexdigest()
    mixed = MixedOrder.of(orders, draws, options.seed, shares)
    return WeightedSequence(members, mixed, options.origin, digest)


class WeightedSequence(MixedSequence, Reprs, shows="seed samples"):
    """Samples as often as their weights say: tickets of several orders. `digest` identifies the weights."""

    def __init__(self, members: WeightedOrders, order: MixedOrder, origin: str, digest: str) -> None:
        self._port, self._of_set, self._digest = members.port, members, digest
        super().__init__(members, order, origin)

    def to_json(self) -> dict[str, Any]:
        return {"data_set": self._port.data.id, "weights_of": self._digest} | self.order.to_json()

    def loaded(self, state: Mapping[str, Any]) -> WeightedSequence:
        """Return a sequence of the same weights with the orders of a state. Raises `UsageError` if it has others."""
        facts = dict(state["order"])
        if facts.get("data_set") != self._port.data.id:
            raise UsageError(other_data_set(str(facts.get("data_set")), self._port.data, self._port.name))
        if facts.get("weights_of") != self._digest:
            raise UsageError(_OTHER)
        try:
            order = loaded_order(self.order, state)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no state of a BrandSampler with weights=: {error}") from None
        return WeightedSequence(self._of_set, order, self._origin, self._digest)

    def set_weights(self, weights: Mapping[Any, float], epoch: int, position: int) -> None:  # noqa: ARG002
        """Refuse: these are the weights of a `Mixture`."""
        raise UsageError(
            "set_weights sets the weights of a Mixture; a sampler keeps the weights= that it was made with"
        )
