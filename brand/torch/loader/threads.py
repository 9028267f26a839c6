"""How many threads or processes decode in a `BrandLoader(num_workers="auto")`? The fewest that feed the training loop;
if no number does, the fewest that reach the peak of throughput (Lobster, observation 3).

    ThreadTuner   numbers of threads as rungs: measurements of a window of time -> the number for the next window
    PaceWindows   the sums of a `Stages` and the time -> windows for the tuner, and the figures of the last one
    Gate          the tasks of a pool, of which at most that number runs at a time

Tuner and windows are pure: the iteration passes the time, and sets the number that is returned. The number changes no
batch, because each sample has a seed of its own and batches keep their order.

The gate submits one *runner* to the pool for each thread that may work. A runner executes task after task, and ends if
no task is left or too many runners exist. So no thread waits at the gate, and a smaller limit cannot block: running
tasks end, and while there are tasks, at least one runner remains.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from brand.reprs import Reprs
from brand.starting import ThreadPool
from brand.torch.pytorch import torch

RUNGS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WAITS: Final = 0.02
"""A loop that waits for more than this fraction of its time lacks batches."""
WORTH: Final = 1.03
"""The next rung is worth its threads if its rate is more than this multiple of the present rung's rate."""
ENOUGH: Final = 1.1
"""The rung below is enough if its rate is at least this multiple of the rate that the loop needs."""
CALM: Final = 3
"""Number of windows without waiting before a step down."""
MOST_CALM: Final = 96
"""Largest number of windows before a step down, if steps down have failed."""
FORGOTTEN: Final = 64
"""Number of windows after which the rate of a rung is no longer known: data, transforms and other programs change."""
WINDOW_S: Final = 0.3
WINDOW_BATCHES: Final = 8
RAMP: Final = 4
"""Number of batches at the beginning of an iteration that are not measured: their requests are still small."""


class ThreadTuner(Reprs, shows="threads _rungs"):
    """Numbers of threads, up to `most`, and their known rates."""

    def __init__(self, most: int, *, fixed: bool = False) -> None:
        self._rungs = (most,) if fixed else (*(rung for rung in RUNGS if rung < most), most)
        self._rung = min(1, len(self._rungs) - 1)
        self._rates: dict[int, tuple[float, int]] = {}
        """By rung: samples per second, and the window that measured it last."""
        self._window = 0
        self._calm = 0
        """Number of windows without waiting since the last step."""
        self._patience = CALM
        self._tried = False
        """Whether the last step went down because fewer threads seemed enough."""

    @property
    def threads(self) -> int:
        """The number of threads now."""
        return self._rungs[self._rung]

    def window(self, rate: float, need: float, waits: float) -> int:
        """Return the number of threads for the next window.

        Args:
            rate: Samples per second that this number of threads decodes if none of them is idle.
            need: Samples per second that the loop takes if it does not wait.
            waits: The fraction of its time for which the loop waited.
        """
        self._window += 1
        before = self._rate(self._rung)
        self._rates[self._rung] = (rate if before is None else (rate + before) / 2, self._window)
        if waits > WAITS:
            self._step_for_waiting()
        else:
            self._calm += 1
            if self._calm >= self._patience and self._rung > 0 and self._below() >= ENOUGH * need:
                self._rung, self._calm, self._tried = self._rung - 1, 0, True
        return self.threads

    def _step_for_waiting(self) -> None:
        if self._tried:  # a step down that fails soon is tried later next time, so that trying costs little
            failed = self._calm < self._patience
            self._patience = min(2 * self._patience, MOST_CALM) if failed else CALM
        self._calm, self._tried = 0, False
        here, below, above = (self._rate(self._rung + step) for step in (0, -1, 1))
        assert here is not None
        if below is not None and below > here:
            self._rung -= 1
        elif self._rung + 1 < len(self._rungs) and (above is None or above > WORTH * here):
            self._rung += 1

    def _below(self) -> float:
        """Return the rate of the rung below, as measured, or else in proportion to the threads: a low estimate."""
        known, (here, _) = self._rate(self._rung - 1), self._rates[self._rung]
        return here * self._rungs[self._rung - 1] / self.threads if known is None else known

    def _rate(self, rung: int) -> float | None:
        """Return the samples per second of a rung; None if there is no such rung, or if its rate is not known."""
        rate, seen = self._rates.get(rung, (0.0, -FORGOTTEN))
        return rate if self._window - seen < FORGOTTEN else None


class PaceWindows(Reprs, shows="_tuner _shown"):
    """Windows of one loader, each of at least `WINDOW_S` seconds, `WINDOW_BATCHES` batches and a decoded sample."""

    def __init__(self, tuner: ThreadTuner) -> None:
        self._tuner = tuner
        self._start_s = 0.0
        self._totals: Mapping[str, float] = {}
        self._batches = self._samples = self._ramp = 0
        self._shown: tuple[float, float] | None = None

    @property
    def threads(self) -> int:
        """The number of threads now."""
        return self._tuner.threads

    def begin(self) -> None:
        """Begin an iteration. Windows begin after its first batches."""
        self._ramp = RAMP

    def batch(self, now_s: float, samples: int, totals: Mapping[str, float]) -> int:
        """Count a trained batch; `totals` are the sums of a `Stages`. Returns the number of threads from now on."""
        if self._ramp:
            self._ramp -= 1
            self._begin_window(now_s, totals)
            return self.threads
        self._batches += 1
        self._samples += samples
        if now_s - self._start_s >= WINDOW_S and self._batches >= WINDOW_BATCHES:
            spent = {name: total - self._totals[name] for name, total in totals.items()}
            busy_s, loop_s = spent["decode"] + spent["collate"], spent["loop_waits"] + spent["training"]
            if spent["decoded"] and min(busy_s, spent["training"]) > 0:
                rate = self.threads * spent["decoded"] / busy_s
                need = self._samples / spent["training"]
                self._shown = rate, need
                self._tuner.window(rate, need, spent["loop_waits"] / loop_s)
                self._begin_window(now_s, totals)
        return self.threads

    def _begin_window(self, now_s: float, totals: Mapping[str, float]) -> None:
        self._start_s, self._totals, self._batches, self._samples = now_s, totals, 0, 0

    def to_json(self) -> dict[str, Any]:
        """Return `threads`, and the `decode_rate` of the last window's threads and the loop's need, in samples/s."""
        rate, need = self._shown or (None, None)
        return {
            "threads": self.threads,
            "decode_rate": None if rate is None else round(rate, 1),
            "need": None if need is None else round(need, 1),
        }


def pool_of(threads: int) -> ThreadPool:
    """Return a pool in whose threads PyTorch starts no further threads. Raises `NoThreadError` if it can have none.

    Otherwise each thread of the pool would get a team of its own, which busy-waits for its next work and takes the
    processors from decoding.
    """
    if torch is not None:
        torch.get_num_threads()  # settles the number of this thread, which may first work while `_work_alone` runs
    pool = ThreadPool(threads, "brand-decode", initializer=None if torch is None else _work_alone)
    pool.submit(int)  # with one thread, every task is run
    return pool


_settling = threading.Lock()
"""Held while the number of threads that a new thread inherits is 1. No process is forked meanwhile."""
if hasattr(os, "register_at_fork"):
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
        with suppress(RuntimeError):  # no thread can be started: later ones work with one thread, too
            restore.start()
            restore.join()


class DaemonThreads:
    """Runs each function in a thread of its own, for whose end a program does not wait when it ends."""

    def submit(self, run: Callable[[], object]) -> None:
        """Start a thread."""
        threading.Thread(target=run, name="brand-worker", daemon=True).start()


class Gate(Reprs, shows="_runners limit _tasks"):
    """Runs tasks in the order of submission, at most `limit` at a time. A task reports its own errors."""

    def __init__(self, pool: ThreadPoolExecutor | DaemonThreads, limit: int) -> None:
        self._pool, self.limit = pool, limit
        """Number of tasks that may run at a time, at least 1."""
        self._tasks: deque[Callable[[], None]] = deque()
        """Tasks that have not begun. They are bounded, because an iteration bounds the batches that are prefetched."""
        self._runners = 0
        self._lock = threading.Lock()

    def set_limit(self, limit: int) -> None:
        """Have at most this many tasks run at a time, at least 1. Tasks that run already end."""
        with self._lock:
            self.limit = limit
            for _ in range(min(limit - self._runners, len(self._tasks))):
                self._start_runner()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task as soon as a runner is free."""
        with self._lock:
            self._tasks.append(task)
            if self._runners < self.limit:
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
            if self._tasks and self._runners <= self.limit:
                return self._tasks.popleft()
            self._runners -= 1
            return None
