"""What control groups allow: processors, memory, reads; of both versions, and of the groups above."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand.available import group_bytes
from brand.groups import group_folders, processors_allowed, read_limits, tasks_allowed
from tests.node.test_memory import GIB, Machine


def test_a_process_is_in_its_group_and_in_those_above(tmp_path: Path) -> None:
    """Version 1 has a hierarchy for each controller, version 2 one for all."""
    machine = Machine(tmp_path, groups="5:cpu,cpuacct:/x/y\n4:memory:/m\n0::/a\n")
    one, two = machine.groups / "cpu", machine.groups
    expected = [(one / "x" / "y", 1), (one / "x", 1), (one, 1), (two / "a", 2), (two, 2)]
    assert group_folders("cpu", machine.proc, machine.groups) == expected


def test_without_control_groups(tmp_path: Path) -> None:
    """Nothing is limited."""
    nowhere = tmp_path / "proc"
    assert group_folders("cpu", nowhere, tmp_path) == []
    assert (processors_allowed(nowhere, tmp_path), read_limits(nowhere, tmp_path)) == (None, [])
    assert group_bytes(nowhere, tmp_path) is None


def test_processes_and_threads_of_both_versions(tmp_path: Path) -> None:
    """Of the tightest level: the one that has the fewest left."""
    machine = Machine(tmp_path, groups="8:pids:/x\n0::/a/b\n")
    assert tasks_allowed(machine.proc, machine.groups) == (None, 0)
    machine.group("pids/x", pids__max="max", pids__current=70)
    assert tasks_allowed(machine.proc, machine.groups) == (None, 0)
    machine.group("a/b", pids__max=100, pids__current=10)
    assert tasks_allowed(machine.proc, machine.groups) == (100, 10)
    machine.group("a", pids__max=500, pids__current=490)
    assert tasks_allowed(machine.proc, machine.groups) == (500, 490)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("250000 100000", 2.5), ("max 100000", None), ("50000 100000", 0.5), ("", None), ("1 0", None), ("junk", None)],
)
def test_processors_of_version_2(tmp_path: Path, text: str, allowed: float | None) -> None:
    """Quota over period."""
    machine = Machine(tmp_path, groups="0::/a\n")
    machine.group("a", cpu__max=text)
    assert processors_allowed(machine.proc, machine.groups) == allowed


def test_processors_of_version_1(tmp_path: Path) -> None:
    """In two files; -1 is no limit. The tightest of all levels counts."""
    machine = Machine(tmp_path, groups="5:cpu,cpuacct:/x/y\n")
    machine.group("cpu/x/y", **{"cpu__cfs_quota_us": -1, "cpu__cfs_period_us": 100000})
    assert processors_allowed(machine.proc, machine.groups) is None
    machine.group("cpu/x", **{"cpu__cfs_quota_us": 150000, "cpu__cfs_period_us": 100000})
    machine.group("cpu", **{"cpu__cfs_quota_us": 400000, "cpu__cfs_period_us": 100000})
    assert processors_allowed(machine.proc, machine.groups) == 1.5


def test_the_memory_of_all_levels(tmp_path: Path) -> None:
    """The least limit; "max", and the huge number of version 1, are none."""
    machine = Machine(tmp_path, groups="4:memory:/docker\n0::/a/b\n")
    machine.group("memory/docker", **{"memory__limit_in_bytes": 9223372036854771712})
    machine.group("a/b", memory__max="max")
    assert group_bytes(machine.proc, machine.groups) is None
    machine.group("a", memory__max=3 * GIB)
    assert group_bytes(machine.proc, machine.groups) == 3 * GIB
    machine.group("memory", **{"memory__limit_in_bytes": 2 * GIB})
    assert group_bytes(machine.proc, machine.groups) == 2 * GIB


def test_limits_of_reads(tmp_path: Path) -> None:
    """As the kernel says them, without limits of writes."""
    machine = Machine(tmp_path, groups="0::/a/b\n")
    machine.group(
        "a/b", io__max="8:0 rbps=1000000 wbps=5 riops=max wiops=max\n8:16 rbps=max wbps=7 riops=max wiops=max"
    )
    machine.group("a", io__max="253:0 rbps=max wbps=max riops=400 wiops=max")
    assert read_limits(machine.proc, machine.groups) == ["8:0 rbps=1000000", "253:0 riops=400"]
