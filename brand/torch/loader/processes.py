"""How do processes make the batches of a `BrandLoader(worker_type="process")`? Each makes a whole batch at a time.

    training     a task for each batch, in order -> a thread that waits for a free process and for its answer
    process      ints -> `BatchMaker`, as in threads -> the batch, or its error, and its times

Processes start with an iteration and end with it, so each has a copy of the transform as it is then. They are daemons
of multiprocessing: they end with the program, and cannot start others.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

from brand.errors import NoThreadError, UsageError, WorkerDiedError, cause_of
from brand.pythonchild import JOB_SIGNALS, blocked, ignore_job_signals
from brand.reprs import Reprs
from brand.starting import not_started
from brand.torch.fetch.fetched import Span
from brand.torch.job.workers import become_worker
from brand.torch.loader.batches import Ints
from brand.torch.loader.making import BatchMaker, PendingBatch, Receiver, Recipe
from brand.torch.loader.memory_pipe import MemoryPipe
from brand.torch.loader.threads import DaemonThreads, Gate
from brand.torch.loader.timing import BatchTimes, Stages
from brand.torch.pytorch import torch

LOOK_S: Final = 1.0
"""Seconds between two looks whether a process still runs."""
END_LIMIT_S: Final = 5.0
"""Seconds for which a process may continue with its batch when the iteration ends. Then it is killed."""
_STARTED: Final = (
    ". Processes that are started by {method} get them by pickle: use functions and classes of a module (no lambda, no "
    'function in a function), or give multiprocessing_context="fork" or worker_type="thread"'
)


@dataclass(frozen=True, slots=True)
class BatchTask:
    """The ints of a batch, and the number of ints of the iteration before them."""

    indices: Ints
    first: int


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """A batch or its error, its times, and the measurements of making it."""

    value: Any
    error: BaseException | None
    spans: Sequence[Span]
    collate_s: float
    totals: dict[str, float]
    notes: Sequence[tuple[str, float, float, dict[str, Any]]]
    """Events for the trace."""


class ProcessCrew(Reprs, shows="_workers _gate"):
    """Makes the batches of one iteration in processes; see `BatchCrew`.

    Args:
        context: The context of multiprocessing that starts processes.
        most, limit: The largest number of processes, and the number of those that work from the beginning on.
        recipe, receiver: As for a `BatchMaker`.

    Raises:
        UsageError: The processes cannot be started.
    """

    def __init__(self, context: Any, most: int, limit: int, recipe: Recipe, receiver: Receiver) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "this process is a daemon of multiprocessing, as workers of a DataLoader are, and cannot start "
                'processes: give worker_type="thread"'
            )
        self._context, self._most, self._recipe, self._receiver = context, most, recipe, receiver
        self._gate, self._of = Gate(DaemonThreads(), limit), os.getpid()
        self._workers: list[WorkerProcess] = []
        self._idle: deque[WorkerProcess] = deque()
        """Those without a task: at least as many as tasks that may still begin."""
        self._start(limit)

    def _start(self, limit: int) -> None:
        """Start the missing ones of `limit` processes."""
        try:
            while len(self._workers) < limit:
                worker = WorkerProcess(self._context, len(self._workers), self._most, self._recipe)
                self._workers.append(worker)
                self._idle.append(worker)
        except BaseException:
            self.end()
            raise

    def set_limit(self, limit: int) -> None:
        """Work in at most this many processes."""
        self._start(limit)
        self._gate.set_limit(limit)

    def request(self, indices: Ints, sizes: Sequence[int], first: int) -> bool:
        """Submit a task for each batch; see `BatchCrew`."""
        for low, high in pairwise(accumulate(sizes, initial=0)):
            batch = PendingBatch(high - low, BatchTimes(()))
            with self._receiver.stages.measure("full"):
                if not self._receiver.put(batch):
                    return False
            self._gate.submit(partial(self._make, batch, BatchTask(indices[low:high], first + low)))
        return True

    def _make(self, batch: PendingBatch, task: BatchTask) -> None:
        if self._receiver.stopped.is_set() or batch.done():
            return
        worker = self._idle.pop()
        try:
            answer = worker.make(task)
            self._receiver.stages.merge(answer.totals)
            for name, start_s, end_s, facts in answer.notes:
                self._receiver.note(f"process {worker.number}", name, start_s, end_s, **facts)
            batch.times.made_elsewhere(answer.spans, answer.collate_s)
            value = self._recipe.form.locked(answer.value)
            batch.times.end()
            if answer.error is not None:
                batch.fail(answer.error)
                return
            with suppress(Exception):  # cancelled: the iteration has been stopped
                batch.set_result(value)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)
        finally:
            self._idle.append(worker)

    def end(self) -> None:
        """End the processes, at most `END_LIMIT_S` seconds later."""
        if self._of != os.getpid():
            return  # a copy in a forked process
        for worker in self._workers:
            worker.hang_up()
        end_s = time.monotonic() + END_LIMIT_S
        for worker in self._workers:
            worker.end(end_s)


class WorkerProcess(Reprs, shows="number _process.pid"):
    """Process `number` of up to `count`, which makes one batch at a time."""

    def __init__(self, context: Any, number: int, count: int, recipe: Recipe) -> None:
        self.number, self._count, self._begun = number, count, False
        self._lock = threading.Lock()
        """Held while a batch is made."""
        self._pipe, theirs = MemoryPipe.pair()
        method = context.get_start_method()
        self._process = context.Process(
            target=serve, args=(theirs, number, count, recipe), name=f"brand-worker-{number}", daemon=True
        )
        try:
            # The processes of a fork server do not inherit what this thread blocks, but a new fork server would.
            with nullcontext() if method == "forkserver" else blocked():
                self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            how = _STARTED.format(method=method)
            raise UsageError(
                f"the data set, its transform or collate_fn cannot be sent: {cause_of(error)}{how}"
            ) from error
        except OSError as error:
            if why := not_started(error):
                raise NoThreadError(why) from error
            raise
        finally:
            theirs.close()

    def make(self, task: BatchTask) -> BatchAnswer:
        """Return the answer of the process. Raises `WorkerDiedError` if it has ended."""
        with self._lock:
            try:
                self._pipe.send(task)
                while not self._pipe.wait(LOOK_S, self._process.sentinel) and self._process.is_alive():
                    pass
                if not self._pipe.filled:
                    raise EOFError
                answer: BatchAnswer = self._pipe.receive()
            except (EOFError, ConnectionError) as error:
                raise self._death() from error
            self._begun = True
            return answer

    def _death(self) -> WorkerDiedError:
        self._process.join(END_LIMIT_S)
        code = self._process.exitcode
        who = f"worker process {self.number} of {self._count} (process {self._process.pid})"
        if code is not None and code < 0:
            by = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            return WorkerDiedError(
                f"{who} was killed by {by} while it made a batch. If memory was short, give fewer num_workers= or "
                "smaller batches"
            )
        how = "closed its connection" if code is None else f"ended with exit code {code}"
        hint = "" if self._begun else (
            ' before its first batch. If it was spawned, the script needs `if __name__ == "__main__":` around its code'
        )  # fmt: skip
        return WorkerDiedError(f"{who} {how}{hint}. Its error output, above this, says why")

    def hang_up(self) -> None:
        """Ask the process to end after its batch."""
        self._pipe.hang_up()

    def end(self, end_s: float) -> None:
        """Wait until the process has ended, until the time `end_s`, then kill it."""
        self._process.join(max(0.0, end_s - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_LIMIT_S)
        with self._lock:  # `make` returns, because the process has ended
            self._pipe.close()


class _OfTask(Reprs, shows="batches notes"):
    """The `Receiver` of a worker process: it keeps the batch of the present task, and its measurements."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.begin()

    def begin(self) -> None:
        """Begin a task."""
        self.stages, self.batches = Stages(1), list[PendingBatch]()
        self.notes: list[tuple[str, float, float, dict[str, Any]]] = []

    def put(self, batch: PendingBatch) -> bool:
        """See `Receiver`."""
        self.batches.append(batch)
        return True

    def note(self, track: str, name: str, start_s: float, end_s: float | None = None, **facts: Any) -> None:  # noqa: ARG002
        """See `Receiver`."""
        self.notes.append((name, start_s, time.monotonic() if end_s is None else end_s, facts))


def serve(pipe: MemoryPipe, number: int, count: int, recipe: Recipe) -> None:
    """Make batches until the training hangs up. The main function of a worker process."""
    ignore_job_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler of the training, which may be forked
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, *JOB_SIGNALS})
    become_worker(number, count)
    if torch is not None:
        torch.set_num_threads(1)  # workers share the machine's processors
    receiver = _OfTask()
    maker = BatchMaker(replace(recipe, form=recipe.form.unlocked()), lambda task: task(), receiver, alone=True)
    with suppress(EOFError, ConnectionError):
        while True:
            _send(pipe, _answer(maker, receiver, pipe.receive()))


def _send(pipe: MemoryPipe, answer: BatchAnswer) -> None:
    try:
        pipe.send(answer)
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - pickle calls any code
        unsent = UsageError(
            f"the batch cannot be sent from a worker process: {cause_of(error)}. Have the transform and collate_fn "
            'return tensors, arrays, numbers, texts, or objects that can be pickled, or give worker_type="thread"'
        )
        pipe.send(replace(answer, value=None, error=_portable(unsent)))


def _answer(maker: BatchMaker, receiver: _OfTask, task: BatchTask) -> BatchAnswer:
    receiver.begin()
    value, failed = None, None
    try:
        maker.request(task.indices, [len(task.indices)], task.first)
        value = receiver.batches[0].result(0)
    except BaseException as error:  # noqa: BLE001 - belongs to the training loop
        failed = _portable(error)
    times = receiver.batches[0].times if receiver.batches else BatchTimes(())
    receiver.batches.clear()  # while the next batch is made, this one is in the shared memory only
    return BatchAnswer(value, failed, times.spans, times.collate_s, receiver.stages.totals(), receiver.notes)


def _portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with its traceback as a note."""
    told = "".join(traceback.format_exception(error)).rstrip()
    try:
        portable: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickle calls any code
        portable = RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note(f"in {multiprocessing.current_process().name} (process {os.getpid()}):\n{told}")
    return portable
