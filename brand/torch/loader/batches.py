"""Which source has the batches of a loader, and how is a batch made of columns, without single samples?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.looping import IterationExtent
from brand.reprs import Reprs
from brand.torch.fetch.fetched import Column, Columns, Form
from brand.torch.job.readers import check_workers
from brand.torch.sampler.positions import Positions

Ints = Sequence[int] | NDArray[np.int64]


class SamplerBatches(Protocol):
    """The batches of one iteration."""

    @property
    def size(self) -> int:
        """Samples of a batch, approximately."""

    @property
    def epoch(self) -> int | None:
        """The epoch, once it has begun; None if samples are read by index."""

    @property
    def seed(self) -> int:
        """The seed of the order, if there is an epoch."""

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and number of ranks among which the samples are divided, if there is an epoch."""

    @property
    def extent(self) -> IterationExtent:
        """The samples that the iteration covers, if there is an epoch."""

    def begin(self) -> None:
        """Settle the epoch, and have the data server prefetch. A second call does nothing."""

    def go_on(self) -> None:
        """Raise `UsageError` if the next iteration was requested meanwhile."""

    def take(self, count: int) -> tuple[Ints, list[int]]:
        """Return the ints of the next `count` batches, fewer at the end, and the number of ints of each batch."""

    def state(self, trained: int) -> dict[str, Any]:
        """Return the loader state after `trained` batches of this iteration."""

    def figures(self, trained: int) -> dict[str, Any]:
        """Return the padding of the first `trained` batches and of the epoch, as plain values; empty if unknown."""


class FixedSizeBatches(Reprs, shows="_ints size"):
    """Batches of one size, taken from a sampler's ints. The last batch may be short."""

    def __init__(self, sampler: Any, size: int, *, drop_last: bool) -> None:
        self._sampler, self._ints = sampler, iter(sampler)
        self.positions = self._ints if isinstance(self._ints, Positions) else None
        """The iteration of a `BrandSampler`; None for another sampler."""
        self.size, self._drop_last = size, drop_last

    @property
    def epoch(self) -> int | None:
        return None if self.positions is None else self.positions.epoch

    @property
    def seed(self) -> int:
        return int(self._sampler.seed)

    @property
    def ranks(self) -> tuple[int, int]:
        assert self.positions is not None
        return self.positions.ranks

    @property
    def extent(self) -> IterationExtent:
        assert self.positions is not None
        whole = self.positions.extent
        left_out = whole.due % self.size if self._drop_last else 0
        return replace(whole, due=whole.due - left_out)

    def begin(self) -> None:
        if self.positions is None:
            check_workers()
        else:
            self.positions.begin()

    def go_on(self) -> None:
        if self.positions is not None:
            self.positions.go_on()

    def take(self, count: int) -> tuple[Ints, list[int]]:
        most = count * self.size
        ints: Ints = list(islice(self._ints, most)) if self.positions is None else self.positions.take(most)
        whole, rest = divmod(len(ints), self.size)
        if self._drop_last:
            ints, rest = ints[: whole * self.size], 0
        return ints, [self.size] * whole + [rest] * (rest > 0)

    def state(self, trained: int) -> dict[str, Any]:
        positions = self.positions
        if positions is None:
            return dict(self._sampler.state_dict())
        if not positions.begun:
            return positions.state_dict()
        samples = min(trained * self.size, positions.count)
        ended = samples > positions.count - (self.size if self._drop_last else 1)
        if positions.replaced(ended=ended):
            return dict(self._sampler.state_dict())
        return positions.state_after(positions.most if ended else samples)

    def figures(self, trained: int) -> dict[str, Any]:  # noqa: ARG002 - batches of one size have no padding
        return {}


class BatchForm(ABC):
    """The form of the values of a batch: tensors or NumPy arrays. Columns and samples are NumPy's in any case."""

    collate: Callable[[list[Any]], Any]
    """Makes a batch of a list of samples, if the user gives no function."""

    @abstractmethod
    def array(self, values: NDArray[Any]) -> Any:
        """Return an array that nobody else changes in the form of a batch, without a copy."""

    @abstractmethod
    def empty(self, form: Form) -> tuple[Any, NDArray[Any]]:
        """Return an array for the rows of a batch in the form of a batch, and as an array of NumPy: one memory.

        It is in page-locked memory, if the loader has this option.
        """

    @abstractmethod
    def initial_seed(self) -> int:
        """Return the seed of random transforms if the samples are read by index."""

    @abstractmethod
    def waiting(self) -> AbstractContextManager[Any]:
        """Return a context in which the training loop waits for a batch, for profilers."""

    def locked(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, if the loader has this option."""
        return batch

    def unlocked(self) -> BatchForm:
        """Return this form without page-locked memory, for a process that has no GPU."""
        return self


def assemble(
    form: BatchForm,
    columns: Columns,
    names: Sequence[str] | None,
    files: Collection[str],
    first: int,
    end: int,
    ready: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the batch that `form.collate` makes of the samples `first` to `end` - 1 of these columns.

    It is a dict of all columns, or a list of the columns in `names`. The columns in `files` hold images or audio that
    are not decoded; they become lists of uint8 arrays. The values of fields in `ready` are those of the batch.
    """

    def made(name: str) -> Any:
        if name in ready:
            return ready[name]
        column = columns[name][first:end]
        if name in files:
            return [form.array(_bytes_of(file)) for file in column]
        return _collated(form, column, tuple if names is not None else list)

    return {name: made(name) for name in columns} if names is None else [made(name) for name in names]


def _bytes_of(file: Any) -> NDArray[np.uint8]:
    return file if isinstance(file, np.ndarray) else np.frombuffer(bytearray(file), np.uint8)


def _collated(form: BatchForm, column: Column, strings: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Return a column as PyTorch collates it. Strings are in a list if samples are dicts, otherwise in a tuple."""
    if isinstance(column, np.ndarray):  # prepared values are views of the draw's buffer, which is used again
        return form.array(column.copy() if column.ndim > 1 else np.ascontiguousarray(column))
    return strings(column) if isinstance(column[0], str | bytes) else form.collate(column)
