"""Evaluations of one framework on one rank, for `test_evaluation.py`: `python -m tests.frameworks.evaluated WAY PATH`.

A line for each evaluation says how many samples all ranks have counted, how many different ones, and the sum of their
indices. Rank 0 prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from brand import BrandDataset, BrandLoader, BrandSampler

BATCH = 10
"""Some ranks have a batch more than others, whatever their number."""


def report(name: str, indices: list[int], rank: int) -> None:
    """Print what the ranks have counted together."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, indices)
    if rank == 0:
        found = [index for each in gathered for index in each]
        sys.stdout.write(f"{name}: {len(found)} {len(set(found))} {sum(found)}\n")


def evaluating(path: str) -> tuple[BrandDataset, BrandLoader]:
    """A data set and the loader of this rank."""
    data = BrandDataset(path, fields=("index",), memory=1.0, order="storage")
    return data, BrandLoader(data, BATCH, sampler=BrandSampler(data, even=False))


def plain(path: str) -> None:
    """A loop, three epochs; and a loop of a DataLoader with worker processes."""
    dist.init_process_group("gloo")
    data, loader = evaluating(path)
    workers = DataLoader(data, BATCH, sampler=BrandSampler(data, even=False), num_workers=2)
    for name, each in (*[("loop", loader)] * 3, ("workers", workers)):
        report(name, [index for (indices,) in each for index in indices.tolist()], dist.get_rank())
    dist.destroy_process_group()


def of_lightning(path: str) -> None:
    """Validate, test and predict; validation inside a training, too."""
    import lightning
    import torchmetrics

    class Counts(lightning.LightningModule):  # type: ignore[misc]
        """Counts the samples of each loop."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.count, self.mean = torchmetrics.SumMetric(), torchmetrics.MeanMetric()
            self.seen: list[int] = []

        def step(self, batch: Any) -> None:
            (indices,) = batch
            self.seen += indices.tolist()
            self.count.update(torch.ones(len(indices)))
            self.log("count", self.count)
            self.mean.update(indices.float())
            self.log("mean", self.mean)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0][:, None].float()).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.step(batch)

        def test_step(self, batch: Any, _: int) -> None:  # noqa: PT019 - no test: Lightning's name
            self.step(batch)

        def predict_step(self, batch: Any, _: int) -> Any:
            self.seen += batch[0].tolist()
            return batch[0]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    data, loader = evaluating(path)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(sys.argv[3]), max_epochs=1, logger=False, barebones=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    training = BrandLoader(BrandDataset(path, fields=("index",), memory=1.0), BATCH)
    ways: dict[str, Callable[[Counts], Any]] = {
        "validate": lambda module: trainer.validate(module, loader, verbose=False),
        "test": lambda module: trainer.test(module, loader, verbose=False),
        "fit": lambda module: trainer.fit(module, training, loader),
        "predict": lambda module: trainer.predict(module, DataLoader(data, BATCH), return_predictions=True),
    }
    for name, way in ways.items():
        module = Counts()
        way(module)
        report(name, module.seen, trainer.global_rank)
        if name != "predict" and trainer.global_rank == 0:
            metrics = trainer.callback_metrics
            sys.stdout.write(f"{name} metrics: {metrics['count']:.0f} {metrics['mean']:.3f}\n")


def of_accelerate(path: str) -> None:
    """Brand's `prepare` with sums after the loop; Accelerate's own with `gather_for_metrics`; and a refusal."""
    from accelerate import Accelerator

    from brand.errors import UsageError
    from brand.frameworks.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    data, loader = evaluating(path)
    seen = [index for (indices,) in prepare(accelerator, loader) for index in indices.tolist()]
    report("prepare", seen, accelerator.process_index)
    total = accelerator.reduce(torch.tensor([len(seen)]))
    gathered: list[int] = []
    for (indices,) in accelerator.prepare(DataLoader(data, BATCH)):
        gathered += accelerator.gather_for_metrics(indices).tolist()
    report("gather", gathered if accelerator.is_main_process else [], accelerator.process_index)
    refused = ""
    try:
        list(accelerator.prepare(DataLoader(data, BATCH, sampler=BrandSampler(data, even=False))))
    except UsageError as error:
        refused = str(error)
    if accelerator.is_main_process:
        sys.stdout.write(f"reduced: {int(total)}\nrefused: {refused}\n")
    accelerator.end_training()


WAYS = {"plain": plain, "lightning": of_lightning, "accelerate": of_accelerate}

if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
