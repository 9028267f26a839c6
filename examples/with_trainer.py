"""Train with the Hugging Face Trainer: stop in the second epoch, resume from the checkpoint, and count the samples.

    brand convert images fashion-mnist/test test.brand
    python examples/with_trainer.py test.brand run

`torchrun --nproc-per-node 4 examples/with_trainer.py ...` trains on four processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from brand import BrandDataset
from brand.frameworks.transformers import BrandTrainerMixin


class MyTrainer(BrandTrainerMixin, Trainer):  # type: ignore[misc]
    """A Trainer that fetches samples from Brand, and resumes from its checkpoints."""


class Classifier(torch.nn.Module):
    """A model of one layer, which notes the samples that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)
        self.seen: list[int] = []

    def forward(self, index: torch.Tensor, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss in the form that the Trainer expects."""
        self.seen += index.tolist()
        return {"loss": torch.nn.functional.cross_entropy(self.layer(pixels), labels)}


def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `forward`."""
    pixels = torch.from_numpy(np.asarray(sample["image"].convert("L"), np.float32) / 255).flatten()
    return {"index": sample["index"], "pixels": pixels, "labels": sample["label"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images of 28 x 28 pixels in ten classes")
    parser.add_argument("folder", type=Path, help="folder for the checkpoints")
    args = parser.parse_args()
    data, model = BrandDataset(args.path, transform=to_inputs, memory=0.25), Classifier()
    options: dict[str, Any] = {"output_dir": str(args.folder), "per_device_train_batch_size": 32, "save_steps": 25}
    options |= {"remove_unused_columns": False, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    for stop in (25, -1):
        settings = TrainingArguments(num_train_epochs=2, max_steps=stop, logging_strategy="no", **options)
        trainer = MyTrainer(model=model, args=settings, train_dataset=data)
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=stop < 0)
        print(f"{len(model.seen)} samples so far, {len(set(model.seen[600:]))} different ones of the second epoch")
