"""How long does it take to prepare a sample of so many bytes? Learned while preparers report (Lobster, section 4.1).

A size class has the samples of 2**(k-1) to 2**k - 1 bytes. The model is piece-wise linear through the means of the
classes. One line would not do: in a mixed set, a small picture takes seven times as long for each byte as a large one.

A report counts half as much after `HALF_LIFE` more reports. A report that is far off its prediction, because the
machine did something else, counts as one that is `MOST_OFF` times off. A class begins as `BEGIN` samples that took what
was predicted before. The same reports always give the same model.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FIRST: Final = 5e-8
"""Seconds a byte before any report, as of JPEG. Only the ratio of two predictions counts then."""
HALF_LIFE: Final = 2000
MOST_OFF: Final = 10.0
BEGIN: Final = 2
FORGOTTEN: Final = 1e-3
"""A class of which less than so many samples count is not known any more."""
LONGEST_S: Final = 3600.0
"""A report of more is wrong."""
_SHORTEST_S: Final = 1e-6
_CLASSES: Final = 65


class Costs:
    """Seconds of one way to prepare samples."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, _CLASSES))
        """Of each size class: samples, bytes, seconds; those of old reports are faded."""

    def __repr__(self) -> str:
        sizes, seconds = self._points()
        points = ", ".join(f"{size:.0f} B {1e3 * s:.2f} ms" for size, s in zip(sizes, seconds, strict=True))
        return f"Costs({points or 'no report'})"

    def predict(self, sizes: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds for samples of so many bytes, each for itself."""
        known, seconds = self._points()
        if not len(known):
            return np.maximum(FIRST * sizes, _SHORTEST_S)
        beyond = np.maximum(sizes / known[-1], 1)  # past the largest class, in proportion
        predicted: NDArray[np.float64] = np.maximum(np.interp(sizes, known, seconds) * beyond, _SHORTEST_S)
        return predicted

    def observe(self, sizes: NDArray[Any], seconds: NDArray[np.float64]) -> None:
        """Samples of so many bytes took so long. Figures that cannot be seconds are left out."""
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
        """Mean bytes, ascending, and mean seconds of the classes that are known."""
        count, size, seconds = self._sums[:, self._sums[0] > 0]
        return size / count, seconds / count
