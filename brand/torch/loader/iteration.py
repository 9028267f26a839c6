"""One iteration of a loader: which thread does which work, and in which order are batches delivered?

    producer thread      ints of some batches (`batches`) -> one request -> samples, copied once out of the shared pages
    pool of threads      slices of a batch: decode, transform; the last slice of a batch collates the batch
    training loop        takes batches in order; sets how many threads of the pool work at a time (`threads`)

If nothing is decoded or transformed, the pool makes the batches of a request out of columns. It does so, too, if there
is no transform and the server has decoded all images and audio of a batch in one shape. If there is no transform and
all images are decoded to one shape, each is decoded into its row of the batch.

At most `ahead` batches are prefetched. An error is raised when the training loop reaches its batch. If the training
leaves the loop, by `break` or Ctrl-C, the threads stop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError, NoThreadError
from brand.node.wire.looping import LOOP
from brand.orders.base.tickets import MAX_POSITIONS, TICKET
from brand.reprs import Reprs
from brand.starting import not_started
from brand.timeline import Timeline
from brand.torch.data.drawable import SampleSource
from brand.torch.fetch.fetched import Columns, FetchedSamples, joined_columns
from brand.torch.fetch.seeds import seed_of, seed_of_batch, seed_of_job
from brand.torch.job.ranks import find_rank
from brand.torch.loader.batches import BatchForm, Ints, SamplerBatches, assemble
from brand.torch.loader.collected import close_safely
from brand.torch.loader.copies import ThreadCopy, copy_for_thread
from brand.torch.loader.threads import Gate, PaceWindows
from brand.torch.loader.timing import BatchTimes, LoopIdentity, Reporter, Stages, StepWaits
from brand.torch.pytorch import torch
from brand.torch.sampler.packed import PackedRows

if torch is not None:
    from brand.torch.loader.seeding import SampleSeeds

REQUEST: Final = 4096
"""Samples of one request: if samples are small, this number makes the cost of a request small for each of them."""
LARGE_REQUEST: Final = 16384
"""Largest number of samples of one request, if they are few of those prefetched: threads wait less for others."""
SLICE: Final = 16
"""Samples that one thread decodes at a time."""
_STEP_S: Final = 0.1
"""Seconds for which a thread waits before it checks whether it should stop."""


class _PendingBatch(Future[Any]):
    """A batch of `samples` samples that is being prefetched, and its times."""

    def __init__(self, samples: int, times: BatchTimes) -> None:
        super().__init__()
        self.samples, self.times = samples, times
        self.ready: dict[str, Any] = {}
        """The values of the fields that are decoded into rows of the batch,"""
        self.rows: dict[str, NDArray[Any]] = {}
        """and their rows, as arrays."""
        self._slices: list[list[Any]] = [[] for _ in range(0, samples, SLICE)]
        self.first = (0, 0)
        """Index and use of the first sample; set when the first slice is there."""
        self._missing = len(self._slices)
        """Number of slices that are not done."""
        self._lock = threading.Lock()

    def put(self, number: int, samples: list[Any], first: tuple[int, int]) -> list[Any] | None:
        """Store a slice, whose first sample has this index and use. Returns all samples if no slice is missing.

        A slice whose images are rows of the batch has one element: its columns, or None if it cannot be decoded.
        """
        self._slices[number] = samples
        if number == 0:
            self.first = first
        with self._lock:
            self._missing -= 1
            if self._missing:
                return None
        slices, self._slices = self._slices, []
        return [sample for part in slices for sample in part]

    def fail(self, error: BaseException) -> None:
        """Have the training loop raise this error when it reaches the batch."""
        with suppress(Exception):  # another slice failed before
            self.set_exception(error)


class _OfThread(threading.local):
    """The functions of the user for each thread that decodes, and their random numbers."""

    def __init__(self, data: SampleSource, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._seeds = None if torch is None else SampleSeeds()
        self.transform = copy_for_thread(data.transform, "transform")
        self.collate = copy_for_thread(collate_fn, "collate_fn")

    @contextmanager
    def seeded(self) -> Iterator[Callable[[ThreadCopy, int], None]]:
        """Within it, torch's random functions use the seed of the last call of the function that it yields."""

        def seed(function: ThreadCopy, number: int) -> None:
            if self._seeds is not None:
                self._seeds.seed(number)
            function.seed(number)

        with self._seeds or nullcontext():
            yield seed


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of a loader that hold for one iteration."""

    form: BatchForm
    collate_fn: Callable[[list[Any]], Any] | None
    """The user's function; None: that of the form."""
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
    """One iteration: its producer thread, and the batches that are prefetched."""

    def __init__(
        self, data: SampleSource, batches: SamplerBatches, gate: Gate, options: LoaderOptions, instruments: Instruments
    ) -> None:
        self._data, self._source, self._gate, self._options = data, batches, gate, options
        self._stages, self._pace, self._waits = instruments.stages, instruments.pace, instruments.waits
        by_column = options.collate_fn is None or isinstance(options.collate_fn, PackedRows)
        self._whole = data.plain and by_column
        """Whether batches are made of columns, without single samples."""
        self._gathers = options.collate_fn is None and data.transform is None
        """Whether a batch is made of columns if the server has decoded all of it."""
        self._forms = data.forms if self._gathers else {}
        """Shape and dtype of the fields that are decoded into rows of a batch; empty if none is."""
        self._run = (options.form.initial_seed(), options.iteration)
        """Seed and epoch."""
        self._ready: queue.Queue[_PendingBatch | None] = queue.Queue(options.ahead)
        self._local = _OfThread(data, options.collate_fn)
        self._stop = threading.Event()
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
            if self._source.epoch is not None:
                self._run = (seed_of_job(self._source.seed, self._data.job), self._source.epoch)
            self._thread.start()
            self._begin()
            trained_s = 0.0
            while True:
                self._source.go_on()
                if self._stop.is_set():
                    raise RuntimeError("another iteration of this loader has begun; make a loader for each")
                start_s = time.monotonic()
                with self._options.form.waiting():
                    batch = self._take(start_s)
                    value = None if batch is None else batch.result()
                end_s = time.monotonic()
                self._stages.add("loop_waits", end_s - start_s)
                if batch is None:
                    self._held = 0
                    return
                waiting = self._waits.taken(batch.times, start_s, end_s, trained_s, batch.samples)
                waited = "wait" if waiting.cause == LOOP else f"wait for {waiting.cause}"
                self._note("loop", waited, start_s, end_s, step=waiting.step)
                self.handed_out += 1
                start_s = time.monotonic()  # a monitor's time is neither waiting nor training
                yield value
                trained_s = time.monotonic() - start_s
                self._stages.add("training", trained_s)
                self._note("loop", "train", start_s, start_s + trained_s, step=waiting.step)
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

    def _note(self, track: str, name: str, start_s: float, end_s: float | None = None, **facts: Any) -> None:
        """Add an event to the trace, if there is a trace. Without `end_s`, the event ends now."""
        if self._timeline is not None:
            self._timeline.add(track, name, start_s, time.monotonic() if end_s is None else end_s, facts)

    def _trained(self, samples: int) -> None:
        """Set the number of threads after a batch of `samples` samples was trained."""
        threads = self._pace.batch(time.perf_counter(), samples, self._stages.totals())
        if threads != self._gate.limit:
            self._gate.set_limit(threads)
            self._stages.set_threads(threads)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader state after the last batch that the loop has received."""
        return self._source.state(max(0, self.handed_out - self._held))

    def figures(self) -> dict[str, Any]:
        """Return the padding of the batches that the loop has received, and of the epoch; empty if it is unknown."""
        return self._source.figures(max(0, self.handed_out - self._held))

    def close(self) -> None:
        """Stop the threads, and wait until they have stopped."""
        self._stop.set()
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
        if self._reporter is not None:
            self._reporter.close()

    def _take(self, start_s: float) -> _PendingBatch | None:
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

    def _put(self, batch: _PendingBatch | None) -> bool:
        """Put a batch into the queue. Returns False if the iteration was stopped."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._ready.put(batch, timeout=_STEP_S)
                return True
        return False

    # -- the producer thread -----------------------------------------------------------------------------------------

    def _produce(self) -> None:
        try:
            request = 1  # the first request is small, so that the first batch comes soon
            while (taken := self._source.take(request))[1]:
                if not self._request(*taken):
                    break
                request = self._next_request(request)
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop, where its batch is due
            failed = _PendingBatch(0, BatchTimes(()))
            failed.set_exception(error)
            self._put(failed)
            self._put(None)
        finally:
            self._produced.set()

    def _next_request(self, last: int) -> int:
        """Return the batches of the next request: twice the last, up to `REQUEST` samples, or half of those ahead.

        Up to `LARGE_REQUEST` samples are allowed if they are at most an eighth of the batches ahead, because a request
        is copied several times.
        """
        ahead, size = self._options.ahead, self._source.size
        most = max(1, min(REQUEST // size, ahead // 2), min(LARGE_REQUEST // size, ahead // 8))
        return min(2 * last, most)

    def _request(self, indices: Ints, sizes: Sequence[int]) -> bool:
        """Fetch batches of these sizes and submit them to the pool. Returns False if the iteration was stopped."""
        start_s, spans = time.monotonic(), list(pairwise(accumulate(sizes, initial=0)))
        try:
            fetched = self._data.fetch(indices, self._crop_seeds(indices))
            self._stages.add("storage", fetched.waited_s)
            self._stages.add("gather", time.monotonic() - start_s - fetched.waited_s)
            self._note("draws", "draw", start_s, samples=len(indices))
            for waited in fetched.spans:
                self._note("draws", waited.cause, waited.start_s, waited.end_s)
        except FormatError:
            if len(sizes) == 1:
                raise
            # A damaged sample fails only its own batch.
            return all(self._request(indices[first:end], [end - first]) for first, end in spans)
        before = self._requested
        self._requested += len(indices)
        batches = [_PendingBatch(end - first, BatchTimes(fetched.spans)) for first, end in spans]
        if self._whole:
            self._gate.submit(partial(self._make_whole, batches, fetched, spans))
        for batch, (first, end) in zip(batches, spans, strict=True):
            with self._stages.measure("full"):
                if not self._put(batch):
                    return False
            if self._gathers and fetched.gathers(first, end):
                self._gate.submit(partial(self._make_gathered, batch, fetched, first, end))
            elif self._forms:
                for name, (shape, dtype) in self._forms.items():
                    batch.ready[name], batch.rows[name] = self._options.form.empty(((end - first, *shape), dtype))
                for number, low in enumerate(range(first, end, SLICE)):
                    span = slice(low, min(low + SLICE, end))
                    self._gate.submit(partial(self._make_rows, batch, number, fetched, span, slice(first, end)))
            elif not self._whole:
                for number, low in enumerate(range(first, end, SLICE)):
                    span = slice(low, min(low + SLICE, end))
                    self._gate.submit(partial(self._make_slice, batch, number, fetched, span, before + low))
        return True

    def _crop_seeds(self, indices: Ints) -> list[int] | None:
        """Return the seeds of random crops of samples by index, as those of a transform; None if they are drawn."""
        if not self._data.random_crops or not len(indices) or int(indices[0]) >= TICKET:
            return None
        uses = [0] * len(indices) if self._source.epoch is not None else range(self._requested, MAX_POSITIONS)
        return [seed_of(*self._run, int(index) % len(self._data), use) for index, use in zip(indices, uses)]  # noqa: B905

    # -- the pool ----------------------------------------------------------------------------------------------------

    def _make_whole(
        self, batches: Sequence[_PendingBatch], fetched: FetchedSamples, spans: Sequence[tuple[int, int]]
    ) -> None:
        """Make batches of columns. If a sample does not decode, only its own batch fails."""
        if self._stop.is_set():
            return
        try:
            first, last = spans[0][0], spans[-1][1]
            with self._decoding(last - first):
                columns = fetched.columns(first, last, views=True)
            for batch, (low, high) in zip(batches, spans, strict=True):
                self._finish(batch, partial(self._of_columns, columns, low - first, high - first))
        except FormatError as error:
            if len(batches) == 1:
                batches[0].fail(error)
            else:
                for batch, span in zip(batches, spans, strict=True):
                    self._make_whole([batch], fetched, [span])
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            for batch in batches:
                batch.fail(error)

    def _of_columns(self, columns: Columns, first: int, end: int) -> Any:
        """Return the batch of the samples `first` to `end` - 1 of columns."""
        form, rows = self._options.form, self._options.collate_fn
        if isinstance(rows, PackedRows):
            return {name: form.array(values) for name, values in rows.of_columns(columns, first, end).items()}
        return assemble(form, columns, self._data.fields, self._data.files, first, end)

    def _make_gathered(self, batch: _PendingBatch, fetched: FetchedSamples, first: int, end: int) -> None:
        """Make a batch of columns that the server has decoded."""
        if self._stop.is_set() or batch.done():
            return
        try:
            with self._stages.measure("decode"):
                try:
                    columns = fetched.gathered(first, end)
                    make = partial(assemble, self._options.form, columns, self._data.fields, (), 0, end - first)
                except FormatError:
                    make = partial(self._options.form.collate, self._data.finish(fetched.samples(first, end), None))
            self._stages.count(end - first)
            self._finish(batch, make)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    def _make_slice(self, batch: _PendingBatch, number: int, fetched: FetchedSamples, span: slice, first: int) -> None:
        if self._stop.is_set() or batch.done():
            return
        size = span.stop - span.start
        try:
            with self._decoding(size):
                # A BrandSampler's draws know which use of a sample in the epoch each is, whatever the ranks. Other
                # samplers may give a sample several times.
                by_index = self._source.epoch is None
                uses = range(first, first + size) if by_index else fetched.uses(span.start, span.stop)
                found = fetched.samples(span.start, span.stop)
                first_of_slice = found[0]["index"], uses[0]
                samples = self._transformed(found, uses)
            if (whole := batch.put(number, samples, first_of_slice)) is not None:
                self._finish(batch, partial(self._collated, batch.first, whole))
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    def _make_rows(self, batch: _PendingBatch, number: int, fetched: FetchedSamples, span: slice, whole: slice) -> None:
        """Decode a slice of a batch into rows of the batch; `whole`: the samples of the batch."""
        if self._stop.is_set() or batch.done():
            return
        try:
            with self._decoding(span.stop - span.start):
                at = np.arange(span.start - whole.start, span.stop - whole.start)
                try:
                    columns = fetched.decode_into(batch.rows, span.start, span.stop, at)
                except FormatError:
                    columns = None
            if (slices := batch.put(number, [columns], (0, 0))) is None:
                return
            if None in slices:  # a sample is damaged: the samples of the batch say which, or another replaces it
                samples = self._data.finish(fetched.samples(whole.start, whole.stop), None)
                make = partial(self._options.form.collate, samples)
            else:
                form, names, ready = self._options.form, self._data.fields, batch.ready
                make = partial(assemble, form, joined_columns(slices), names, (), 0, batch.samples, ready)
            self._finish(batch, make)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    @contextmanager
    def _decoding(self, samples: int) -> Iterator[None]:
        """Measure the time in which this thread decodes samples, and count them if that succeeds."""
        start_s = time.monotonic()
        with self._stages.measure("decode"):
            yield
        self._note(threading.current_thread().name, "decode", start_s, samples=samples)
        self._stages.count(samples)

    def _transformed(self, samples: Sequence[dict[str, Any]], uses: Sequence[int]) -> list[Any]:
        """Return samples after the transform, each with its own random numbers; `uses` distinguish uses of an index."""
        if self._data.transform is None:
            return self._data.finish(list(samples), None)
        transform, result = self._local.transform, []
        with self._local.seeded() as seed:
            for use, sample in zip(uses, samples, strict=True):
                index = sample["index"]
                seed(transform, seed_of(*self._run, index, use))
                try:
                    result += self._data.finish([sample], transform.value)
                except Exception as error:
                    error.add_note(f"in the transform of sample {index} of {self._data.name}")
                    raise
        return result

    def _collated(self, first: tuple[int, int], samples: list[Any]) -> Any:
        """Return the batch of these samples. Its random numbers depend on its first sample."""
        collate, form = self._local.collate, self._options.form
        if collate.value is None:
            return form.collate(samples)
        if isinstance(collate.value, PackedRows):
            return {name: form.array(values) for name, values in collate.value.arrays(samples).items()}
        with self._local.seeded() as seed:
            seed(collate, seed_of_batch(*self._run, *first))
            return collate.value(samples)

    def _finish(self, batch: _PendingBatch, make: Callable[[], Any]) -> None:
        start_s = batch.times.begin_collate()
        with self._stages.measure("collate"):
            value = self._options.form.locked(make())
        batch.times.end()
        self._note(threading.current_thread().name, "collate", start_s, samples=batch.samples)
        with suppress(Exception):  # cancelled: the iteration has been stopped
            batch.set_result(value)
