"""Orders that tests share, without asking memory or storage."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.storage.dataset.dataset import StoredDataSet

STRIPES: Final = StripePolicy(4, stripe=4)
SLOTS: Final = SlotPolicy(4)
"""Both with groups of four chunks."""


def order_of(path: Path, policy: Policy = STRIPES, *, seed: int = 0) -> Order:
    """An order of a data set."""
    data = StoredDataSet(path)
    return Order(data.id, len(data), data.header.chunk_size, seed, policy)


def slots_across(nodes: int, ranks: int, ahead: int = 40) -> SlotPolicy:
    """`SLOTS` for several nodes, with so much sent ahead."""
    return SlotPolicy(SLOTS.group_chunks, nodes=nodes, ranks=ranks, window=ahead, remote=ahead)
