"""Does a worker of a DataLoader end after its training was killed?

PyTorch's worker notices within 5 s that its training has ended, and returns. But at its exit, Python waits until the
training has received all batches. A pipe holds 64 KiB: with larger batches under way, the worker waits without end, and
keeps its memory. So a worker that has lost its training leaves at once.
"""

from __future__ import annotations

import os
from multiprocessing import util
from typing import Final

_BEFORE_QUEUES: Final = 100
"""Priority of the check at exit; that of the queues, which wait, is below zero."""

_training: list[int] = []
"""The process of the training, once this worker has made a batch."""


def leave_with_training() -> None:
    """Let this worker end without delivering its batches if its training was killed. May be called for each batch."""
    if not _training:
        _training.append(os.getppid())
        util.Finalize(None, _leave_orphaned, exitpriority=_BEFORE_QUEUES)


def _leave_orphaned() -> None:
    if os.getppid() != _training[0]:
        os._exit(1)
