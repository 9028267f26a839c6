"""What ranks tell of their training loops is summed up by run and rank, and bounded; a hostile LOOP changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brand.node.serve import loops
from brand.node.serve.loops import CELL_S, LOOK_S, MOST_CELLS, MOST_ROWS, Loops, pace, shown
from brand.node.wire import messages
from brand.node.wire.client_messages import pack
from brand.node.wire.looping import IterationExtent, LoopReport, StepTally, Waiting
from brand.node.wire.messages import Kind
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.node.support import RawClient
from tests.node.test_messages import body_of

WHOLE = IterationExtent(0, 1000, 1000)


def report(run: str = "run", rank: int = 0, waits: Any = (("storage", 0.5),), **more: Any) -> LoopReport:
    """What a rank tells: of each step, a wait and a tenth of a second of training, with eight samples."""
    tally = StepTally()
    for cause, wait_s in waits:
        tally.count(cause, wait_s, wait_s + 0.1, samples=8)
    extent = more.pop("extent", WHOLE)
    return LoopReport(run, rank, 8, 0, len(waits), more.pop("taken", 8 * len(waits)), extent, tally, **more)


def test_reports_add_up_by_run_and_rank() -> None:
    """The sums of all reports, and of those that came within a few seconds."""
    found = Loops()
    for rank in (1, 0, 1):
        found.hears(report(rank=rank), 0.0)
    found.hears(report("other"), CELL_S)
    facts = found.facts([], CELL_S)
    assert [(loop["job"], loop["rank"], loop["steps"], loop["samples"]) for loop in facts] == [
        ("other", 0, 1, 8),
        ("run", 0, 1, 8),
        ("run", 1, 2, 16),
    ]
    assert facts[2]["causes"] == {"storage": {"steps": 2, "wait_s": 1.0}}
    assert [(cell["number"], cell["steps"]) for cell in shown(facts[2], 9)["cells"]] == [(0, 2)]
    assert [cell["number"] for cell in shown(facts[0], 9)["cells"]] == [1]
    assert not {"cells", "rows", "buckets"} & set(shown(facts[2], 0))


def test_a_cell_is_the_sum_of_its_reports() -> None:
    """With the longest wait, and the place in the epoch after its last step."""
    found = Loops()
    found.hears(report(worst=Waiting(3, 0.5, "storage")), 0.0)
    found.hears(report(waits=(("node", 0.1),) * 2, worst=Waiting(5, 0.1, "node")), 1.0)
    (loop,) = found.facts([], 1.0)
    (cell,) = shown(loop, 1)["cells"]
    assert (cell["steps"], cell["samples"], cell["step"], cell["epoch"]) == (3, 24, 2, 0)
    assert (cell["seconds"], cell["wait_s"], cell["cause"]) == (pytest.approx(1.0), pytest.approx(0.7), "storage")
    assert cell["worst"] == {"step": 3, "wait_s": 0.5, "cause": "storage"}


def test_what_is_kept_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and cells of a rank, and ranks: the one that was silent for longest goes. No steps are no row."""
    monkeypatch.setattr(loops, "MOST_LOOPS", 3)
    found = Loops()
    for number in range(MOST_CELLS + 5):
        found.hears(report(), number * CELL_S)
    found.hears(report(waits=()), number * CELL_S + 1)
    (loop,) = found.facts([], number * CELL_S)
    assert (len(loop["cells"]), len(loop["rows"])) == (MOST_CELLS, MOST_ROWS)
    assert loop["steps"] == MOST_CELLS + 5
    for rank in range(1, 4):
        found.hears(report(rank=rank), 0.0)
    assert [loop["rank"] for loop in found.facts([], 0.0)] == [1, 2, 3]


def test_a_wait_under_way_is_what_the_server_holds() -> None:
    """Where the rank knows only that the server has not answered. It grows with time, and is forgotten with silence."""
    found, now = Loops(), Waiting(7, 2.0, "server")
    held = {"job": "run", "rank": 0, "cause": "node"}
    found.hears(report(now=now), 0.0)
    (loop,) = found.facts([held], 1.5)
    assert loop["now"] == {"step": 7, "cause": "node", "wait_s": 3.5}
    assert found.facts([{**held, "rank": 1}], 0.0)[0]["now"]["cause"] == "server"
    found.hears(report(now=Waiting(7, 2.0, "collate")), 0.0)
    assert found.facts([held], 0.0)[0]["now"]["cause"] == "collate"
    found.hears(report(now=now), 0.0)
    assert found.facts([held], loops.SILENT_S)[0]["now"] is None


def row(seconds: float, steps: int = 1, wait_s: float = 0.0) -> dict[str, Any]:
    """A report of steps of eight samples."""
    return {"seconds": seconds, "steps": steps, "samples": 8 * steps, "wait_s": wait_s}


def test_the_pace_is_that_of_the_last_seconds() -> None:
    """Samples over the seconds of their own steps: a pause between two epochs, or earlier steps, do not count."""
    found = pace([row(1.0, 100)] + [row(1.0, 2, wait_s=0.25)] * int(LOOK_S), 0.0)
    assert found is not None
    assert (found.samples_per_s, found.batches_per_s, found.wait_share) == (16.0, 2.0, 0.25)
    assert pace([], 5.0) is None


def test_a_step_that_takes_longer_than_the_look_counts_whole() -> None:
    """Eight samples in twenty seconds are no eight samples in ten."""
    found = pace([row(20.0)] * 3, 0.0)
    assert found is not None
    assert found.samples_per_s == pytest.approx(0.4)


@pytest.mark.parametrize(("waiting_s", "samples_per_s"), [(0.5, 16.0), (5.0, 8.0), (10.0, 0.0), (60.0, 0.0)])
def test_a_long_wait_brings_the_pace_down(waiting_s: float, samples_per_s: float) -> None:
    """So a loop that stands still shows no speed of before."""
    found = pace([row(1.0, 2)] * 20, waiting_s)
    assert found is not None
    assert found.samples_per_s == pytest.approx(samples_per_s)


def test_one_step_that_does_not_end_brings_the_pace_down() -> None:
    """A loop that validates in the middle of an epoch trains no samples. Steps that are always long do not count."""
    found = Loops()
    found.hears(report(waits=[("loop", 0.0)] * 20), 0.0)
    for second in range(60):
        found.hears(report(waits=()), float(second))
    (loop,) = found.facts([], 59.0)
    assert (loop["busy_s"], loop["pace"]["samples_per_s"], loop["pace"]["wait_share"]) == (59.0, 0.0, 0.0)
    assert found.facts([], 59.0 + loops.SILENT_S)[0]["busy_s"] == 0.0  # it has ended, or pauses
    assert loops.busy([row(30.0)] * 3, 80.0) == 0.0
    assert loops.busy([row(30.0)] * 3, 100.0) == 100.0


def test_the_time_left_is_that_of_the_rest_of_the_iteration() -> None:
    """At the pace of the last minute; unknown before the first step."""
    found = Loops()
    found.hears(report(waits=[("loop", 0.1)] * 10, taken=80), 1.0)
    (loop,) = found.facts([], 1.0)
    assert loop["pace"]["samples_per_s"] == pytest.approx(40)
    assert loop["left_s"] == pytest.approx((1000 - 80) / 40)
    found.hears(report(waits=(), taken=999), 1.0)
    assert found.facts([], 1.0)[0]["left_s"] == pytest.approx(1 / 40)  # not 0 before the end
    found.hears(report("new", waits=(), taken=0), 1.0)
    assert (found.facts([], 1.0)[0]["pace"], found.facts([], 1.0)[0]["left_s"]) == (None, None)


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
        {"taken": -1},
        {"samples": "8"},
        {"extent": None},
        {"extent": [0, 1]},
        {"extent": [2, 1, 1]},
        {"extent": [0, 1, -1]},
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
