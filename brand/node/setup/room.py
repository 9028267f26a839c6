"""How many samples can memory hold out of turn, beside those that an order mixes? Batches that are planned need it."""

from __future__ import annotations

from brand.node.setup.choose import Facts, samples_held
from brand.node.setup.memory import Memory
from brand.orders.order import Order


def choose_room(facts: Facts, order: Order, share: float | None, memory: Memory) -> int:
    """About how many samples memory can hold beside those that an epoch of this order mixes.

    `share` and `memory` as for `choose_order`.

    All of them where memory holds all; else what is left, rounded down, so that a little more or less memory is mostly
    the same number. What an epoch holds there is not kept for the next one.
    """
    samples = samples_held(facts, share, memory)
    if samples > facts.samples - 1:
        return facts.samples
    left = max(1, int(samples - order.policy.held(order.mapping)))
    unit = 1 << max(0, left.bit_length() - 2)
    return left // unit * unit
