"""The self-test runs in a child process, and what goes wrong there is a finding.

`cli/test_doctor_verb.py` has the one that passes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brand.doctor import selftest
from brand.doctor.packages import CheckResult
from brand.doctor.selftest import STEPS


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary files of the self-test lie here, and none is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert os.listdir(folder) == []


def run(**more: float) -> list[CheckResult]:
    """The findings; each step was shown."""
    steps: list[tuple[int, int]] = []
    found = selftest.run_selftest(lambda done, total: steps.append((done, total)), **more)
    assert steps == [(done, len(STEPS)) for done in range(1, len(steps) + 1)]
    return found


@pytest.mark.slow
def test_without_pytorch_it_packs_and_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is missing, with the command that installs it."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('there is none')")
    monkeypatch.syspath_prepend(tmp_path)
    *before, last = run()
    assert [(each.name, each.state) for each in before] == [("pack", "ok"), ("random access", "ok")]
    assert (last.name, last.state) == ("load PyTorch", "missing")
    assert (last.told, last.cure) == ("brand.torch needs PyTorch", "pip install 'brand-data[train]'")


@pytest.mark.slow
def test_a_crash_is_a_problem_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last line that the process wrote."""
    (tmp_path / "torch.py").write_text("import os; os.write(2, b'first\\nfatal: no such library\\n'); os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    last = run()[-1]
    assert (last.name, last.state) == ("load PyTorch", "problem")
    assert last.told == "the process ended with code 7: fatal: no such library"
    assert "brand doctor --json" in last.cure


@pytest.mark.slow
def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step at which it was, and the limit, are told."""
    (tmp_path / "torch.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    last = run(limit_s=2)[-1]
    assert (last.state, last.told) == ("problem", "it did not finish within 2 seconds")


def test_a_wrong_result_is_a_problem() -> None:
    """The steps behind it are not taken."""
    lines: list[dict[str, Any]] = [
        {"step": "pack", "seconds": 0.5},
        {"step": "random access", "error": "sample 3 is a different one"},
    ]
    assert list(selftest.judge(lines, "the process ended with code 0")) == [
        CheckResult("self-test", "pack", "ok", "", seconds=0.5),
        CheckResult("self-test", "random access", "problem", "sample 3 is a different one", selftest._REPORT),
    ]
