"""The plan of any consecutive positions of an epoch that is a uniform shuffle and is read in stripes.

It is for memory that holds all samples, as nearly all stripes are due at the first positions. Once they are in memory,
no epoch reads them again. A run that begins in a later epoch fills its memory in large reads.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, read_dtype
from brand.orders.base.random import blocks
from brand.orders.policies.uniform import UniformOrder
from brand.reprs import Reprs

Numbers = NDArray[np.int64]


class UniformStripes(Reprs, shows="mapping stripe"):
    """One epoch, in windows. It needs memory for a window, some numbers for each stripe, and the places of a subset."""

    def __init__(self, mapping: Mapping, stripe: int, seed: int, epoch: int, subset: Subset | None = None) -> None:
        self.mapping, self.stripe, self.subset = mapping, stripe, subset
        self.draws = mapping.samples if subset is None else len(subset)
        self._order = UniformOrder(self.draws, seed, epoch)
        self._per_chunk = -(-mapping.chunk_size // stripe)

    @property
    def read_count(self) -> int:
        return len(self._reads)

    @property
    def position_of(self) -> None:
        return None

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        sample_of = np.empty(end - first, index_dtype(self.mapping.samples))
        for part in blocks(end - first):
            sample_of[part] = self._places(self._order.numbers(np.arange(first + part.start, first + part.stop)))
        due = self._reads["deadline"].searchsorted((first, end))
        return PlanWindow(first, sample_of, self._reads[slice(*due)])

    def open_reads(self, position: int) -> OpenReads:
        """Return the reads that have to be done before a position, for a job that begins there."""
        if not 0 < position < self.draws:
            return OpenReads.none(self.mapping)
        then = self._next(position)
        is_open = (self._next(0) < position) & (then < self.draws)
        stripes = np.flatnonzero(is_open)
        reads = self._table(stripes[np.argsort(then[stripes])])
        reads["deadline"] = position
        drawn = self.window(0, position).sample_of.astype(np.int64)
        return OpenReads(reads, drawn[is_open[self._stripe_of(drawn)]])

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        window = self.window(0, self.draws)
        return EpochPlan(self.mapping, window.sample_of, window.reads, subset=self.subset)

    @cached_property
    def _members(self) -> NDArray[Any] | None:
        """The places that are drawn, ascending; None if all are."""
        if self.subset is None:
            return None
        return self.subset.places(0, self.mapping.samples).astype(index_dtype(self.mapping.samples))

    def _places(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the places of the samples with these numbers among those that are drawn."""
        return numbers if self._members is None else self._members[numbers]

    def _stripe_of(self, places: NDArray[Any]) -> Numbers:
        chunk, offset = np.divmod(places.astype(np.int64), self.mapping.chunk_size)
        found: Numbers = chunk * self._per_chunk + offset // self.stripe
        return found

    def _next(self, position: int) -> Numbers:
        """Return the first position from this one on at which each stripe is drawn; `draws` if there is none."""
        found = np.full(self.mapping.chunks * self._per_chunk, self.draws, np.int64)
        for part in blocks(self.draws):
            numbers = np.arange(part.start, part.stop)
            positions = self._order.positions(numbers)
            stripes = self._stripe_of(self._places(numbers))
            starts = np.flatnonzero(np.diff(stripes, prepend=-1))
            least = np.minimum.reduceat(np.where(positions < position, self.draws, positions), starts)
            found[stripes[starts]] = np.minimum(found[stripes[starts]], least)  # a stripe may begin in the part before
        return found

    @cached_property
    def _reads(self) -> NDArray[np.void]:
        """The reads of all stripes, by deadline."""
        due = self._next(0)
        stripes = np.argsort(due)[: np.count_nonzero(due < self.draws)]
        reads = self._table(stripes)
        reads["deadline"] = due[stripes]
        return reads

    def _table(self, stripes: Numbers) -> NDArray[np.void]:
        """Return the reads of these stripes, whose deadlines are not filled in."""
        chunk, number = np.divmod(stripes, self._per_chunk)
        first = chunk * self.mapping.chunk_size + number * self.stripe
        end = np.minimum(first + self.stripe, np.minimum((chunk + 1) * self.mapping.chunk_size, self.mapping.samples))
        if self._members is not None:  # a read spans the samples of the subset
            low, high = self._members.searchsorted(first), self._members.searchsorted(end)
            first, end = self._members[low].astype(np.int64), self._members[high - 1].astype(np.int64) + 1
        reads = np.empty(len(stripes), read_dtype(self.mapping))
        reads["chunk"], reads["first"], reads["count"] = chunk, first % self.mapping.chunk_size, end - first
        return reads
