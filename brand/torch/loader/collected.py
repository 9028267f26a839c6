"""Does the garbage collector call, and how does an object that it finalises get closed?

The collector may run at any allocation of any thread: one that starts a thread and holds the lock of all pools until
that thread runs, or one in the middle of a queue's lock. A finaliser that waits for another thread can wait for a
thread that waits for it. So it leaves the closing to a new thread.
"""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_collector = 0
"""The thread that runs the garbage collector now; 0 if none does."""


def _note(phase: str, _facts: dict[str, Any]) -> None:
    global _collector
    _collector = threading.get_ident() if phase == "start" else 0


gc.callbacks.append(_note)


def close_safely(close: Callable[[], None]) -> None:
    """Call `close`, or have a new thread call it if the garbage collector runs in this thread."""
    if _collector != threading.get_ident():
        close()
        return
    with suppress(RuntimeError):  # no thread can be started: the process ends, or is at its limit
        _thread.start_new_thread(_start, (close,))  # unlike `Thread.start`, this waits for nothing


def _start(close: Callable[[], None]) -> None:
    with suppress(RuntimeError):
        threading.Thread(target=close, name="brand-close", daemon=True).start()
