"""Which ticket does a sampler with weights yield? At each position, the next ticket of one of a few orders.

`brand.orders.mixtures.weights` says which orders. Each draws a sample once in an epoch of its own, so a data server
serves them as any others, and a mixture of them draws each sample as often as its weight says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from brand.errors import UsageError
from brand.node.setup.weighted import weighted_order
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.mixtures.mixed_order import MixedOrder, member_of_seed
from brand.orders.mixtures.weights import MAX_ORDERS
from brand.orders.order import Order
from brand.reprs import Reprs
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
    order = port.order(options.seed, options.subset, replicas=options.replicas)
    asked = options.num_samples
    draws = None if asked is None else whole("num_samples", asked, MAX_POSITIONS)

    def order_of(at_a_time: int) -> Order:
        return port.order(options.seed, replicas=options.replicas, at_a_time=at_a_time)

    mixed, expected = weighted_order(data, order, options.weights, draws, order_of)
    digest = hashlib.blake2s(expected.tobytes(), digest_size=16).hexdigest()
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
