"""A conversion that is killed at any moment is known as unfinished; the same command finishes it, byte-identical."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brand.chunker import convert_images
from brand.errors import NotADataSetError
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.crashes import steps_survived
from tests.support import (
    LIMIT_S,
    brand,
    brand_process,
    options,
    running_brand,
    session_processes,
    tree_digest,
    wait_until,
)

CHUNK = "8"
CHUNKS = 375


@pytest.fixture(scope="module")
def source(fashion: Path) -> Path:
    """3,000 real pictures."""
    return fashion / "train"


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a conversion that nobody kills writes."""
    target = tmp_path_factory.mktemp("undisturbed") / "set"
    convert_images(source, target, options(int(CHUNK), jobs=2))
    return tree_digest(target)


def command(source: Path, target: Path, *more: str) -> tuple[str, ...]:
    return ("convert", "images", str(source), str(target), "--chunk-size", CHUNK, "-j", "2", *more)


def chunks(target: Path) -> int:
    """Published chunks."""
    with contextlib.suppress(FileNotFoundError):
        return sum(name.endswith(".brand") for name in os.listdir(target / "chunks"))
    return 0


@contextlib.contextmanager
def stopped_at(number: int, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, which has stopped itself (SIGSTOP) before it publishes its chunk of this number, from 1 on."""
    prelude = f"""
import os, sys
command, left = os.getpid(), [{number}]

def stop(event, args):
    if event == "os.rename" and os.fsdecode(args[1]).endswith(".brand") and os.getpid() == command:
        left[0] -= 1
        if left[0] == 0:
            os.kill(command, signal.SIGSTOP)

sys.addaudithook(stop)
"""
    with running_brand(*args, prelude=prelude) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"chunk {number}")
        yield process


def assert_unfinished(target: Path) -> None:
    """Nothing here can be read as a data set, and `info` says what to do."""
    assert not (target / "brand.json").exists()
    with pytest.raises(NotADataSetError):
        StoredDataSet(target)
    told = brand("info", target)
    assert told.code == 1
    assert "not finished" in told.err
    assert "same `brand convert` command" in told.err


def assert_continues(source: Path, target: Path, undisturbed: dict[str, str]) -> None:
    """The same command finishes, with the same bytes and nothing left over."""
    done = brand(*command(source, target))
    assert done.code == 0, done.err
    assert tree_digest(target) == undisturbed


def kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def kill_parent(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "kill"), [(0, kill_group), (116, kill_parent), (297, kill_group)])
def test_killed_at_any_moment_it_goes_on(
    source: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    moment: int,
    kill: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    """SIGKILL to all processes or to the parent alone: the workers end, and the second run is as if nothing was."""
    target = tmp_path / "set"
    with running_brand(*command(source, target)) as process:
        wait_until(lambda: (target / ".brand-work").exists() and chunks(target) >= moment, f"{moment} chunks")
        kill(process)
        process.wait()
        wait_until(lambda: not session_processes(process.pid), "the workers end")
    if (target / ".brand-work").exists() and not (target / "brand.json").exists():
        assert_unfinished(target)
        assert_continues(source, target, undisturbed)
    elif (target / ".brand-work").exists():
        assert_continues(source, target, undisturbed)
    assert tree_digest(target) == undisturbed


@pytest.mark.slow
def test_killed_again_and_again_it_still_ends_the_same(
    source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """Each run keeps what the runs before it finished."""
    target, seen = tmp_path / "set", 0
    for _ in range(4):
        with stopped_at(41, *command(source, target)) as process:
            kill_group(process)
            process.wait()
        assert chunks(target) >= seen + 39  # two chunks are published at a time
        seen = chunks(target)
    assert_unfinished(target)
    report = brand(*command(source, target), "--json")
    assert report.json["chunks_found"] >= seen > 0
    assert tree_digest(target) == undisturbed


@pytest.mark.slow
def test_a_killed_worker_stops_the_conversion_and_the_same_command_goes_on(
    source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """The out-of-memory killer takes one process: exit code 1, a message with the next step, all processes gone."""
    target = tmp_path / "set"
    with stopped_at(20, *command(source, target)) as process:
        workers = [p for p in session_processes(process.pid) if p != process.pid]
        os.kill(workers[0], signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1, err
        wait_until(lambda: not session_processes(process.pid), "the workers end")
    assert b"worker process died" in err
    assert b"run the same command again" in err
    assert b"Traceback" not in err
    assert_unfinished(target)
    assert_continues(source, target, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_leaves_a_state_that_goes_on_and_says_so(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], jobs: str
) -> None:
    """SIGINT to the whole group, as a terminal sends it: exit code 130, no traceback, no process left."""
    target = tmp_path / "set"
    with stopped_at(20, *command(source, target)[:-1], jobs) as process:
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, err
        wait_until(lambda: not session_processes(process.pid), "the workers end")
    assert b"same command again" in err
    assert b"Traceback" not in out + err
    assert_unfinished(target)
    assert_continues(source, target, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "least"), [("fsync", 8), ("replace", 6), ("unlink", 1), ("rmdir", 1)])
def test_a_crash_before_any_step_of_publishing_is_survived(clips: Path, tmp_path: Path, call: str, least: int) -> None:
    """The process ends before its 1st, 2nd, 3rd ... fsync, rename or removal: never half a set, always the same end."""
    assert steps_survived("audio", clips, tmp_path, call) >= least


def unfinished(source: Path, target: Path) -> None:
    """A conversion in which a file could not be used half-way: plan and some chunks are there."""
    with stopped_at(6, *command(source, target)) as process:
        kill_group(process)
        process.wait()
        wait_until(lambda: not session_processes(process.pid), "the workers end")


@pytest.mark.slow
def test_other_options_on_an_unfinished_target_are_wrong_use(
    source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """Exit code 2, and the unfinished conversion is not touched."""
    target = tmp_path / "set"
    unfinished(source, target)
    for more in (["--seed", "1"], ["--compression", "zstd"], ["--no-labels"]):
        told = brand(*command(source, target), *more)
        assert told.code == 2, told.err
        assert "another source or with other options" in told.err
    assert_continues(source, target, undisturbed)


@pytest.mark.slow
def test_another_source_on_an_unfinished_target_leaves_nothing_of_itself(
    source: Path, photos: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """Neither its list of skipped files nor its extras end up in the data set that is finished later."""
    target, other = tmp_path / "set", tmp_path / "other"
    unfinished(source, target)
    shutil.copytree(photos, other)
    (other / "tools" / "bad.png").write_text("no picture")
    (other / "empty").mkdir()
    told = brand("convert", "images", other, target, "--on-error", "skip", "-j", 1)
    assert told.code == 2, told.err
    assert_continues(source, target, undisturbed)


@pytest.mark.slow
def test_a_source_that_changed_meanwhile_is_another_source(source: Path, tmp_path: Path) -> None:
    """A file that was touched might have changed: the old chunks are not mixed with new ones."""
    copy, target = tmp_path / "copy", tmp_path / "set"
    shutil.copytree(source, copy)
    unfinished(copy, target)
    victim = sorted((copy / "8_bag").iterdir())[0]
    victim.write_bytes(victim.read_bytes())
    os.utime(victim, ns=(1, 1))
    told = brand(*command(copy, target))
    assert told.code == 2
    assert "another source" in told.err


@pytest.mark.slow
def test_two_conversions_at_a_time_are_kept_apart(photos: Path, tmp_path: Path) -> None:
    """While one holds the lock, another says so, changes nothing, and the lock ends with its holder."""
    work = tmp_path / "set" / ".brand-work"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = brand("convert", "images", photos, tmp_path / "set")
        assert told.code == 2
        assert "another conversion is writing there" in told.err
        assert [path.name for path in work.iterdir()] == ["lock"]
    assert brand("convert", "images", photos, tmp_path / "set", "-j", 1).code == 0


def test_damaged_leftovers_are_made_again(photos: Path, tmp_path: Path) -> None:
    """A chunk of an unfinished conversion that was cut short, changed or foreign is not trusted."""
    plain = options(4)
    convert_images(photos, tmp_path / "whole", plain)
    whole = tree_digest(tmp_path / "whole")
    target = tmp_path / "set"
    shutil.copytree(tmp_path / "whole", target)
    (target / "brand.json").unlink()
    (target / ".brand-work").mkdir()
    names = sorted((target / "chunks").iterdir())
    names[0].write_bytes(names[0].read_bytes()[:-1])
    flipped = bytearray(names[1].read_bytes())
    flipped[-5] ^= 1
    names[1].write_bytes(flipped)
    names[2].write_bytes(names[3].read_bytes())
    names[4].write_bytes(b"")
    names[5].write_bytes(b"anything but a chunk")
    report = convert_images(photos, target, plain)
    assert report.chunks_found == len(names) - 5
    assert tree_digest(target) == whole


@pytest.mark.slow
def test_the_module_can_be_stopped_before_it_has_begun(tmp_path: Path) -> None:
    """A wrong call in a process of its own ends with its message."""
    told = brand_process("convert", "images", tmp_path / "missing", tmp_path / "set")
    assert told.code == 2
    assert "there is no such folder" in told.err
    assert not (tmp_path / "set").exists()
