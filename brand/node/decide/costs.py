"""How long does it take to prepare a sample of so many bytes? A line, fitted while preparers report (Lobster, 4.1).

    seconds = a + b * bytes

Least squares of relative errors, because the seconds of large samples scatter more. The line forgets: a report counts
half as much after `HALF_LIFE` samples more. A report that is far off the line, because the machine was busy with
something else, counts as one that is `MOST_OFF` times off. The same reports always give the same line.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FIRST: Final = 5e-8
"""Seconds a byte before any report, as of JPEG. Only the ratio of two predictions counts then."""
HALF_LIFE: Final = 500
MOST_OFF: Final = 3.0
LONGEST_S: Final = 3600.0
"""A report of more is wrong."""
_SHORTEST_S: Final = 1e-6
"""A prediction below this counts as this: errors are relative."""
_REFERENCE: Final = np.array(1 << 17)


class Costs:
    """Seconds of one way to prepare samples."""

    def __init__(self) -> None:
        self._a, self._b = 0.0, FIRST
        self._sums: NDArray[np.float64] | None = None
        """Weighted sums over the reports of 1, bytes, bytes squared, seconds, bytes times seconds."""

    def __repr__(self) -> str:
        return f"Costs({1e3 * self._a:.3f} ms + {1e9 * self._b:.2f} ns a byte)"

    def predict(self, sizes: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds for samples of so many bytes, each for itself."""
        return np.maximum(self._a + self._b * sizes, _SHORTEST_S)

    def observe(self, sizes: NDArray[Any], seconds: NDArray[np.float64]) -> None:
        """Samples of so many bytes took so long. Figures that cannot be seconds are left out."""
        right = (seconds >= 0) & (seconds <= LONGEST_S)
        sizes, seconds = sizes[right].astype(np.float64), seconds[right]
        if not len(sizes):
            return
        if self._sums is None:  # two samples on a line through the origin: so the sums always have one solution
            self._b = max(float(np.median(seconds / np.maximum(sizes, 1))), 1e-12)
            assumed = max(float(np.median(sizes)), 1.0) * np.array([0.5, 2.0])
            self._sums = self._weighed(assumed, self.predict(assumed))
        expected = self.predict(sizes)
        seconds = np.clip(seconds, expected / MOST_OFF, expected * MOST_OFF)
        self._sums = self._sums * 0.5 ** (len(sizes) / HALF_LIFE) + self._weighed(sizes, seconds)
        self._a, self._b = _line(*self._sums.tolist())

    def _weighed(self, sizes: NDArray[Any], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sums over samples that weigh as the inverse squares of their predictions.

        Weights are relative to a prediction of one size, so that slow times weigh as much as fast ones.
        """
        weights = (self.predict(_REFERENCE) / self.predict(sizes)) ** 2
        return np.array([np.ones_like(sizes), sizes, sizes**2, seconds, sizes * seconds]) @ weights


def _line(ones: float, sizes: float, squares: float, seconds: float, products: float) -> tuple[float, float]:
    """a and b, neither below 0."""
    determinant = ones * squares - sizes**2
    if determinant <= 1e-9 * ones * squares:  # all samples are as large
        return 0.0, products / squares
    a = (squares * seconds - sizes * products) / determinant
    b = (ones * products - sizes * seconds) / determinant
    if a < 0:
        return 0.0, products / squares
    return (seconds / ones, 0.0) if b < 0 else (a, b)
