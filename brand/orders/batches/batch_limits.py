"""The numbers that, together with the order, fix how an epoch is cut into batches. A loader state contains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.batches.batching import PositionBatches, by_length
from brand.orders.batches.packing import packed

LENGTH_WINDOW: Final = 1024
"""Batches of similar length per bucketing window, if memory can hold them."""
PACK_WINDOW: Final = 64
"""Packed batches per bucketing window: 64 are enough to fill their rows."""
LEAST_PACK_WINDOW: Final = 4
"""The fewest packed batches of a window: with fewer, many rows would be half empty."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The rule of batches: at most `size` samples of a padded length of at most `most`, or packed rows."""

    window: int
    """Consecutive positions whose samples may meet in a batch."""
    lengths: str
    """Digest of the length of all samples."""
    size: int | None = None
    most: float | None = None
    row: int | None = None
    """Tokens of a packed row; with it, `rows` rows make a batch."""
    rows: int | None = None

    def __post_init__(self) -> None:
        check_number("window", self.window, 1, MAX_POSITIONS)
        for name in ("size", "row", "rows"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, MAX_POSITIONS)
        if not isinstance(self.lengths, str):
            raise ValueError(f"lengths of batches are {self.lengths!r}, not a digest")
        if self.most is not None and not (isinstance(self.most, int | float) and 0 < self.most < float("inf")):
            raise ValueError(f"most={self.most!r} of batches is not a length")
        if (self.row is None) != (self.rows is None):
            raise ValueError("packed batches have `row` and `rows`")
        if (self.size is None and self.most is None) == (self.row is None):
            raise ValueError("batches have `size` or `most`, or else `row` and `rows`")

    @property
    def longest(self) -> float | None:
        """The largest length that a sample may have; None if there is no limit."""
        return self.row * self.rows if self.row is not None and self.rows is not None else self.most

    def batches(self, lengths: NDArray[Any], seed: int, epoch: int) -> PositionBatches:
        """Return the batches of an epoch. `lengths`: that of the sample at each position, shape (draws,)."""
        if self.row is not None and self.rows is not None:
            return packed(lengths, self.row, self.rows, self.window, seed, epoch)
        return by_length(lengths, self.window, seed, epoch, size=self.size, most=self.most)

    def taken_up(self, batches: PositionBatches, lengths: NDArray[Any]) -> NDArray[Any]:
        """Return the size of each batch with its padding, in units of length, shape (batches,)."""
        if self.row is not None and self.rows is not None:
            return np.full(len(batches), self.row * self.rows, np.int64)
        return batches.padded(lengths)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"window", "lengths"} <= set(values) <= known:
            raise ValueError(f"limits of batches are {values!r:.80}")
        return cls(**values)


def samples_of(mean: float, *, size: int | None, most: float | None, row: int | None, rows: int | None) -> float:
    """Estimate how many samples of this mean length a batch has, at least 1."""
    length = row * rows if row is not None and rows is not None else most
    found = float("inf") if length is None or not mean else length / mean
    return max(1.0, min(found, float("inf") if size is None else size))


def choose_window(room: int, draws: int, samples: float, *, size: int | None, pack: bool) -> int:
    """Return the window of batches of about `samples` samples, if memory can buffer `room` samples.

    The window is a whole number of batches of `size`, so that only the last batch of an epoch is short. Packed rows
    need some batches in a window in any case.
    """
    wanted = min(room, draws, int(samples * (PACK_WINDOW if pack else LENGTH_WINDOW)))
    least = int(samples * LEAST_PACK_WINDOW) if pack else 1
    whole = size or 1
    batches = -(-draws // whole) if wanted == draws else wanted // whole
    return min(MAX_POSITIONS, max(batches, least, 1) * whole)
