"""Training loops as users write them, for each framework: what a step trains is recorded, and a run can be stopped.

A loop gets a `Run`, which says what to train, where to stop and what to go on from. It calls `run.train(epoch, batch)`
for each step; that raises `StoppedError` after the checkpoint was asked for, as a preempted job ends.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader

from brand.torch import BrandDataset, BrandLoader, BrandSampler

BATCH = 32
EPOCHS = 3


class StoppedError(Exception):
    """The job was preempted."""


@dataclass
class Run:
    """One run of a loop in one process."""

    data_set: BrandDataset
    loader: str
    """`DataLoader` or `BrandLoader`."""
    folder: Path
    """Where its checkpoint is to be."""
    seed: int
    stop: tuple[int, int] | None = None
    """Epoch and steps of this run in that epoch, after which it is stopped."""
    resume: Path | None = None
    steps: dict[int, list[list[int]]] = field(default_factory=dict)
    """What was trained, by epoch and step."""

    def make(self, data_set: BrandDataset | None = None, **more: Any) -> Any:
        """The loader, with a sampler of its own."""
        data_set = self.data_set if data_set is None else data_set
        sampler = BrandSampler(data_set, seed=self.seed)
        return (BrandLoader if self.loader == "BrandLoader" else DataLoader)(data_set, BATCH, sampler=sampler, **more)

    def train(self, epoch: int, batch: Any) -> bool:
        """A step; whether the run is stopped after it."""
        self.steps.setdefault(epoch, []).append(batch["index"].tolist())
        return self.stop == (epoch, len(self.steps[epoch]))

    def write(self, state: Any) -> None:
        """The checkpoint; all ranks have the same state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state.json").write_text(json.dumps(state))
        raise StoppedError

    def read(self) -> Any:
        """The checkpoint to go on from."""
        assert self.resume is not None
        return json.loads((self.resume / "state.json").read_text())


def plain(run: Run) -> None:
    """As `docs/guides/resume.md` has it."""
    loader = run.make()
    keeper = loader if run.loader == "BrandLoader" else loader.sampler
    first = 0
    if run.resume is not None:
        state = run.read()
        keeper.load_state_dict(state)
        first = state["epoch"]
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, 1):
            if run.train(epoch, batch):
                run.write(
                    keeper.state_dict() if keeper is loader else keeper.state_dict(batches=step, batch_size=BATCH)
                )


def stateful(run: Run) -> None:
    """torchdata's loader keeps the sampler's state."""
    _stateful(run, lambda loaders: loaders.StatefulDataLoader(run.data_set, BATCH, sampler=run.make().sampler))


def stateful_batches(run: Run) -> None:
    """With a batch sampler that has no state."""

    def make(loaders: Any) -> Any:
        sampler = BatchSampler(run.make().sampler, BATCH, drop_last=False)
        return loaders.StatefulDataLoader(run.data_set, batch_sampler=sampler)

    _stateful(run, make)


def _stateful(run: Run, make: Callable[[Any], Any]) -> None:
    import torchdata.stateful_dataloader as loaders

    loader, first = make(loaders), 0
    if run.resume is not None:
        kept = torch.load(run.resume / "state.pt", weights_only=False)
        first = kept["epoch"]
        loader.load_state_dict(kept["loader"])
    for epoch in range(first, EPOCHS):
        for batch in loader:
            if run.train(epoch, batch):
                run.folder.mkdir(parents=True, exist_ok=True)
                torch.save({"epoch": epoch, "loader": loader.state_dict()}, run.folder / "state.pt")
                raise StoppedError


# -- Lightning -------------------------------------------------------------------------------------------------------


def lightning(run: Run) -> None:
    """A loader, given to `fit`."""
    _fit(run, {"train_dataloaders": run.make()})


def lightning_module(run: Run) -> None:
    """`BrandDataModule`; with worker processes, torchdata's loader."""
    from brand.frameworks.lightning import BrandDataModule

    if run.loader == "BrandLoader":
        _fit(run, {"datamodule": BrandDataModule(run.data_set, batch_size=BATCH, seed=run.seed)})
    else:
        import torchdata.stateful_dataloader as loaders

        _fit(run, {"train_dataloaders": loaders.StatefulDataLoader(run.data_set, BATCH, sampler=run.make().sampler)})


def _fit(run: Run, data: dict[str, Any]) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            self.stop = run.train(self.current_epoch, batch)
            return self.layer(batch["label"].float()[:, None]).mean()

        def on_train_batch_end(self, *_: Any) -> None:
            if self.stop:
                self.trainer.save_checkpoint(run.folder / "last.ckpt")
                raise StoppedError

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    ranks = _ranks()
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), ckpt_path=None if run.resume is None else run.resume / "last.ckpt", **data)


# -- Fabric ----------------------------------------------------------------------------------------------------------


def fabric(run: Run) -> None:
    """`setup_dataloaders`, which counts its own iterations."""
    _fabric(run, set_up=True)


def fabric_itself(run: Run) -> None:
    """The loader as it is; Fabric moves the batches."""
    _fabric(run, set_up=False)


def _fabric(run: Run, *, set_up: bool) -> None:
    from lightning.fabric import Fabric

    made, ranks = run.make(), _ranks()
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    loader = fabric.setup_dataloaders(made) if set_up else made
    keeper = made if run.loader == "BrandLoader" else made.sampler
    first = 0
    if run.resume is not None:
        state = fabric.load(run.resume / "fabric.ckpt")["data"]
        keeper.load_state_dict(state)
        first = state["epoch"]
    for epoch in range(first, EPOCHS):
        if not set_up:
            made.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, 1):
            if run.train(epoch, fabric.to_device(batch)):
                brand = keeper.state_dict() if keeper is made else keeper.state_dict(batches=step, batch_size=BATCH)
                fabric.save(run.folder / "fabric.ckpt", {"data": brand})
                raise StoppedError


# -- Accelerate ------------------------------------------------------------------------------------------------------


def accelerate(run: Run) -> None:
    """`accelerator.prepare`, and the recipe of its documentation: skip what was trained."""
    _accelerate(run)


def accelerate_stateful(run: Run) -> None:
    """`accelerator.prepare` with torchdata's loader inside."""
    _accelerate(run, use_stateful_dataloader=True)


def accelerate_prepared(run: Run) -> None:
    """`brand.frameworks.accelerate.prepare`."""
    from accelerate import Accelerator

    from brand.frameworks.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, run.make())
    first = 0
    if run.resume is not None:
        accelerator.load_state(str(run.resume))
        first = loader.sampler.epoch
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            if run.train(epoch, batch):
                accelerator.save_state(str(run.folder))
                raise StoppedError


def _accelerate(run: Run, **configuration: Any) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    prepared = accelerator.prepare(run.make())
    first = skipped = 0
    if run.resume is not None:
        accelerator.load_state(str(run.resume))
        first, skipped = json.loads((run.resume / "place.json").read_text())
    for epoch in range(first, EPOCHS):
        loader, done = prepared, 0
        if epoch == first and skipped and not configuration:
            loader, done = accelerator.skip_first_batches(prepared, skipped), skipped
        for step, batch in enumerate(loader, 1):
            if run.train(epoch, batch):
                accelerator.save_state(str(run.folder))
                if accelerator.is_main_process:
                    (run.folder / "place.json").write_text(json.dumps([epoch, done + step]))
                raise StoppedError


# -- Transformers ----------------------------------------------------------------------------------------------------


def transformers(run: Run) -> None:
    """A sampler from `_get_train_sampler`, or a loader from `get_train_dataloader`, and nothing else."""
    from transformers import Trainer

    class Draws(Trainer):  # type: ignore[misc]
        if run.loader == "BrandLoader":

            def get_train_dataloader(self) -> Any:
                return self.accelerator.prepare(run.make())
        else:

            def _get_train_sampler(self, *_: Any) -> Any:
                return BrandSampler(run.data_set, seed=run.seed)

    _trainer(run, Draws)


def transformers_mixin(run: Run) -> None:
    """`BrandTrainerMixin`."""
    from transformers import Trainer

    from brand.frameworks.transformers import BrandTrainerMixin

    class Draws(BrandTrainerMixin, Trainer):  # type: ignore[misc]
        pass

    _trainer(run, Draws, dataloader_num_workers=0 if run.loader == "BrandLoader" else 1)


def _trainer(run: Run, kind: Any, **more: Any) -> None:
    from transformers import TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, index: Any, labels: Any) -> Any:
            epochs.stop = run.train(epochs.now, {"index": index})
            return {"loss": self.layer(labels.float()[:, None]).mean()}

    class Epochs(TrainerCallback):  # type: ignore[misc]
        now, stop = -1, False

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.now = int(state.epoch or 0) - 1

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.now += 1

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = control.should_training_stop = self.stop

    epochs = Epochs()
    args = TrainingArguments(
        output_dir=str(run.folder),
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
        seed=run.seed,
        **more,
    )
    trainer = kind(model=Model(), args=args, train_dataset=run.data_set, callbacks=[epochs])
    checkpoint = None if run.resume is None else str(next(run.resume.glob("checkpoint-*")))
    with contextlib.redirect_stdout(None):
        trainer.train(resume_from_checkpoint=checkpoint)
    if run.stop is not None:
        raise StoppedError


def _ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else _world


_world = 1


def set_ranks(count: int) -> None:
    """How many processes there are."""
    global _world
    _world = count


LOOPS: dict[str, dict[str, Callable[[Run], None]]] = {
    "plain loop": {"as on the page": plain},
    "torchrun": {"as on the page": plain},
    "StatefulDataLoader": {"as on the page": stateful, "batch_sampler=": stateful_batches},
    "Lightning Trainer": {"by default": lightning, "as on the page": lightning_module},
    "Lightning Fabric": {"by default": fabric, "as on the page": fabric_itself},
    "Accelerate": {
        "by default": accelerate,
        "use_stateful_dataloader=True": accelerate_stateful,
        "as on the page": accelerate_prepared,
    },
    "Hugging Face Trainer": {"by default": transformers, "as on the page": transformers_mixin},
}
"""By framework, and by what is said to it."""
