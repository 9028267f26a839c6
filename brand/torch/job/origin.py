"""Which samplers of several nodes are the same one? Samplers that the training's program makes at the same place.

All ranks run one program. If ranks of different nodes reach the same place of it, they mean the same sampler and must
draw in the same order. A sampler that only one rank uses is made at a place of its own, and is not compared.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from pathlib import Path

from brand.orders.order import Order

_orders: dict[tuple[str, str], list[Order]] = {}
"""Orders that this process has begun to draw with other ranks, by data set and origin of the sampler."""


def origin_here() -> str:
    """Return the place of the program that calls this library, with its callers. It is the same on all ranks.

    Folders are left out, because nodes may have the program in different folders.
    """
    frames = traceback.walk_stack(inspect.currentframe())
    return "|".join(
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] != "brand"
    )


def turn_of(order: Order, origin: str) -> int:
    """Return a number that identifies an order to other nodes, made from its sampler's origin and its number there.

    One origin has several orders if a loop makes several samplers, or if a sampler loads states.
    """
    orders = _orders.setdefault((order.data_set, origin), [])
    if order not in orders:
        orders.append(order)
    facts = f"{origin}|{orders.index(order)}"
    return int.from_bytes(hashlib.blake2s(facts.encode(), digest_size=4).digest()) >> 1
