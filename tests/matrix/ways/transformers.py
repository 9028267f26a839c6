"""The Hugging Face Trainer: a sampler or a loader of one's own; as the page says, `BrandTrainerMixin`."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from brand.frameworks.accelerate import prepare
from brand.frameworks.transformers import BrandTrainerMixin
from tests.matrix.cells import PREPARE
from tests.matrix.loops import BATCH, EPOCHS, SEED, EndedRunError, MatrixRun, ids_of, loss_of
from tests.matrix.ways.accelerate import forget
from tests.matrix.ways.base import Way


class MatrixModel(nn.Module):
    """A model that notes what it trains."""

    def __init__(self, run: MatrixRun, epochs: MatrixEpochs) -> None:
        super().__init__()
        self.layer, self._run, self._epochs = run.model, run, epochs

    def forward(self, index: Any, **more: Any) -> Any:
        """A loss, as the Trainer asks for it."""
        batch = {"index": index} | {name: more[name] for name in ("member",) if name in more}
        if self.training:
            self._epochs.stop |= self._run.train(self._epochs.now, batch)
        return {"loss": loss_of(self.layer, batch), "logits": ids_of(batch)}


class MatrixEpochs(TrainerCallback):  # type: ignore[misc]
    """The epoch of the Trainer, and where it stops."""

    def __init__(self, run: MatrixRun) -> None:
        self.run, self.now, self.stop = run, -1, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A resumed one begins in another epoch."""
        self.now = int(state.epoch or 0) - 1

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """The next one."""
        self.now += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint as the Trainer makes it."""
        self.run.outcome.facts.setdefault("logged", []).append(state.epoch)
        control.should_save = self.stop
        control.should_training_stop |= self.stop
        if self.run.trained(self.now) == self.run.early:
            control.should_epoch_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The same for `save_strategy="epoch"`."""
        if self.run.ends(self.now):
            control.should_save = control.should_training_stop = self.stop = True


def fit(run: MatrixRun, **more: Any) -> None:
    """`trainer.train`, from a checkpoint if there is one."""
    epochs = MatrixEpochs(run)
    if run.cell.workers and run.cell.loader in ("DataLoader", "mixture"):
        more["dataloader_num_workers"] = run.cell.workers
    if run.cell.loader == "iterable wrapper":  # it has no length
        steps = -(-len(run.samples.first) // (BATCH * run.ranks))
        more["max_steps"] = EPOCHS * -(-steps // run.accumulated)
    trainer = kind_of(run)(
        model=MatrixModel(run, epochs),
        args=arguments(run, **more),
        train_dataset=run.pieces()["dataset"],
        callbacks=[epochs],
    )
    checkpoint = None if run.task.resume is None else str(next(run.task.resume.glob("checkpoint-*")))
    with contextlib.redirect_stdout(None):
        trainer.train(resume_from_checkpoint=checkpoint)
    if epochs.stop:
        raise EndedRunError


def arguments(run: MatrixRun, **more: Any) -> Any:
    """Plain SGD, and nothing printed or saved."""
    return TrainingArguments(
        output_dir=str(run.task.folder),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=run.accumulated,
        num_train_epochs=EPOCHS,
        save_strategy="no",
        optim="sgd",
        learning_rate=0.05,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
        seed=SEED,
        **more,
    )


def kind_of(run: MatrixRun) -> Any:
    """The Trainer that a user writes: with a sampler, with a loader, or with the mixin."""

    class WithSampler(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return run.pieces()["sampler"]

    class WithLoader(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            if run.cell.said == PREPARE:
                return prepare(self.accelerator, run.loader())
            return self.accelerator.prepare(run.loader())

    class WithMixin(BrandTrainerMixin, Trainer):  # type: ignore[misc]
        pass

    if run.page and not run.task.stock:
        return WithMixin
    sampled = run.cell.loader == "DataLoader" or (run.cell.loader == "mixture" and run.cell.workers)
    return WithSampler if sampled or run.task.stock else WithLoader


def evaluate(run: MatrixRun) -> None:
    """`trainer.predict`, or `trainer.evaluate` while it trains."""

    def metrics(found: Any) -> dict[str, float]:
        run.outcome.facts["gathered"] = found.predictions.tolist()
        return {}

    epochs, more = MatrixEpochs(run), {"dataloader_num_workers": run.cell.workers}
    trainer = kind_of(run)(
        model=MatrixModel(run, epochs),
        args=arguments(
            run, eval_strategy="epoch" if run.cell.use == "validate" else "no", label_names=["index"], **more
        ),
        train_dataset=run.samples.first,
        eval_dataset=run.samples.first,
        callbacks=[epochs],
        compute_metrics=metrics,
    )
    with contextlib.redirect_stdout(None):
        if run.cell.use == "predict":
            trainer.predict(run.samples.first)
        else:
            trainer.train()


def tune(run: MatrixRun) -> None:
    """With `auto_find_batch_size`, where memory is large enough."""
    fit(run, auto_find_batch_size=True)


TRAINER = Way(fit, {"validate": evaluate, "predict": evaluate, "tune": tune}, forget=forget)
