"""Processes that multiprocessing starts with a data set, and the signals that reach them.

    python -m tests.torch.started_ranks DATA_SET METHOD

A rank is started by METHOD, sets a handler, and prints how many signals for trainings it has got.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

from brand.pythonchild import JOB_SIGNALS
from brand.torch import BrandDataset


def rank(data: BrandDataset) -> None:
    """A rank of the training: it wants the signals."""
    found: list[int] = []
    for number in JOB_SIGNALS:
        signal.signal(number, lambda number, _: found.append(number))
    for number in JOB_SIGNALS:
        os.kill(os.getpid(), number)
    sys.stdout.write(f"{len(found)} {len(data[0])}\n")


if __name__ == "__main__":
    context: Any = multiprocessing.get_context(sys.argv[2])
    process = context.Process(target=rank, args=(BrandDataset(sys.argv[1]),))
    process.start()
    process.join()
    sys.exit(process.exitcode)
