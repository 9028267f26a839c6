"""Which cell is the cure of a refusal? A phrase of its message, and the cell that it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.frameworks.cells import Cell
from tests.frameworks.loops import Run

Use = Callable[[Run], None]


@dataclass(frozen=True)
class Cure:
    """A phrase of a message, and what it changes in a cell."""

    phrase: str
    change: Callable[[Cell], Cell]


@dataclass(frozen=True)
class Way:
    """A framework: its training, its other uses, and its cures."""

    fit: Use
    others: dict[str, Use]
    cures: tuple[Cure, ...] = ()
    begin: Callable[[int], None] = lambda ranks: None
    """Called once in each process."""
    forget: Callable[[], None] = lambda: None
    """Called after each run, as a new process begins."""


def change(**values: Any) -> Callable[[Cell], Cell]:
    """A function that changes these values of a cell."""
    return lambda cell: replace(cell, **values)


def to_brand_loader(cell: Cell) -> Cell:
    """The cell with a `BrandLoader` in place of a `DataLoader`."""
    return replace(cell, loader="BrandLoader" if cell.loader == "DataLoader" else cell.loader, workers=0)
