"""The points of an epoch at which a job joined other jobs, as states and messages tell them. Readers check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np

MOST: Final = 32
"""The most joins of an epoch."""
MAX_LAP: Final = (1 << 16) - 1
_ROW: Final = 4
LEAST_PACE: Final = 16
MOST_PACE: Final = 1 << 22


@dataclass(frozen=True, slots=True, order=True)
class Join:
    """The position of a job in its epoch, and that of the front. Raises ValueError if a number is out of range."""

    position: int
    """Draws of its epoch that the job had made."""
    lap: int
    front: int
    """Position of the front in its lap."""
    pace: int
    """1,024 times the coordinates that pass during one draw of the job; 0 if the job is the pacemaker."""

    def __post_init__(self) -> None:
        if min(self.position, self.lap, self.front) < 0:
            raise ValueError(f"a join has no number below 0: {self}")
        if self.pace and not LEAST_PACE <= self.pace <= MOST_PACE:
            raise ValueError(f"the pace of a join is 0, or from {LEAST_PACE} to {MOST_PACE:,}: {self}")


def alone(lap: int) -> tuple[Join]:
    """Return the joins of an epoch of a job that draws a lap from its beginning to its end."""
    return (Join(0, lap, 0, 0),)


@dataclass(frozen=True, slots=True)
class Joins:
    """The joins of one epoch of a job, by position. Raises ValueError if they do not ascend or are too many."""

    rows: tuple[Join, ...] = ()
    """The joins; empty if they are not known, or not decided."""
    lap: int = -1
    """The highest lap that the job has drawn from; -1 if none. No job draws an old lap again."""

    def __post_init__(self) -> None:
        positions = [join.position for join in self.rows]
        if len(positions) > MOST or positions != sorted(set(positions)) or (positions and positions[0]):
            raise ValueError(f"the joins of an epoch are at most {MOST}, ascending, the first at position 0")
        if not -1 <= self.lap <= MAX_LAP or any(join.lap > MAX_LAP for join in self.rows):
            raise ValueError(f"laps are 0 to {MAX_LAP:,}")

    def check_fits(self, samples: int, draws: int) -> None:
        """Raise ValueError if a data set of `samples` samples and an epoch of `draws` draws cannot have these joins."""
        if any(join.position > draws or join.front >= samples for join in self.rows):
            raise ValueError(f"joins beyond the {draws:,} fetches of an epoch, or beyond a lap of {samples:,}")

    def is_start_of(self, other: Joins) -> bool:
        return other.rows[: len(self.rows)] == self.rows

    def to_json(self) -> list[list[int]]:
        """Return the rows as plain values: position, lap, front, pace."""
        return [list(astuple(join)) for join in self.rows]

    @classmethod
    def from_json(cls, rows: Any, lap: Any) -> Joins:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        numbers = [number for row in rows for number in row] if _is_table(rows) else None
        if numbers is None or not all(type(number) is int for number in [*numbers, lap]):
            raise ValueError("joins are rows of four whole numbers")
        return cls._of(numbers, lap)

    def to_bytes(self) -> bytes:
        """Return the rows, four i64 each."""
        return np.array(self.to_json(), np.int64).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, lap: int) -> Joins:
        """Read the output of `to_bytes`. Raises ValueError if it is invalid."""
        if len(data) % (8 * _ROW) or len(data) > 8 * _ROW * MOST:
            raise ValueError(f"joins of {len(data)} bytes are not whole rows, or are too many")
        return cls._of(np.frombuffer(data, np.int64).tolist(), lap)

    @classmethod
    def _of(cls, numbers: Sequence[int], lap: int) -> Joins:
        return cls(tuple(Join(*numbers[at : at + _ROW]) for at in range(0, len(numbers), _ROW)), lap)


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, list) and len(row) == _ROW for row in rows)
