"""How is the number of threads of a pool that work at a time limited, if the limit changes? A `Gate` holds the tasks.

It submits one *runner* to the pool for each thread that may work. A runner executes task after task, and ends if no
task is left or too many runners exist. So no thread waits at the gate, and a smaller limit cannot block: running tasks
end, and while there are tasks, at least one runner remains.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def pool_of(threads: int) -> ThreadPoolExecutor:
    """Return a pool in whose threads PyTorch starts no further threads.

    Otherwise each thread of the pool would get a team of its own, which busy-waits for its next work and takes the
    processors from decoding.
    """
    torch.get_num_threads()  # settles the number of this thread, which may first work while `_work_alone` runs
    return ThreadPoolExecutor(threads, "brand-decode", initializer=_work_alone)


_settling = threading.Lock()
"""Held while the number of threads that a new thread inherits is 1. No process is forked meanwhile."""
os.register_at_fork(before=_settling.acquire, after_in_parent=_settling.release, after_in_child=_settling.release)


def _work_alone() -> None:
    """Let PyTorch work with one thread in the calling thread, and with the former number in threads that begin later.

    PyTorch settles the number of a thread when the thread asks for it or first works: the last number that any thread
    has set.
    """
    with _settling:
        others = torch.get_num_threads()  # else this thread's first work would undo the next line
        torch.set_num_threads(1)
        restore = threading.Thread(target=torch.set_num_threads, args=(others,))
        restore.start()
        restore.join()


class Gate:
    """Runs tasks in the order of submission, at most `limit` at a time. A task reports its own errors."""

    def __init__(self, pool: ThreadPoolExecutor, limit: int) -> None:
        self._pool, self._limit = pool, limit
        self._tasks: deque[Callable[[], None]] = deque()
        """Tasks that have not begun. They are bounded, because an iteration bounds the batches that are prefetched."""
        self._runners = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Gate({self._runners} of {self._limit} run, {len(self._tasks)} wait)"

    @property
    def limit(self) -> int:
        """Number of tasks that may run at a time, at least 1."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            for _ in range(min(limit - self._runners, len(self._tasks))):
                self._start_runner()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task as soon as a runner is free."""
        with self._lock:
            self._tasks.append(task)
            if self._runners < self._limit:
                self._start_runner()

    def _start_runner(self) -> None:
        self._pool.submit(self._run)
        self._runners += 1

    def _run(self) -> None:
        while (task := self._next()) is not None:
            task()
            del task  # a runner that waits for the lock keeps no batch alive

    def _next(self) -> Callable[[], None] | None:
        """Return the next task; None if the runner must end."""
        with self._lock:
            if self._tasks and self._runners <= self._limit:
                return self._tasks.popleft()
            self._runners -= 1
            return None
