"""Which decode workers does a node have, in which state is each, and when is a worker given up?

    OFF        it is started when a client has a decode spec
    STARTING   its process starts
    IDLE       it waits for a batch
    BUSY       it decodes a batch
    DONE       the server copies its results
    DEAD       it ended `MOST_ENDS` times within `WITHIN_S`, or did not start, and is not started again

A decode worker is a process. A file may crash or block it, so it may end at any time, and the server ends a late one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.reprs import Reprs

MOST_STRIKES: Final = 2
"""A sample is not sent to a decode worker any more after it has ended this many of them."""
MOST_ENDS: Final = 3
WITHIN_S: Final = 60.0
START_S: Final = 30.0
"""Time limit for the start of a decode worker."""


class WorkerState(Enum):
    """The state of a decode worker."""

    OFF = auto()
    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DONE = auto()
    DEAD = auto()


@dataclass(slots=True)
class DecodeWorker:
    """One decode worker."""

    state: WorkerState = WorkerState.OFF
    since_s: float = 0.0
    """The time since when it is in this state."""
    batch: int = 0
    """Number of the batch that it decodes."""
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_ENDS))
    """Times of its last ends."""

    def set_state(self, state: WorkerState, now_s: float, batch: int = 0) -> None:
        self.state, self.since_s, self.batch = state, now_s, batch

    def on_end(self, now_s: float) -> None:
        """Note that the process has ended, or did not start in time."""
        self.ends.append(now_s)
        often = len(self.ends) == MOST_ENDS and now_s - self.ends[0] <= WITHIN_S
        often |= self.state == WorkerState.STARTING and now_s - self.since_s > START_S
        self.set_state(WorkerState.DEAD if often else WorkerState.OFF, now_s)


class Strikes(Reprs, shows="_strikes"):
    """Samples during whose decoding a worker has ended, by decode spec and place."""

    def __init__(self) -> None:
        self._strikes: dict[tuple[int, int], int] = {}

    def has_strikes(self, want: int, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether a decode worker has ended over each sample."""
        if not self._strikes:
            return np.zeros(len(places), np.bool_)
        return np.isin(places, [place for of, place in self._strikes if of == want])

    def add(self, want: int, places: NDArray[Any]) -> NDArray[np.int64]:
        """Count an end of a decode worker over a batch. Return the samples that are not sent to a worker any more."""
        for place in places.tolist():
            self._strikes[want, place] = self._strikes.get((want, place), 0) + 1
        return np.array([p for p in places.tolist() if self._strikes[want, p] >= MOST_STRIKES], np.int64)

    def forget(self, want: int) -> None:
        self._strikes = {key: strikes for key, strikes in self._strikes.items() if key[0] != want}


class DecodeWorkers(Reprs, shows="alive ended_in_all"):
    """The decode workers of a node, by number. A worker is late if it takes longer than `batch_s` for a batch."""

    def __init__(self, count: int, batch_s: float) -> None:
        self.count, self._batch_s = count, batch_s
        self._workers = [DecodeWorker() for _ in range(count)]
        self.ended_in_all = 0

    @property
    def hopeful(self) -> bool:
        """Whether a decode worker runs or may be started."""
        return any(worker.state != WorkerState.DEAD for worker in self._workers)

    @property
    def waited_for(self) -> bool:
        """Whether a decode worker is starting or busy, and so may become late."""
        return any(worker.state in (WorkerState.STARTING, WorkerState.BUSY) for worker in self._workers)

    @property
    def alive(self) -> int:
        """Number of decode workers that have a process."""
        return sum(worker.state not in (WorkerState.OFF, WorkerState.DEAD) for worker in self._workers)

    def start(self, now_s: float) -> list[int]:
        """Mark all decode workers that are off as starting. Return their numbers."""
        off = [number for number, worker in enumerate(self._workers) if worker.state == WorkerState.OFF]
        for number in off:
            self._workers[number].set_state(WorkerState.STARTING, now_s)
        return off

    def idle(self) -> int | None:
        return next((n for n, worker in enumerate(self._workers) if worker.state == WorkerState.IDLE), None)

    def busy_s(self, number: int, now_s: float) -> float:
        return now_s - self._workers[number].since_s

    def mark_idle(self, number: int, now_s: float) -> None:
        """Mark a decode worker as idle after it has started, or after a batch without results to copy."""
        self._workers[number].set_state(WorkerState.IDLE, now_s)

    def mark_busy(self, number: int, batch: int, now_s: float, *, done: bool = False) -> None:
        """Mark a decode worker as busy with a batch, or as `done` with it while the server copies the results."""
        self._workers[number].set_state(WorkerState.DONE if done else WorkerState.BUSY, now_s, batch)

    def on_copied(self, number: int, batch: int, now_s: float) -> None:
        """Mark the decode worker of a copied batch as idle, unless it has ended meanwhile."""
        worker = self._workers[number]
        if (worker.state, worker.batch) == (WorkerState.DONE, batch):
            worker.set_state(WorkerState.IDLE, now_s)

    def on_end(self, number: int, now_s: float) -> bool:
        """Note that the process of a decode worker has ended. Return whether it is given up."""
        self.ended_in_all += 1
        self._workers[number].on_end(now_s)
        return self._workers[number].state == WorkerState.DEAD

    def late(self, now_s: float) -> list[int]:
        """Return the decode workers that have exceeded their time limit."""
        limit_s = {WorkerState.STARTING: START_S, WorkerState.BUSY: self._batch_s}
        return [
            number
            for number, worker in enumerate(self._workers)
            if worker.state in limit_s and now_s - worker.since_s > limit_s[worker.state]
        ]
