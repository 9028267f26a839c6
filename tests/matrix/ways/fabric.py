"""Lightning Fabric: `setup_dataloaders`; as the page says, the loader itself."""

from __future__ import annotations

from lightning.fabric import Fabric

from tests.matrix.loops import EPOCHS, EndedRunError, MatrixRun, keeper_of, loss_of, state_of
from tests.matrix.ways.base import Way


def fit(run: MatrixRun) -> None:
    """The loop of the page; by default, Fabric counts its own iterations."""
    fabric = Fabric(accelerator="cpu", devices=run.ranks, strategy="ddp" if run.ranks > 1 else "auto")
    fabric.launch()
    made, first = run.loader(), 0
    model, optimizer = fabric.setup(run.model, run.optimizer())
    loader = made if run.page and not run.task.stock else fabric.setup_dataloaders(made)
    if run.task.resume is not None:
        saved = fabric.load(run.task.resume / "fabric.ckpt", {"model": model})
        keeper_of(made).load_state_dict(saved["data"])
        first = saved["data"]["epoch"]
    for epoch in range(first, EPOCHS):
        if run.page:
            keeper_of(made).set_epoch(epoch)
        step = 0
        for step, batch in enumerate(loader, 1):
            batch = fabric.to_device(batch)
            stop = run.train(epoch, batch)
            with fabric.no_backward_sync(model, enabled=step % run.accumulated != 0):
                fabric.backward(loss_of(model, batch) / run.accumulated)
            if step % run.accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
            if stop:
                fabric.save(run.task.folder / "fabric.ckpt", {"model": model, "data": state_of(made, step)})
                raise EndedRunError
            if step == run.early:
                break
        optimizer.step()
        optimizer.zero_grad()
        if run.ends(epoch):
            fabric.save(run.task.folder / "fabric.ckpt", {"model": model, "data": state_of(made, step)})
            raise EndedRunError


FABRIC = Way(fit, {})
