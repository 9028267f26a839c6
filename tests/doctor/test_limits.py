"""Memory, processors, open files, storage and folders: what is enough, and what helps where it is not."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from brand.doctor.system import (
    LEAST_BYTES,
    LEAST_FILES,
    LEAST_SHARED,
    MOST_TEMPORARY,
    check_limits,
    judge_files,
    judge_memory,
    judge_processors,
    judge_shared_files,
    judge_storage,
    judge_temporary,
)

GB = 10**9


def test_this_machine_is_enough() -> None:
    """Each limit is told; /dev/shm is named because people look for it."""
    found = {each.name: each for each in check_limits()}
    assert list(found) == ["memory", "/dev/shm", "processors", "processes", "open files", "storage", "cache", "TMPDIR"]
    assert [name for name, each in found.items() if each.state == "problem"] == []
    assert "Brand itself does not use it" in found["/dev/shm"].told


def test_a_small_dev_shm_is_told() -> None:
    """It does no harm, unless the user has a `collate_fn` for worker processes."""
    for there in (0, 64 << 20, LEAST_SHARED - 1):
        found = judge_shared_files(there)
        assert found.state == "ok"
        assert (
            "with a collate_fn of your own they need more: use BrandLoader, or docker run --shm-size=8g" in found.told
        )
    assert judge_shared_files(64 << 20).told.startswith("67.1 MB, so workers of a DataLoader send batches")
    assert "collate_fn" not in judge_shared_files(LEAST_SHARED).told


def test_the_memory_of_a_control_group_is_told() -> None:
    """With what a data set takes by default."""
    found = judge_memory(4 * GB, 6 * GB)
    assert found.state == "ok"
    assert found.told == (
        "the control group may use 6.0 GB; 4.0 GB are free, and BrandDataset takes at most 1.0 GB by default"
    )
    assert "control group" not in judge_memory(4 * GB, None).told


def test_too_little_memory_is_a_problem() -> None:
    """The next step says how much more."""
    assert judge_memory(LEAST_BYTES, None).state == "ok"
    assert judge_memory(LEAST_BYTES - 1, None).state == "problem"


def test_less_time_than_processors_needs_fewer_threads() -> None:
    """A container sees all processors and may have the time of a few."""
    assert judge_processors(8, 64, None).told == "this process may use 8 of 64 processors"
    found = judge_processors(8, 64, 2.5)
    assert found.state == "ok"
    assert found.told.endswith("and its control group the time of 2.5 processors")
    assert found.cure == "BrandLoader(num_workers=2) fits better"
    assert judge_processors(2, 2, 4.0).cure == ""
    assert "num_workers=1" in judge_processors(2, 2, 0.25).cure


@pytest.mark.parametrize(
    ("soft", "hard", "state", "cure"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", ""),
        (1024, 4096, "ok", ""),
        (LEAST_FILES, 4096, "ok", ""),
        (100, resource.RLIM_INFINITY, "problem", "ulimit -n 1024"),
        (100, 4096, "problem", "ulimit -n 1024"),
        (100, 512, "problem", "raise the hard limit of this user or container, 512"),
    ],
)
def test_few_open_files_are_a_problem(soft: int, hard: int, state: str, cure: str) -> None:
    """The next step is one that works: no more than the hard limit."""
    found = judge_files(soft, hard)
    assert (found.state, found.cure) == (state, cure)


def test_limits_of_reads_are_told() -> None:
    """They are no fault."""
    assert judge_storage([]).told == "no control group limits reads"
    found = judge_storage(["8:0 rbps=1000000"])
    assert (found.state, found.told) == ("ok", "the control group limits reads: 8:0 rbps=1000000")


def test_a_long_folder_for_temporary_files_is_a_problem(tmp_path: Path) -> None:
    """PyTorch's workers make sockets there, whose paths may have 107 bytes."""
    right = tmp_path / "a"
    right.mkdir()
    assert judge_temporary("/").state == "ok"
    long = f"{tmp_path}/{'x' * MOST_TEMPORARY}"
    found = judge_temporary(long)
    assert found.state == "problem"
    assert "TMPDIR" in found.cure


def test_a_cache_that_cannot_be_written_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brand works without it."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {each.name: each for each in check_limits()}["cache"]
    assert found.state == "missing"
    assert f"{tmp_path} is not writable" in found.told
