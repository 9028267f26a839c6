"""One of several jobs that draw by JOADER's rule from one server: draws a part of an epoch, waits for a line, goes on.

    joader_job PATH NAME WORKERS ADDRESS

With ADDRESS `common` the jobs start a server of their own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from torch.utils.data import DataLoader

from brand.orders.baselines import Joader
from brand.torch import BrandDataset, BrandLoader, BrandSampler


def main(path: str, name: str, workers: int, address: str) -> None:
    """Print the server's process id, and at the end the indices of two epochs."""
    shared = Joader()
    data_set = BrandDataset(path, server=address, order=shared, job=name, fields=("index",), memory=0.25)
    sampler, loader = BrandSampler(data_set), None
    if workers:
        loader = DataLoader(data_set, 16, sampler=sampler, num_workers=workers)
    else:
        loader = BrandLoader(data_set, 16, sampler=sampler, num_workers=1)
    epochs: list[list[int]] = []
    for epoch in range(2):
        found: list[int] = []
        batch: Any
        for turn, batch in enumerate(loader):
            found += batch[0].tolist()
            if epoch == 0 and turn == 20:
                sys.stdout.write(f"{data_set.stats()['process']}\n")
                sys.stdout.flush()
                sys.stdin.readline()
        epochs.append(found)
    sys.stdout.write(json.dumps(epochs) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
