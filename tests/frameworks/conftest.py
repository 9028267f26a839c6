"""Runs each framework once, with one process and with two at the same time, for all tests of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brand import pack
from tests.frameworks.program import LIMIT_S

SAMPLES = 600


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples in 19 chunks."""
    path = tmp_path_factory.mktemp("frameworks") / "numbers.brand"
    pack([{"label": n % 7} for n in range(SAMPLES)], path, {"label": "int"}, chunk_size=32, jobs=1)
    return path


@pytest.fixture(scope="session")
def results(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: the results of a framework, by number of processes, one dict for each rank."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}

    def run(framework: str) -> dict[int, list[dict[str, Any]]]:
        if framework not in found:
            found[framework] = _run(framework, numbers, tmp_path_factory.mktemp("runs"))
        return found[framework]

    return run


def _run(framework: str, path: Path, folder: Path) -> dict[int, list[dict[str, Any]]]:
    jobs = {ranks: _job(framework, path, folder, ranks) for ranks in (1, 2)}
    try:
        for ranks, job in jobs.items():
            code = job.wait(2 * LIMIT_S)
            assert code == 0, f"{framework}, {ranks} processes: {(folder / f'log-{ranks}').read_text()[-4000:]}"
    finally:
        for job in jobs.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    return {
        ranks: [json.loads((folder / f"{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)] for ranks in jobs
    }


def _job(framework: str, path: Path, folder: Path, ranks: int) -> subprocess.Popen[bytes]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    program = ["-m", "tests.frameworks.program", framework, str(path), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / f"log-{ranks}").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *launch, *program], stdout=log, stderr=log, env=environment, start_new_session=True
        )
