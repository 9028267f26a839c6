"""A plain loop, as `docs/guides/resume.md` has it; under torchrun the same without a process group."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed

from tests.matrix.loops import EPOCHS, INSIDE, MatrixRun, keeper_of, state_of
from tests.matrix.ways.base import Way, train_epoch


def fit(run: MatrixRun) -> None:
    """By default without `set_epoch`: each iteration is the next epoch."""
    loader, model, first = run.loader(), run.model, 0
    optimizer = run.optimizer()
    if run.task.resume is not None:
        saved = run.read()
        keeper_of(loader).load_state_dict(saved["data"])
        model.load_state_dict(saved["model"])
        first = saved["data"]["epoch"]

    def save(step: int, _: bool) -> None:
        run.write(data=state_of(loader, step), model=model.state_dict())

    for epoch in range(first, EPOCHS):
        if run.page or run.task.stock:
            keeper_of(loader).set_epoch(epoch)
        train_epoch(run, epoch, _batches(run, loader), model, optimizer, save)


def _batches(run: MatrixRun, loader: Any) -> Iterator[Any]:
    """Yield the batches; a run that validates does so in the middle of an epoch."""
    for step, batch in enumerate(loader, 1):
        yield batch
        if run.cell.use == "validate" and step == INSIDE:
            evaluate(run)


def evaluate(run: MatrixRun) -> None:
    """By a loader of its own, in the middle of an epoch."""
    run.outcome.facts["seen"] = []
    for batch in run.loader():
        run.sees(batch)


def begin(ranks: int) -> None:
    """A plain loop on several processes has a process group."""
    if ranks > 1:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))


PLAIN = Way(fit, {}, begin=begin)
TORCHRUN = Way(fit, {})
