"""Train with Accelerate: stop in the middle of the second epoch, resume from the checkpoint, and count the samples.

    brand convert images fashion-mnist/test test.brand
    python examples/with_accelerate.py test.brand run

`accelerate launch --num_processes 4 examples/with_accelerate.py ...` trains on four processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from brand import BrandDataset, BrandLoader
from brand.frameworks.accelerate import prepare

EPOCHS = 2


def to_vector(image: Any) -> torch.Tensor:
    """Return the pixels of an image, 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255).flatten()


def train(path: Path, checkpoint: Path, stop_after: int | None = None) -> None:
    """Train from the checkpoint, if there is one. Write one after `stop_after` samples of epoch 1, and stop."""
    accelerator = Accelerator(cpu=True)
    layer = torch.nn.Linear(784, 10)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    data = BrandDataset(path, fields=("index", "image", "label"), transform={"image": to_vector}, memory=0.25)
    loader = prepare(accelerator, BrandLoader(data, batch_size=32))
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))
    for epoch in range(loader.sampler.epoch, EPOCHS):
        loader.set_epoch(epoch)
        seen: set[int] = set()
        for indices, images, labels in loader:
            accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            seen |= set(indices.tolist())
            if epoch == 1 and len(seen) == stop_after:
                accelerator.save_state(str(checkpoint))
                break
        print(f"epoch {epoch}: {len(seen)} samples")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images of 28 x 28 pixels in ten classes")
    parser.add_argument("checkpoint", type=Path, help="a new folder for the state")
    args = parser.parse_args()
    train(args.path, args.checkpoint, stop_after=192)
    train(args.path, args.checkpoint)
