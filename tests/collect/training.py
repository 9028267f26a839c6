"""Train on a collection, epoch after epoch, each on its present version: python -m tests.collect.training FOLDER

Every sample is compared with the rule of `samples`, and every epoch has each present index once. It prints a line after
each epoch, and ends after the first one that begins when its standard input has ended.
"""

from __future__ import annotations

import select
import sys

import numpy as np

from brand import BrandDataset, BrandLoader
from tests.collect.support import samples


def train(folder: str) -> int:
    """Train for an epoch. Returns the number of samples."""
    data = BrandDataset(folder, fields=("index", "number", "share", "data", "key"))
    found = list[int]()
    for index, number, share, content, key in BrandLoader(data, batch_size=7):
        found += index.tolist()
        for at, name in enumerate(key):
            (wanted,) = samples(int(name.split("/")[1]), 1)
            told = {"number": int(number[at]), "share": float(share[at]), "data": bytes(content[at]), "key": name}
            if told != wanted:
                raise AssertionError(f"index {index[at]}: {told} is not {wanted}")
    if not np.array_equal(np.sort(found), data.present()):
        raise AssertionError(f"an epoch of {len(found)} samples, where {len(data.present())} are present")
    return len(found)


def main() -> None:
    """Train until the standard input ends."""
    ending = False
    while not ending:
        ending = bool(select.select([sys.stdin], [], [], 0)[0])
        sys.stdout.write(f"{train(sys.argv[1])} samples\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
