"""Augment images in the threads of a BrandLoader, the same way in every run.

    brand convert images fashion-mnist/train train.brand
    python examples/random_transform.py train.brand

Each sample has its own generator, which torch's random functions use in the transform, in any thread. All threads
share Python's `random` and numpy's global generator. So this transform seeds a numpy generator of its own from torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import xxhash
from PIL import Image

from brand import BrandDataset, BrandLoader, BrandSampler


def augment(image: Image.Image) -> torch.Tensor:
    """Move an image by up to two pixels, mirror it perhaps, and add a little noise: float, (1, 28, 28)."""
    pixels = torch.from_numpy(np.array(image.convert("L"), np.float32) / 255)
    if torch.rand(()) < 0.5:
        pixels = pixels.flip(1)
    down, right = torch.randint(-2, 3, (2,)).tolist()
    noise = np.random.default_rng(int(torch.randint(2**31, ())))
    moved = pixels.roll((down, right), dims=(0, 1))
    return (moved + torch.from_numpy(noise.normal(0, 0.02, moved.shape).astype(np.float32)))[None]


def digests(path: Path, threads: int, epochs: int) -> list[str]:
    """Return a checksum over all pixels of each epoch, in order."""
    data = BrandDataset(path, fields=("image", "label"), transform={"image": augment}, memory=0.25)
    loader = BrandLoader(data, batch_size=64, sampler=BrandSampler(data, seed=0), num_workers=threads)
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        digest = xxhash.xxh3_64()
        for images, _ in loader:
            digest.update(images.numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def main() -> None:
    """Compare two runs with different numbers of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images")
    args = parser.parse_args()
    one, four = digests(args.path, threads=1, epochs=2), digests(args.path, threads=4, epochs=2)
    print("one thread and four give the same pixels:", one == four)
    print("each epoch has its own:", one[0] != one[1])


if __name__ == "__main__":
    main()
