"""The shape of a way to train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from tests.matrix.loops import MatrixRun, loss_of

Use = Callable[[MatrixRun], None]


@dataclass(frozen=True)
class Way:
    """A framework: its training, and its other uses."""

    fit: Use
    others: dict[str, Use]
    begin: Callable[[int], None] = lambda ranks: None
    """Called once in each process."""
    forget: Callable[[], None] = lambda: None
    """Called after each run, as a new process begins."""


def train_epoch(
    run: MatrixRun,
    epoch: int,
    batches: Iterable[Any],
    model: nn.Module,
    optimizer: optim.Optimizer,
    save: Callable[[int, bool], None],
) -> None:
    """Train an epoch in a loop without a framework.

    `save` ends the run with a checkpoint. It gets the number of trained batches, and whether their loop has ended.
    """
    step = 0
    for step, batch in enumerate(batches, 1):
        stop = run.train(epoch, batch)
        (loss_of(model, batch) / run.accumulated).backward()
        if step % run.accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
        if stop:
            save(step, False)
        if step == run.early:
            break
    optimizer.step()  # of a last step with fewer batches; without any, it changes nothing
    optimizer.zero_grad()
    if run.ends(epoch):
        save(step, True)
