"""How many samples can memory hold in addition to those that an order mixes? Planned batches need this space."""

from __future__ import annotations

from brand.node.setup.choose import Facts, samples_held
from brand.node.setup.memory import Memory
from brand.orders.order import Order


def choose_room(facts: Facts, order: Order, share: float | None, memory: Memory) -> int:
    """Return roughly how many samples memory can hold in addition to those that an epoch of this order mixes.

    `share` and `memory` as for `choose_order`.

    All samples if memory holds all; otherwise the rest of memory, rounded down, so that a little more or less memory
    mostly gives the same number. Samples that an epoch holds there are not cached for the next epoch.
    """
    samples = samples_held(facts, share, memory)
    if samples > facts.samples - 1:
        return facts.samples
    left = max(1, int(samples - order.policy.held(order.mapping)))
    unit = 1 << max(0, left.bit_length() - 2)
    return left // unit * unit
