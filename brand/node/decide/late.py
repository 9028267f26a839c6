"""Which draws wait too long, and for what?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from brand.node.decide.core import Core

LATE_S: Final = 5.0
"""How long a draw waits before the log says so."""

Cause = Literal["read", "memory", "node", "plan"]


@dataclass(frozen=True, slots=True)
class Late:
    """A draw that waits, and for what."""

    client: int
    since_s: float
    epoch: int
    position: int
    """The first position whose sample is not there."""
    cause: Cause
    """`read`: it is being read; `memory`: its read has not begun, as others come first or memory is full; `node`: its
    owner has not sent it; `plan`: the order of the epoch is not worked out yet."""
    rank: int | None = None
    """None where the plan is not made."""
    replicas: int = 1
    chunk: int | None = None
    node: int | None = None
    """The owner."""


def late_draws(core: Core, chunk_size: int, node: int, now_s: float) -> Iterator[Late]:
    """Draws that have waited longer than `LATE_S` on this node."""
    for draw in core.draws.waiting:
        if now_s - draw.since_s < LATE_S:
            continue
        live, first = core.epochs.get(draw.key), int(draw.positions[0])
        if live is None:
            yield Late(draw.client, draw.since_s, draw.key[1], first, "plan")
            continue
        epoch = live.epoch
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        owners = epoch.owner_of(places)
        waits = epoch.states.waited_for(places)
        reading = epoch.states.coming(places) & (owners == node)
        cause: Cause = "read" if reading.any() else "memory" if (waits & (owners == node)).any() else "node"
        missing = reading if cause == "read" else waits
        if not missing.any():  # it is answered in this turn of the loop
            continue
        at = int(np.flatnonzero(missing)[0])
        position = int(draw.positions[at])
        yield Late(
            draw.client,
            draw.since_s,
            draw.key[1],
            position,
            cause,
            epoch.turns.rank_of(position),
            epoch.turns.replicas,
            int(places[at]) // chunk_size,
            int(owners[at]),
        )
