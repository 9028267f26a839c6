"""Which source has the batches of a `BrandLoader`? A sampler, in batches of one size, or a batch sampler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.torch.sampler.positions import Positions

Ints = Sequence[int] | NDArray[np.int64]


class SamplerBatches(Protocol):
    """The batches of one iteration."""

    @property
    def size(self) -> int:
        """Samples of a batch, approximately."""

    @property
    def epoch(self) -> int | None:
        """The epoch, once it has begun; None if samples are read by index."""

    @property
    def seed(self) -> int:
        """The seed of the order, if there is an epoch."""

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and number of ranks among which the samples are divided, if there is an epoch."""

    def begin(self) -> None:
        """Settle the epoch, and have the data server prefetch. A second call does nothing."""

    def go_on(self) -> None:
        """Raise `UsageError` if the next iteration was requested meanwhile."""

    def take(self, count: int) -> tuple[Ints, list[int]]:
        """Return the ints of the next `count` batches, fewer at the end, and the number of ints of each batch."""

    def state(self, trained: int) -> dict[str, Any]:
        """Return the loader state after `trained` batches of this iteration."""

    def figures(self, trained: int) -> dict[str, Any]:
        """Return the padding of the first `trained` batches and of the epoch, as plain values; empty if unknown."""


class FixedSizeBatches:
    """Batches of one size, taken from a sampler's ints. The last batch may be short."""

    def __init__(self, sampler: Any, size: int, *, drop_last: bool) -> None:
        self._sampler, self._ints = sampler, iter(sampler)
        self.size, self._drop_last = size, drop_last

    def __repr__(self) -> str:
        return f"FixedSizeBatches({self._ints!r}, {self.size})"

    @property
    def positions(self) -> Positions | None:
        """The iteration of a `BrandSampler`; None for another sampler."""
        return self._ints if isinstance(self._ints, Positions) else None

    @property
    def epoch(self) -> int | None:
        """See `SamplerBatches`."""
        return None if self.positions is None else self.positions.epoch

    @property
    def seed(self) -> int:
        """See `SamplerBatches`."""
        return int(self._sampler.seed)

    @property
    def ranks(self) -> tuple[int, int]:
        """See `SamplerBatches`."""
        assert self.positions is not None
        return self.positions.ranks

    def begin(self) -> None:
        """See `SamplerBatches`."""
        if self.positions is not None:
            self.positions.begin()

    def go_on(self) -> None:
        """See `SamplerBatches`."""
        if self.positions is not None:
            self.positions.go_on()

    def take(self, count: int) -> tuple[Ints, list[int]]:
        """See `SamplerBatches`."""
        most = count * self.size
        ints: Ints = list(islice(self._ints, most)) if self.positions is None else self.positions.take(most)
        whole, rest = divmod(len(ints), self.size)
        if self._drop_last:
            ints, rest = ints[: whole * self.size], 0
        return ints, [self.size] * whole + [rest] * (rest > 0)

    def state(self, trained: int) -> dict[str, Any]:
        """See `SamplerBatches`. The sampler must be a `BrandSampler`."""
        positions = self.positions
        if positions is None or not positions.begun:
            return dict(self._sampler.state_dict())
        samples = min(trained * self.size, positions.count)
        ended = samples > positions.count - (self.size if self._drop_last else 1)
        if positions.replaced(ended=ended):
            return dict(self._sampler.state_dict())
        return positions.state_after(positions.most if ended else samples)

    def figures(self, trained: int) -> dict[str, Any]:
        """See `SamplerBatches`. Returns an empty dict."""
        del trained
        return {}
