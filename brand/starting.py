"""Can this process start threads and processes, and if not, why?

A container limits them (`pids.max`), and a container engine that is older than the programs in it may refuse the system
call that starts a thread. A `ThreadPool` works with the threads that could be started.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from brand.errors import NoThreadError

_CLONE3: Final = 435
"""The number of clone3 on all processors."""
_ENGINE: Final = (
    "no thread can be started here: the container's filter refuses the system call clone3, as those of Docker before "
    "20.10.10 do. Update the container engine, or start the container with --security-opt seccomp=unconfined"
)
_LIMIT: Final = (
    "no more threads or processes can be started here: raise the limit of the container (pids.max; docker run "
    "--pids-limit) or of the user (ulimit -u), or use fewer num_workers="
)


class ThreadPool(ThreadPoolExecutor):
    """A pool of at most `max_workers` threads: fewer, if no more can be started.

    `submit` raises `NoThreadError` if none can be started.
    """

    def _adjust_thread_count(self) -> None:
        """Start a thread for the task that was just queued, unless one is idle."""
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            why = not_started(error)
            if not why:
                raise
            if not self._threads:
                raise NoThreadError(why) from error


def not_started(error: BaseException) -> str:
    """Return the message for an error of a thread or a process that could not be started; empty for any other error."""
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _ENGINE if _clone3_is_refused() else _LIMIT
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return _LIMIT
    return ""


def why_no_thread() -> str:
    """Return in words why this process can start no thread; empty if it can."""
    try:
        threading.Thread(target=int).start()
    except RuntimeError as error:
        return not_started(error)
    return ""


def _clone3_is_refused() -> bool:
    """Whether clone3 fails as not permitted; a system that does not have it says so, and the C library uses clone."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(_CLONE3, None, 0)  # arguments that start nothing
    return ctypes.get_errno() == errno.EPERM
