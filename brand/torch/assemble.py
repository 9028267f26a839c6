"""How does a batch come together without going through samples, and how does it get into page-locked memory?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from brand.torch.fetch import Column


def assemble(columns: dict[str, Column] | list[Column], first: int, end: int) -> Any:
    """What `default_collate` makes of the samples `first` to `end` - 1 of these columns.

    A dict, or a list where fields have an order.
    """
    if isinstance(columns, dict):
        return {name: _collated(column[first:end]) for name, column in columns.items()}
    return [_collated(column[first:end]) for column in columns]


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
