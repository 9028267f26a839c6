"""The same training in Lightning, Accelerate and the Hugging Face Trainer, each stopped inside an epoch and resumed.

    python tests/frameworks/example.py accelerate train.brand

It prints how many samples were trained before and after the stop, and how many different ones: each epoch has all of
them once. `lightning`, `accelerate` and `trainer` are the choices.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brand import BrandDataset, BrandLoader

BATCH, EPOCHS, STOP = 64, 2, 5


class Model(nn.Module):
    """Something to train, and a note of what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, index: Any, labels: Any) -> Any:
        """The loss, as the Trainer wants it."""
        self.seen += index.tolist()
        return {"loss": self.layer(labels.float()[:, None]).square().mean()}


def accelerate(path: str, model: Model, folder: Path, *, resume: bool) -> None:
    """`brand.frameworks.accelerate.prepare` in place of `accelerator.prepare`, for the loader only."""
    from accelerate import Accelerator

    from brand.frameworks.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    loader = prepare(accelerator, BrandLoader(BrandDataset(path, fields=("index", "label"), memory=0.25), BATCH))
    if resume:
        accelerator.load_state(str(folder))
    for epoch in range(loader.sampler.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for step, (indices, labels) in enumerate(loader, 1):
            accelerator.backward(prepared(indices, labels)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if not resume and (epoch, step) == (1, STOP):
                accelerator.save_state(str(folder))
                return


def lightning(path: str, model: Model, folder: Path, *, resume: bool) -> None:
    """`BrandDataModule`; Lightning saves the loader's state in its checkpoints."""
    import lightning.pytorch as pl

    from brand.frameworks.lightning import BrandDataModule

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, *_: Any) -> Any:
            return model(*batch)["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            if not resume and self.global_step == len(self.trainer.train_dataloader) + STOP:
                self.trainer.save_checkpoint(folder / "last.ckpt")
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters())

    data = BrandDataModule(BrandDataset(path, fields=("index", "label"), memory=0.25), batch_size=BATCH)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Module(), datamodule=data, ckpt_path=folder / "last.ckpt" if resume else None)


def trainer(path: str, model: Model, folder: Path, *, resume: bool) -> None:
    """`BrandTrainerMixin`, before `Trainer`."""
    from transformers import Trainer, TrainingArguments

    from brand.frameworks.transformers import BrandTrainerMixin

    class MyTrainer(BrandTrainerMixin, Trainer):  # type: ignore[misc]
        """Draws, and goes on from its checkpoints."""

    data_set = BrandDataset(path, transform=lambda sample: {"index": sample["index"], "labels": sample["label"]})
    each_epoch = -(-len(data_set) // BATCH)
    stop = {} if resume else {"max_steps": each_epoch + STOP}
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        save_steps=each_epoch + STOP,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        **stop,
    )
    MyTrainer(model=model, args=args, train_dataset=data_set).train(resume_from_checkpoint=resume)


def main(framework: str, path: str) -> None:
    """Train, stop, go on."""
    train = {"accelerate": accelerate, "lightning": lightning, "trainer": trainer}[framework]
    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        train(path, model, Path(folder), resume=False)
        stopped = len(model.seen)
        train(path, model, Path(folder), resume=True)
    samples = len(model.seen) // EPOCHS
    epochs = [len(set(model.seen[first : first + samples])) for first in range(0, len(model.seen), samples)]
    print(f"{stopped} samples before the stop, {len(model.seen) - stopped} after it")
    print("different samples of each epoch:", *epochs)


if __name__ == "__main__":
    main(*sys.argv[1:3])
