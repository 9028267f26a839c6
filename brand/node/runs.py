"""What is known of a run, and what do nodes and ranks say that draw?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.turns import Turns
from brand.protocol.order import Order
from brand.protocol.plan import Plan

MAX_EARLY: Final = 1 << 20
"""Positions that a node may have asked for before there is a plan."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What ranks say that are about to draw an epoch from position `start` on."""

    start: int
    replicas: int
    ranks: tuple[int, ...]
    batch: int = 0
    """Samples of a batch of each rank, with `locality`; 0: they draw in turn."""
    node: int = 0
    """Where they are."""
    times: int = 1
    """How often in a row they have begun this epoch; 0: not yet, they will be there next."""
    front: int = 0
    """They have drawn what lies before it."""
    largest: int = 0
    """Pages of the largest sample that can be sent to their node."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One who draws, as far as it said what: a rank's training process, or another node with all its ranks."""

    epoch: int
    begin: Begin


@dataclass(slots=True)
class Run:
    """One training."""

    order: Order
    name: str
    tag: int | None
    turn: int | None
    """Its place among the orders that a training has begun: the same on all nodes."""
    processes: int = 1
    """Training processes that draw what one rank has to draw."""
    fault: str | None = None
    """Why its draws are refused."""
    clients: set[int] = field(default_factory=set)
    readers: dict[tuple[int, int | None], Reader] = field(default_factory=dict)
    """By client; another node, whose ranks may be in several epochs, also by epoch."""

    def fronts(self, epoch: int) -> dict[int, int]:
        """Positions of an epoch before which ranks have drawn already."""
        begins = [reader.begin for reader in self.readers.values() if reader.epoch == epoch and reader.begin.front]
        return {rank: begin.front for begin in begins for rank in begin.ranks}

    def ranks(self, replicas: int) -> dict[int, int]:
        """Ranks that draw, and at which node, as far as they have said so."""
        begins = [reader.begin for reader in self.readers.values() if reader.begin.replicas == replicas]
        return {rank: begin.node for begin in begins for rank in begin.ranks}


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an epoch is begun."""

    turns: Turns
    times: int
    whole: bool = True
    """Whether it is begun as ranks said: not because a draw came of an epoch that was lost."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A node that can take samples of an epoch."""

    front: int
    """From this position on."""
    asks: bool
    """Whether it asks for them."""
    asked: list[NDArray[np.int64]] = field(default_factory=list)
    """What it asked for before there was a plan."""

    def ask_later(self, positions: NDArray[np.int64]) -> None:
        """It asks, and there is no plan yet; more than `MAX_EARLY` positions are not kept."""
        if sum(map(len, self.asked)) + len(positions) <= MAX_EARLY:
            self.asked.append(positions)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What this node tells others of an epoch that its ranks draw."""

    name: str
    turn: int | None
    order: Order
    epoch: int
    begin: Begin
    number: int
    """Tells this epoch from one that is begun anew; 0: its samples cannot be taken yet."""


@dataclass(slots=True)
class Waiting:
    """An epoch that is planned, and waits for its ranks."""

    plan: Plan
    read_of: NDArray[Any] | None
    begin: Beginning
    since_s: float | None = None
