"""The statistics of the jobs of a server."""

from __future__ import annotations

from typing import Any, Final

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.draw import Draw
from brand.node.wire.numbers import RunNumber

MOST_HELD: Final = 64


def jobs(epochs: Epochs, now_s: float) -> list[dict[str, Any]]:
    """Return each run with an epoch under way, as plain values (`docs/statistics.md`)."""
    return [_job(epochs, number, now_s) for number in epochs.pacing.begun()]


def held_draws(epochs: Epochs, now_s: float) -> list[dict[str, Any]]:
    """Return the oldest draws that wait now, as plain values (`docs/statistics.md`)."""
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
        "drawn": pulse.drawn,
        "rate": 0.0 if pulse.idle(now_s) else round(pulse.rate or 0.0, 1),
        "sets_the_pace": False,
        "pace": None,
        "behind": None,
        "joins": [],
        "shared": max(0.0, 1 - run.brought / run.served) if run.served else 0.0,
    } | epochs.features.facts(key, now_s)
