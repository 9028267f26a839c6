"""How are the processes of a framework started, and asked? As two jobs: one of one process, and one of two.

They are forked from a process that has imported PyTorch, as all Python processes of tests (`tests/pythonchild.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import numpy as np

from brand import pack
from tests.matrix.loops import Outcome, Task
from tests.support import descendants, free_port

SAMPLES = 393
"""Odd, so that two ranks cannot share them equally. One rank makes 13 batches of them."""
START_S, RUN_S, GRACE_S = 300.0, 300.0, 10.0
"""Limits of the start of a job, of a run, and of the other ranks after one has not trained to its end."""
SAYS_S = 0.8 * RUN_S
"""A process whose run has not ended after this time says where it is."""
SHOWN = 20_000
"""Characters of the log that a run shows that has not ended."""
_RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}


def _command(process: int) -> bytes:
    """The command line of a process; of one that has ended, nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def make_data(folder: Path) -> Path:
    """The data sets: documents of 1 to 50 tokens."""
    schema = {"label": "int", "tokens": "ndarray", "count": "int"}
    for name, count in (("first.brand", SAMPLES), ("second.brand", 150)):
        lengths = [1 + n * 37 % 50 for n in range(count)]
        samples = [{"label": n % 7, "tokens": np.arange(k, dtype=np.int32), "count": k} for n, k in enumerate(lengths)]
        pack(samples, folder / name, schema, chunk_size=32, jobs=1)
    return folder


class Job:
    """The processes of a framework with this many ranks. They start with the first run."""

    def __init__(self, framework: str, ranks: int, data: Path, folder: Path) -> None:
        self.framework, self.ranks, self.data, self.folder = framework, ranks, data, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Any]] = []
        self._ranks: list[int] = []
        """The numbers of the processes that train."""
        self.starts = 0

    def run(self, task: Task) -> list[Outcome]:
        """The outcomes of all ranks. A rank that does not answer is ended, and with it the job."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send(task)
        found: dict[int, Outcome] = {}
        waiting, end = dict(enumerate(self._connections)), time.monotonic() + RUN_S
        while waiting and (left := end - time.monotonic()) > 0:
            ready = wait(list(waiting.values()), left)
            for rank in [rank for rank, each in waiting.items() if each in ready]:
                try:
                    found[rank] = waiting.pop(rank).recv()
                except (EOFError, ConnectionError):
                    found[rank] = Outcome("died")
                if found[rank].end not in ("finished", "stopped"):
                    end = min(end, time.monotonic() + GRACE_S)
        if not waiting and all(outcome.end != "died" for outcome in found.values()):
            return [found[rank] for rank in range(self.ranks)]
        where = self._stacks()
        self._kill(signal.SIGKILL)
        self.end()
        every = [found.get(rank, Outcome("hung")) for rank in range(self.ranks)]
        return [replace(outcome, message=where) if outcome.end in ("hung", "died") else outcome for outcome in every]

    def _stacks(self) -> str:
        """What the ranks and their workers do now, by the end of their log: the stacks of all threads."""
        for rank in self._ranks:
            for process in (rank, *descendants(rank)):
                if _command(process) == _command(rank):  # a server has no handler
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGUSR1)
        time.sleep(1)
        return (self.folder / f"log-{self.ranks}").read_text(errors="replace")[-SHOWN:]

    def _start(self) -> None:
        self.starts += 1
        address = str(self.folder / f"{self.ranks}-{self.starts}")
        with Listener(address, "AF_UNIX", backlog=self.ranks) as listener:
            with (self.folder / f"log-{self.ranks}").open("ab") as log:
                self._processes = [
                    subprocess.Popen(
                        [sys.executable, *command],
                        stdout=log,
                        stderr=log,
                        env=os.environ | more,
                        start_new_session=True,
                    )
                    for command, more in self._commands(address)
                ]
            listener._listener._socket.settimeout(START_S)  # type: ignore[attr-defined]
            found = {each.recv(): each for each in (listener.accept() for _ in range(self.ranks))}
        self._connections = [found[key] for key in sorted(found)]
        self._ranks = [process for _, process in sorted(found)]

    def _commands(self, address: str) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield the arguments of each process to start, and its variables: for two ranks, those of a launcher."""
        program = ["-m", "tests.matrix.program", self.framework, str(self.data), address]
        if self.framework == "Ray Train":
            yield ["-m", "tests.matrix.ways.ray", str(self.data), address, str(self.ranks)], _RAY
        elif self.framework == "torchrun":
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
            yield [*launch, *program], {"OMP_NUM_THREADS": "1"}
        elif self.ranks == 1:
            yield program, {}
        else:
            size, port = str(self.ranks), str(free_port())
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            for rank in map(str, range(self.ranks)):
                yield program, meeting | {"RANK": rank, "LOCAL_RANK": rank}

    def end(self) -> None:
        """End the processes."""
        for connection in self._connections:
            with contextlib.suppress(OSError, ValueError):
                connection.send(None)
            connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(GRACE_S)
        self._kill(signal.SIGKILL)
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes, self._connections, self._ranks = [], [], []

    def _kill(self, number: int) -> None:
        """Send a signal to the ranks: a launcher starts them in sessions of their own."""
        for process in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
