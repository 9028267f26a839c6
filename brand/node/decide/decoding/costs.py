"""How long does it take to decode a sample of a given size? Learned from the reports of decode workers (Lobster,
section 4.1).

A size class has the samples of 2**(k-1) to 2**k - 1 bytes. The model is piece-wise linear through the means of the
classes. A single line would be too inaccurate: in a mixed data set, a small image takes seven times as long per byte as
a large one.

A report counts half as much after `HALF_LIFE` more reports. A report that is far off its prediction, because the
machine was busy with other work, counts as a report that is `MOST_OFF` times off. A class begins as `BEGIN` samples
that took the time predicted before. The same reports always give the same model.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FIRST: Final = 5e-8
"""Seconds per byte before any report, measured with JPEG. At that time only the ratio of two predictions counts."""
HALF_LIFE: Final = 2000
MOST_OFF: Final = 10.0
BEGIN: Final = 2
FORGOTTEN: Final = 1e-3
"""A class is forgotten if fewer than this many of its samples count."""
LONGEST_S: Final = 3600.0
"""A report above this limit is ignored as wrong."""
_SHORTEST_S: Final = 1e-6
_CLASSES: Final = 65


class Costs:
    """The decode times of one decode spec."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, _CLASSES))
        """Samples, bytes and seconds of each size class; old reports have a smaller weight."""

    def __repr__(self) -> str:
        sizes, seconds = self._points()
        points = ", ".join(f"{size:.0f} B {1e3 * s:.2f} ms" for size, s in zip(sizes, seconds, strict=True))
        return f"Costs({points or 'no report'})"

    def predict(self, sizes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted seconds of each sample, given its bytes."""
        known, seconds = self._points()
        if not len(known):
            return np.maximum(FIRST * sizes, _SHORTEST_S)
        beyond = np.maximum(sizes / known[-1], 1)  # sizes beyond the largest class take proportionally longer
        predicted: NDArray[np.float64] = np.maximum(np.interp(sizes, known, seconds) * beyond, _SHORTEST_S)
        return predicted

    def observe(self, sizes: NDArray[Any], seconds: NDArray[np.float64]) -> None:
        """Record the seconds that samples of these sizes took. Values that cannot be seconds are ignored."""
        right = (seconds >= 0) & (seconds <= LONGEST_S)
        if not right.any():
            return
        sizes, seconds = np.maximum(sizes[right], 1), seconds[right]
        middle = max(float(np.median(seconds)), _SHORTEST_S)
        expected = self.predict(sizes) if self._sums.any() else np.clip(seconds, middle / MOST_OFF, middle * MOST_OFF)
        classes = np.frexp(sizes)[1]
        seconds = np.clip(seconds, expected / MOST_OFF, expected * MOST_OFF)

        def summed(values: NDArray[Any]) -> NDArray[np.float64]:
            return np.bincount(classes, values, _CLASSES).astype(np.float64)

        count, size = summed(np.ones(len(sizes))), summed(sizes)
        begin = np.stack([count, size, summed(expected)]) * (BEGIN / np.maximum(count, 1))
        before = np.where(self._sums[0] > 0, self._sums * 0.5 ** (len(sizes) / HALF_LIFE), begin)
        after = before + np.stack([count, size, summed(seconds)])
        self._sums = np.where(after[0] >= FORGOTTEN, after, 0)

    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean bytes, ascending, and the mean seconds of the known classes."""
        count, size, seconds = self._sums[:, self._sums[0] > 0]
        return size / count, seconds / count
