"""Were the positions of an epoch all drawn, as far as it got?

A framework that shards a sampler's batches again, or skips some to resume, leaves positions out, and no process sees
that by itself. The server does: it knows which positions each rank has to draw, and notes which are asked for. Workers
of one training process are at different places, and what was on its way when a loop was left is not drawn any more. So
only positions are judged that all workers of all processes of a rank have passed: what is missing there was left out.
A batch sampler that draws in another order than the sampler's is not judged: what is missing may come later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brand.node.messages import ProtocolError
from brand.node.turns import Turns


@dataclass(frozen=True, slots=True)
class Drawer:
    """Who draws through a connection."""

    training: int
    """Process id of the training process."""
    worker: int = 0
    """Which of its workers; 0 where it draws itself."""
    workers: int = 1
    """How many workers it has; 1 where it draws itself."""

    @staticmethod
    def named(training: object, worker: object) -> Drawer | None:
        """Who draws, as a client says in its HELLO; None where it says nothing. Raises `ProtocolError`."""
        if worker is None or training is None:
            return None
        match worker:
            case [int() as number, int() as workers] if isinstance(training, int) and 0 <= number < workers:
                return Drawer(training, number, workers)
        raise ProtocolError(f"worker {worker!r} of process {training!r}")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What ranks should have drawn, and have not; as text, for people."""

    positions: int
    """How many positions were not drawn,"""
    of: int
    """of so many that were passed;"""
    at_the_beginning: int
    """and how many of them lie before the first that was drawn."""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {', '.join(map(str, self.ranks))}"
        return (
            f"left out {self.positions:,} of the {self.of:,} positions that {who} passed ({self.at_the_beginning:,} of "
            "them at the beginning): something between BrandSampler and data set takes batches away. A framework that "
            "shards again does that, and one that skips batches to resume: docs/frameworks.md says what to use with "
            "it. A batch sampler of your own must yield all that the BrandSampler does, and not its batches in another "
            "order"
        )


class Account:
    """Which positions of an epoch were drawn, and how far each worker has come."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._drawn = np.zeros(turns.samples, np.bool_)
        self._last: dict[int, dict[int, dict[int, int]]] = {}
        """The last position of each worker, by rank and training process."""
        self._workers: dict[int, int] = {}
        """How many workers a training process has."""
        self._draws = 0
        self._in_order = True

    def note(self, drawer: Drawer, positions: NDArray[np.int64]) -> None:
        """These are drawn."""
        self._drawn[positions] = True
        self._draws += 1
        rank, last = self._turns.rank_of(int(positions[0])), int(positions.max())
        self._workers[drawer.training] = drawer.workers
        by_worker = self._last.setdefault(rank, {}).setdefault(drawer.training, {})
        before = by_worker.get(drawer.worker, -1)
        steps = np.diff(positions)
        natural = (steps > 0) if self._turns.batch else (steps == self._turns.replicas)
        self._in_order = self._in_order and bool(natural.all()) and int(positions[0]) > before
        by_worker[drawer.worker] = max(last, before)

    def give_up(self) -> None:
        """Somebody else draws, too: what is missing may be with that process."""
        self._in_order = False

    @property
    def due(self) -> bool:
        """Whether to look now: seldom, as that looks at all positions, and soon, as batches skipped show at once."""
        return self._draws > 2 and self._draws & (self._draws - 1) == 0

    def left_out(self, processes: int) -> LeftOut | None:
        """What was left out, where so many training processes draw for each rank; None where nothing was, for sure."""
        if not self._in_order:
            return None
        missing = passed = skipped = 0
        ranks = []
        for rank, by_process in sorted(self._last.items()):
            whole = all(len(by_worker) >= self._workers[training] for training, by_worker in by_process.items())
            if len(by_process) < processes or not whole:
                continue
            front = min(min(by_worker.values()) for by_worker in by_process.values())
            mine = self._turns.positions(rank)
            drawn = self._drawn[mine[mine <= front]]
            if not drawn.all():
                missing += int((~drawn).sum())
                skipped += int(drawn.argmax())
                ranks.append(rank)
            passed += len(drawn)
        return LeftOut(missing, passed, skipped, tuple(ranks)) if missing else None
