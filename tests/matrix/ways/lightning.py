"""The Lightning Trainer: a loader given to `fit`; as the page says, `BrandDataModule` or torchdata's loader."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from brand.frameworks.lightning import BrandDataModule
from tests.matrix.cells import BY_INDEX, UNSHARDED
from tests.matrix.loops import BATCH, EPOCHS, SEED, EndedRunError, MatrixRun, ids_of, loss_of
from tests.matrix.ways.base import Use, Way


class MatrixModule(pl.LightningModule):  # type: ignore[misc]
    """A model that notes what it trains, and stops where the run says."""

    def __init__(self, run: MatrixRun) -> None:
        super().__init__()
        self.run, self.layer, self.stop = run, run.model, False
        self.tuned, self.lr = False, 0.05

    def training_step(self, batch: Any, number: int) -> Any:
        """Of one batch."""
        if not self.tuned:
            self.stop = self.run.train(self.current_epoch, batch)
        return loss_of(self.layer, batch)

    def on_validation_epoch_start(self) -> None:
        """The last validation is judged."""
        self.run.outcome.facts["seen"] = []

    def validation_step(self, batch: Any, number: int) -> None:
        """Of one batch."""
        self.run.sees(batch)

    test_step = validation_step

    def predict_step(self, batch: Any, number: int) -> Any:
        """The numbers of the samples are the predictions."""
        self.run.sees(batch)
        return ids_of(batch)

    def on_train_batch_end(self, *_: Any) -> None:
        """As a preempted job ends."""
        if self.stop:
            self.save()

    def on_train_epoch_end(self) -> None:
        """When most checkpoints are made."""
        if self.run.ends(self.current_epoch):
            self.save()

    def save(self) -> None:
        """The checkpoint, and the end of the job."""
        self.trainer.save_checkpoint(self.run.task.folder / "last.ckpt")
        raise EndedRunError

    def configure_optimizers(self) -> Any:
        """Without a state."""
        return self.run.optimizer(self.layer)


def trainer_of(run: MatrixRun, **options: Any) -> Any:
    """A Trainer that prints and keeps nothing."""
    return pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=run.ranks,
        strategy="ddp" if run.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_train_batches=run.early,
        accumulate_grad_batches=run.accumulated,
        use_distributed_sampler=run.cell.said != UNSHARDED,
        **options,
    )


def data_of(run: MatrixRun, use: str = "train") -> dict[str, Any]:
    """The loaders, as arguments of the Trainer; `use`: that of the module or loader that is read."""
    cell, pieces = run.cell, run.pieces()
    if cell.said == BY_INDEX:
        return {f"{use}_dataloaders": DataLoader(pieces["dataset"], BATCH, num_workers=cell.workers)}
    if (run.page or cell.said == UNSHARDED) and not run.task.stock:
        if cell.workers and cell.loader != "BrandLoader":
            return {f"{use}_dataloaders": run.loader(StatefulDataLoader)}
        if "sampler" in pieces and cell.loader != "iterable wrapper":
            more: dict[str, Any] = {"num_workers": cell.workers} if cell.workers else {}
            more |= {"train": pieces["dataset"], use: pieces["dataset"]}
            return {"datamodule": BrandDataModule(**more, batch_size=BATCH, seed=SEED)}
    return {f"{use}_dataloaders": run.loader()}


def fit(run: MatrixRun) -> None:
    """`trainer.fit`, from a checkpoint if there is one."""
    checkpoint = None if run.task.resume is None else run.task.resume / "last.ckpt"
    trainer_of(run).fit(MatrixModule(run), ckpt_path=checkpoint, **data_of(run))


class Writer(BasePredictionWriter):  # type: ignore[misc]
    """Notes the indices that Lightning gives to each prediction."""

    def __init__(self, run: MatrixRun) -> None:
        super().__init__("batch")
        self._found = run.outcome.facts.setdefault("indices", [])

    def write_on_batch_end(self, trainer: Any, module: Any, found: Any, indices: Any, *_: Any) -> None:
        """Of one batch; without indices, there is nothing to compare."""
        self._found.extend(indices or found.tolist())


def validate(run: MatrixRun) -> None:
    """While it trains."""
    data = data_of(run, "val")
    if "datamodule" not in data:
        data |= {"train_dataloaders": run.loader()} if run.cell.said == BY_INDEX else data_of(run)
    trainer_of(run).fit(MatrixModule(run), **data)


def evaluate(run: MatrixRun) -> None:
    """`trainer.test` or `trainer.predict`."""
    data = {name.replace(f"{run.cell.use}_", ""): value for name, value in data_of(run, run.cell.use).items()}
    options = {"callbacks": [Writer(run)]} if run.cell.use == "predict" else {}
    trainer = trainer_of(run, **options)
    getattr(trainer, run.cell.use)(MatrixModule(run), **data)


def tune(run: MatrixRun) -> None:
    """Find a rate of learning, and train then."""
    module, data, trainer = MatrixModule(run), data_of(run), trainer_of(run)
    module.tuned = True
    Tuner(trainer).lr_find(module, num_training=10, **data)
    module.tuned = False
    trainer.fit(module, **data)


def overfit(run: MatrixRun) -> None:
    """On two batches."""
    trainer_of(run, overfit_batches=2).fit(MatrixModule(run), **data_of(run))


OTHERS: dict[str, Use] = {"validate": validate, "test": evaluate, "predict": evaluate, "tune": tune, "overfit": overfit}
LIGHTNING = Way(fit, OTHERS)
