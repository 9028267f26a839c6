"""Which source has the batches of a `BrandLoader`, and how is a batch made of columns, without single samples?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from brand.node.wire.looping import IterationExtent
from brand.reprs import Reprs
from brand.torch.fetch.fetched import Column, Columns
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
        if self.positions is not None:
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
        if positions is None or not positions.begun:
            return dict(self._sampler.state_dict())
        samples = min(trained * self.size, positions.count)
        ended = samples > positions.count - (self.size if self._drop_last else 1)
        if positions.replaced(ended=ended):
            return dict(self._sampler.state_dict())
        return positions.state_after(positions.most if ended else samples)

    def figures(self, trained: int) -> dict[str, Any]:  # noqa: ARG002 - batches of one size have no padding
        return {}


def assemble(columns: Columns, names: Sequence[str] | None, files: Collection[str], first: int, end: int) -> Any:
    """Return the batch that `default_collate` makes of the samples `first` to `end` - 1 of these columns.

    It is a dict of all columns, or a list of the columns in `names`. The columns in `files` hold images or audio that
    are not decoded; they become lists of uint8 tensors.
    """

    def made(name: str) -> Any:
        column = columns[name][first:end]
        return _files(column) if name in files else _collated(column, tuple if names is not None else list)

    return {name: made(name) for name in columns} if names is None else [made(name) for name in names]


def _files(column: Column) -> list[torch.Tensor]:
    return [torch.from_numpy(v if isinstance(v, np.ndarray) else np.frombuffer(bytearray(v), np.uint8)) for v in column]


def _collated(column: Column, strings: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Return a column as PyTorch collates it. Strings are in a list if samples are dicts, otherwise in a tuple."""
    if isinstance(column, np.ndarray):  # prepared values are views of the draw's buffer, which is used again
        return torch.from_numpy(column.copy() if column.ndim > 1 else np.ascontiguousarray(column))
    return strings(column) if isinstance(column[0], str | bytes) else default_collate(column)


def pinned(value: Any) -> Any:
    """Return a batch with its tensors in page-locked memory, as `DataLoader(pin_memory=True)` does."""
    if isinstance(value, torch.Tensor) or hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {name: pinned(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pinned, value))
    if isinstance(value, list | tuple):
        return type(value)(map(pinned, value))
    return value
