"""Many tasks in a few processes: results as they are finished, a bound on tasks in flight, and a clean stop.

Workers are forked if that is possible (no start-up cost, the context needs no pickling) and spawned otherwise. They
ignore Ctrl-C, which the parent handles, and end when the parent has ended, even if it was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Final, TypeVar

from brand.errors import InterruptedConversionError

Input = TypeVar("Input")
Result = TypeVar("Result")

_IN_FLIGHT: Final = 2
"""Tasks of each worker that wait or run."""

FORKS: Final = sys.platform == "linux" and hasattr(os, "fork")
"""Whether workers are forked. Elsewhere, libraries of the system may not survive a fork."""

_context: Any = None


def run_tasks(
    function: Callable[[Any, Input], Result], context: Any, tasks: Iterable[Input], *, jobs: int
) -> Generator[tuple[Input, Result]]:
    """Yield (task, `function(context, task)`) for each task as it finishes; with one job, in this process and in order.

    Raises the error of a task after the running tasks have ended, and `InterruptedConversionError` if a worker dies.
    """
    if jobs == 1:
        for task in tasks:
            yield task, function(context, task)
        return
    method = multiprocessing.get_context("fork" if FORKS else "spawn")
    pool = ProcessPoolExecutor(jobs, method, initializer=_start, initargs=(context, os.getpid()))
    try:
        yield from _feed(pool, function, iter(tasks), jobs * _IN_FLIGHT)
    except BrokenProcessPool as error:
        raise InterruptedConversionError(
            "a worker process died (killed, perhaps for lack of memory: try fewer with -j)."
            " Finished chunks are kept; run the same command again to continue"
        ) from error
    finally:
        _end(pool)


def _feed(
    pool: ProcessPoolExecutor, function: Callable[[Any, Input], Result], tasks: Iterator[Input], bound: int
) -> Iterator[tuple[Input, Result]]:
    running: dict[Future[Result], Input] = {}
    try:
        while True:
            for task in islice(tasks, bound - len(running)):
                running[pool.submit(_do, function, task)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        # A running task cannot be cancelled, and its worker is killed afterwards: let it finish its files.
        wait([future for future in running if not future.cancel()])


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the workers, and close the pool. The running tasks have ended before.

    A worker that waits for a task holds the lock of the queue. If it is killed just then, the other workers never
    receive the request to end, and a shutdown that sends one waits for ever.
    """
    processes = list((pool._processes or {}).values())
    for process in processes:
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


def _do(function: Callable[[Any, Input], Result], task: Input) -> Result:
    return function(_context, task)


def _start(context: Any, parent: int) -> None:
    global _context
    _context = context
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:  # an orphan gets another parent
        time.sleep(0.2)
    os._exit(1)
