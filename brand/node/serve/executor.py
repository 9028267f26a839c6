"""Which threads do the slow work, so that the server's loop never waits? I/O threads and one planner thread.

The number of jobs is bounded, because the loop starts at most `depth` reads at a time. Results come out of one queue,
and an eventfd wakes the loop for each.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from brand.storage.vectored import VectorReader


@dataclass(frozen=True, slots=True)
class Readers:
    """What one I/O thread reads with."""

    storage: VectorReader
    cache: VectorReader | None = None
    """Reads the parts of the cache folder; None: there is none."""

    def of(self, *, cached: bool) -> VectorReader:
        """The reader for a read, by its source."""
        return self.cache if cached and self.cache is not None else self.storage

    def close(self) -> None:
        """Let go of all files."""
        self.storage.close()
        if self.cache is not None:
            self.cache.close()


Job = Callable[[Readers | None], Any]
Done = Callable[[Any, BaseException | None], None]


class Executor:
    """Threads that run jobs and queue their results for the loop.

    Raises OSError where `make_readers` fails: a thread without a reader would leave its jobs undone.
    """

    def __init__(self, depth: int, make_readers: Callable[[], Readers]) -> None:
        self.depth = depth
        made: list[Readers] = []
        try:
            made += (make_readers() for _ in range(depth))
            self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            """Readable when there are results."""
        except OSError:
            for one in made:
                one.close()
            raise
        self._reads: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._plans: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._results: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, args=(one,), name=f"read-{n}", daemon=True)
            for n, one in enumerate(made)
        ]
        self._threads.append(threading.Thread(target=self._plan, name="plan", daemon=True))
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        waiting = f"{self._reads.qsize()} reads and {self._plans.qsize()} plans wait"
        return f"Executor(depth {self.depth}, {waiting}, {self._results.qsize()} results)"

    def read(self, job: Job, done: Done) -> None:
        """Run `job(readers)` in an I/O thread, then `done(result, error)` in the loop."""
        self._reads.put((job, done))

    def plan(self, job: Job, done: Done) -> None:
        """Run `job(None)` in the planner thread, then `done(result, error)` in the loop."""
        self._plans.put((job, done))

    def post(self, done: Callable[[], None]) -> None:
        """Call `done` in the loop. Any thread may call this."""
        self._results.put(done)
        os.eventfd_write(self.wake, 1)

    def finish(self) -> None:
        """Call `done` of every job that has ended. The loop calls this when `wake` is readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        for _ in range(self._results.qsize()):
            self._results.get()()

    def close(self, limit_s: float = 5.0) -> None:
        """End the threads. A thread that storage does not let go is left behind."""
        for _ in range(self.depth):
            self._reads.put(None)
        self._plans.put(None)
        for thread in self._threads:
            thread.join(limit_s / len(self._threads))
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self.wake)

    def _read(self, readers: Readers) -> None:
        try:
            self._run(self._reads, readers)
        finally:
            readers.close()

    def _plan(self) -> None:
        self._run(self._plans, None)

    def _run(self, jobs: SimpleQueue[tuple[Job, Done] | None], readers: Readers | None) -> None:
        while (task := jobs.get()) is not None:
            job, done = task
            try:
                outcome: tuple[Any, BaseException | None] = job(readers), None
            except Exception as error:  # noqa: BLE001 - a thread's errors belong to the loop
                outcome = None, error
            self.post(partial(done, *outcome))
            del task, job, done, outcome
