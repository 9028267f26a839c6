"""Which preparers are there, what does each do, and when is one given up?

    OFF        it is to be started where something is wanted
    STARTING   its process starts
    IDLE       it waits for a batch
    BUSY       it prepares a batch
    DONE       the server copies what it has prepared
    DEAD       it ended `MOST_ENDS` times within `WITHIN_S`, or did not start, and is not started again

A preparer is a process of the server that decodes. A file may crash or block a decoder, so a preparer may end at any
time, and the server ends one that is late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_STRIKES: Final = 2
"""A sample is not sent to a preparer any more after so many have ended over it."""
MOST_ENDS: Final = 3
WITHIN_S: Final = 60.0
START_S: Final = 30.0
"""How long a preparer may take to start."""


class WorkerState(Enum):
    """What a preparer does."""

    OFF = auto()
    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DONE = auto()
    DEAD = auto()


@dataclass(slots=True)
class DecodeWorker:
    """One preparer."""

    state: WorkerState = WorkerState.OFF
    since_s: float = 0.0
    """Since when it is in this state."""
    batch: int = 0
    """Number of the batch that it prepares."""
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_ENDS))
    """When it has ended."""

    def becomes(self, state: WorkerState, now_s: float, batch: int = 0) -> None:
        """It goes on to another state."""
        self.state, self.since_s, self.batch = state, now_s, batch

    def ended(self, now_s: float) -> None:
        """Its process has ended, or did not start in time."""
        self.ends.append(now_s)
        often = len(self.ends) == MOST_ENDS and now_s - self.ends[0] <= WITHIN_S
        often |= self.state == WorkerState.STARTING and now_s - self.since_s > START_S
        self.becomes(WorkerState.DEAD if often else WorkerState.OFF, now_s)


class Strikes:
    """Samples over which preparers have ended, by want and place."""

    def __init__(self) -> None:
        self._strikes: dict[tuple[int, int], int] = {}

    def __repr__(self) -> str:
        return f"Strikes({len(self._strikes)} samples)"

    def over(self, want: int, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Over which samples a preparer has ended."""
        if not self._strikes:
            return np.zeros(len(places), np.bool_)
        return np.isin(places, [place for of, place in self._strikes if of == want])

    def add(self, want: int, places: NDArray[Any]) -> NDArray[np.int64]:
        """A preparer has ended over one of these samples. Returns those that are not sent to one any more."""
        for place in places.tolist():
            self._strikes[want, place] = self._strikes.get((want, place), 0) + 1
        return np.array([p for p in places.tolist() if self._strikes[want, p] >= MOST_STRIKES], np.int64)

    def forget(self, want: int) -> None:
        """A want is gone."""
        self._strikes = {key: strikes for key, strikes in self._strikes.items() if key[0] != want}


class DecodeWorkers:
    """So many preparers, by number. One that takes longer than `batch_s` for a batch is late."""

    def __init__(self, count: int, batch_s: float) -> None:
        self.count, self._batch_s = count, batch_s
        self._preparers = [DecodeWorker() for _ in range(count)]
        self.ended_in_all = 0

    def __repr__(self) -> str:
        return f"DecodeWorkers({', '.join(preparer.state.name for preparer in self._preparers)})"

    @property
    def hopeful(self) -> bool:
        """Whether a preparer works, or may be started."""
        return any(preparer.state != WorkerState.DEAD for preparer in self._preparers)

    @property
    def waited_for(self) -> bool:
        """Whether a preparer starts or is busy, and so may become late."""
        return any(preparer.state in (WorkerState.STARTING, WorkerState.BUSY) for preparer in self._preparers)

    @property
    def alive(self) -> int:
        """How many have a process."""
        return sum(preparer.state not in (WorkerState.OFF, WorkerState.DEAD) for preparer in self._preparers)

    def start(self, now_s: float) -> list[int]:
        """Preparers to start: all that are off."""
        off = [number for number, preparer in enumerate(self._preparers) if preparer.state == WorkerState.OFF]
        for number in off:
            self._preparers[number].becomes(WorkerState.STARTING, now_s)
        return off

    def idle(self) -> int | None:
        """A preparer that waits for a batch; None: there is none."""
        return next((n for n, preparer in enumerate(self._preparers) if preparer.state == WorkerState.IDLE), None)

    def busy_s(self, number: int, now_s: float) -> float:
        """How long a preparer has been in its state."""
        return now_s - self._preparers[number].since_s

    def is_ready(self, number: int, now_s: float) -> None:
        """A preparer has started, or has nothing to show of its batch."""
        self._preparers[number].becomes(WorkerState.IDLE, now_s)

    def takes(self, number: int, batch: int, now_s: float) -> None:
        """A preparer gets a batch."""
        self._preparers[number].becomes(WorkerState.BUSY, now_s, batch)

    def hands_over(self, number: int, batch: int, now_s: float) -> None:
        """A preparer has prepared its batch, which the server copies."""
        self._preparers[number].becomes(WorkerState.DONE, now_s, batch)

    def is_done(self, number: int, batch: int, now_s: float) -> None:
        """The server has copied a batch. Its preparer may have ended meanwhile."""
        preparer = self._preparers[number]
        if (preparer.state, preparer.batch) == (WorkerState.DONE, batch):
            preparer.becomes(WorkerState.IDLE, now_s)

    def ended(self, number: int, now_s: float) -> bool:
        """The process of a preparer has ended. Returns whether it is not started again."""
        self.ended_in_all += 1
        self._preparers[number].ended(now_s)
        return self._preparers[number].state == WorkerState.DEAD

    def late(self, now_s: float) -> list[int]:
        """Preparers that have taken too long."""
        limit_s = {WorkerState.STARTING: START_S, WorkerState.BUSY: self._batch_s}
        return [
            number
            for number, preparer in enumerate(self._preparers)
            if preparer.state in limit_s and now_s - preparer.since_s > limit_s[preparer.state]
        ]
