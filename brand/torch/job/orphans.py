"""Does a worker of a DataLoader end after its training was killed?

Two kinds would stay without end, and keep their memory. PyTorch's worker notices within 5 s that its parent has ended;
but the parent of a process of the fork server is the fork server, which lives as long as its processes. And a worker
that notices waits at its exit until the training has received all batches, of which a pipe holds 64 KiB. So a worker
watches its training, and leaves at once.
"""

from __future__ import annotations

import functools
import os
import threading
from multiprocessing import connection, parent_process
from typing import Final

_LOOK_S: Final = 1.0
"""Time between two looks at the parent. A forked worker may not see the end of its training: each process that was
forked after it holds an end of the pipe that tells."""


@functools.cache
def leave_with_training() -> None:
    """Let this worker leave when its training is killed, without delivering its batches. May be called repeatedly."""
    training = parent_process()
    if training is not None:
        threading.Thread(target=_leave_after, args=(training.sentinel,), daemon=True).start()


def _leave_after(training: int) -> None:
    parent = os.getppid()  # the training, or the fork server; of a training that has ended already, the sentinel tells
    while os.getppid() == parent and not connection.wait([training], _LOOK_S):
        pass
    os._exit(1)
