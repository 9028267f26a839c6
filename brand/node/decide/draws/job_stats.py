"""The statistics of jobs, and the draws that wait too long, each with its cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.epoch_table import Draw
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber

MOST_HELD: Final = 64
"""The most draws of `held_draws`."""
LATE_S: Final = 5.0
"""Seconds that a draw waits before the log reports it."""


def jobs(epochs: Epochs, now_s: float) -> list[dict[str, Any]]:
    """Return each run with an epoch under way, as plain values (`docs/guides/monitor.md`)."""
    return [_job(epochs, number, now_s) for number in epochs.pacing.begun()]


def held_draws(epochs: Epochs, now_s: float) -> list[dict[str, Any]]:
    """Return the oldest draws that wait now, as plain values (`docs/guides/monitor.md`)."""
    return [_held(epochs, draw, now_s) for draw in epochs.lives.draws()[:MOST_HELD]]


def _held(epochs: Epochs, draw: Draw, now_s: float) -> dict[str, Any]:
    live, position = epochs.get(draw.key), int(draw.positions[0])
    return {
        "job": epochs.runs[draw.key[0]].name,
        "rank": None if live is None else live.epoch.division.rank_of(position),
        "epoch": draw.key[1],
        "position": position,
        "wait_s": round(now_s - draw.since_s, 4),
        "cause": draw.waits_for,
    }


def _job(epochs: Epochs, number: RunNumber, now_s: float) -> dict[str, Any]:
    pacing, run = epochs.pacing, epochs.runs[number]
    key = pacing.now(number)
    assert key is not None
    live = epochs.get(key)
    assert live is not None
    pulse = pacing.pulse(number)
    return {
        "job": run.name,
        "epoch": key[1],
        "position": live.epoch.progress.everywhere(live.epoch.here),
        "samples": run.order.draws,
        "fetched": pulse.drawn,
        "rate": 0.0 if pulse.idle(now_s) else round(pulse.rate or 0.0, 1),
        "sets_the_pace": False,
        "pace": None,
        "behind": None,
        "joins": [],
        "shared": max(0.0, 1 - run.loaded / run.served) if run.served else 0.0,
    } | epochs.features.facts(key, now_s)


Cause = Literal["read", "memory", "node", "plan"]


@dataclass(frozen=True, slots=True)
class LateDraw:
    """A draw that waits too long, and the cause."""

    client: ClientNumber
    since_s: float
    epoch: int
    position: int
    """The first position whose sample is not in memory."""
    cause: Cause
    """Cause of the wait.

    `read`: storage has not answered the read of the sample. `memory`: its read has not begun, because other reads are
    earlier or memory is full. `node`: its owner has not sent it. `plan`: the plan of the epoch is not made yet.
    """
    rank: int | None = None
    """The rank that draws the position. None if the plan is not made."""
    replicas: int = 1
    chunk: int | None = None
    node: NodeNumber | None = None
    """The owner of the sample."""


def late_draws(epochs: Epochs, chunk_size: int, node: NodeNumber, now_s: float) -> Iterator[LateDraw]:
    """Yield the draws that have waited longer than `LATE_S` on this node."""
    for draw in epochs.lives.draws():
        if now_s - draw.since_s < LATE_S:
            continue
        live, first = epochs.get(draw.key), int(draw.positions[0])
        if live is None or not live.epoch.decides(draw.positions):
            yield LateDraw(draw.client, draw.since_s, draw.key[1], first, "plan")
            continue
        epoch = live.epoch
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        owners, waits = epoch.owner_of(places), epoch.states.waited_for(places)
        reading = waits & epoch.states.on_the_way(places) & (owners == node)
        cause: Cause = "read" if reading.any() else "memory" if (waits & (owners == node)).any() else "node"
        missing = reading if cause == "read" else waits
        if not missing.any():  # the server answers it in this step of its loop
            continue
        at = int(missing.argmax())
        position = int(draw.positions[at])
        rank, replicas = epoch.division.rank_of(position), epoch.division.replicas
        chunk, owner = int(places[at]) // chunk_size, NodeNumber(int(owners[at]))
        yield LateDraw(draw.client, draw.since_s, draw.key[1], position, cause, rank, replicas, chunk, owner)
