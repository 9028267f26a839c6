"""Were all positions of an epoch drawn, as far as the epoch got?

A framework leaves positions out if it shards a sampler's batches again, or skips some to resume. No training process
can detect that by itself. The server can: it knows the positions that each rank has to draw, and records the positions
of each draw. Workers of one training process are at different positions, and a loop that ends early leaves batches
undrawn. The server therefore judges only positions that all workers of all processes of a rank have passed: if one of
these was not drawn, it was left out. The server does not judge a batch sampler that draws in another order than the
sampler, or a worker that draws in several threads: a missing position may still be drawn later. It does not judge
bucketed or packed batches either, since it does not know how processes divide their positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.state.epoch import Division
from brand.node.wire.drawing import Drawer
from brand.node.wire.messages import UNTOLD
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Positions that ranks should have drawn and have not. `str()` returns a message for the user."""

    positions: int
    """Number of positions that were not drawn."""
    of: int
    """Number of positions that the ranks have passed, drawn or not."""
    at_the_beginning: int
    """Number of undrawn positions before the first drawn one."""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {', '.join(map(str, self.ranks))}"
        return (
            f"left out {self.positions:,} of the {self.of:,} positions that {who} passed ({self.at_the_beginning:,} of "
            "them at the beginning): something between BrandSampler and the data set removes batches. A framework that "
            "shards again does that, and so does one that skips batches to resume: see docs/guides/frameworks.md. A "
            "batch sampler of your own must yield all positions of the BrandSampler, and its batches in the same order"
        )


class Account(Reprs, shows="_drawn _numbers repeated"):
    """The training process that drew each position of an epoch, and the progress of each worker."""

    def __init__(self, division: Division) -> None:
        self._division = division
        self._drawn = np.zeros(division.samples, np.uint8)
        """Number of the training process that first drew each position, shape (samples,). 0 if it was not drawn."""
        self._numbers: dict[int, int] = {}
        """Numbers of training processes by process id, from 1. The 255th and all later processes share number 255."""
        self._last: dict[int, dict[int, dict[int, int]]] = {}
        """The last position of each worker, by rank and training process."""
        self._workers: dict[int, int] = {}
        """Number of workers of each training process."""
        self._connections: dict[tuple[int, int], ClientNumber] = {}
        """Number of the connection of each worker, by training process and worker."""
        self._asked: set[ClientNumber] = set()
        """Connections on which a process has asked for positions of this epoch."""
        self._draws = 0
        self._largest = 0
        """Most positions of one draw."""
        self._in_order = True
        self.repeated = 0
        """Number of positions that one training process drew after another process had drawn them."""

    def note(self, drawer: Drawer, positions: NDArray[np.int64], *, asked: bool = True) -> None:
        """Record the positions that a process draws: those that it has asked for, or reports as taken (not `asked`).

        Positions that a process repeats itself do not count as repeated: a sampler repeats some to fill up an epoch.
        """
        if asked:
            self._asked.add(drawer.connection)
        elif drawer.connection not in self._asked:
            # Each connection first asks, then takes: these are of an earlier pass, which the loop left early.
            self.give_up()
            return
        number = self._numbers.setdefault(drawer.training, min(255, len(self._numbers) + 1))
        by = self._drawn[positions]
        self._largest = max(self._largest, len(positions))
        self.repeated += int(((by != 0) & (by != number)).sum())
        positions = positions[(by == 0) & (positions >= self._division.start)]
        if not len(positions):
            return
        self._drawn[positions] = number
        self._draws += 1
        mine = self._connections.setdefault((drawer.training, drawer.worker), drawer.connection)
        if drawer.connection != mine:  # several threads draw, in any order
            self.give_up()
        rank, last = self._division.rank_of(int(positions[0])), int(positions.max())
        self._workers[drawer.training] = drawer.workers
        by_worker = self._last.setdefault(rank, {}).setdefault(drawer.training, {})
        before = by_worker.get(drawer.worker, -1)
        steps = np.diff(positions)
        in_turn = not self._division.batch and self._division.ruled is None
        natural = (steps == self._division.replicas) if in_turn else (steps > 0)
        self._in_order = self._in_order and bool(natural.all()) and int(positions[0]) > before
        by_worker[drawer.worker] = max(last, before)

    def give_up(self) -> None:
        """Stop judging this epoch, because another thread or an unknown process may draw the missing positions."""
        self._in_order = False

    @property
    def due(self) -> bool:
        """Whether to judge the epoch now: after 4, 8, 16, ... draws.

        Skipped batches show early, and each judgement scans all positions. The first draws are not judged, because a
        process may draw the positions before them by hand, or in another thread.
        """
        return self._draws > 2 and self._draws & (self._draws - 1) == 0

    def mostly_repeated(self, processes: int) -> bool:
        """Whether training processes drew each other's positions, more than are repeated to fill up the epoch.

        A sampler fills up the last round of its ranks. A framework that divides its batches among `processes` fills up
        the last batch of each of them.
        """
        filled = self._division.replicas - 1 + (processes * self._largest if processes > 1 else 0)
        return self.repeated > max(filled, (len(self._drawn) - self._division.start) // 4)

    def left_out(self, processes: int) -> LeftOut | None:
        """Return the positions that ranks left out if `processes` training processes draw for each rank.

        Returns None if no position was left out for certain.
        """
        if not self._in_order:
            return None
        missing = passed = skipped = 0
        ranks = []
        for rank, by_process in sorted(self._last.items()):
            whole = all(len(by_worker) >= self._workers[training] for training, by_worker in by_process.items())
            if len(by_process) < processes or not whole:
                continue
            front = min(min(by_worker.values()) for by_worker in by_process.values())
            drawn = self._division.at(self._drawn, rank, front) != 0
            if not drawn.all():
                ranks.append(rank)
                missing += int((~drawn).sum())
                passed += len(drawn)
                skipped += int(drawn.argmax())
        return LeftOut(missing, passed, skipped, tuple(ranks)) if missing else None


class Conduct(Reprs, shows="_trainings _fault"):
    """Check of the draws of a run's training processes. Messages for the user are appended to `notices`."""

    def __init__(self, notices: list[str]) -> None:
        self._notices = notices
        self._processes = 1
        self._trainings: set[int] = set()
        """Training processes of this node that have begun to draw, by process id."""
        self._fault: str | None = None
        """Why the server refuses draws. None if it does not."""
        self._told_of_repeats = False

    def on_begin(self, drawer: Drawer | None, processes: int, *, again: bool, in_group: bool = False) -> None:
        """Note that a training process begins an epoch, and that `processes` processes draw for one rank.

        If `processes` is `UNTOLD`, the epoch is not judged. `again`: it is the client's first epoch, or no later one.
        `in_group`: other processes draw the same positions on purpose.
        """
        self._processes = processes
        self._told_of_repeats = self._told_of_repeats or in_group
        if drawer is not None:
            self._trainings.add(drawer.training)
        if again:
            self._fault = None

    def note(self, account: Account, drawer: Drawer | None, positions: NDArray[np.int64], *, asked: bool) -> bool:
        """Record positions that a process has drawn (`Account.note`). Return whether to judge the epoch now."""
        if drawer is None or drawer.training not in self._trainings or self._processes == UNTOLD:
            account.give_up()
            return False
        account.note(drawer, positions, asked=asked)
        return account.due

    def judge(self, account: Account, epoch: int) -> None:
        """Refuse the next draws of the training processes if they left out positions of an epoch."""
        left_out = None if self._fault else account.left_out(self._processes)
        if left_out is not None:
            self._fault = f"epoch {epoch} {left_out}"
            self._notices.append(self._fault)
        if account.mostly_repeated(self._processes) and not self._told_of_repeats:
            self._told_of_repeats = True
            self._notices.append(
                f"in epoch {epoch}, {account.repeated:,} positions were fetched by one training process after another "
                "had fetched them: each trains on the samples of the other. Leave out num_replicas= and rank= of the "
                "BrandSampler, or give each process its own rank; ranks of a model-parallel group get the same samples "
                "with replication=. (This message is not repeated.)"
            )

    def check(self) -> None:
        """Raise `UsageError` if training processes left out positions of an epoch."""
        if self._fault is not None:
            raise UsageError(self._fault)
