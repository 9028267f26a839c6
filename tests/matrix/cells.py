"""Which cells does the matrix of frameworks have, and which of them are drawn? Pure decisions, without a process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from heapq import heapify, heapreplace
from itertools import combinations, product

LOADERS = ("DataLoader", "BrandLoader", "length-grouped", "packed", "mixture", "iterable wrapper")
"""`length-grouped`, `packed` and `mixture` are a `BrandLoader`; with worker processes, a `DataLoader`."""
FITS = (
    "whole epochs",
    "left early",
    "inside",
    "last batch",
    "end",
    "twice",
    "accumulation",
    "other processes",
)
"""How a training ends and goes on: it is stopped inside an epoch, after its last batch (`last batch`), after the loop
over its batches (`end`), and so on."""
OTHERS = ("validate", "test", "predict", "tune", "overfit")
DEFAULTS, PAGE, STATEFUL, PREPARE = "defaults", "as the page says", "use_stateful_dataloader", "prepare"
BY_INDEX, UNSHARDED, UNEVEN = "random access", "use_distributed_sampler=False", "even_batches=False"
"""`prepare`: the one of Brand for Accelerate, in `get_train_dataloader` of a Trainer. `use_distributed_sampler=False`:
next to all that the page says. `even_batches=False` is only a cure: that of Accelerate's own error."""
FRAMEWORKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plain loop": ((DEFAULTS, PAGE), ("validate",)),
    "torchrun": ((DEFAULTS, PAGE), ("validate",)),
    "Lightning": ((DEFAULTS, PAGE, BY_INDEX, UNSHARDED), OTHERS),
    "Fabric": ((DEFAULTS, PAGE), ()),
    "Accelerate": ((DEFAULTS, STATEFUL, PAGE), ("validate",)),
    "HF Trainer": ((DEFAULTS, PREPARE, PAGE), ("validate", "predict", "tune")),
    "StatefulDataLoader": ((DEFAULTS, PAGE), ()),
    "torchdata.nodes": ((DEFAULTS,), ()),
    "Ray Train": ((DEFAULTS, PAGE), ()),
}
"""By framework: what is said to it, and what it has besides training."""


@dataclass(frozen=True, order=True)
class Cell:
    """One way to train."""

    framework: str
    loader: str
    ranks: int
    workers: int
    use: str
    said: str

    def __str__(self) -> str:
        return " | ".join(map(str, astuple(self)))


def cells(framework: str) -> list[Cell]:
    """Return all cells of a framework that make sense."""
    said, others = FRAMEWORKS[framework]
    found = (Cell(framework, *rest) for rest in product(LOADERS, (1, 2), (0, 2), FITS + others, said))
    return [cell for cell in found if makes_sense(cell)]


def makes_sense(cell: Cell) -> bool:
    """Whether somebody can write the program of this cell."""
    match cell.framework:
        case "StatefulDataLoader":  # a BrandLoader has its own state: that is a plain loop
            planned = cell.loader in ("length-grouped", "packed")  # they are always a batch_sampler
            return cell.loader != "BrandLoader" and not (cell.said == DEFAULTS and planned)
        case "Lightning" if cell.said == BY_INDEX:
            return cell.loader == "DataLoader" and cell.use in ("validate", "test", "predict", "overfit")
        case "Lightning" if cell.said == UNSHARDED and cell.use in ("predict", "overfit"):  # each rank reads all of it
            return cell.loader != "BrandLoader" and (cell.workers > 0 or cell.loader not in ("DataLoader", "mixture"))
        case "HF Trainer" if cell.use in ("validate", "predict"):  # the Trainer reads by random access
            return cell.loader == "DataLoader" and cell.said == DEFAULTS
        case "HF Trainer" if cell.said == PAGE:  # the mixin makes its own loader: with or without worker processes
            return cell.loader == "mixture" or cell.loader == ("DataLoader" if cell.workers else "BrandLoader")
        case "HF Trainer" if cell.said == PREPARE:
            return cell.loader in ("BrandLoader", "mixture") and cell.use in (*FITS, "tune")
    return True


@cache
def draw(seed: int = 5) -> list[Cell]:
    """Return cells that have each pair of values that some cell has, chosen one after the other: the best at a time.

    For each framework, they have its pairs; those of a loader and a use, the frameworks have together.
    """
    left = [cell for framework in FRAMEWORKS for cell in cells(framework)]
    random.Random(seed).shuffle(left)
    pairs = [set(_pairs(cell)) for cell in left]
    missing, chosen = set[object]().union(*pairs), list[Cell]()
    most = [(-len(each), number) for number, each in enumerate(pairs)]  # new pairs of a cell become ever fewer
    heapify(most)
    while missing:
        _, number = most[0]
        now = (-len(pairs[number] & missing), number)
        heapreplace(most, now)
        if most[0] == now:
            chosen.append(left[number])
            missing -= pairs[number]
    return chosen


def _pairs(cell: Cell) -> Iterator[object]:
    """Yield the pairs of values of a cell that a draw has to have."""
    for pair in combinations([(field.name, getattr(cell, field.name)) for field in fields(cell)[1:]], 2):
        together = {name for name, _ in pair} == {"loader", "use"}
        yield pair if together else (cell.framework, pair)
