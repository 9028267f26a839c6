"""The threads that do the slow work, so that the server's loop never waits: I/O threads and one planner thread.

The number of jobs is bounded, because the loop starts at most `most` reads at a time: one for each I/O thread, and
some that wait for a thread, so that neither a thread nor the storage idles until the loop starts the next read.
Results are put into one queue, and an eventfd wakes the loop for each result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from brand.reprs import Reprs
from brand.storage.io.files import plenty_open
from brand.storage.io.vectored import OPEN_FILES, DirectFiles, LocalFiles, VectorReader


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of one I/O thread."""

    storage: VectorReader
    folders: tuple[VectorReader | None, ...] = ()
    """Read the files of each cache folder, the fastest one first; None for a folder that is not used."""

    def of(self, folder: int) -> VectorReader:
        """Return the reader of a cache folder, by its number from 1 on; of the storage for 0."""
        found = self.folders[folder - 1] if folder else None
        return self.storage if found is None else found

    def share_limit(self, threads: int) -> None:
        """Keep so few files open that those of all threads together are a quarter of the limit of this process."""
        for reader in (self.storage, *self.folders):
            if isinstance(reader, LocalFiles | DirectFiles):
                reader.keep_open(max(1, min(OPEN_FILES, plenty_open() // threads)))

    def close(self) -> None:
        self.storage.close()
        for folder in self.folders:
            if folder is not None:
                folder.close()


WAITING: Final = 8
"""Maximum number of reads that wait for a thread. More would hold memory, and delay an urgent read."""

_T = TypeVar("_T")
Job = Callable[[Readers | None], Any]
Done = Callable[[Any, BaseException | None], None]
Part = Callable[[Readers, int], object]
PartsDone = Callable[[dict[int, BaseException]], None]
_Task = Callable[[Readers | None], Callable[[], None] | None]
"""A function that a thread runs. Its result, if there is one, is called in the loop."""


class Executor(Reprs, shows="depth _reads _plans _results"):
    """Threads that run jobs and queue their results for the loop.

    Raises OSError if `make_readers` fails, because a thread without readers would leave its jobs undone.
    """

    def __init__(self, depth: int, make_readers: Callable[[], Readers]) -> None:
        self.depth = depth
        """Number of I/O threads."""
        made: list[Readers] = []
        try:
            made += (make_readers() for _ in range(depth))
            for one in made:
                one.share_limit(depth)
            self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            """Readable when there are results."""
        except OSError:
            for one in made:
                one.close()
            raise
        self._closing, self._closed = threading.Lock(), False
        """The lock is held by threads that post to the loop, so that they never write to a closed descriptor."""
        self._reads: SimpleQueue[_Task | None] = SimpleQueue()
        self._plans: SimpleQueue[_Task | None] = SimpleQueue()
        self._windows: SimpleQueue[_Task | None] = SimpleQueue()
        """Apart from other plans: draws wait for windows, and to choose the samples of a cache takes seconds."""
        self._results: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, args=(one,), name=f"read-{n}", daemon=True)
            for n, one in enumerate(made)
        ]
        for name, tasks in (("plan", self._plans), ("windows", self._windows)):
            self._threads.append(threading.Thread(target=self._run, args=(tasks, None), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def most(self) -> int:
        """Maximum number of reads that the loop may have under way."""
        return self.depth + min(self.depth, WAITING)

    def read(self, job: Job, done: Done) -> None:
        """Run `job(readers)` in an I/O thread, then `done(result, error)` in the loop."""
        self._reads.put(_alone(job, done))

    def share(self, part: Part, parts: int, done: PartsDone) -> None:
        """Run `part(readers, number)` for each number below `parts`, then `done(errors)` in the loop.

        `errors` are those of the parts that failed, by number. Parts start in ascending order, each in the next free
        I/O thread, so storage gets as many operations at a time as there are threads.
        """
        shared = _Shared(part, parts, done)
        for _ in range(min(parts, self.depth)):
            self._reads.put(shared)

    def plan(self, job: Job, done: Done) -> None:
        """Run `job(None)` in the planner thread, then `done(result, error)` in the loop."""
        self._plans.put(_alone(job, done))

    def window(self, job: Job, done: Done) -> None:
        """Do the same in the thread that makes the windows of plans."""
        self._windows.put(_alone(job, done))

    def post(self, done: Callable[[], None]) -> None:
        """Call `done` in the loop. Any thread may call this."""
        self._results.put(done)
        os.eventfd_write(self.wake, 1)

    def ask(self, what: Callable[[], _T], limit_s: float) -> _T:
        """Have the loop call `what`, and return its result, from any thread but the loop's.

        Raises TimeoutError if the loop does not answer in time, or has ended.
        """
        answer: Future[_T] = Future()

        def reply() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(what())
                except Exception as error:  # noqa: BLE001 - belongs to the thread that asks
                    answer.set_exception(error)

        with self._closing:
            if self._closed:
                raise TimeoutError("the server has ended")
            self.post(reply)
        try:
            return answer.result(limit_s)
        except TimeoutError:
            answer.cancel()
            raise TimeoutError(f"the server's loop has not answered within {limit_s:g} s") from None

    def finish(self) -> None:
        """Call `done` of each job that has ended. The loop calls this when `wake` is readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        for _ in range(self._results.qsize()):
            self._results.get()()

    def close(self, limit_s: float = 5.0) -> None:
        """End the threads. A thread that is still blocked in storage after `limit_s` is left behind."""
        with self._closing:
            self._closed = True
        for _ in range(self.depth):
            self._reads.put(None)
        self._plans.put(None)
        self._windows.put(None)
        for thread in self._threads:
            thread.join(limit_s / len(self._threads))
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self.wake)

    def _read(self, readers: Readers) -> None:
        try:
            self._run(self._reads, readers)
        finally:
            readers.close()

    def _run(self, tasks: SimpleQueue[_Task | None], readers: Readers | None) -> None:
        while (task := tasks.get()) is not None:
            result = task(readers)
            if result is not None:
                self.post(result)
            del task, result


def _alone(job: Job, done: Done) -> _Task:
    def task(readers: Readers | None) -> Callable[[], None]:
        try:
            return partial(done, job(readers), None)
        except Exception as error:  # noqa: BLE001 - a thread's errors belong to the loop
            return partial(done, None, error)

    return task


class _Shared:
    """A job whose parts are spread over several threads: each thread runs the next part that no thread has started."""

    def __init__(self, part: Part, parts: int, done: PartsDone) -> None:
        self._part, self._parts, self._done = part, parts, done
        self._lock = threading.Lock()
        self._taken = self._ended = 0
        self._errors: dict[int, BaseException] = {}

    def __call__(self, readers: Readers | None) -> Callable[[], None] | None:
        """Run parts until none is left. Returns the call for the loop if the last part to end ran in this thread."""
        assert readers is not None
        last = False
        while (number := self._take()) is not None:
            error: Exception | None = None
            try:
                self._part(readers, number)
            except Exception as caught:  # noqa: BLE001 - a thread's errors belong to the loop
                error = caught
            last = self._end(number, error)
        return partial(self._done, self._errors) if last else None

    def _take(self) -> int | None:
        with self._lock:
            number = self._taken
            self._taken += 1
        return number if number < self._parts else None

    def _end(self, number: int, error: Exception | None) -> bool:
        """Record the end of a part. Returns whether all parts have ended."""
        with self._lock:
            self._ended += 1
            if error is not None:
                self._errors[number] = error
            return self._ended == self._parts
