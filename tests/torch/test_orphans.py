"""Workers of a DataLoader whose training was killed: they end, although nobody reads their batches."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from brand.torch import BrandDataset
from tests.support import LIMIT_S, session_processes, wait_until
from tests.torch.support import make_set, sized_samples

BATCH, SAMPLES = 40, 400
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class SecondIsLate(Dataset[Any]):
    """A data set whose second worker fetches its first batch after the training has ended (forked workers)."""

    def __init__(self, data: BrandDataset) -> None:
        self._data = data
        self._training = os.getpid()

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return samples."""
        worker = get_worker_info()
        while worker is not None and worker.id == 1 and os.getppid() == self._training:
            time.sleep(0.01)
        return self._data.__getitems__(indices)


def train(data: Path, begun: Any, start_method: str, late: bool) -> None:
    """Take one batch, and no more: the workers make others, which the pipe does not hold."""
    os.setsid()
    torch.set_num_threads(1)
    samples = BrandDataset(data, fields=("data",))
    read = SecondIsLate(samples) if late else samples
    batches = iter(DataLoader(read, BATCH, num_workers=2, multiprocessing_context=start_method))
    next(batches)
    begun.send_bytes(b"begun")
    signal.pause()


def ended(session: int) -> bool:
    """Whether all processes of a session have ended."""
    time.sleep(0.1)
    return not session_processes(session)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start_method", "late"), [("fork", False), ("fork", True), ("spawn", False), ("forkserver", False)]
)
def test_workers_end_whose_batches_nobody_reads(tmp_path: Path, start_method: str, late: bool) -> None:
    """Four batches of 60 kB; a pipe holds 64."""
    data = make_set(tmp_path / "set.brand", sized_samples([1500] * SAMPLES), 50)
    hears, begun = _processes.Pipe(duplex=False)
    training = _processes.Process(target=train, args=(data, begun, start_method, late))
    training.start()
    assert hears.poll(LIMIT_S)
    session = training.pid
    assert session is not None
    assert len(session_processes(session)) >= 3
    training.kill()
    training.join()
    try:
        wait_until(lambda: ended(session), "its workers have ended", limit_s=60)
    finally:
        for worker in session_processes(session):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
