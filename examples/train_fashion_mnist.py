"""Train a small CNN on Fashion-MNIST: in shuffled order, by random access, or from the folder of PNG files.

    python examples/train_fashion_mnist.py train.brand test.brand                      # fetched by a BrandSampler
    python examples/train_fashion_mnist.py train.brand test.brand --exact              # DataLoader(shuffle=True)
    python examples/train_fashion_mnist.py fashion-mnist/train fashion-mnist/test      # the same batches, to the bit

A BrandSampler delivers samples in another order than `shuffle=True`, and the model trains equally well
(docs/explanation/shuffle-and-accuracy.md has the figures). Each run prints a checksum over every batch in order. The
last two runs print the same checksum, because a converted data set has the folder's indices and labels. The first run
prints the same checksum in every run with the same seed, with any number of workers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from PIL import Image
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader, Dataset

from brand import BrandDataset, BrandSampler

Loader = DataLoader[Any]


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an image as a float tensor of shape (1, 28, 28), 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255)[None]


class PngFolder(Dataset[tuple[torch.Tensor, int]]):
    """The folder itself, read file by file, as in a training without Brand."""

    def __init__(self, root: Path) -> None:
        classes = sorted(p.name for p in root.iterdir() if p.is_dir())
        self.files = [(f, label) for label, name in enumerate(classes) for f in sorted((root / name).iterdir())]

    def __repr__(self) -> str:
        return f"PngFolder({len(self.files):,} files)"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            return to_tensor(image.convert("RGB")), label


def open_data(path: Path, memory: float = 1.0) -> BrandDataset | PngFolder:
    """Open a converted data set, of which memory may hold the fraction `memory`, or a plain folder of class folders."""
    if (path / "brand.json").exists():
        return BrandDataset(path, fields=("image", "label"), transform={"image": to_tensor}, memory=memory)
    return PngFolder(path)


def make_model() -> nn.Module:
    """Make a model of two convolutions and two linear layers: 0.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train_epoch(model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, title: str) -> str:
    """Train one epoch; return a checksum over all batches, in order."""
    model.train()
    digest = xxhash.xxh3_64()
    batches = iter(loader)  # workers are forked before the progress bar has its thread
    for images, labels in track(batches, total=len(loader), description=title):
        digest.update(images.numpy().tobytes())
        digest.update(labels.numpy().tobytes())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return digest.hexdigest()


def accuracy(model: nn.Module, loader: Loader) -> float:
    """Return the fraction of right answers."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)  # type: ignore[arg-type]


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="a converted data set, or a folder of class folders")
    parser.add_argument("test", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=float, default=0.25, help="fraction of the data that memory may hold")
    parser.add_argument("--exact", action="store_true", help="read by index, in the order of DataLoader(shuffle=True)")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_data, test_data = open_data(args.train, args.memory), open_data(args.test)
    if isinstance(train_data, BrandDataset) and not args.exact:
        order: dict[str, Any] = {"sampler": BrandSampler(train_data, seed=args.seed)}
    else:
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(args.seed)}
    loader = DataLoader(train_data, args.batch_size, num_workers=args.workers, **order)
    test_loader = DataLoader(test_data, 256, num_workers=args.workers)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(train_data)
    for epoch in range(args.epochs):
        if isinstance(loader.sampler, BrandSampler):
            loader.sampler.set_epoch(epoch)
        started = time.perf_counter()
        batches = train_epoch(model, loader, optimizer, f"epoch {epoch}")
        seconds = time.perf_counter() - started
        read = f"{len(loader.dataset):,} samples in {len(loader):,} batches"  # type: ignore[arg-type]
        print(f"epoch {epoch}: read {read} in {seconds:.1f} s, checksum {batches}")
    print(f"test accuracy {accuracy(model, test_loader):.4f}")
    if isinstance(train_data, BrandDataset) and (done := train_data.stats()):
        share = done["read_amplification"]
        print(
            f"{done['fetched']:,} samples in {done['reads']:,} large reads, {share:.2f} bytes read for each delivered"
        )


if __name__ == "__main__":
    main()
