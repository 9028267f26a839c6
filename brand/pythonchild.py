"""How does Brand start a Python process of its own? With the import path of this process, as multiprocessing does.

A scheduler sends a signal that is meant for the training to all processes of a job, so Brand's processes ignore it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

_CODE: Final = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main()
"""

_NAMES: Final = ("SIGHUP", "SIGUSR1", "SIGUSR2")
JOB_SIGNALS: Final = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals that tell a training to save its state: `--signal` of Slurm sends one to all processes of a job."""


def ignore_job_signals() -> None:
    """Have this process, which is none of the user's, ignore the signals for trainings."""
    for number in JOB_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def blocked(*more: signal.Signals) -> Iterator[None]:
    """Have processes that this thread starts in this block never receive Ctrl-C, `JOB_SIGNALS`, and `more`.

    A signal to this process meanwhile is received afterwards, or by another thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *JOB_SIGNALS, *more})  # they inherit the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_command(module: str) -> list[str]:
    """Return the command that runs `main()` of a module."""
    return [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), module]


def start_helper(module: str, descriptors: Sequence[int], *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start `main()` of a module in a process that inherits these open files. Raises OSError.

    `arguments` follow in its `sys.argv`; `more` are arguments of `Popen`. It ends with the sockets among its files:
    signals that all processes of a terminal or of a job get, such as Ctrl-C and SIGTERM, do not reach it.
    """
    command = [*child_command(module), *map(str, arguments)]
    with blocked(signal.SIGTERM):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, **more)
