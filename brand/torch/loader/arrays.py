"""How does a training in JAX or NumPy get batches of arrays? With an `ArrayLoader`, which needs no PyTorch.

The batches are those of a `BrandLoader` with the same arguments: one iteration makes both, and the form of their values
is the only difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.formats.values import FieldList
from brand.torch.data.drawable import Drawable
from brand.torch.fetch.fetched import Form
from brand.torch.loader.batches import BatchForm
from brand.torch.loader.core import BatchLoader, batches_of
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler

_SEED: Final = 0
_NOTHING: Final = nullcontext()


class ArrayLoader(BatchLoader):
    """Batches of NumPy arrays of a `BrandDataset` or a `Mixture`, for JAX and NumPy. PyTorch need not be installed.

    A batch is a dict of all fields, or a list of those in the data set's `fields`. Order, batches, random numbers and
    loader state are those of a `BrandLoader` with the same arguments, and each of the two continues from a state of the
    other. Numbers are one array, and so are arrays of one shape, and images and audio that `decode=` makes alike. Texts
    and bytes are a list. If images and audio are not decoded (`decode=False`, no transform, no collate_fn), they are
    lists of uint8 arrays.

    After `jax.distributed.initialize()`, each process gets its share of the samples.

    Args:
        dataset: The data set; its `transform`, `fields` and `decode` apply.
        batch_size: Samples in a batch.
        sampler: The samples to take; None: a `BrandSampler(dataset)`: every sample once an epoch, in random order.
        batch_sampler: A `LengthBatchSampler` or `PackedBatchSampler`, which chooses the samples of each batch; in place
            of `batch_size`, `sampler` and `drop_last`.
        drop_last: Whether to leave out the last batch if it is not full.
        collate_fn: Makes a batch of a list of samples; None: values of one field become an array, as above.
        num_workers: Number of threads that decode, as for a `BrandLoader`.
        prefetch_batches: Batches to prefetch while one is trained, as for a `BrandLoader`.

    Raises:
        UsageError: The arguments contradict each other, or `batch_sampler` belongs to another data set.
    """

    def __init__(
        self,
        dataset: Drawable,
        batch_size: int = 1,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: LengthBatchSampler | PackedBatchSampler | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | Literal["auto"] | None = None,
        prefetch_batches: int | None = None,
    ) -> None:
        self.sampler, self.batch_size = batches_of(
            "an ArrayLoader", dataset, batch_size, sampler, batch_sampler, drop_last=drop_last
        )
        self.dataset, self.drop_last, self.collate_fn = dataset, drop_last, collate_fn
        self._prepare(batch_sampler, num_workers, prefetch_batches)

    def __repr__(self) -> str:
        return self._shown()

    def _form(self) -> ArrayForm:
        return ArrayForm()


class ArrayForm(BatchForm):
    """Batches of NumPy arrays."""

    def collate(self, batch: list[Any]) -> Any:
        """Return samples as a batch."""
        return stacked(batch)

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array in this form."""
        return values

    def empty(self, form: Form) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return an array twice."""
        made = np.empty(*form)
        return made, made

    def initial_seed(self) -> int:
        """Return the seed of random transforms if the samples are read by index."""
        return _SEED

    def waiting(self) -> AbstractContextManager[Any]:
        """Return a context in which the training loop waits for a batch."""
        return _NOTHING


def stacked(values: Sequence[Any]) -> Any:
    """Return samples, or values of one field, as a batch, with the structure that PyTorch's `default_collate` gives it.

    Raises TypeError if there is no array of such values, ValueError if arrays differ in shape.
    """
    first = values[0]
    if isinstance(first, FieldList):
        return [list(each) for each in values]
    if isinstance(first, str | bytes):
        return values
    if isinstance(first, Mapping):
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        if any(len(value) != len(first) for value in values):
            raise ValueError("lists of a field differ in length, so they are no array: give a collate_fn")
        columns = [stacked(column) for column in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    if isinstance(first, bool | int | float | np.generic) or hasattr(first, "__array__"):
        made = np.stack([np.asarray(value) for value in values])
        if made.dtype != object:
            return made
    raise TypeError(
        f"an ArrayLoader makes arrays of numbers and arrays, not of {type(first).__name__}: decode={{FIELD: "
        "DecodeImage(...)}} of the data set makes arrays of images, and a transform may return any array"
    )
