"""What ranks tell of their training loops is summed up by run and rank, and bounded; a hostile LOOP changes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from brand.node.serve import reports
from brand.node.serve.reports import MOST_ROWS, Loops, shown
from brand.node.wire import messages
from brand.node.wire.client_messages import pack
from brand.node.wire.looping import LoopReport, StepTally, Waiting
from brand.node.wire.messages import Kind
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.node.support import RawClient
from tests.node.test_messages import body_of


def report(run: str = "run", rank: int = 0, waits: Any = (("storage", 0.5),), **more: Any) -> LoopReport:
    """What a rank tells."""
    tally = StepTally()
    for cause, wait_s in waits:
        tally.count(cause, wait_s, wait_s + 0.1)
    return LoopReport(run, rank, 8, 0, len(waits), tally, **more)


def test_reports_add_up_by_run_and_rank() -> None:
    """The sums of all reports, the row of each."""
    found = Loops()
    for rank in (1, 0, 1):
        found.hears(report(rank=rank), 0.0)
    found.hears(report("other"), 0.0)
    facts = found.facts([])
    assert [(loop["job"], loop["rank"], loop["steps"]) for loop in facts] == [
        ("other", 0, 1),
        ("run", 0, 1),
        ("run", 1, 2),
    ]
    assert [row["number"] for row in facts[2]["rows"]] == [1, 3]
    assert facts[2]["causes"] == {"storage": {"steps": 2, "wait_s": 1.0}}
    assert "rows" not in shown(facts[2], 0)
    assert len(shown(facts[2], 1)["rows"]) == 1


def test_what_is_kept_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a rank, and ranks: the one that was silent for longest goes, and reports without steps are no rows."""
    monkeypatch.setattr(reports, "MOST_LOOPS", 3)
    found = Loops()
    for _ in range(MOST_ROWS + 5):
        found.hears(report(), 0.0)
    found.hears(report(waits=()), 0.0)
    assert len(found.facts([])[0]["rows"]) == MOST_ROWS
    assert found.facts([])[0]["steps"] == MOST_ROWS + 5
    for rank in range(1, 4):
        found.hears(report(rank=rank), 0.0)
    assert [loop["rank"] for loop in found.facts([])] == [1, 2, 3]


def test_a_wait_under_way_is_what_the_server_holds() -> None:
    """Where the rank knows only that the server has not answered. It grows with time, and is forgotten with silence."""
    found, now = Loops(), Waiting(7, 2.0, "server")
    held = {"job": "run", "rank": 0, "cause": "node"}
    found.hears(report(now=now), time.monotonic())
    (loop,) = found.facts([held])
    assert (loop["now"]["step"], loop["now"]["cause"]) == (7, "node")
    assert loop["now"]["wait_s"] >= 2.0
    assert found.facts([{**held, "rank": 1}])[0]["now"]["cause"] == "server"
    found.hears(report(now=Waiting(7, 2.0, "collate")), time.monotonic())
    assert found.facts([held])[0]["now"]["cause"] == "collate"
    found.hears(report(now=now), time.monotonic() - reports.SILENT_S)
    assert found.facts([held])[0]["now"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 8},
        {"rank": -1},
        {"run": "x" * 101},
        {"run": 5},
        {"seconds": "1"},
        {"seconds": -1},
        {"seconds": 1e300},
        {"waits": {"weather": [1, []]}},
        {"waits": {"storage": [1, [[99, 1]]]}},
        {"waits": {"storage": [1, [[1]]]}},
        {"waits": {"storage": [1, [[1, -1]]]}},
        {"waits": {"storage": [True, []]}},
        {"waits": {"storage": [1, [[0, 0]] * 100]}},
        {"now": [0, 1]},
        {"worst": [0, 1, "weather"]},
    ],
)
def test_a_bad_report_ends_its_client_only(texts: Path, change: dict[str, Any]) -> None:
    """The client hears why; the server goes on, and knows nothing of the report."""
    value = json.loads(body_of(pack(report()), Kind.LOOP)) | change
    with running_server(texts) as server:
        with RawClient(server.address) as client:
            client.hello(StoredDataSet(texts).id)
            client.send(messages.pack_json(Kind.LOOP, value))
            kind, body = client.ended()[-1]
            assert kind == Kind.FAILED
            assert json.loads(body)["type"] == "ProtocolError"
        assert server.facts()["loops"] == []
