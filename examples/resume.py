"""Stop a training in the middle of an epoch and resume it: the batches and the model are the same to the bit.

    brand convert images fashion-mnist/train train.brand
    python examples/resume.py train.brand checkpoint.pt

The state of the loader is saved in the checkpoint next to the state of the model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from brand import BrandDataset, BrandLoader, BrandSampler

EPOCHS = 2


def to_vector(image: Image.Image) -> torch.Tensor:
    """Return the pixels of an image, 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255).flatten()


def train(path: Path, checkpoint: Path, stop_after: int | None = None) -> dict[str, Any]:
    """Train from the checkpoint, if there is one. Write one after `stop_after` batches, and stop. Return the model."""
    torch.manual_seed(0)
    data = BrandDataset(path, fields=("image", "label"), transform={"image": to_vector}, memory=0.25)
    loader = BrandLoader(data, batch_size=16, sampler=BrandSampler(data, seed=0))
    model = torch.nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state: dict[str, Any] = {"loader": {"epoch": 0}}
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        print(f"goes on in epoch {state['loader']['epoch']} at sample {state['loader']['position']:,}")
    for epoch in range(state["loader"]["epoch"], EPOCHS):
        loader.set_epoch(epoch)  # no change if the loaded state is in this epoch
        for step, (images, labels) in enumerate(loader, 1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if step == stop_after:
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint)
                return model.state_dict()
    return model.state_dict()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images of 28 x 28 pixels in ten classes")
    parser.add_argument("checkpoint", type=Path, help="a new file for the state")
    args = parser.parse_args()
    whole, _, resumed = (train(args.path, args.checkpoint, stop_after=stop) for stop in (None, 30, None))
    print("the same model:", all(torch.equal(whole[name], resumed[name]) for name in whole))
