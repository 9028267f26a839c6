"""Which code do all loaders share, whatever the form of their batches? The arguments, and iterations with a crew.

Pillow, libsndfile and zstandard release the interpreter lock while they decode, so threads are enough for them. Threads
start at once, and deliver a batch without pickling it. Processes are for slow transforms in pure Python.
"""

from __future__ import annotations

import atexit
import multiprocessing
import operator
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from brand.errors import UsageError, counted
from brand.forks import after_in_child
from brand.node.setup.request_sizes import batches_ahead
from brand.timeline import Timeline
from brand.torch.data.drawable import Drawable, source_of
from brand.torch.job.ranks import find_rank
from brand.torch.job.wrappers import batches_held
from brand.torch.loader.batches import BatchForm, FixedSizeBatches
from brand.torch.loader.iteration import Instruments, LoaderIteration, LoaderOptions
from brand.torch.loader.making import BatchCrew, Receiver, Recipe, ThreadCrew
from brand.torch.loader.processes import ProcessCrew
from brand.torch.loader.threads import Gate, PaceWindows, ThreadTuner, pool_of
from brand.torch.loader.timing import MAKING, SHARED, Stages, StepWaits
from brand.torch.pytorch import BatchSampler
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler, PlannedBatchSampler, mean_samples
from brand.torch.sampler.lightning_epochs import PREDICT, notes_indices
from brand.torch.sampler.sampler import BrandSampler

_OF_THIS_PROCESS: Final = ("_instruments", "_epoch", "_gate")
"""Attributes that a copy in another process creates again."""


class BatchLoader(ABC):
    """Iterates over the batches of a data set, and has the state of its sampler.

    A loader sets `dataset`, `batch_size`, `sampler`, `drop_last` and `collate_fn`, then calls `_prepare`.
    """

    dataset: Drawable
    batch_size: int
    sampler: Any
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None

    @abstractmethod
    def _form(self) -> BatchForm:
        """Return the form of the batches of the next iteration."""

    def _prepare(
        self,
        plan: PlannedBatchSampler | None,
        num_workers: int | Literal["auto"] | None,
        prefetch_batches: int | None,
        worker_type: str = "thread",
        multiprocessing_context: Any = None,
    ) -> None:
        """Set the attributes that only Brand's loaders have. Raises `UsageError`."""
        _check_workers(worker_type, multiprocessing_context)
        self._in_processes, self._context = worker_type == "process", multiprocessing_context
        self._plan = plan
        """The batch sampler; None if batches have one size."""
        if isinstance(self.sampler, BrandSampler):
            self.sampler._serve_loader(self.batch_size)
        self._finds_threads = num_workers == "auto"
        any_number = num_workers is None or num_workers == "auto"
        self.num_workers = _processors() if any_number else whole_count("num_workers", num_workers)
        """Largest number of threads or processes that decode."""
        size = self.batch_size if plan is None else mean_samples(plan)
        least = 2 * self.num_workers if self._in_processes else 1
        if prefetch_batches is None:
            source = source_of(self.dataset)
            prefetch_batches = max(least, batches_ahead(source.server_bytes, size * source.mean_bytes))
        self._ahead = whole_count("prefetch_batches", prefetch_batches)
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
        shared = MAKING if self._in_processes else SHARED
        self._instruments = Instruments(Stages(pace.threads, shared), pace, StepWaits())
        self._epoch: LoaderIteration | None = None
        self._gate: Gate | None = None

    def _shown(self) -> str:
        """Return the loader as a text, for `repr`."""
        begun = counted(self._iterations, "iteration")
        return f"{type(self).__name__}({self.dataset!r}, {self.batch_size}, sampler={self.sampler!r}, {begun} begun)"

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch for this rank."""
        if self._plan is not None:
            return len(self._plan)
        samples = len(self.sampler)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    @property
    def stages(self) -> Stages:
        """Time of the loader by stage."""
        return self._instruments.stages

    def __iter__(self) -> Iterator[Any]:
        if self._epoch is not None:
            self._epoch.close()
        self._iterations += 1
        form = self._form()
        collate = None if self.collate_fn is form.collate else self.collate_fn
        options = LoaderOptions(form, collate, self._crew(), self._ahead, self._iterations, batches_held())
        source = (
            FixedSizeBatches(self.sampler, self.batch_size, drop_last=self.drop_last)
            if self._plan is None
            else iter(self._plan)
        )
        self._epoch = epoch = LoaderIteration(source_of(self.dataset), source, options, self._instruments)
        batches = epoch.batches()
        _iterations.add(batches)
        return batches

    def _crew(self) -> Callable[[Recipe, Receiver], BatchCrew]:
        """Return the function that starts the crew of an iteration."""
        limit, context = self._instruments.pace.threads, self._context
        if self._in_processes:
            if context is None or isinstance(context, str):
                context = multiprocessing.get_context(context)
            return partial(ProcessCrew, context, self.num_workers, limit)
        if self._gate is None:
            self._gate = Gate(pool_of(self.num_workers), limit)
        return partial(ThreadCrew, self._gate)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; see `BrandSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

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
        self._instruments.waits.monitor(callback, whole_count("every", every))

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


def batches_of(
    loader: str,
    dataset: Drawable,
    batch_size: int,
    sampler: Any,
    plan: LengthBatchSampler | PackedBatchSampler | None,
    *,
    drop_last: bool,
) -> tuple[Any, int]:
    """Return the sampler of a loader and the samples of its batches, on average. Raises `UsageError`."""
    batch_size = whole_count("batch_size", batch_size)
    if isinstance(sampler, PlannedBatchSampler):
        kind = type(sampler).__name__
        raise UsageError(f"sampler= is a {kind}, which makes whole batches: give it as batch_sampler=")
    if plan is not None:
        _check_plan(loader, plan, dataset, alone=batch_size == 1 and sampler is None and not drop_last)
        return plan, mean_samples(plan)  # to frameworks, it is the sampler
    if isinstance(sampler, BatchSampler):
        raise UsageError(
            "sampler= is a BatchSampler: give batch_size= and the sampler inside it, sampler=BrandSampler(dataset)"
        )
    return BrandSampler(dataset) if sampler is None else sampler, batch_size


_loaders: weakref.WeakSet[BatchLoader] = weakref.WeakSet()
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


def _check_plan(loader: str, plan: Any, dataset: Drawable, *, alone: bool) -> None:
    """Raise `UsageError` unless `plan` is a batch sampler of this data set, and `alone`: without other arguments."""
    if notes_indices(plan):
        raise UsageError(PREDICT)
    if not isinstance(plan, PlannedBatchSampler):
        raise UsageError(
            f"batch_sampler= is a {type(plan).__name__}: {loader} takes a LengthBatchSampler or a "
            "PackedBatchSampler, or batch_size= and sampler="
        )
    if not alone:
        raise UsageError("batch_sampler= says what batches are: leave out batch_size=, sampler= and drop_last=")
    if plan.dataset is not dataset:
        raise UsageError("batch_sampler= fetches from another BrandDataset object; give both the same one")


def _check_workers(worker_type: str, context: Any) -> None:
    if worker_type not in ("thread", "process"):
        raise UsageError(f"worker_type={worker_type!r}: give 'thread' or 'process'")
    if context is None:
        return
    if worker_type == "thread":
        raise UsageError(
            "multiprocessing_context= is for processes: leave it out, or give worker_type='process' "
            "(docs/guides/decode.md)"
        )
    methods = multiprocessing.get_all_start_methods()
    if context not in methods and not hasattr(context, "get_start_method"):
        raise UsageError(f"multiprocessing_context={context!r}: give {', '.join(map(repr, methods))}, or a context")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def whole_count(name: str, value: Any) -> int:
    """Return `value` as a whole number, at least 1. Raises `UsageError`."""
    if name == "num_workers" and value == 0 and not isinstance(value, bool):
        raise UsageError("num_workers=0: at least one thread or process decodes: give num_workers=1, or leave it out")
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        other = ', or "auto"' if name == "num_workers" else ""
        raise UsageError(f"{name}={value!r}: give a whole number, at least 1{other}")
    return int(operator.index(value))
