"""`BrandLoader`: batches without worker processes.

    producer thread      tickets of some batches -> one request -> samples, copied once out of the shared pages
    pool of threads      slices of a batch: decode, transform; the last slice of a batch puts it together
    training loop        takes batches in order

Where nothing is decoded or transformed, one thread of the pool makes all batches of a request out of columns, while the
producer makes the next request: to unpack compressed samples takes no lock of the interpreter.

Pillow, libsndfile and zstandard let other threads run while they decode, so threads are enough, start at once, and hand
over a batch without pickling it. At most `ahead` batches are on their way. An error travels with its batch and is
raised where that batch is due; leaving the loop, by `break` or Ctrl-C, stops the threads.
"""

from __future__ import annotations

import atexit
import operator
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, Sampler, default_collate

from brand.errors import FormatError, UsageError
from brand.torch.assemble import assemble, pinned
from brand.torch.dataset import BrandDataset
from brand.torch.fetch import Fetched
from brand.torch.sampler import BrandSampler, Positions
from brand.torch.seeding import SampleSeeds, seed_of
from brand.torch.stages import Stages

AHEAD_BYTES: Final = 64 << 20
"""Stored bytes of the batches that are on their way, by default."""
MOST_AHEAD: Final = 64
REQUEST: Final = 4096
"""Small samples: as many in one request as make its cost small."""
SLICE: Final = 16
"""Samples that one thread decodes at a time."""
_STEP_S: Final = 0.1
"""How long a thread waits before it looks whether it should stop."""


class BrandLoader(DataLoader[Any]):
    """Iterates over batches of a `BrandDataset`, as a `DataLoader` does, with threads instead of worker processes.

    It is a `DataLoader` to frameworks (`isinstance`, its attributes), and has the state that they save. Its batches
    come from its own iteration only: a framework that would take them from its `batch_sampler` is refused.

    Images and audio that are not decoded (`decode=False`, no transform, no collate_fn) come as lists of uint8 tensors,
    as torchvision's decoders take them, in memory that is copied once; a `DataLoader` gives bytes.

    Transforms run in several threads at a time. Torch's random functions in them give the same numbers in every run:
    each sample has its own seed.

    Args:
        data_set: The data set; its `transform`, `fields` and `decode` apply.
        batch_size: Samples a batch.
        sampler: What to take, a `BrandSampler(data_set)` by default: every sample once an epoch, in random order.
        drop_last: Whether a last batch that is not full is left out.
        collate_fn: Makes a batch of a list of samples; PyTorch's `default_collate` by default.
        pin_memory: Whether batches lie in page-locked memory, for fast copies to a GPU.
        threads: Threads that decode; by default as many as this process may use.
        ahead: Batches that are on their way while one is trained; by default as many as 64 MB hold, 2 at least.
    """

    dataset: BrandDataset
    batch_size: int
    collate_fn: Callable[[list[Any]], Any]

    def __init__(
        self,
        data_set: BrandDataset,
        batch_size: int = 1,
        *,
        sampler: Sampler[int] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        threads: int | None = None,
        ahead: int | None = None,
    ) -> None:
        batch_size = _count("batch_size", batch_size)
        if isinstance(sampler, BatchSampler):
            raise UsageError(
                "sampler= is a BatchSampler: give batch_size= and the sampler inside it, sampler=BrandSampler(data_set)"
            )
        sampler = BrandSampler(data_set) if sampler is None else sampler
        # The pages are locked here, by the threads that make the batches, not by DataLoader's own iterator.
        super().__init__(data_set, batch_size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn)
        vars(self)["batch_sampler"] = OwnBatches(sampler, batch_size, drop_last)  # DataLoader refuses to set it
        self.pin_memory = pin_memory
        if isinstance(sampler, BrandSampler):
            sampler.pin_ranks()
            if sampler.locality:
                if sampler.batch_size not in (None, batch_size):
                    raise UsageError(f"batch_size={batch_size}, and the sampler splits {sampler.batch_size}")
                sampler.batch_size = batch_size
        self.threads = _processors() if threads is None else _count("threads", threads)
        enough = min(MOST_AHEAD, max(2, int(AHEAD_BYTES / (batch_size * data_set.mean_bytes))))
        self.ahead = enough if ahead is None else _count("ahead", ahead)
        self.iterations = 0
        """How many were begun."""
        self._begin_anew()
        _loaders.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("stages", "_epoch", "_pool")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_anew()
        _loaders.add(self)

    def _begin_anew(self) -> None:
        """Without threads: those of another process are not here."""
        self.stages = Stages(self.threads)
        """Where the time goes."""
        self._epoch: _Epoch | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Batches of a whole epoch for this rank."""
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._epoch is not None:
            self._epoch.close()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "brand-decode")
        self.iterations += 1
        self._epoch = epoch = _Epoch(self, iter(self.sampler), self._pool)
        batches = epoch.batches()
        _iterations.add(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Pass on to the sampler."""
        self.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Where a run goes on: behind the last batch that was handed out; after the last one, in the next epoch."""
        sampler, epoch = self._brand_sampler(), self._epoch
        positions = None if epoch is None else epoch.positions
        if epoch is None or positions is None or not positions.begun:
            return sampler.state_dict()
        ended = epoch.handed_out > positions.count - (self.batch_size if self.drop_last else 1)
        if sampler.replaces(positions, ended=ended):
            return sampler.state_dict()
        return positions.state_after(positions.most if ended else epoch.handed_out)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says, with the next iteration."""
        self._brand_sampler().load_state_dict(state)
        self._epoch = None

    def stats(self) -> dict[str, Any]:
        """Seconds by stage and the slowest stage, and the node server's counters."""
        return {**self.stages.to_json(), "server": self.dataset.stats()}

    def _brand_sampler(self) -> BrandSampler:
        if not isinstance(self.sampler, BrandSampler):
            raise UsageError(f"a {type(self.sampler).__name__} has no state; a BrandSampler does")
        return self.sampler


class OwnBatches(BatchSampler):
    """What frameworks find as the `batch_sampler` of a `BrandLoader`: they may look at it, and not take from it."""

    def __iter__(self) -> Iterator[list[int]]:
        raise UsageError(
            "something takes the batches of a BrandLoader from its batch_sampler, to make another loader of it, and "
            "would lose its threads, its state or some of its samples. Accelerate: use "
            "brand.frameworks.accelerate.prepare(accelerator, loader) in place of accelerator.prepare(loader) and of "
            "skip_first_batches (docs/frameworks.md)"
        )


class _Batch(Future[Any]):
    """A batch to be: its slices, and how many of them are not done."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.slices: list[list[Any]] = [[] for _ in range(0, samples, SLICE)]
        self.missing = len(self.slices)
        self.lock = threading.Lock()


class _Epoch:
    """One iteration: its producer thread, and the batches on their way."""

    def __init__(self, loader: BrandLoader, indices: Iterator[int], pool: ThreadPoolExecutor) -> None:
        self._loader, self._data, self._indices, self._pool = loader, loader.dataset, indices, pool
        self._stages, self._size = loader.stages, loader.batch_size
        self._whole = loader.collate_fn is default_collate and self._data.plain
        """Whether a batch is made of columns, without going through samples."""
        self.positions = indices if isinstance(indices, Positions) else None
        self._run = (torch.initial_seed(), loader.iterations)
        """Seed and epoch."""
        self._ready: queue.Queue[_Batch | None] = queue.Queue(loader.ahead)
        self._local = threading.local()
        self._stop = threading.Event()
        self.handed_out = 0
        self._requested = 0
        self._thread = threading.Thread(target=self._produce, name="brand-draw", daemon=True)

    def batches(self) -> Generator[Any, None, None]:
        """The batches, in order. Nothing is started before the first is asked for.

        Which epoch it is is settled then, as frameworks call `set_epoch` between `iter` and the first batch.
        """
        try:
            if self.positions is not None:
                self.positions.begin()
                self._run = (self._loader.sampler.seed, self.positions.epoch)  # type: ignore[attr-defined]
            self._thread.start()
            while True:
                if self.positions is not None:
                    self._loader.sampler.go_on(self.positions)  # type: ignore[attr-defined]
                if self._stop.is_set():
                    raise RuntimeError("another iteration of this loader has begun; make a BrandLoader for each")
                with self._stages.measure("loop_waits"):
                    batch = self._take()
                    value = None if batch is None else batch.result()
                if batch is None:
                    return
                self.handed_out += batch.samples
                with self._stages.measure("training"):
                    yield value
                del value, batch
        finally:
            self.close()

    def close(self) -> None:
        """Stop the threads; returns when they have."""
        self._stop.set()
        with suppress(queue.Empty):
            while True:
                batch = self._ready.get_nowait()
                if batch is not None:
                    batch.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _take(self) -> _Batch | None:
        while True:
            with suppress(queue.Empty):
                return self._ready.get(timeout=_STEP_S)
            if not self._thread.is_alive() and self._ready.empty():
                return None

    def _put(self, batch: _Batch | None) -> bool:
        """Hand a batch over; False where nobody wants it any more."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._ready.put(batch, timeout=_STEP_S)
                return True
        return False

    # -- the producer thread -----------------------------------------------------------------------------------------

    def _produce(self) -> None:
        try:
            request = self._size  # the first is small, so that the first batch comes soon
            while len(indices := self._take_indices(request)):
                if self._loader.drop_last and len(indices) % self._size:
                    indices = indices[: len(indices) // self._size * self._size]
                if not len(indices) or not self._request(indices):
                    break
                request = self._next_request(request)
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop, where its batch is due
            failed = _Batch(0)
            failed.set_exception(error)
            self._put(failed)
            self._put(None)

    def _take_indices(self, count: int) -> Sequence[int] | NDArray[np.int64]:
        return list(islice(self._indices, count)) if self.positions is None else self.positions.take(count)

    def _next_request(self, last: int) -> int:
        """Samples of the next request: batches, more of them where samples are small, up to half of what is ahead."""
        most = max(1, min(REQUEST // self._size, self._loader.ahead // 2))
        return min(2 * last // self._size, most) * self._size

    def _request(self, indices: Sequence[int] | NDArray[np.int64]) -> bool:
        """Fetch samples of some batches and set the pool to work; False where nobody wants them."""
        start_s = time.perf_counter()
        try:
            fetched = self._data.fetch(indices)
            self._stages.add("storage", fetched.waited_s)
            self._stages.add("gather", time.perf_counter() - start_s - fetched.waited_s)
        except FormatError:
            if len(indices) <= self._size:
                raise
            parts = range(0, len(indices), self._size)  # what is damaged is a matter of its own batch
            return all(self._request(indices[first : first + self._size]) for first in parts)
        before = self._requested
        self._requested += len(indices)
        spans = [(first, min(first + self._size, len(indices))) for first in range(0, len(indices), self._size)]
        batches = [_Batch(end - first) for first, end in spans]
        if self._whole:
            self._pool.submit(self._make_whole, batches, fetched, spans)
        for batch, (first, end) in zip(batches, spans, strict=True):
            with self._stages.measure("full"):
                if not self._put(batch):
                    return False
            if not self._whole:
                for number, low in enumerate(range(first, end, SLICE)):
                    span = slice(low, min(low + SLICE, end))
                    self._pool.submit(self._make_slice, batch, number, fetched, span, before + low)
        return True

    # -- the pool ----------------------------------------------------------------------------------------------------

    def _make_whole(self, batches: Sequence[_Batch], fetched: Fetched, spans: Sequence[tuple[int, int]]) -> None:
        """Batches of columns; where a sample does not decode, that is a matter of its own batch."""
        if self._stop.is_set():
            return
        try:
            with self._stages.measure("decode"):
                first, last = spans[0][0], spans[-1][1]
                columns = fetched.columns(first, last, views=True)
            for batch, (low, high) in zip(batches, spans, strict=True):
                make = partial(assemble, columns, self._data.fields, self._data.files, low - first, high - first)
                self._finish(batch, make)
        except FormatError as error:
            if len(batches) == 1:
                _fail(batches[0], error)
            else:
                for batch, span in zip(batches, spans, strict=True):
                    self._make_whole([batch], fetched, [span])
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            for batch in batches:
                _fail(batch, error)

    def _make_slice(self, batch: _Batch, number: int, fetched: Fetched, span: slice, turn: int) -> None:
        if self._stop.is_set() or batch.done():
            return
        try:
            with self._stages.measure("decode"):
                batch.slices[number] = self._transformed(fetched.samples(span.start, span.stop), turn)
            with batch.lock:
                batch.missing -= 1
                last = not batch.missing
            if last:
                samples = [sample for part in batch.slices for sample in part]
                batch.slices.clear()
                self._finish(batch, lambda: self._loader.collate_fn(samples))
        except BaseException as error:  # noqa: BLE001 - belongs to the training loop
            _fail(batch, error)

    def _transformed(self, samples: Sequence[dict[str, Any]], turn: int) -> list[Any]:
        """Samples through the data set's transform, each with its own random numbers; `turn` is that of the first."""
        if self._data.transform is None:
            return self._data.finish(list(samples))
        seeds = getattr(self._local, "seeds", None)
        if seeds is None:
            seeds = self._local.seeds = SampleSeeds()
        result = []
        with seeds:
            for number, sample in enumerate(samples):
                index = sample["index"]
                # A BrandSampler gives a sample once an epoch, at a turn that depends on the ranks; others may repeat.
                nth = turn + number if self.positions is None else 0
                seeds.generator.manual_seed(seed_of(*self._run, index, nth))
                try:
                    result += self._data.finish([sample])
                except Exception as error:
                    error.add_note(f"in the transform of sample {index} of {self._data.path}")
                    raise
        return result

    def _finish(self, batch: _Batch, make: Callable[[], Any]) -> None:
        with self._stages.measure("collate"):
            value = make()
            if self._loader.pin_memory and torch.cuda.is_available():
                value = pinned(value)
        with suppress(Exception):  # cancelled: nobody wants it
            batch.set_result(value)


_loaders: weakref.WeakSet[BrandLoader] = weakref.WeakSet()
_iterations: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def _begin_anew_in_child() -> None:
    """A forked child has none of its parent's threads, and perhaps locks that they hold."""
    _iterations.clear()
    for loader in list(_loaders):
        loader._begin_anew()


@atexit.register
def _end_iterations() -> None:
    """An iteration that a script leaves half used ends while the modules that its end needs are still there."""
    for batches in list(_iterations):
        with suppress(ValueError):  # another thread is in it
            batches.close()


os.register_at_fork(after_in_child=_begin_anew_in_child)


def _fail(batch: _Batch, error: BaseException) -> None:
    with suppress(Exception):  # another slice failed before
        batch.set_exception(error)


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(name: str, value: int) -> int:
    """A whole number, at least 1. Raises `UsageError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise UsageError(f"{name}={value!r}: give a whole number, at least 1")
    return operator.index(value)
