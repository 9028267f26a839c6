"""How are the runs of a framework started? As two jobs at the same time, of one process and of two."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from brand import pack
from tests.frameworks.program import LIMIT_S

SAMPLES = 600


def make_numbers(path: Path) -> Path:
    """The data set."""
    pack([{"label": n % 7} for n in range(SAMPLES)], path, {"label": "int"}, chunk_size=32, jobs=1)
    return path


def run(framework: str, path: Path, folder: Path) -> dict[int, list[dict[str, Any]]]:
    """All runs of a framework, with one process and with two: the results of each rank."""
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
