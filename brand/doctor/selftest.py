"""Does Brand work here? A child process (`trial`) packs, reads, trains and resumes.

It works in a temporary folder. `brand doctor` loads no PyTorch itself, so it survives a crash of the child, and ends a
child that takes too long.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from brand.doctor.finding import CheckResult
from brand.doctor.trial import STEPS
from brand.errors import counted
from brand.pythonchild import child_command

PART: Final = "self-test"
LIMIT_S: Final = 120.0
"""Maximum time of the whole self-test: it takes some seconds, and more if PyTorch is on a network drive."""
_REPORT: Final = "report it with the output of `brand doctor --json`"

OnStep = Callable[[int, int], None]
"""Receives the number of steps that are done, and the number of all steps."""


def look(on_step: OnStep, *, limit_s: float = LIMIT_S) -> list[CheckResult]:
    """Run the steps of the self-test, up to the first that fails."""
    with tempfile.TemporaryDirectory(prefix="brand-doctor-", ignore_cleanup_errors=True) as folder:
        return list(judge(*_run(folder, on_step, limit_s)))


def _run(folder: str, on_step: OnStep, limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """Return what the child process reported about its steps, and how it ended.

    Its errors are written to a file: a pipe would stay open as long as the data server that the child starts.
    """
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryFile() as errors:
        started, begun = _start(errors), time.monotonic()
        with started as process, _ended_after(limit_s, process):
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(folder))
                process.stdin.close()
            for line in process.stdout:
                lines.append(json.loads(line))
                on_step(len(lines), len(STEPS))
        if time.monotonic() - begun >= limit_s:
            return lines, f"it did not finish within {counted(round(limit_s), 'second')}"
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    return lines, ": ".join([f"the process ended with code {process.returncode}", *last])


def _start(errors: IO[bytes]) -> subprocess.Popen[str]:
    command = child_command("brand.doctor.trial")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)


@contextmanager
def _ended_after(limit_s: float, process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that runs for longer than this."""
    watch = threading.Timer(limit_s, process.kill)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def judge(lines: list[dict[str, Any]], ending: str) -> Iterator[CheckResult]:
    """Yield a result for each completed step, and one for the step at which the process ended too early. Pure."""
    for line in lines:
        if "missing" in line:
            yield CheckResult(PART, line["step"], "missing", *_advice(line["missing"]))
            return
        if "error" in line:
            yield CheckResult(PART, line["step"], "problem", line["error"], _REPORT)
            return
        yield CheckResult(PART, line["step"], "ok", "", seconds=line["seconds"])
    if len(lines) < len(STEPS):
        yield CheckResult(PART, STEPS[len(lines)], "problem", ending, _REPORT)


def _advice(message: str) -> tuple[str, str]:
    """Return the missing package, and the command that installs it: `brand.torch needs PyTorch: pip install ...`."""
    told, _, cure = message.partition(": ")
    return told, cure
