"""Signals for trainings, and processes that multiprocessing starts: ranks, and workers that still import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brand.pythonchild import JOB_SIGNALS
from tests.sandbox import environment
from tests.support import LIMIT_S
from tests.torch.support import make_samples, make_set

pytestmark = pytest.mark.slow
COUNT = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 samples."""
    return make_set(tmp_path_factory.mktemp("sets") / "set.brand", make_samples(COUNT, 300), 20)


def run(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A program of this folder."""
    command = [sys.executable, "-m", f"tests.torch.{module}", *map(str, args)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_rank_that_is_given_a_data_set_gets_its_signals(folder: Path, method: str) -> None:
    """The fork server is started with blocked signals, which its processes inherit: handlers would never run."""
    done = run("started_ranks", folder, method)
    assert done.stdout.split()[:1] == [str(len(JOB_SIGNALS))], done.stdout + done.stderr


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_that_gets_a_signal_while_it_imports(folder: Path, method: str) -> None:
    """It survives if the training blocks the signal while its workers start, as `docs/guides/data-servers.md` says."""
    done = run("early_signals", folder, method, "blocked")
    assert done.stdout.strip() == str(COUNT), done.stderr


def test_without_the_blocked_signal_a_spawned_worker_dies(folder: Path) -> None:
    """The advice is of use: the test above does not pass by itself."""
    done = run("early_signals", folder, "spawn", "open")
    assert done.returncode != 0
    assert "killed by signal" in done.stderr
