"""How does a `BrandLoader` make batches of tensors? As a `BatchLoader` that is a `DataLoader`, without its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch.utils.data import BatchSampler, DataLoader, Sampler

from brand.errors import UsageError
from brand.torch.data.drawable import Drawable
from brand.torch.loader.core import BatchLoader, batches_of
from brand.torch.loader.tensors import TensorForm
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler, PlannedBatchSampler
from brand.torch.sampler.sampler import BrandSampler


class BrandLoader(BatchLoader, DataLoader[Any]):  # type: ignore[misc]
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
        sampler, size = batches_of("a BrandLoader", dataset, batch_size, sampler, batch_sampler, drop_last=drop_last)
        # The pages are locked here, by the threads that make the batches, not by DataLoader's own iterator.
        DataLoader.__init__(self, dataset, size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn)
        vars(self)["batch_sampler"] = OwnBatches(sampler, size, drop_last)  # DataLoader refuses to set it
        if batch_sampler is not None:
            vars(self)["batch_size"] = None  # as a DataLoader with a batch_sampler has it
        self.pin_memory = pin_memory
        self._prepare(batch_sampler, num_workers, prefetch_batches)

    def __repr__(self) -> str:
        return self._shown()

    def _form(self) -> TensorForm:
        return TensorForm(pin_memory=self.pin_memory)


class OwnBatches(BatchSampler):
    """The `batch_sampler` of a `BrandLoader`: frameworks may inspect it, but must not take batches from it."""

    def __iter__(self) -> Iterator[list[int]]:
        raise UsageError(
            "something takes the batches of a BrandLoader from its batch_sampler, to make another loader of it, and "
            f"would lose its threads, its state or some of its samples. {self._advice()} (docs/guides/frameworks.md)"
        )
        yield []  # so that the error is raised at the first batch: PyTorch's iterator is complete then, and closes well

    def _advice(self) -> str:
        ours = isinstance(self.sampler, BrandSampler | PlannedBatchSampler)
        instead = "" if ours else "make the loader with sampler=BrandSampler(dataset), and "
        return (
            f"Accelerate: {instead}use brand.frameworks.accelerate.prepare(accelerator, loader) in place of "
            "accelerator.prepare(loader) and of skip_first_batches"
        )


class PreparedBatches(OwnBatches):
    """The `batch_sampler` of a loader that `brand.frameworks.accelerate.prepare` has returned."""

    def _advice(self) -> str:
        return (
            "brand.frameworks.accelerate.prepare has prepared this loader: leave out skip_first_batches and "
            "accelerator.prepare(loader). accelerator.load_state continues inside the epoch"
        )
