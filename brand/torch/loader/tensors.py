"""Which form have the batches of a `BrandLoader`? PyTorch's tensors, collated as a `DataLoader` does it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data import default_collate

from brand.torch.fetch.fetched import Form
from brand.torch.loader.batches import BatchForm

PROFILED: Final = "enumerate(DataLoader)#BrandLoader.__next__"
"""Name in a PyTorch profile of the time in which the loop waits. PyTorch's tools count this name as data time."""
_NO_PROFILE: Final = nullcontext()
"""Replaces a profiler span, which costs 5 us for each batch."""


@dataclass(frozen=True)
class TensorForm(BatchForm):
    """Batches of tensors; `pin_memory`: whether in page-locked memory."""

    collate = staticmethod(default_collate)
    pin_memory: bool

    def array(self, values: NDArray[Any]) -> torch.Tensor:
        """Return an array in this form."""
        return torch.from_numpy(values)

    def empty(self, form: Form) -> tuple[torch.Tensor, NDArray[Any]]:
        """Return a tensor, and the same memory as an array."""
        shape, dtype = form
        pinned = self.pin_memory and torch.cuda.is_available()
        made = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=pinned)
        return made, made.numpy()

    def initial_seed(self) -> int:
        """Return the seed of random transforms if the samples are read by index."""
        return torch.initial_seed()

    def waiting(self) -> AbstractContextManager[Any]:
        """Return a context in which the training loop waits for a batch."""
        return record_function(PROFILED) if _profiler_enabled() else _NO_PROFILE

    def locked(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, if the loader has this option."""
        return pinned(batch) if self.pin_memory and torch.cuda.is_available() else batch

    def unlocked(self) -> TensorForm:
        """Return this form without page-locked memory."""
        return TensorForm(pin_memory=False)


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
