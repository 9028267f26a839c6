"""How does a `BrandLoader` make batches without worker processes? With threads (`iteration`).

Pillow, libsndfile and zstandard release the interpreter lock while they decode, so threads are enough. Threads start at
once, and deliver a batch without pickling it.
"""

from __future__ import annotations

import atexit
import operator
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, cast

from torch.utils.data import BatchSampler, DataLoader, Sampler

from brand.errors import UsageError, counted
from brand.forks import after_in_child
from brand.timeline import Timeline
from brand.torch.data.drawable import Drawable, SampleSource, source_of
from brand.torch.job.ranks import find_rank
from brand.torch.loader.batches import FixedSizeBatches
from brand.torch.loader.iteration import Instruments, LoaderIteration, LoaderOptions
from brand.torch.loader.threads import Gate, PaceWindows, ThreadTuner, pool_of
from brand.torch.loader.timing import Stages, StepWaits
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler, PlannedBatchSampler, mean_samples
from brand.torch.sampler.sampler import BrandSampler

AHEAD_BYTES: Final = 64 << 20
"""By default, the prefetched batches have at most about this many stored bytes,"""
AHEAD_PART: Final = 8
"""and at most `1 / AHEAD_PART` of the memory that the data set was given."""
MOST_AHEAD: Final = 64
_OF_THIS_PROCESS: Final = ("_instruments", "_epoch", "_gate")
"""Attributes that a copy in another process creates again."""


class BrandLoader(DataLoader[Any]):
    """Batches of a `BrandDataset` or a `Mixture`: a `DataLoader` with threads instead of worker processes.

    Frameworks treat it as a `DataLoader` (`isinstance`, its attributes), and save its state. Batches must be taken by
    iterating over the loader: a framework that takes them from its `batch_sampler` gets an error.

    If images and audio are not decoded (`decode=False`, no transform, no collate_fn), they are lists of uint8 tensors,
    as torchvision's decoders take them, and their bytes are copied once. A `DataLoader` returns bytes.

    Transforms and `collate_fn` run in several threads at a time. Each thread has a copy of them, made at the beginning
    of each iteration, as each worker process of a `DataLoader` has one. In transforms, torch's random functions and the
    random generators that a transform refers to return the same numbers in every run, because each sample has its own
    seed; in `collate_fn`, each batch has one. A job with a name (`job=`) has random numbers of its own.

    Args:
        dataset: The data set; its `transform`, `fields` and `decode` apply.
        batch_size: Samples in a batch.
        sampler: The samples to take; None: a `BrandSampler(dataset)`: every sample once an epoch, in random order.
        batch_sampler: A `LengthBatchSampler` or `PackedBatchSampler`, which chooses the samples of each batch; in place
            of `batch_size`, `sampler` and `drop_last`.
        drop_last: Whether to leave out the last batch if it is not full.
        collate_fn: Makes a batch of a list of samples; None: PyTorch's `default_collate`.
        pin_memory: Whether batches are in page-locked memory, for fast copies to a GPU.
        num_workers: Number of threads that decode; there are no worker processes. None: the number of processors that
            this process may use. `"auto"`: the smallest number, up to that of processors, that feeds the loop, found
            while it trains (Lobster, observation 3). In each of these threads, PyTorch works with one thread.
        prefetch_batches: Batches to prefetch while one is trained; at least 1. None: as many as 64 MiB of stored bytes,
            or an eighth of the data set's `memory=` if that is less; 2 to 64.

    Raises:
        UsageError: The arguments contradict each other, or `batch_sampler` belongs to another data set.
    """

    dataset: Drawable
    batch_size: int
    collate_fn: Callable[[list[Any]], Any]

    def __init__(
        self,
        dataset: Drawable,
        batch_size: int = 1,
        *,
        sampler: Sampler[int] | None = None,
        batch_sampler: LengthBatchSampler | PackedBatchSampler | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int | Literal["auto"] | None = None,
        prefetch_batches: int | None = None,
    ) -> None:
        batch_size = _count("batch_size", batch_size)
        self._plan = batch_sampler
        """The batch sampler; None if batches have one size."""
        if isinstance(sampler, PlannedBatchSampler):
            kind = type(sampler).__name__
            raise UsageError(f"sampler= is a {kind}, which makes whole batches: give it as batch_sampler=")
        if batch_sampler is not None:
            _check_plan(batch_sampler, dataset, alone=batch_size == 1 and sampler is None and not drop_last)
            sampler = cast(Sampler[int], batch_sampler)  # to frameworks, it is the sampler
            batch_size = mean_samples(batch_sampler)
        if isinstance(sampler, BatchSampler):
            raise UsageError(
                "sampler= is a BatchSampler: give batch_size= and the sampler inside it, sampler=BrandSampler(dataset)"
            )
        sampler = BrandSampler(dataset) if sampler is None else sampler
        # The pages are locked here, by the threads that make the batches, not by DataLoader's own iterator.
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn)
        vars(self)["batch_sampler"] = OwnBatches(sampler, batch_size, drop_last)  # DataLoader refuses to set it
        if self._plan is not None:
            vars(self)["batch_size"] = None  # as a DataLoader with a batch_sampler has it
        self.pin_memory = pin_memory
        if isinstance(sampler, BrandSampler):
            sampler._serve_loader(batch_size)
        self._finds_threads = num_workers == "auto"
        any_number = num_workers is None or num_workers == "auto"
        self.num_workers = _processors() if any_number else _count("num_workers", num_workers)
        """Largest number of threads that decode."""
        most = _enough(source_of(dataset), batch_size) if prefetch_batches is None else prefetch_batches
        self._ahead = _count("prefetch_batches", most)
        self._iterations = 0
        """Number of iterations that have begun."""
        self._reset()
        _loaders.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()
        _loaders.add(self)

    def _reset(self) -> None:
        """Begin without threads: the threads of another process do not exist in this one."""
        pace = PaceWindows(ThreadTuner(self.num_workers, fixed=not self._finds_threads))
        self._instruments = Instruments(Stages(pace.threads), pace, StepWaits())
        self._epoch: LoaderIteration | None = None
        self._gate: Gate | None = None

    def __repr__(self) -> str:
        begun = counted(self._iterations, "iteration")
        return f"BrandLoader({self.dataset!r}, {self.batch_size}, sampler={self.sampler!r}, {begun} begun)"

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch for this rank."""
        if self._plan is not None:
            return len(self._plan)
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    @property
    def stages(self) -> Stages:
        """Time of the loader by stage."""
        return self._instruments.stages

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._epoch is not None:
            self._epoch.close()
        if self._gate is None:
            self._gate = Gate(pool_of(self.num_workers), self._instruments.pace.threads)
        self._iterations += 1
        options = LoaderOptions(self.collate_fn, self.pin_memory, self._ahead, self._iterations)
        source = (
            FixedSizeBatches(self.sampler, self.batch_size, drop_last=self.drop_last)
            if self._plan is None
            else iter(self._plan)
        )
        self._epoch = epoch = LoaderIteration(source_of(self.dataset), source, self._gate, options, self._instruments)
        batches = epoch.batches()
        _iterations.add(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; see `BrandSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return the loader state after the last batch that the loop has received, as plain values.

        At the end of an epoch, it is the state at the beginning of the next epoch. Raises `UsageError` if the sampler
        has no state.
        """
        sampler, epoch = self._brand_sampler(), self._epoch
        return sampler.state_dict() if epoch is None else epoch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a loader state, with the next iteration.

        Raises `UsageError` if the state is not a loader state, or is one of another data set.
        """
        self._brand_sampler().load_state_dict(state)
        self._epoch = None

    def stats(self) -> dict[str, Any]:
        """Return statistics of the loader and its data server, as plain values.

        Seconds by stage and the slowest stage; the threads and their pace; `waits`: the data stalls of the training
        loop, by cause (`docs/guides/monitor.md`); `server`: the counters of the data server. With a batch
        sampler, `batches` has the padding (`docs/guides/bucketing.md`).
        """
        instruments = self._instruments
        waits = {"waits": instruments.waits.to_json(time.monotonic())}
        figures = {} if self._epoch is None else self._epoch.figures()
        batches = {"batches": figures} if figures else {}
        stages, pace = instruments.stages.to_json(), instruments.pace.to_json()
        return {**stages, **pace, **waits, **batches, "server": self.dataset.stats()}

    def monitor(self, callback: Callable[[int, dict[str, float]], object], *, every: int = 50) -> None:
        """Call `callback(steps, row)` in the training loop, after every `every` steps.

        `steps` is the number of batches that the loop has received since the loader was made. `row` describes the steps
        since the last call, with numbers only (`docs/guides/monitor.md`): seconds of a step, samples per second, the
        fraction of the time for which the loop waited, percentiles of its waits in seconds, and seconds by cause.
        Raises `UsageError`.
        """
        self._instruments.waits.monitor(callback, _count("every", every))

    def trace(self, path: str | os.PathLike[str] | None) -> None:
        """Write a trace of this loader to a file for Perfetto, from its next iteration on. None: stop writing.

        The file may be that of `brand serve --trace` or of other ranks: each process appends at most 64 MiB to it.
        Raises `UsageError` if it cannot be written.
        """
        if self._instruments.timeline is not None:
            self._instruments.timeline.close()
        rank, ranks = find_rank(None, None)
        timeline = None if path is None else Timeline(path, f"rank {rank} of {ranks}")
        self._instruments = replace(self._instruments, timeline=timeline)

    def _brand_sampler(self) -> BrandSampler | PlannedBatchSampler:
        if not isinstance(self.sampler, BrandSampler | PlannedBatchSampler):
            raise UsageError(f"a {type(self.sampler).__name__} has no state; a BrandSampler does")
        return self.sampler


class OwnBatches(BatchSampler):
    """The `batch_sampler` of a `BrandLoader`: frameworks may inspect it, but must not take batches from it."""

    def __iter__(self) -> Iterator[list[int]]:
        raise UsageError(
            "something takes the batches of a BrandLoader from its batch_sampler, to make another loader of it, and "
            f"would lose its threads, its state or some of its samples. {self._advice()} (docs/guides/frameworks.md)"
        )
        yield []  # so that the error is raised at the first batch: PyTorch's iterator is complete then, and closes well

    def _advice(self) -> str:
        if isinstance(self.sampler, PlannedBatchSampler):
            return (
                f"A {type(self.sampler).__name__} gives each process its own batches, so iterate over the loader "
                "itself, without accelerator.prepare(loader) and skip_first_batches; save its state_dict() next to the "
                "checkpoint, and continue with load_state_dict"
            )
        instead = (
            "" if isinstance(self.sampler, BrandSampler) else "make the loader with sampler=BrandSampler(dataset), and "
        )
        return (
            f"Accelerate: {instead}use brand.frameworks.accelerate.prepare(accelerator, loader) in place of "
            "accelerator.prepare(loader) and of skip_first_batches"
        )


_loaders: weakref.WeakSet[BrandLoader] = weakref.WeakSet()
_iterations: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def _reset_in_child() -> None:
    """Reset all loaders in a forked child: it has no threads of its parent, but may have locks that they hold."""
    _iterations.clear()
    for loader in list(_loaders):
        loader._reset()


@atexit.register
def _end_iterations() -> None:
    """End iterations that a script has left half used, while the modules that they need still exist."""
    for batches in list(_iterations):
        with suppress(ValueError):  # another thread is using it
            batches.close()


after_in_child(_reset_in_child)


def _enough(source: SampleSource, batch_size: int) -> int:
    """Return the default number of batches to prefetch. If the data set has little memory, it is small."""
    room = AHEAD_BYTES
    limit = source.server_bytes
    if limit is not None:
        room = min(room, limit // AHEAD_PART)
    return min(MOST_AHEAD, max(2, int(room / (batch_size * source.mean_bytes))))


def _check_plan(plan: Any, dataset: Drawable, *, alone: bool) -> None:
    """Raise `UsageError` unless `plan` is a batch sampler of this data set, and `alone`: without other arguments."""
    if not isinstance(plan, PlannedBatchSampler):
        raise UsageError(
            f"batch_sampler= is a {type(plan).__name__}: a BrandLoader takes a LengthBatchSampler or a "
            "PackedBatchSampler, or batch_size= and sampler="
        )
    if not alone:
        raise UsageError("batch_sampler= says what batches are: leave out batch_size=, sampler= and drop_last=")
    if plan.dataset is not dataset:
        raise UsageError("batch_sampler= fetches from another BrandDataset object; give both the same one")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(name: str, value: Any) -> int:
    """Return `value` as a whole number, at least 1. Raises `UsageError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        other = ', or "auto"' if name == "num_workers" else ""
        raise UsageError(f"{name}={value!r}: give a whole number, at least 1{other}")
    return int(operator.index(value))
