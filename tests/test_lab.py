"""The lab limits reads and memory of a command by control groups, or says that it cannot and runs nothing."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import control_groups, lab
from bench.control_groups import CannotLimitError, GroupV1, GroupV2, Limits

PROC_V1 = "8:pids:/\n7:blkio:/jobs\n4:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n"
DEVICE = "254:0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1000000", 1e6), ("120MB", 120e6), ("2g", 2e9), ("1.5GiB", 1.5 * 2**30), ("64 KiB", 65_536), ("0.5M", 5e5)],
)
def test_a_size_is_a_number_with_a_unit(text: str, expected: float) -> None:
    """Units are powers of 1,000, and of 1,024 with an `i`."""
    assert lab.size(text) == expected


@pytest.mark.parametrize("text", ["", "big", "1.2.3", ".", "12 parsecs", "1 iB", "-1"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    """The message shows how to write a size."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"1\.5GiB"):
        lab.size(text)


def test_options_replace_single_limits_of_a_profile() -> None:
    """A profile has the limits that no option names."""
    options = lab._parse(["--profile", "nas", "--read-iops", "100", "--memory", "2GB", "--", "true", "--json", "x"])
    assert lab.limits_of(options) == Limits(120e6, 100, 2e9)
    assert options.command == ["true", "--json", "x"]
    assert lab.limits_of(lab._parse(["--", "true"])).to_json() == {}


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the options are wrong."""
    with pytest.raises(SystemExit):
        lab._parse(["--profile", "nas", "--"])
    assert "give a command" in capsys.readouterr().err


def test_groups_of_this_process_are_found_by_controller() -> None:
    """A line of /proc/self/cgroup may name several controllers."""
    assert control_groups.own_groups(PROC_V1) == {
        "pids": "/",
        "blkio": "/jobs",
        "memory": "/a/b",
        "cpu": "/",
        "cpuacct": "/",
        "": "/",
    }


def test_reads_of_one_device_are_counted() -> None:
    """Other devices, writes and totals do not count."""
    text = "254:0 Read 100\n254:0 Write 7\n8:0 Read 5\n254:0 Read 1\nTotal 113\n"
    assert control_groups.counted_v1(text, DEVICE) == 101
    text = "8:0 rbytes=5 wbytes=0 rios=1 wios=0\n254:0 rbytes=4096 wbytes=9 rios=2 wios=3 dbytes=0 dios=0\n"
    assert control_groups.counted_v2(text, DEVICE) == (4096, 2)
    assert control_groups.counted_v2("", DEVICE) == (0, 0)


def machine_v1(root: Path) -> Path:
    """A folder like /sys/fs/cgroup of version 1, where a group gets no files by itself."""
    for folder in ("blkio/jobs", "memory/a/b", "cpuacct"):
        (root / folder).mkdir(parents=True)
    return root


def test_version_1_limits_the_groups_below_those_of_the_process(tmp_path: Path) -> None:
    """Reads are limited in `blkio`, memory in `memory`."""
    group = GroupV1(machine_v1(tmp_path), control_groups.own_groups(PROC_V1), "run")
    group.make()
    group.limit(DEVICE, Limits(120e6, 400, 2e9))
    assert (tmp_path / "blkio/jobs/run/blkio.throttle.read_bps_device").read_text() == "254:0 120000000"
    assert (tmp_path / "blkio/jobs/run/blkio.throttle.read_iops_device").read_text() == "254:0 400"
    assert (tmp_path / "memory/a/b/run/memory.limit_in_bytes").read_text() == "2000000000"
    assert [file.parent.name for file in group.entrances()] == ["run"] * 3


def test_version_1_takes_over_smaller_limits_from_around_it(tmp_path: Path) -> None:
    """Limits of the group that the lab runs in hold in it, too: the kernel does not see to that."""
    around = machine_v1(tmp_path) / "blkio/jobs/blkio.throttle.read_bps_device"
    around.write_text("8:0 10\n254:0 1000\n")
    group = GroupV1(tmp_path, control_groups.own_groups(PROC_V1), "run")
    group.make()
    group.limit(DEVICE, Limits(read_bps=120e6))
    assert (tmp_path / "blkio/jobs/run/blkio.throttle.read_bps_device").read_text() == "254:0 1000"
    assert not (tmp_path / "blkio/jobs/run/blkio.throttle.read_iops_device").exists()


def test_version_1_tells_what_was_used(tmp_path: Path) -> None:
    """The files of the kernel become one `Usage`; a file that is missing counts nothing."""
    group = GroupV1(machine_v1(tmp_path), control_groups.own_groups(PROC_V1), "run")
    group.make()
    blkio, memory, cpu = (tmp_path / folder / "run" for folder in ("blkio/jobs", "memory/a/b", "cpuacct"))
    (blkio / "blkio.throttle.io_service_bytes_recursive").write_text("254:0 Read 4096\n254:0 Total 4096\n")
    (blkio / "blkio.throttle.io_serviced_recursive").write_text("254:0 Read 2\n")
    (memory / "memory.max_usage_in_bytes").write_text("5000\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (memory / "memory.stat").write_text("rss 1\ntotal_rss 300\ntotal_shmem 20\n")
    (cpu / "cpuacct.usage").write_text("1500000000\n")
    assert group.usage(DEVICE) == control_groups.Usage(4096, 2, 5000, 0, 1, 1.5)
    assert group.resident() == (300, 20)


def test_version_2_limits_one_group(tmp_path: Path) -> None:
    """All limits and measurements are files of one group, below the root."""
    (tmp_path / "cgroup.subtree_control").write_text("")
    group = GroupV2(tmp_path, "run")
    group.make()
    group.limit(DEVICE, Limits(120e6, math.inf, 2e9))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io +memory"
    assert (tmp_path / "run/io.max").read_text() == "254:0 rbps=120000000"
    assert (tmp_path / "run/memory.max").read_text() == "2000000000"
    (tmp_path / "run/io.stat").write_text("254:0 rbytes=4096 wbytes=0 rios=2 wios=0\n")
    (tmp_path / "run/memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    (tmp_path / "run/memory.peak").write_text("5000\n")
    (tmp_path / "run/cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert group.usage(DEVICE) == control_groups.Usage(4096, 2, 5000, 3, 1, 1.5)


def test_the_version_of_the_machine_is_found(tmp_path: Path) -> None:
    """Version 1 has a folder for each controller, version 2 lists them in a file."""
    one, two, none = tmp_path / "one", tmp_path / "two", tmp_path / "none"
    for folder in (two, none):
        folder.mkdir()
    (two / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert control_groups.group_here(machine_v1(one), PROC_V1).version == 1
    assert control_groups.group_here(two, "0::/\n").version == 2
    with pytest.raises(CannotLimitError, match="no control groups for reads and memory"):
        control_groups.group_here(none, "0::/\n")


def test_a_setting_is_put_back(tmp_path: Path) -> None:
    """Also after an error; and without a value nothing is touched."""
    file = tmp_path / "read_ahead_kb"
    file.write_text("8192\n")

    def failing() -> None:
        with lab.setting(file, 128):
            assert file.read_text() == "128"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert file.read_text() == "8192"
    with lab.setting(tmp_path / "missing", None):
        pass


def test_nothing_is_run_without_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the groups cannot be made, the lab says so, and the command does not run."""
    root = machine_v1(tmp_path / "cgroup")
    shutil.rmtree(root / "memory/a")
    monkeypatch.setattr(lab, "disk_of", lambda path: DEVICE)
    monkeypatch.setattr(lab, "group_here", lambda: GroupV1(root, control_groups.own_groups(PROC_V1), "run"))
    assert lab.main(["--", "touch", str(tmp_path / "was run")]) == lab.CANNOT
    assert "The command was not run" in capsys.readouterr().err
    assert not (tmp_path / "was run").exists()
    assert not (root / "blkio/jobs/run").exists()


def in_lab(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m bench.lab` for real; the test is skipped if this machine has no writable control groups."""
    command = [sys.executable, "-m", "bench.lab", *words]
    done = subprocess.run(command, cwd=Path(lab.__file__).parent.parent, capture_output=True, text=True, check=False)
    if done.returncode == lab.CANNOT:
        pytest.skip(done.stderr.strip())
    return done


@pytest.mark.slow
def test_a_command_runs_in_groups_that_are_gone_afterwards(tmp_path: Path) -> None:
    """The exit code and the output are the command's, and processes that it left behind are killed."""
    report = tmp_path / "seen.json"
    done = in_lab("--json", str(report), "--", "sh", "-c", "sleep 100 >&- 2>&- & cat /proc/self/cgroup; exit 7")
    seen = json.loads(report.read_text())
    assert done.returncode == seen["exit_code"] == 7
    assert seen["leftover_processes"] == 1
    (name,) = {part for part in done.stdout.replace("\n", "/").split("/") if part.startswith("brand-lab-")}
    assert not [folder for folder, _, _ in os.walk(control_groups.CONTROL_GROUPS) if Path(folder).name == name]


@pytest.mark.slow
def test_a_command_with_too_much_memory_is_killed() -> None:
    """The limit holds for the processes' own memory."""
    done = in_lab("--memory", "60MB", "--", sys.executable, "-c", "print(len(bytearray(200_000_000)))")
    assert done.returncode == 137
    assert json.loads(done.stderr.splitlines()[-1])["oom_kills"] == 1


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended() -> None:
    """The exit code is 124, as `timeout` has it."""
    done = in_lab("--timeout", "0.2", "--", "sleep", "100")
    assert done.returncode == lab.TIMED_OUT
    assert json.loads(done.stderr.splitlines()[-1])["timed_out"]
