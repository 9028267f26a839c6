"""How long a draw waited, and for what: each moment counts for one cause, and all of them are the whole wait."""

from __future__ import annotations

import numpy as np
import pytest

from brand.node.decide.draws.job_stats import MOST_HELD, held_draws
from brand.node.decide.state.epoch_table import Draw
from brand.node.wire.draw_messages import Held
from brand.node.wire.numbers import ClientNumber, RunNumber
from tests.node.test_core import ORDER, SAMPLES, world


def some_draw() -> Draw:
    """A draw since second 10."""
    return Draw(1, ClientNumber(1), (RunNumber(1), 0), np.arange(3), 10.0)


def test_each_moment_counts_for_one_cause() -> None:
    """A draw that waits for one thing, then another, then the first again."""
    draw = some_draw()
    for cause, now_s in (("server", 10.0), ("storage", 12.0), ("storage", 13.0), ("node", 15.0), ("storage", 16.0)):
        draw.wait_for(cause, now_s)  # type: ignore[arg-type]
    assert draw.waits_for == "storage"
    draw.wait_for(None, 20.0)
    assert draw.held == Held(storage=7.0, node=1.0, server=2.0)
    assert sum(draw.held) == 20.0 - draw.since_s
    draw.wait_for(None, 30.0)
    assert sum(draw.held) == 10.0


def test_a_draw_that_is_answered_at_once_was_not_held() -> None:
    """Nothing is told of it."""
    draw = some_draw()
    draw.wait_for(None, 10.0)
    assert draw.held == Held()


def test_a_plan_then_reads() -> None:
    """The answer says how long the draw waited for each, and so do the counters."""
    made = world(SAMPLES // 2)
    run = made.register(1, **ORDER)
    made.begin(1, run, 0)
    made.step()
    made.draw(1, run, 0, range(5))
    assert held_draws(made.core.epochs, made.now_s)[0]["cause"] == "server"
    made.now_s += 2.0
    made.finish_plan()
    made.step()
    (facts,) = held_draws(made.core.epochs, made.now_s + 1.0)
    assert facts == {"job": "run", "rank": 0, "epoch": 0, "position": 0, "wait_s": 3.0, "cause": "storage"}
    made.now_s += 3.0
    made.quiet()
    answer = made.answered[-1]
    assert answer.held.server == pytest.approx(2.0)
    assert answer.held.storage >= 3.0
    assert (answer.held.node, answer.held.decode) == (0.0, 0.0)
    counters = made.core.counters.draws
    assert counters.waits_by_cause() == answer.held._asdict()
    assert sum(answer.held) == pytest.approx(counters.wait_s)
    assert held_draws(made.core.epochs, made.now_s) == []


def test_facts_of_many_draws_have_a_limit() -> None:
    """The oldest are told."""
    made = world(SAMPLES // 2)
    clients = range(1, MOST_HELD + 10)
    for client in clients:
        run = made.register(client, **ORDER)
        made.draw(client, run, 0, [client])
    found = held_draws(made.core.epochs, made.now_s)
    assert [draw["position"] for draw in found] == list(clients)[:MOST_HELD]
