"""Train a small CNN as one rank of `bench.nodes`, and time the epochs.

The samples are drawn by Brand or read file by file.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.accuracy import make_model
from bench.harness import show
from brand import BrandDataset, BrandLoader, BrandSampler


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an image as a float tensor of shape (1, 28, 28), 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255)[None]


class Files(Dataset[tuple[torch.Tensor, int]]):
    """A folder of class folders, read file by file."""

    def __init__(self, root: Path) -> None:
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        self.files = [(file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            return to_tensor(image), label


def open_brand(path: Path, **more: Any) -> BrandDataset:
    """Open a data set of images and labels."""
    return BrandDataset(path, fields=("image", "label"), transform={"image": to_tensor}, **more)


def make_loader(options: argparse.Namespace) -> Any:
    """Make the loader for the batches of this rank."""
    size = options.batch_size
    if options.files:
        files = Files(options.train)
        each: DistributedSampler[Any] = DistributedSampler(files, drop_last=True)
        return DataLoader(files, size, sampler=each, num_workers=2, persistent_workers=True, drop_last=True)
    data = open_brand(options.train, memory=0.25, order=options.order)
    sampler = BrandSampler(data, drop_last=True, locality=options.locality)
    return BrandLoader(data, size, sampler=sampler, drop_last=True)


def main() -> None:
    """Train. The first rank prints how long each epoch took, and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--order", default="stripes")
    parser.add_argument("--locality", action="store_true")
    parser.add_argument("--files", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = make_loader(options)
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        started = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        dist.barrier()
        if dist.get_rank() == 0:
            show(f"epoch {epoch} in {time.perf_counter() - started:.1f} s")
    if dist.get_rank() == 0:
        test = open_brand(options.test)
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 256))
        show(f"test accuracy {right / len(test):.4f}")
    if isinstance(loader, BrandLoader):
        show(f"{loader.dataset.stats()['received']} samples received")
    dist.barrier()


if __name__ == "__main__":
    main()
    gc.collect()  # frees the model, which keeps gloo's threads: a process that ends with them may abort
    dist.destroy_process_group()
