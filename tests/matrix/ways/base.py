"""The shape of a way to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.matrix.loops import MatrixRun

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
