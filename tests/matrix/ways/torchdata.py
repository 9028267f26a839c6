"""torchdata: `StatefulDataLoader`, which keeps the state of its sampler, and pipelines of nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torchdata.nodes as tn
from torch.utils.data import BatchSampler, DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.matrix.loops import BATCH, EPOCHS, MatrixRun, keeper_of
from tests.matrix.ways.base import Way, train_epoch


def fit_stateful(run: MatrixRun) -> None:
    """With `sampler=`; by default with a batch sampler that has no state."""
    if run.page or run.task.stock or run.cell.loader == "iterable wrapper":
        loader = run.loader(StatefulDataLoader)
    else:
        pieces = run.pieces()
        batches = BatchSampler(pieces["sampler"], BATCH, drop_last=False)
        loader = StatefulDataLoader(pieces["dataset"], batch_sampler=batches, num_workers=run.cell.workers)
    _fit(run, loader)


def fit_nodes(run: MatrixRun) -> None:
    """A sampler, batches of it, and a node that reads them; a loader is a node of its own."""
    if run.cell.loader in ("BrandLoader", "iterable wrapper"):
        loader = run.loader()
        _fit(run, tn.Loader(tn.IterableWrapper(loader if run.cell.loader == "BrandLoader" else loader.dataset)))
        return
    pieces = run.pieces()
    if "batch_sampler" in pieces:
        node: Any = tn.SamplerWrapper(pieces["batch_sampler"])
    else:
        node = tn.Batcher(tn.SamplerWrapper(pieces["sampler"]), BATCH, drop_last=False)
    read = partial(_read, pieces["dataset"], pieces.get("collate_fn", default_collate))
    if run.cell.workers:
        node = tn.ParallelMapper(node, read, num_workers=run.cell.workers, method="thread")
    else:
        node = tn.Mapper(node, read)
    _fit(run, tn.Loader(node))


def _read(dataset: Any, collate: Any, batch: list[int]) -> Any:
    return collate([dataset[n] for n in batch] if isinstance(dataset, list) else dataset.__getitems__(batch))


def _fit(run: MatrixRun, loader: Any) -> None:
    """The loop of both: the loader has the state."""
    model, first = run.model, 0
    optimizer = run.optimizer()
    if run.task.resume is not None:
        saved = run.read()
        first = saved["epoch"]
        loader.load_state_dict(saved["data"])
        model.load_state_dict(saved["model"])
    ended = isinstance(loader, tn.Loader) and run.cell.use == "last batch"  # after which it begins the next epoch
    for epoch in range(first, EPOCHS):
        if run.task.stock and isinstance(loader, DataLoader):
            keeper_of(loader).set_epoch(epoch)

        def save(_: int, over: bool, epoch: int = epoch) -> None:
            run.write(epoch=epoch + (over or ended), data=loader.state_dict(), model=model.state_dict())

        train_epoch(run, epoch, loader, model, optimizer, save)


STATEFUL_LOADER = Way(fit_stateful, {})
NODES = Way(fit_nodes, {})
