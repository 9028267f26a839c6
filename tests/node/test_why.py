"""One sentence says why a step waits: what is now first, then what was worst, or that nothing waits."""

from __future__ import annotations

from typing import Any

import pytest

from brand.node.serve.reports import HINTS, why
from brand.node.wire.looping import ALL, CAUSES

NO_DRAWS = {"storage": 0.0, "node": 0.0}


def row(
    cause: str, wait_s: float, seconds: float = 1.0, step: int = 1203, worst: float | None = None
) -> dict[str, Any]:
    """A second of a loop."""
    longest = {"step": step, "wait_s": wait_s if worst is None else worst, "cause": cause}
    return {"cause": cause, "wait_s": wait_s, "seconds": 1.0, "worst": longest}


def loop(*rows: dict[str, Any], rank: int = 0, ranks: int = 1, now: Any = None, heard_s: float = 0.5) -> dict[str, Any]:
    """A rank's loop."""
    return {"rank": rank, "ranks": ranks, "now": now, "heard_s": heard_s, "rows": list(rows)}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_sentence_and_a_hint(cause: str) -> None:
    """With the worst step, how long it waited, and how much was waited in all."""
    found = why([loop(row("loop", 0.01), row(cause, 0.4, worst=0.21))], NO_DRAWS)
    assert found["cause"] == cause
    assert found["text"].startswith("step 1,203 waited 210 ms for ")
    assert found["text"].endswith("; 20 % of the last 2 s were waits")
    assert found["hint"] == HINTS[cause]
    assert set(HINTS) == set(ALL)


def test_the_rank_that_waits_most_is_named() -> None:
    """Where there are several."""
    found = why([loop(row("node", 0.2), ranks=2), loop(row("collate", 0.3), rank=1, ranks=2)], NO_DRAWS)
    assert found["text"].startswith("step 1,203 of rank 1 waited 300 ms for collate")


def test_a_wait_under_way_comes_first() -> None:
    """Once it is long."""
    now = {"step": 7, "wait_s": 12.34, "cause": "storage"}
    found = why([loop(row("node", 0.9)), loop(rank=3, ranks=4, now=now)], NO_DRAWS)
    assert (found["cause"], found["text"]) == ("storage", "step 7 of rank 3 is waiting for storage, 12.3 s so far")
    assert why([loop(row("node", 0.9), now={**now, "wait_s": 0.5})], NO_DRAWS)["cause"] == "node"


def test_only_the_last_seconds_count() -> None:
    """What was an hour ago, or of a loop that has ended, is not why a step waits."""
    old = [row("storage", 0.9, step=1)] * 9
    found = why([loop(*old, *[row("loop", 0.01)] * 10)], NO_DRAWS)
    assert (found["cause"], found["text"]) == ("loop", "no step is waiting")
    assert why([loop(*old, heard_s=60.0)], NO_DRAWS)["text"] == "no rank trains at the moment"


def test_without_a_loop_that_reports() -> None:
    """A plain DataLoader: only the draws are known."""
    assert why([], NO_DRAWS)["text"] == "no BrandLoader has reported yet"
    found = why([], {"storage": 1.5, "node": 0.5})
    assert found["text"] == "no BrandLoader reports; requests waited 2.0 s, most of it for storage"
    assert found["cause"] is None
