"""One iteration of a loader: who does which work, and in which order are batches delivered?

    producer thread      ints of some batches (`batches`) -> a request (`making`), which makes the batches later
    crew                 threads (`making`) or processes (`processes`) that make them: fetch, decode, transform, collate
    training loop        takes batches in order; sets how many threads or processes work at a time (`threads`)

At most `ahead` batches are prefetched. An error is raised when the training loop reaches its batch. If the training
leaves the loop, by `break` or Ctrl-C, the threads stop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from brand.errors import NoThreadError
from brand.node.setup.request_sizes import next_request
from brand.node.wire.looping import LOOP
from brand.reprs import Reprs
from brand.starting import not_started
from brand.timeline import Timeline
from brand.torch.data.drawable import SampleSource
from brand.torch.fetch.seeds import seed_of_job
from brand.torch.job.ranks import find_rank
from brand.torch.loader.batches import BatchForm, SamplerBatches
from brand.torch.loader.collected import close_safely
from brand.torch.loader.making import BatchCrew, PendingBatch, Receiver, Recipe
from brand.torch.loader.threads import PaceWindows
from brand.torch.loader.timing import BatchTimes, LoopIdentity, Reporter, Stages, StepWaits

_STEP_S: Final = 0.1
"""Seconds for which a thread waits before it checks whether it should stop."""


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of a loader that hold for one iteration."""

    form: BatchForm
    collate_fn: Callable[[list[Any]], Any] | None
    """The user's function; None: that of the form."""
    crew: Callable[[Recipe, Receiver], BatchCrew]
    """Starts the crew of the iteration."""
    ahead: int
    """Batches to prefetch while one is trained."""
    iteration: int
    """Number of the iteration, from 1 on. If samples are read by index, it is the epoch of random transforms."""
    held: int = 0
    """Batches that a wrapper of the loader has taken, and has not delivered to the training loop."""


@dataclass(frozen=True, slots=True)
class Instruments:
    """The measurements of a loader."""

    stages: Stages
    """Time by stage."""
    pace: PaceWindows
    """Number and speed of the threads that decode."""
    waits: StepWaits
    """Data stalls of the training loop."""
    timeline: Timeline | None = None
    """The file of a trace; None if there is none."""


class LoaderIteration(Reprs, shows="handed_out _requested _source"):
    """One iteration: its producer thread, and the batches that are prefetched. It is the `Receiver` of its crew."""

    def __init__(
        self, data: SampleSource, batches: SamplerBatches, options: LoaderOptions, instruments: Instruments
    ) -> None:
        self._data, self._source, self._options = data, batches, options
        self.stages, self._pace, self._waits = instruments.stages, instruments.pace, instruments.waits
        self._run = (options.form.initial_seed(), options.iteration)
        """Seed and epoch of random transforms."""
        self._crew: BatchCrew | None = None
        self._ready: queue.Queue[PendingBatch | None] = queue.Queue(options.ahead)
        self.stopped = threading.Event()
        self._timeline = instruments.timeline
        self._reporter: Reporter | None = None
        self.handed_out = 0
        """Number of batches that were taken from the iteration."""
        self._held = options.held
        """How many of them a wrapper holds back; none after the end."""
        self._requested = 0
        self._thread = threading.Thread(target=self._produce, name="brand-draw", daemon=True)
        self._produced = threading.Event()
        """Set when that thread ends."""

    def batches(self) -> Generator[Any, None, None]:
        """Yield the batches, in order. The threads start when the first batch is taken.

        The epoch is settled then, too, because frameworks call `set_epoch` between `iter` and the first batch.
        """
        try:
            self._source.begin()
            epoch, options = self._source.epoch, self._options
            if epoch is not None:
                self._run = (seed_of_job(self._source.seed, self._data.job), epoch)
            recipe = Recipe(self._data, options.form, options.collate_fn, self._run, by_index=epoch is None)
            self._crew = options.crew(recipe, self)
            self._thread.start()
            self._begin()
            trained_s = 0.0
            while True:
                self._source.go_on()
                if self.stopped.is_set():
                    raise RuntimeError("another iteration of this loader has begun; make a loader for each")
                start_s = time.monotonic()
                with self._options.form.waiting():
                    batch = self._take(start_s)
                    value = None if batch is None else batch.result()
                end_s = time.monotonic()
                self.stages.add("loop_waits", end_s - start_s)
                if batch is None:
                    self._held = 0
                    return
                waiting = self._waits.taken(batch.times, start_s, end_s, trained_s, batch.samples)
                waited = "wait" if waiting.cause == LOOP else f"wait for {waiting.cause}"
                self.note("loop", waited, start_s, end_s, step=waiting.step)
                self.handed_out += 1
                start_s = time.monotonic()  # a monitor's time is neither waiting nor training
                yield value
                trained_s = time.monotonic() - start_s
                self.stages.add("training", trained_s)
                self.note("loop", "train", start_s, start_s + trained_s, step=waiting.step)
                self._trained(batch.samples)
                del value, batch
        except RuntimeError as error:
            if why := not_started(error):
                raise NoThreadError(why) from error
            raise
        finally:
            self._waits.stop_waiting()
            close_safely(self.close)

    def _begin(self) -> None:
        """Prepare the measurements before the first batch. A rank that draws reports to its server."""
        self._pace.begin()
        epoch = self._source.epoch
        self._waits.begin("storage" if epoch is None else "server")
        if epoch is not None:
            ranks = self._source.ranks
            ranks = ranks if ranks[1] > 1 else find_rank(None, None)  # Accelerate deals to its ranks by itself
            loop = LoopIdentity(*ranks, epoch, self._source.extent)
            self._reporter = Reporter(self._data.tell_loop, self._waits, loop)

    def note(self, track: str, name: str, start_s: float, end_s: float | None = None, **facts: Any) -> None:
        """See `Receiver`."""
        if self._timeline is not None:
            self._timeline.add(track, name, start_s, time.monotonic() if end_s is None else end_s, facts)

    def _trained(self, samples: int) -> None:
        """Set the number of threads or processes after a batch of `samples` samples was trained."""
        threads = self._pace.batch(time.perf_counter(), samples, self.stages.totals())
        if threads != self.stages.threads and self._crew is not None:
            self._crew.set_limit(threads)
            self.stages.set_threads(threads)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader state after the last batch that the loop has received."""
        return self._source.state(max(0, self.handed_out - self._held))

    def figures(self) -> dict[str, Any]:
        """Return the padding of the batches that the loop has received, and of the epoch; empty if it is unknown."""
        return self._source.figures(max(0, self.handed_out - self._held))

    def close(self) -> None:
        """Stop the threads or processes, and wait until they have stopped."""
        self.stopped.set()
        with suppress(queue.Empty):
            while True:
                batch = self._ready.get_nowait()
                if batch is not None:
                    batch.cancel()
        # If the garbage collector closes an iteration whose thread is just ending, Python 3.11 and 3.12 have lost the
        # lock for which `join` waits: it would wait for ever.
        while self._thread.is_alive() and not self._produced.wait(_STEP_S):
            pass
        if self._thread.ident is not None:
            self._thread.join(_STEP_S)
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.end()
        if self._reporter is not None:
            self._reporter.close()

    def _take(self, start_s: float) -> PendingBatch | None:
        """Return the next batch, which may not be done; None if there is none. The loop waits since `start_s`."""
        self._waits.wait(start_s)
        while True:
            with suppress(queue.Empty):
                batch = self._ready.get(timeout=_STEP_S)
                if batch is not None:
                    self._waits.wait(start_s, batch.times)
                return batch
            if not self._thread.is_alive() and self._ready.empty():
                return None

    def put(self, batch: PendingBatch | None) -> bool:
        """Put a batch into the queue, or None at the end. Returns False if the iteration was stopped."""
        while not self.stopped.is_set():
            with suppress(queue.Full):
                self._ready.put(batch, timeout=_STEP_S)
                return True
        return False

    # -- the producer thread -----------------------------------------------------------------------------------------

    def _produce(self) -> None:
        try:
            if (crew := self._crew) is None:  # stopped
                return
            request = 1  # the first request is small, so that the first batch comes soon
            while True:
                ints, sizes = self._source.take(request)
                if not sizes or not crew.request(ints, sizes, self._requested):
                    break
                self._requested += len(ints)
                request = next_request(request, self._source.size, self._options.ahead)
            self.put(None)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop, where its batch is due
            failed = PendingBatch(0, BatchTimes(()))
            failed.set_exception(error)
            self.put(failed)
            self.put(None)
        finally:
            self._produced.set()
