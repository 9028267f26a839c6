"""One of two jobs that share a server: draws a part of an epoch, waits for a line, then draws the rest and one more."""

from __future__ import annotations

import json
import sys
from itertools import islice

from brand.torch import BrandDataset, BrandLoader, BrandSampler


def main(path: str, name: str) -> None:
    """Print the server's process id, and at the end the indices of two epochs."""
    data_set = BrandDataset(path, server="common", order="shared", job=name, fields=("index",), memory=0.25)
    loader = BrandLoader(data_set, 16, sampler=BrandSampler(data_set), num_workers=1)
    batches, epochs = iter(loader), []
    found = [index for (indices,) in islice(batches, 30) for index in indices.tolist()]
    sys.stdout.write(f"{data_set.stats()['process']}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    epochs.append(found + [index for (indices,) in batches for index in indices.tolist()])
    epochs.append([index for (indices,) in loader for index in indices.tolist()])
    sys.stdout.write(json.dumps(epochs) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
