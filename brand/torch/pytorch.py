"""Is PyTorch there? If it is not, data sets, samplers and `ArrayLoader` work without it, for JAX and NumPy.

With PyTorch, data sets and samplers are PyTorch's own kinds of classes. Without it, the classes below take their place.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from brand.errors import MissingExtraError, missing_extra


def missing_torch(what: str, error: Exception | None = None) -> MissingExtraError:
    """Return the error for `what`, which needs PyTorch: it is not installed, or loading it fails with `error`."""
    return missing_extra(error or ModuleNotFoundError(), what, "'brand-data[train]'")


if TYPE_CHECKING:
    import torch as torch
    from torch.utils.data import BatchSampler as BatchSampler
    from torch.utils.data import DataLoader as DataLoader
    from torch.utils.data import Dataset as Dataset
    from torch.utils.data import DistributedSampler as DistributedSampler
    from torch.utils.data import Subset as Subset
    from torch.utils.data import get_worker_info as get_worker_info
else:
    try:
        import torch
        import torch.distributed
        from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Subset, get_worker_info
    except ImportError as error:
        if getattr(error, "name", None) != "torch":  # it is there, and does not load
            raise missing_torch("brand.torch needs PyTorch", error) from error
        torch = None
        _Value = TypeVar("_Value")

        class Dataset(Generic[_Value]):
            """Stands in for PyTorch's class."""

        class DistributedSampler(Generic[_Value]):
            """Stands in for PyTorch's class."""

        BatchSampler = DataLoader = Subset = ()  # for `isinstance`

        def get_worker_info() -> None:
            """Return None: this process is no worker of a DataLoader."""


def torch_types(*names: str) -> tuple[type[Any], ...]:
    """Return classes of `torch` by name, for `isinstance`; none without PyTorch."""
    return () if torch is None else tuple(getattr(torch, name) for name in names)


def process_group() -> ModuleType | None:
    """Return `torch.distributed` if this process is in its process group; otherwise None."""
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
