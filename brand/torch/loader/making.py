"""How do ints become batches? One request fetches the samples of some batches, and tasks decode and collate them.

    BatchMaker   ints of some batches -> one request -> a task for each slice of a batch; the last one collates it
    BatchCrew    the threads or the processes that make the batches of an iteration, each with a `BatchMaker`
    Receiver     takes the batches, in order, before they are made

If nothing is decoded or transformed, a task makes the batches of a request out of columns. It does so, too, if there
is no transform and the server has decoded all images and audio of a batch in one shape. If there is no transform and
all images are decoded to one shape, each is decoded into its row of the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.orders.base.tickets import MAX_POSITIONS, TICKET
from brand.reprs import Reprs
from brand.torch.data.drawable import SampleSource
from brand.torch.fetch.fetched import Columns, FetchedSamples, joined_columns
from brand.torch.fetch.seeds import seed_of, seed_of_batch
from brand.torch.loader.batches import BatchForm, Ints, assemble
from brand.torch.loader.copies import ThreadCopy, copy_for_thread
from brand.torch.loader.threads import Gate
from brand.torch.loader.timing import BatchTimes, Stages
from brand.torch.pytorch import torch
from brand.torch.sampler.packed import PackedRows

if torch is not None:
    from brand.torch.loader.seeding import SampleSeeds

SLICE: Final = 16
"""Samples that one thread decodes at a time."""


class PendingBatch(Reprs, Future[Any], shows="samples"):
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

    def __init__(self, data: SampleSource, collate_fn: Callable[[list[Any]], Any] | None, *, alone: bool) -> None:
        self._seeds = None if torch is None else SampleSeeds()
        self.transform = copy_for_thread(data.transform, "transform", alone=alone)
        self.collate = copy_for_thread(collate_fn, "collate_fn", alone=alone)

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
class Recipe:
    """The facts that decide the values of an iteration's batches. Can be pickled if the user's functions can."""

    data: SampleSource
    form: BatchForm
    collate_fn: Callable[[list[Any]], Any] | None
    """The user's function; None: that of the form."""
    run: tuple[int, int]
    """Seed and epoch of random transforms."""
    by_index: bool
    """Whether samples are read by index, not in the order of a `BrandSampler`."""


class Receiver(Protocol):
    """Takes the batches of an iteration, and the measurements of making them."""

    stages: Stages
    stopped: threading.Event
    """Set if no batch is needed any more."""

    def put(self, batch: PendingBatch) -> bool:
        """Take a batch that is not made yet. Returns False if the iteration was stopped."""

    def note(self, track: str, name: str, start_s: float, end_s: float | None = None, **facts: Any) -> None:
        """Add an event to the trace, if there is a trace. Without `end_s`, the event ends now."""


class BatchCrew(Protocol):
    """Makes the batches of one iteration, in threads or in processes."""

    def request(self, indices: Ints, sizes: Sequence[int], first: int) -> bool:
        """Begin to make batches of these sizes. Returns False if the iteration was stopped.

        `first`: the number of ints of the iteration before these.
        """

    def set_limit(self, limit: int) -> None:
        """Work in at most this many threads or processes."""

    def end(self) -> None:
        """Stop working for this iteration."""


class BatchMaker(Reprs, shows="_data _run"):
    """Makes the batches of one iteration. `submit` runs a task, now or later, in any thread.

    `alone`: whether it works in one thread, in a process of its own.
    """

    def __init__(
        self, recipe: Recipe, submit: Callable[[Callable[[], None]], None], receiver: Receiver, *, alone: bool = False
    ) -> None:
        self._data, self._form, self._run, self._by_index = recipe.data, recipe.form, recipe.run, recipe.by_index
        self._collate_fn, self._submit, self._receiver = recipe.collate_fn, submit, receiver
        by_column = recipe.collate_fn is None or isinstance(recipe.collate_fn, PackedRows)
        self._whole = recipe.data.plain and by_column
        """Whether batches are made of columns, without single samples."""
        self._gathers = recipe.collate_fn is None and recipe.data.transform is None
        """Whether a batch is made of columns if the server has decoded all of it."""
        self._forms = recipe.data.forms if self._gathers else {}
        """Shape and dtype of the fields that are decoded into rows of a batch; empty if none is."""
        self._local = _OfThread(recipe.data, recipe.collate_fn, alone=alone)

    def request(self, indices: Ints, sizes: Sequence[int], first: int) -> bool:
        """Fetch batches of these sizes, and submit tasks that make them; see `BatchCrew`."""
        start_s, spans = time.monotonic(), list(pairwise(accumulate(sizes, initial=0)))
        try:
            fetched = self._data.fetch(indices, self._part_seeds(indices, first))
            self._receiver.stages.add("storage", fetched.waited_s)
            self._receiver.stages.add("gather", time.monotonic() - start_s - fetched.waited_s)
            self._receiver.note("draws", "draw", start_s, samples=len(indices))
            for waited in fetched.spans:
                self._receiver.note("draws", waited.cause, waited.start_s, waited.end_s)
        except FormatError:
            if len(sizes) == 1:
                raise
            # A damaged sample fails only its own batch.
            return all(self.request(indices[low:high], [high - low], first + low) for low, high in spans)
        batches = [PendingBatch(high - low, BatchTimes(fetched.spans)) for low, high in spans]
        if self._whole:
            self._submit(partial(self._make_whole, batches, fetched, spans))
        for batch, (low, high) in zip(batches, spans, strict=True):
            with self._receiver.stages.measure("full"):
                if not self._receiver.put(batch):
                    return False
            if self._gathers and fetched.gathers(low, high):
                self._submit(partial(self._make_gathered, batch, fetched, low, high))
                continue
            for name, (shape, dtype) in self._forms.items():
                batch.ready[name], batch.rows[name] = self._form.empty(((high - low, *shape), dtype))
            for number, begin in enumerate(() if self._whole else range(low, high, SLICE)):
                span = slice(begin, min(begin + SLICE, high))
                if self._forms:
                    self._submit(partial(self._make_rows, batch, number, fetched, span, slice(low, high)))
                else:
                    self._submit(partial(self._make_slice, batch, number, fetched, span, first + begin))
        return True

    def _part_seeds(self, indices: Ints, first: int) -> list[int] | None:
        """Return the seeds of random parts of samples by index, as those of a transform; None if they are drawn."""
        if not self._data.random_parts or not len(indices) or int(indices[0]) >= TICKET:
            return None
        uses = range(first, MAX_POSITIONS) if self._by_index else [0] * len(indices)
        return [seed_of(*self._run, int(index) % len(self._data), use) for index, use in zip(indices, uses)]  # noqa: B905

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _make_whole(
        self, batches: Sequence[PendingBatch], fetched: FetchedSamples, spans: Sequence[tuple[int, int]]
    ) -> None:
        """Make batches of columns. If a sample does not decode, only its own batch fails."""
        if self._receiver.stopped.is_set():
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
        form, rows = self._form, self._collate_fn
        if isinstance(rows, PackedRows):
            return {name: form.array(values) for name, values in rows.of_columns(columns, first, end).items()}
        return assemble(form, columns, self._data.fields, self._data.files, first, end)

    def _make_gathered(self, batch: PendingBatch, fetched: FetchedSamples, first: int, end: int) -> None:
        """Make a batch of columns that the server has decoded."""
        if self._receiver.stopped.is_set() or batch.done():
            return
        try:
            with self._receiver.stages.measure("decode"):
                try:
                    columns = fetched.gathered(first, end)
                    make = partial(assemble, self._form, columns, self._data.fields, (), 0, end - first)
                except FormatError:
                    make = partial(self._form.collate, self._data.finish(fetched.samples(first, end), None))
            self._receiver.stages.count(end - first)
            self._finish(batch, make)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    def _make_slice(self, batch: PendingBatch, number: int, fetched: FetchedSamples, span: slice, first: int) -> None:
        if self._receiver.stopped.is_set() or batch.done():
            return
        size = span.stop - span.start
        try:
            with self._decoding(size):
                # A BrandSampler's draws know which use of a sample in the epoch each is, whatever the ranks. Other
                # samplers may give a sample several times.
                uses = range(first, first + size) if self._by_index else fetched.uses(span.start, span.stop)
                found = fetched.samples(span.start, span.stop)
                first_of_slice = found[0]["index"], uses[0]
                samples = self._transformed(found, uses)
            if (whole := batch.put(number, samples, first_of_slice)) is not None:
                self._finish(batch, partial(self._collated, batch.first, whole))
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    def _make_rows(self, batch: PendingBatch, number: int, fetched: FetchedSamples, span: slice, whole: slice) -> None:
        """Decode a slice of a batch into rows of the batch; `whole`: the samples of the batch."""
        if self._receiver.stopped.is_set() or batch.done():
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
                make = partial(self._form.collate, samples)
            else:
                form, names, ready = self._form, self._data.fields, batch.ready
                make = partial(assemble, form, joined_columns(slices), names, (), 0, batch.samples, ready)
            self._finish(batch, make)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            batch.fail(error)

    @contextmanager
    def _decoding(self, samples: int) -> Iterator[None]:
        """Measure the time in which this thread decodes samples, and count them if that succeeds."""
        start_s = time.monotonic()
        with self._receiver.stages.measure("decode"):
            yield
        self._receiver.note(threading.current_thread().name, "decode", start_s, samples=samples)
        self._receiver.stages.count(samples)

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
        collate, form = self._local.collate, self._form
        if collate.value is None:
            return form.collate(samples)
        if isinstance(collate.value, PackedRows):
            return {name: form.array(values) for name, values in collate.value.arrays(samples).items()}
        with self._local.seeded() as seed:
            seed(collate, seed_of_batch(*self._run, *first))
            return collate.value(samples)

    def _finish(self, batch: PendingBatch, make: Callable[[], Any]) -> None:
        start_s = batch.times.begin_collate()
        with self._receiver.stages.measure("collate"):
            value = self._form.locked(make())
        batch.times.end()
        self._receiver.note(threading.current_thread().name, "collate", start_s, samples=batch.samples)
        with suppress(Exception):  # cancelled: the iteration has been stopped
            batch.set_result(value)


class ThreadCrew(BatchMaker):
    """Makes the batches of an iteration in the threads of a loader."""

    def __init__(self, gate: Gate, recipe: Recipe, receiver: Receiver) -> None:
        super().__init__(recipe, gate.submit, receiver)
        self._gate = gate

    def set_limit(self, limit: int) -> None:
        """See `BatchCrew`."""
        self._gate.set_limit(limit)

    def end(self) -> None:
        """Do nothing: tasks end by themselves, and the threads belong to the loader."""
