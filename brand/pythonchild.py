"""How does Brand start a Python process of its own? With the import path of this process, as multiprocessing does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

_CODE: Final = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main()
"""


def child_command(module: str) -> list[str]:
    """Return the command that runs `main()` of a module."""
    return [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), module]


def start_helper(module: str, descriptors: Sequence[int], *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start `main()` of a module in a process that inherits these open files. Raises OSError.

    `arguments` follow in its `sys.argv`; `more` are arguments of `Popen`. It ends with the sockets among its files:
    Ctrl-C, which all processes of a terminal get, does not reach it.
    """
    command = [*child_command(module), *map(str, arguments)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process inherits the mask
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, **more)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
