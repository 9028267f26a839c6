"""A trace is what Perfetto reads: one array of events that processes write together, in whole lines, up to a limit."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from brand.errors import UsageError
from brand.testing.node import running_server
from brand.timeline import Timeline
from brand.torch import BrandDataset, BrandLoader
from tests.torch.support import make_samples, make_set


def events(path: Path) -> list[dict[str, Any]]:
    """All events of a file, which is an array without its end."""
    found: list[dict[str, Any]] = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    return found


def write_some(path: Path, name: str) -> None:
    """What a process does."""
    timeline = Timeline(path, name)

    def add(track: str) -> None:
        for at in range(400):
            timeline.add(track, "x" * 300, at, at + 1)

    threads = [threading.Thread(target=add, args=(f"track {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()


@pytest.mark.slow
def test_processes_and_threads_write_one_file(tmp_path: Path) -> None:
    """Nothing is torn or lost, and each process and track has its name."""
    path = tmp_path / "trace.json"
    processes = [
        multiprocessing.get_context("spawn").Process(target=write_some, args=(path, f"process {n}")) for n in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = events(path)
    assert len([event for event in found if event["ph"] == "X"]) == 3 * 2 * 400
    names = {event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {"process 0", "process 1", "process 2", "track 0", "track 1"}
    assert list(tmp_path.iterdir()) == [path]


def test_an_event_is_in_microseconds(tmp_path: Path) -> None:
    """With its facts, on a numbered track that has a name."""
    timeline = Timeline(tmp_path / "trace.json", "rank 0")
    timeline.add("loop", "wait for storage", 1.5, 1.75, {"step": 3})
    timeline.close()
    process, track, event = events(tmp_path / "trace.json")
    assert (process["name"], process["args"]) == ("process_name", {"name": "rank 0"})
    assert (track["name"], track["args"], track["tid"]) == ("thread_name", {"name": "loop"}, event["tid"])
    assert (event["name"], event["ts"], event["dur"]) == ("wait for storage", 1_500_000.0, 250_000.0)
    assert event["args"] == {"step": 3}


def test_a_trace_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, once; what was written stays whole."""
    path = tmp_path / "trace.json"
    timeline = Timeline(path, "rank 0", most_bytes=1000)
    for at in range(100):
        timeline.add("loop", "train", at, at + 1)
    timeline.close()
    assert path.stat().st_size <= 1000 + 2
    assert 2 < len(events(path)) < 20
    assert [record.message for record in caplog.records if "size limit" in record.message] != []
    assert len(caplog.records) == 1


def test_what_cannot_be_a_trace(tmp_path: Path) -> None:
    """A folder that is not there, and a file that is something else, which stays as it is."""
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        Timeline(tmp_path / "none" / "trace.json", "rank 0")
    other = tmp_path / "other"
    other.write_text("{}")
    with pytest.raises(UsageError, match="is not a trace"):
        Timeline(other, "rank 0")
    assert other.read_text() == "{}"


@pytest.mark.slow
def test_a_training_on_a_timeline(tmp_path: Path) -> None:
    """Server and loader write one file: reads, what draws waited for, decoding, collating, waits and training."""
    before_s = time.monotonic()
    path, small = tmp_path / "trace.json", make_set(tmp_path / "small.brand", make_samples(75, 1500), 8)
    with running_server(small, memory=0.3, page_cache=False) as server:
        server.node.trace(path)
        data_set = BrandDataset(small, fields=("index",), server=server.address, transform={"index": int})
        loader = BrandLoader(data_set, 5)
        loader.trace(path)
        steps = len(list(loader))
        loader.trace(None)
        assert len(list(loader)) == steps
    found = events(path)
    names = [event["name"] for event in found if event["ph"] == "X"]
    assert names.count("train") == names.count("collate") == steps
    assert sum(name.startswith("wait") for name in names) == steps
    assert min(event["ts"] for event in found if event["ph"] == "X") > 1e6 * before_s
    assert {"read", "draw", "decode"} < set(names)
    processes = {event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert processes == {"server of node 0", "rank 0 of 1"}
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in found:
        if event["ph"] == "X" and event["name"] in ("read", "decode", "collate", "train"):
            by_track.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():  # events of a track do not overlap
        spans.sort()
        assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(spans))
