"""Which cell is the cure of a refusal? A phrase of the message, and the cell that the phrase means.

The phrases are of Brand's messages, and of those of frameworks that refuse by themselves. No framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.matrix.cells import BY_INDEX, PAGE, PREPARE, UNEVEN, UNSHARDED, Cell


@dataclass(frozen=True)
class Cure:
    """A phrase of a message, and its meaning for a cell."""

    phrase: str
    change: Callable[[Cell], Cell]


def _change(**values: Any) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, **values)


def _to_brand_loader(cell: Cell) -> Cell:
    return replace(cell, loader="BrandLoader" if cell.loader == "DataLoader" else cell.loader, workers=0)


def _to_mixin(cell: Cell) -> Cell:
    """`BrandTrainerMixin` makes a `BrandLoader`, or a `DataLoader` if there are worker processes."""
    loader = cell.loader if cell.loader == "mixture" else "DataLoader" if cell.workers else "BrandLoader"
    return replace(cell, said=PAGE, loader=loader)


def _without_stream(cell: Cell) -> Cell:
    """A `StatefulDataLoader` is no loader around a `BrandLoader`; a message may name `prepare` or the mixin."""
    cell = replace(cell, loader="BrandLoader")
    if cell.framework == "HF Trainer":
        return _to_mixin(cell)
    if cell.framework == "StatefulDataLoader":
        return replace(cell, framework="plain loop", said=PAGE)
    return replace(cell, said=PAGE) if cell.framework == "Accelerate" else cell


def _same_processes(cell: Cell) -> Cell:
    """A cell that has as many processes as before is not cured by that."""
    return replace(cell, use="inside") if cell.use == "other processes" else cell


_AS_THE_PAGE_SAYS = _change(said=PAGE)
_OWN_LOOP = _change(framework="plain loop", said=PAGE)
_RANDOM_ACCESS = _change(said=BY_INDEX, loader="DataLoader")
COMMON = (
    Cure("num_workers=0 or 1", _change(workers=0)),
    Cure("rain from the BrandLoader without an IterableDataset", _without_stream),
)
"""Those of all frameworks."""
_LIGHTNING = (
    Cure("set `Trainer(use_distributed_sampler=False)`", _change(said=UNSHARDED)),
    Cure("torch.utils.data.DataLoader(dataset, batch_size=...), which reads by random access", _RANDOM_ACCESS),
    Cure("a BrandDataModule (docs", _change(said=PAGE, loader="DataLoader", workers=0)),
    Cure("BrandDataModule(predict=dataset)", _change(said=PAGE, loader="DataLoader", workers=0)),
    Cure("read a sample of a member", _RANDOM_ACCESS),
    Cure("Use BrandLoader", _to_brand_loader),
    Cure("torchdata's StatefulDataLoader", _change(said=PAGE, workers=2)),
    Cure("as many processes and samples a batch as before", _same_processes),
)
CURES: dict[str, tuple[Cure, ...]] = {
    "Lightning": _LIGHTNING,
    "Fabric": (
        Cure("docs/guides/frameworks.md says what to use instead", _AS_THE_PAGE_SAYS),
        Cure("setup_dataloaders(..., use_distributed_sampler=False)", _AS_THE_PAGE_SAYS),
    ),
    "Accelerate": (
        Cure("use brand.frameworks.accelerate.prepare", _AS_THE_PAGE_SAYS),
        Cure("Use brand.frameworks.accelerate.prepare", _AS_THE_PAGE_SAYS),
        Cure("give a BrandLoader or a DataLoader with sampler=BrandSampler(dataset)", _change(loader="BrandLoader")),
        Cure("set `accelerator.even_batches=False` instead", _change(said=UNEVEN)),  # Accelerate's own
        Cure("KeyError: '_sampler_iter_yielded'", _without_stream),  # Accelerate's own before 1.13; on the page
    ),
    "HF Trainer": (
        Cure("Accelerate: use brand.frameworks.accelerate.prepare(accelerator, loader)", _change(said=PREPARE)),
        Cure("BrandTrainerMixin", _to_mixin),
        Cure("the same number of samples per optimizer step", _same_processes),
    ),
    "Ray Train": (Cure("add_dist_sampler=False", _AS_THE_PAGE_SAYS),),
    "StatefulDataLoader": (Cure("without batch_sampler=", _AS_THE_PAGE_SAYS),),
}
"""By framework."""
REPORTS = ("begins again at the same place", "saves no epoch of")
"""Phrases of log lines that say which samples a training leaves out or trains again; they name a cure, too."""
