"""How is a batch made without single samples, and how is it copied to page-locked memory?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from brand.torch.fetch.fetched import Column, Columns


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
