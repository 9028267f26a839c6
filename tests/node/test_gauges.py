"""Reads against the measured limit of the storage, and the memory of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand.node.decide.state.counters import ReadCounters
from brand.node.serve.gauges import Gauge, Gauges, processes, storage_use
from brand.node.serve.loops import CELL_S, LOOK_S, MOST_CELLS
from brand.storage.profile.profile import STORE, Profile

PROFILE = Profile("a disk", (1000, 100_000), (1, 8), ((1e6, 50e6), (8e6, 100e6)), 100e6)


def use(speed: float, read: int = 100_000, profile: Profile | None = PROFILE) -> dict[str, object]:
    """How the storage is used by ten seconds of reads of one size."""
    count = int(10 * speed / read)
    return storage_use(profile, Gauge(0.0, 5, 1000, 0), Gauge(10.0, 5 + count, 1000 + count * read, 0))


@pytest.mark.parametrize(
    ("speed", "at_limit"), [(50e6, False), (84e6, False), (90e6, True), (110e6, True), (400e6, False)]
)
def test_a_storage_at_its_limit(speed: float, at_limit: bool) -> None:
    """Nearly as fast as it was measured. Faster than that is a cache, not the storage."""
    found = use(speed)
    assert (found["limit_bytes_per_s"], found["at_limit"]) == (100_000_000, at_limit)
    assert str(found["text"]).endswith("a cache holds the files" if speed > 200e6 else "at its limit")
    assert ("not at its limit" in str(found["text"])) == (speed < 85e6)


def test_the_limit_is_that_of_reads_of_this_size() -> None:
    """Small reads are slower."""
    found = use(7.6e6, read=1000)
    assert (found["limit_bytes_per_s"], found["at_limit"], found["mean_read_bytes"]) == (8_000_000, True, 1000)


def test_without_a_profile_the_limit_is_unknown() -> None:
    """It is not guessed, and the text says how it becomes known."""
    found = use(50e6, profile=None)
    assert (found["limit_bytes_per_s"], found["at_limit"]) == (None, None)
    assert "`brand profile` measures" in str(found["text"])


def test_without_reads() -> None:
    """All samples come from memory."""
    found = use(0.0)
    assert (found["read_bytes_per_s"], found["at_limit"]) == (0, False)
    assert found["text"] == "no reads in the last 10 s"


def reading(gauges: Gauges, now_s: float, read_bytes: int, used: int = 0) -> ReadCounters:
    """Measure at a time at which so much has been read."""
    reads = ReadCounters(reads=read_bytes // 1000, read_bytes=read_bytes)
    gauges.tend(now_s, lambda: (reads, used))
    return reads


def test_gauges_are_measured_every_few_seconds() -> None:
    """For charts; the present speed is that of the last ten seconds."""
    gauges = Gauges(PROFILE, list)
    for second in range(31):
        reads = reading(gauges, float(second), 1000 * second, used=second)
    assert [point["number"] for point in gauges.points()] == [0, 1, 2, 3, 4, 5]
    assert {point["read_bytes_per_s"] for point in gauges.points()} == {1000}
    assert gauges.points()[-1]["used"] == 30
    assert gauges.facts(reads, 30.0)["storage"]["read_bytes_per_s"] == 1000
    later = gauges.facts(reads, 30.0 + LOOK_S)
    assert later["storage"]["read_bytes_per_s"] == 0
    for second in range(1000):
        reading(gauges, 30 + second * CELL_S, 0)
    assert len(gauges.points()) == MOST_CELLS


def test_a_store_that_was_not_measured_has_no_limit() -> None:
    """Its profile is assumed."""
    gauges = Gauges(STORE, list)
    assert gauges.facts(reading(gauges, 0.0, 1000), 0.0)["storage"]["limit_bytes_per_s"] is None


def test_the_memory_of_processes(tmp_path: Path) -> None:
    """Of the server and of each client once; a client that has ended has none."""
    for process, anonymous in (("self", 7), (11, 100), (12, 30)):
        (tmp_path / str(process)).mkdir()
        text = f"Name:\tx\nRssAnon:\t  {anonymous} kB\nRssFile:\t 5 kB\nRssShmem:\t 50 kB\n"
        (tmp_path / str(process) / "status").write_text(text)
    found = processes([11, 12, 11, 13], tmp_path)
    assert (found["server"], found["arena"]) == (7 * 1024, 50 * 1024)
    assert (found["clients"], found["client_processes"]) == (130 * 1024, 2)
    assert 0 < found["available"] <= found["limit"]
