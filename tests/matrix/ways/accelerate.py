"""Accelerate: `accelerator.prepare`, and skipped batches; as the page says, Brand's `prepare`."""

from __future__ import annotations

import json
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from brand.frameworks.accelerate import prepare
from tests.matrix.cells import STATEFUL, UNEVEN
from tests.matrix.loops import BATCH, EPOCHS, EndedRunError, MatrixRun, ids_of, loss_of
from tests.matrix.ways.base import Way


def fit(run: MatrixRun) -> None:
    """As the documentation of Accelerate has it, or as Brand's."""
    stateful = run.cell.said == STATEFUL
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=run.accumulated,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=stateful, even_batches=run.cell.said != UNEVEN
        ),
    )
    made = run.loader()
    model, optimizer = accelerator.prepare(run.model, run.optimizer())
    if run.page and not run.task.stock:
        _loop_of_page(run, accelerator, model, optimizer, made)
        return
    prepared = accelerator.prepare(made)
    first = skipped = 0
    if run.task.resume is not None:
        accelerator.load_state(str(run.task.resume))
        first, skipped = json.loads((run.task.resume / "place.json").read_text())
    for epoch in range(first, EPOCHS):
        if first:  # Accelerate counts its own iterations from 0
            prepared.set_epoch(epoch)
        loader, done, step = prepared, 0, 0
        if epoch == first and skipped and not stateful:
            loader, done = accelerator.skip_first_batches(prepared, skipped), skipped
        for step, batch in enumerate(loader, 1):
            if _step(run, accelerator, model, optimizer, epoch, batch):
                _save(run, accelerator, [epoch, done + step])
            if step == run.early:
                break
        if run.ends(epoch):
            _save(run, accelerator, [epoch + 1, 0])


def _loop_of_page(run: MatrixRun, accelerator: Any, model: Any, optimizer: Any, made: Any) -> None:
    """With `prepare` of Brand."""
    loader, first = prepare(accelerator, made), 0
    if run.task.resume is not None:
        accelerator.load_state(str(run.task.resume))
        first = loader.sampler.epoch
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader, 1):
            if _step(run, accelerator, model, optimizer, epoch, batch):
                _save(run, accelerator, None)
            if step == run.early:
                break
        if run.ends(epoch):
            _save(run, accelerator, None)


def _step(run: MatrixRun, accelerator: Any, model: Any, optimizer: Any, epoch: int, batch: Any) -> bool:
    stop = run.train(epoch, batch)
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    return stop


def _save(run: MatrixRun, accelerator: Any, place: Any) -> None:
    run.task.folder.mkdir(parents=True, exist_ok=True)
    accelerator.save_state(str(run.task.folder))
    if accelerator.is_main_process:
        (run.task.folder / "place.json").write_text(json.dumps(place))
    raise EndedRunError


def validate(run: MatrixRun) -> None:
    """`gather_for_metrics`; as the page says, by random access. After `prepare` of Brand, batches are not gathered."""
    configuration = DataLoaderConfiguration(use_stateful_dataloader=run.cell.said == STATEFUL)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    if run.page and run.cell.loader != "DataLoader":
        for batch in prepare(accelerator, run.loader()):
            run.sees(batch)
        return
    loader = DataLoader(run.samples.first, BATCH, num_workers=run.cell.workers) if run.page else run.loader()
    found = run.outcome.facts["gathered"] = []
    for batch in accelerator.prepare(loader):
        found += accelerator.gather_for_metrics(ids_of(batch)).tolist()


def forget() -> None:
    """Accelerate keeps what it knows in classes."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


ACCELERATE = Way(fit, {"validate": validate}, forget=forget)
