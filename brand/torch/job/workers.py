"""Is this process a worker of a loader, and which one? PyTorch knows the workers of a `DataLoader`.

Those of a `BrandLoader` are known here only: if PyTorch knew them, too, its `default_collate` would put tensors into
files in `/dev/shm`.
"""

from __future__ import annotations

import multiprocessing
import os

from brand.torch.job.orphans import leave_with_training
from brand.torch.job.worker_signals import protect_worker
from brand.torch.pytorch import get_worker_info

_own: list[tuple[int, int]] = []
"""Number of this worker of a `BrandLoader`, and number of workers; empty in any other process."""


def become_worker(number: int, count: int) -> None:
    """Make this process worker `number` of `count` of a `BrandLoader`, which ends with its training."""
    _own[:] = [(number, count)]
    leave_with_training()


def in_worker() -> bool:
    """Whether this process is a worker of a loader."""
    return bool(_own) or get_worker_info() is not None


def attend_training() -> None:
    """If this process is a worker of a `DataLoader`, have it survive signals for the training, and end with it."""
    if get_worker_info() is not None:
        protect_worker()
        leave_with_training()


def worker_number() -> tuple[int, int]:
    """Return the worker and number of workers of this process's loader; (0, 1) in the training process."""
    worker = get_worker_info()
    if worker is None:
        return _own[0] if _own else (0, 1)
    return worker.id, worker.num_workers


def owner_process() -> int:
    """Return the process id of the training process: this process, or the parent of a loader's worker."""
    parent = multiprocessing.parent_process()  # not os.getppid(), which may be a fork server, or 1
    return os.getpid() if not in_worker() or parent is None else parent.pid or os.getpid()
