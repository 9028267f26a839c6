"""A training whose workers get SIGUSR1 while they import, started as `docs/guides/data-servers.md` says, or not.

    python -m tests.torch.early_signals DATA_SET METHOD HOW

HOW is `blocked` or `open`. The import of this module takes the place of slow imports: it signals its own process.
"""

from __future__ import annotations

import os
import signal
import sys

from torch.utils.data import DataLoader

from brand.torch import BrandDataset, BrandSampler

if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGUSR1)


def main(path: str, method: str, how: str) -> None:
    """An epoch with a worker, which does not inherit signals that the parent of this program ignores or blocks."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    dataset = BrandDataset(path, fields=("index",))
    loader = DataLoader(dataset, 50, sampler=BrandSampler(dataset), num_workers=1, multiprocessing_context=method)
    if how == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    batches = iter(loader)
    if how == "blocked":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    sys.stdout.write(f"{sum(len(numbers) for (numbers,) in batches)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
