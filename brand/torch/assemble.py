"""How does a batch come together without going through samples, and how does it get into page-locked memory?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from brand.torch.fetch import Column, Columns


def assemble(columns: Columns, names: Sequence[str] | None, files: Collection[str], first: int, end: int) -> Any:
    """What `default_collate` makes of the samples `first` to `end` - 1 of these columns.

    A dict of all columns, or a list of those in `names`. Those in `files` hold images or audio that are not decoded;
    they become lists of uint8 tensors.
    """
    made = {
        name: _files(columns[name][first:end]) if name in files else _collated(columns[name][first:end])
        for name in (columns if names is None else names)
    }
    return made if names is None else list(made.values())


def _files(column: Column) -> list[torch.Tensor]:
    return [
        torch.from_numpy(value)
        if isinstance(value, np.ndarray)
        else torch.frombuffer(bytearray(value), dtype=torch.uint8)
        for value in column
    ]


def _collated(column: Column) -> Any:
    if isinstance(column, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(column))
    if isinstance(column[0], str | bytes):
        return column
    return default_collate(column)


def pinned(value: Any) -> Any:
    """A batch with its tensors in page-locked memory, as `DataLoader(pin_memory=True)` makes it."""
    if isinstance(value, torch.Tensor) or hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {name: pinned(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pinned, value))
    if isinstance(value, list | tuple):
        return type(value)(map(pinned, value))
    return value
