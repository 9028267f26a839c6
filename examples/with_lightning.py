"""Train with Lightning: stop in the middle of the second epoch, resume from the checkpoint, and count the samples.

    brand convert images fashion-mnist/test test.brand
    python examples/with_lightning.py test.brand run

On several GPUs, give the Trainer `devices=8, strategy="ddp"`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from brand import BrandDataset
from brand.frameworks.lightning import BrandDataModule


def to_vector(image: Any) -> torch.Tensor:
    """Return the pixels of an image, 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255).flatten()


class Classifier(LightningModule):  # type: ignore[misc]
    """A model of one layer, which notes the samples that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)
        self.seen: Counter[int] = Counter()

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss."""
        self.seen[self.current_epoch] += len(set(batch[0].tolist()))
        return torch.nn.functional.cross_entropy(self.layer(batch[1]), batch[2])

    def configure_optimizers(self) -> Any:
        """Return a plain optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images of 28 x 28 pixels in ten classes")
    parser.add_argument("folder", type=Path, help="folder for the checkpoint")
    args = parser.parse_args()
    data_set = BrandDataset(args.path, fields=("index", "image", "label"), transform={"image": to_vector}, memory=0.25)
    data, model = BrandDataModule(data_set, batch_size=32), Classifier()
    options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    for stop, found in ((25, None), (-1, args.folder / "step.ckpt")):
        keep = ModelCheckpoint(args.folder, filename="step", every_n_train_steps=25)
        trainer = Trainer(max_epochs=2, max_steps=stop, accelerator="cpu", callbacks=[keep], **options)
        trainer.fit(model, datamodule=data, ckpt_path=found)
        print(f"trained so far, by epoch: {dict(model.seen)}")
