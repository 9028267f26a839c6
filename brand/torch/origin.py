"""Which samplers of several nodes are the same one? Those that the training's program makes at the same place.

All ranks run one program, so ranks of different nodes that reach the same place of it mean the same sampler, and must
draw in the same order. A sampler that one rank has for itself is made at a place of its own, and is compared with none.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from pathlib import Path

from brand.protocol.order import Order

_orders: dict[tuple[str, str], list[Order]] = {}
"""Orders that this process has begun to draw with others, by data set and origin of their sampler."""


def origin_here() -> str:
    """The place of the program that calls this library, with its callers: the same on all ranks.

    Folders are left out, as nodes may have the program in different ones.
    """
    frames = traceback.walk_stack(inspect.currentframe())
    return "|".join(
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] != "brand"
    )


def turn_of(order: Order, origin: str) -> int:
    """What identifies an order for other nodes: its sampler's origin, and its number among the orders begun there.

    A sampler has several orders, one after the other, where states are loaded, and a loop makes several samplers.
    """
    orders = _orders.setdefault((order.data_set, origin), [])
    if order not in orders:
        orders.append(order)
    facts = f"{origin}|{orders.index(order)}"
    return int.from_bytes(hashlib.blake2s(facts.encode(), digest_size=4).digest()) >> 1
