"""How does a `BrandLoader` make batches of tensors? As a `BatchLoader` that is a `DataLoader`, without its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, Self

from torch.utils.data import BatchSampler, DataLoader, Sampler

from brand.errors import UsageError
from brand.reprs import Reprs
from brand.torch.data.drawable import Drawable
from brand.torch.loader.core import BatchLoader, batches_of
from brand.torch.loader.tensors import TensorForm
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler, PlannedBatchSampler
from brand.torch.sampler.frameworks import unless_in_trainer
from brand.torch.sampler.sampler import BrandSampler

_INSTEAD: Final = {
    "generator": "give the seed of the order: sampler=BrandSampler(dataset, seed=...)",
    "worker_init_fn": "leave it out: each sample has its own seed, and a transform may prepare itself when it is made",
    "prefetch_factor": "give prefetch_batches=, the batches that all threads together prefetch",
    "timeout": "leave it out: a data server that does not answer is an error",
    "persistent_workers": "leave it out, because threads start once, and processes with each iteration",
    "in_order": "leave it out, because batches are always in the order of the sampler, which a loader state needs",
    "pin_memory_device": "give pin_memory=True, for the present device",
}
"""Arguments of a `DataLoader` that a `BrandLoader` does not have, and what to write instead."""


class BrandLoader(BatchLoader, DataLoader[Any]):  # type: ignore[misc]
    """Batches of a `BrandDataset` or a `Mixture`: a `DataLoader` with threads, or with processes for slow transforms.

    Frameworks treat it as a `DataLoader` (`isinstance`, its attributes), and save its state. Batches must be taken by
    iterating over the loader: a framework that takes them from its `batch_sampler` gets an error.

    If images and audio are not decoded (`decode=False`, no transform, no collate_fn), they are lists of uint8 tensors,
    as torchvision's decoders take them, and their bytes are copied once. A `DataLoader` returns bytes.

    Transforms and `collate_fn` run in several threads (or processes) at a time. Each has a copy of them, made at the
    beginning of each iteration, as each worker process of a `DataLoader` has one. In transforms, torch's random
    functions and the random generators that a transform refers to return the same numbers in every run, because each
    sample has its own seed; in `collate_fn`, each batch has one. A job with a name (`job=`) has random numbers of its
    own.

    Args:
        dataset: The data set; its `transform`, `fields` and `decode` apply.
        batch_size: Samples in a batch.
        shuffle: Whether samples are in random order; None: they are, unless a sampler says otherwise.
        sampler: The samples to take; None: a `BrandSampler(dataset)`: every sample once an epoch, in random order.
        batch_sampler: A `LengthBatchSampler` or `PackedBatchSampler`, which chooses the samples of each batch; in place
            of `batch_size`, `sampler` and `drop_last`.
        drop_last: Whether to leave out the last batch if it is not full.
        collate_fn: Makes a batch of a list of samples; None: PyTorch's `default_collate`.
        pin_memory: Whether batches are in page-locked memory, for fast copies to a GPU.
        num_workers: Number of threads or processes that decode. None: the number of processors that this process may
            use. `"auto"`: the smallest number, up to that of processors, that feeds the loop, found while it trains
            (Lobster, observation 3). In each of them, PyTorch works with one thread.
        prefetch_batches: Batches to prefetch while one is trained; at least 1. None: as many as 64 MiB of stored bytes,
            or an eighth of the data set's `memory=` if that is less; 2 to 64. For processes, at least two for each.
        worker_type: `"thread"`, or `"process"` for slow transforms in pure Python, which hold the interpreter lock.
            Processes map the memory of the data server, and make the same batches; they start with each iteration.
        multiprocessing_context: How processes start: `"fork"`, `"spawn"`, `"forkserver"`, or a context of
            multiprocessing; None: as multiprocessing starts them.
        others: Arguments of a `DataLoader` that a `BrandLoader` does not have: the error says what to write instead.

    Raises:
        UsageError: The arguments contradict each other, or `batch_sampler` belongs to another data set.
    """

    dataset: Drawable
    batch_size: int
    collate_fn: Callable[[list[Any]], Any]

    def __init__(  # noqa: PLR0913 - those of a DataLoader
        self,
        dataset: Drawable,
        batch_size: int = 1,
        *,
        shuffle: bool | None = None,
        sampler: Sampler[int] | None = None,
        batch_sampler: LengthBatchSampler | PackedBatchSampler | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int | Literal["auto"] | None = None,
        prefetch_batches: int | None = None,
        worker_type: Literal["thread", "process"] = "thread",
        multiprocessing_context: Any = None,
        **others: Any,
    ) -> None:
        _refuse(others)
        if shuffle is not None:
            if sampler is not None or batch_sampler is not None:
                raise UsageError("shuffle= and a sampler: give one of them, as BrandSampler(dataset, shuffle=...)")
            sampler = BrandSampler(dataset, shuffle=shuffle)
        sampler, size = batches_of("a BrandLoader", dataset, batch_size, sampler, batch_sampler, drop_last=drop_last)
        # The pages are locked here, by the threads that make the batches, not by DataLoader's own iterator.
        DataLoader.__init__(self, dataset, size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn)
        vars(self)["batch_sampler"] = OwnBatches.of(sampler, size, drop_last=drop_last)  # DataLoader refuses to set it
        if batch_sampler is not None:
            vars(self)["batch_size"] = None  # as a DataLoader with a batch_sampler has it
        self.pin_memory = pin_memory
        self._prepare(batch_sampler, num_workers, prefetch_batches, worker_type, multiprocessing_context)

    def __repr__(self) -> str:
        return self._shown()

    def _form(self) -> TensorForm:
        return TensorForm(pin_memory=self.pin_memory)


def _refuse(others: dict[str, Any]) -> None:
    """Raise `UsageError` for arguments that only a `DataLoader` has, TypeError for any other."""
    for name in others:
        if name not in _INSTEAD:
            raise TypeError(f"BrandLoader() got an unexpected keyword argument {name!r}")
        raise UsageError(f"a BrandLoader has no {name}=: {_INSTEAD[name]} (docs/guides/more-frameworks.md)")


class OwnBatches(Reprs, BatchSampler, shows="sampler batch_size drop_last"):
    """The `batch_sampler` of a `BrandLoader`: frameworks may inspect it, but must not take batches from it.

    A loader makes it with `of`: a framework that calls the class makes another loader of the `BrandLoader`.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UsageError(
            "something makes another loader of a BrandLoader, with another sampler, as Lightning does for predict and "
            "overfit_batches. Give it torch.utils.data.DataLoader(dataset, batch_size=...), which reads by random "
            "access, or a BrandDataModule (docs/guides/frameworks.md)"
        )

    @classmethod
    def of(cls, sampler: Any, batch_size: int, *, drop_last: bool) -> Self:
        """Return the batches of a loader."""
        made = cls.__new__(cls)
        BatchSampler.__init__(made, sampler, batch_size, drop_last)
        return made

    def __iter__(self) -> Iterator[list[int]]:
        raise UsageError(
            "something takes the batches of a BrandLoader from its batch_sampler, to make another loader of it, and "
            f"would lose its threads, its state or some of its samples. {self._advice()} (docs/guides/frameworks.md)"
        )
        yield []  # so that the error is raised at the first batch: PyTorch's iterator is complete then, and closes well

    def _advice(self) -> str:
        ours = isinstance(self.sampler, BrandSampler | PlannedBatchSampler)
        instead = "" if ours else "make the loader with sampler=BrandSampler(dataset), and "
        return unless_in_trainer(
            f"Accelerate: {instead}use brand.frameworks.accelerate.prepare(accelerator, loader) in place of "
            "accelerator.prepare(loader) and of skip_first_batches"
        )


class PreparedBatches(OwnBatches):
    """The `batch_sampler` of a loader that `brand.frameworks.accelerate.prepare` has returned."""

    def _advice(self) -> str:
        return unless_in_trainer(
            "brand.frameworks.accelerate.prepare has prepared this loader: leave out skip_first_batches and "
            "accelerator.prepare(loader). accelerator.load_state continues inside the epoch"
        )
