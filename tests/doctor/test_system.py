"""What draws need of the kernel is tried, and what a sandbox forbids is named."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
from typing import Any

import pytest

from brand.doctor import system
from brand.doctor.packages import NO_TEMPORARY, CheckResult
from brand.doctor.selftest import run_selftest


def findings() -> dict[str, CheckResult]:
    """By name."""
    return {each.name: each for each in system.check_system()}


def forbidden(*_: Any, **__: Any) -> Any:
    """What a system call does in a sandbox that forbids it."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_this_machine_can_draw() -> None:
    """All is there but, on some file systems, what the page cache tells."""
    found = findings()
    assert list(found) == ["Python", "compiled", "kernel", "shared memory", "sockets", "/proc", "page cache"]
    assert [name for name, each in found.items() if each.state == "problem"] == []


@pytest.mark.parametrize(
    ("found", "state", "told"),
    [
        (system.compiled([1], [1], built=True, wanted=True), "ok", "loops over samples"),
        (system.compiled([1], [1], built=True, wanted=False), "missing", "BRAND_NATIVE=0"),
        (system.compiled([], [], built=False, wanted=True), "missing", "were not built"),
        (system.compiled([1], [], built=True, wanted=True), "missing", "without the functions of zstandard"),
        (system.compiled([], [], built=True, wanted=True), "missing", "of xxhash and zstandard"),
    ],
)
def test_what_is_compiled_is_told_with_the_next_step(found: CheckResult, state: str, told: str) -> None:
    assert (found.state, bool(found.cure)) == (state, state != "ok")
    assert told in found.told


def test_a_call_that_is_forbidden_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the thing that needs it; with the next step."""
    monkeypatch.setattr(socket, "send_fds", forbidden)
    found = findings()["sockets"]
    assert found.state == "problem"
    assert "Operation not permitted" in found.told
    assert found.cure


@pytest.mark.parametrize(("call", "name"), [("memfd_create", "shared memory"), ("pidfd_open", "kernel")])
def test_a_call_that_is_replaced_is_missing(call: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training works without it; what happens instead is told."""
    monkeypatch.setattr(os, call, forbidden)
    found = findings()[name]
    assert found.state == "missing"
    assert f"{call} is refused" in found.told


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch needs one, so it is a problem; the checks go on, and nothing is tried."""

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    found = {each.name: each for each in (*system.check_system(), *system.check_limits())}
    assert (found["TMPDIR"].state, found["TMPDIR"].cure) == ("problem", NO_TEMPORARY)
    (tried,) = run_selftest(lambda *_: None)
    assert (tried.state, tried.cure) == ("missing", NO_TEMPORARY)


def test_a_file_system_without_nowait_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slower, never wrong."""
    real = os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return forbidden() if flags else real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    found = findings()["page cache"]
    assert found.state == "missing"
    assert "without RWF_NOWAIT" in found.told


def test_another_system_can_do_without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one finding says what works and what does not."""
    monkeypatch.setattr(sys, "platform", "darwin")
    found = findings()
    assert list(found) == ["Python", "compiled", "kernel"]
    assert "conversion and random access do not" in found["kernel"].cure
