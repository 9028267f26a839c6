"""What does the state of a job say that shares reads, beside its epoch, position and order?

Where it joined others, or, where its order is decided while jobs draw, which samples it has drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from brand.errors import UsageError
from brand.protocol.growing import pack_drawn, unpack_drawn
from brand.protocol.joins import Joins
from brand.protocol.order import Order

if TYPE_CHECKING:
    from brand.torch.dataset import BrandDataset


def facts_at(data_set: BrandDataset, order: Order, epoch: int, position: int) -> dict[str, Any]:
    """What a state at a position of an epoch says, as plain values. Raises `ServerError`."""
    if order.grows:
        drawn = data_set.drawn(order, epoch, position) if position else np.empty(0, np.int32)
        return {"drawn": pack_drawn(drawn, order.samples)}
    joins = data_set.joins(order, epoch)
    return {"joins": joins.to_json(), "lap": joins.lap}


def learn_facts(data_set: BrandDataset, order: Order, state: dict[str, Any]) -> None:
    """Have the data set know what a state says. Epoch and position of the state are right. Raises `UsageError`."""
    epoch, position = int(state["epoch"]), int(state["position"])
    try:
        if order.joins:
            joins = Joins.from_json(state["joins"], state["lap"])
            joins.check_fits(order.samples, order.draws)
            data_set.learn_joins(order, epoch, joins)
        elif order.grows and position < order.draws:
            places = unpack_drawn(state["drawn"], order.samples)
            if len(places) != position:
                raise ValueError(f"{len(places):,} samples were drawn before position {position:,}")
            if order.part is not None and not order.part.mask[places].all():
                raise ValueError("samples were drawn that are not of the part")
            data_set.load_drawn(order, epoch, places)
    except (KeyError, ValueError) as error:
        raise UsageError(f"this is no state of a BrandSampler: {error}") from None
