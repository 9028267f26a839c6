"""The plan of any consecutive positions of an epoch that is a uniform shuffle and is read in stripes.

It is for memory that holds all samples, as nearly all stripes are due at the first positions. Once they are in memory,
no epoch reads them again. A run that begins in a later epoch fills its memory in large reads.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import Mask, index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, read_dtype
from brand.orders.base.random import blocks
from brand.orders.policies.uniform import UniformOrder
from brand.reprs import Reprs

Numbers = NDArray[np.int64]


class UniformStripes(Reprs, shows="mapping stripe"):
    """One epoch, in windows. It needs memory for a window, 9 bytes for each stripe, and the places of a subset.

    A stripe is due if no earlier position draws from it. So a window goes through the positions before it, unless it
    follows the last one. `open_reads` also needs 8 bytes for each position before its own.
    """

    def __init__(self, mapping: Mapping, stripe: int, seed: int, epoch: int, subset: Subset | None = None) -> None:
        self.mapping, self.stripe, self.subset, self._numbers = mapping, stripe, subset, (seed, epoch)
        self.draws = mapping.samples if subset is None else len(subset)
        self._order = UniformOrder(self.draws, seed, epoch)
        self._per_chunk = -(-mapping.chunk_size // stripe)
        self._begun, self._upto = np.zeros(mapping.chunks * self._per_chunk, np.bool_), 0
        """The stripes of which positions before `_upto` draw samples."""

    @property
    def read_count(self) -> int:
        return int(np.count_nonzero(self._sizes))

    @property
    def position_of(self) -> None:
        return None

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        self._begin(first)
        sample_of = np.empty(end - first, index_dtype(self.mapping.samples))
        reads = [np.empty(0, read_dtype(self.mapping))]
        for part in blocks(end - first):
            sample_of[part] = self._drawn(first + part.start, first + part.stop)
            reads.append(self._due(first + part.start, sample_of[part]))
        self._upto = end
        return PlanWindow(first, sample_of, np.concatenate(reads))

    def open_reads(self, position: int) -> OpenReads:
        """Return the reads that have to be done before a position, for a job that begins there."""
        if not 0 < position < self.draws:
            return OpenReads.none(self.mapping)
        drawn = np.empty(position, np.int64)
        counts = np.zeros_like(self._sizes)
        for part in blocks(position):
            drawn[part] = self._drawn(part.start, part.stop)
            np.add.at(counts, self._stripe_of(drawn[part]), 1)
        self._begun, self._upto = counts > 0, position
        is_open = self._begun & (counts < self._sizes)
        known, stripes = ~is_open, [np.arange(0)]
        for part in blocks(self.draws - position):
            if known.all():
                break
            stripes.append(self._unknown(known, self._drawn(position + part.start, position + part.stop))[0])
        reads = self._table(np.concatenate(stripes))
        reads["deadline"] = position
        return OpenReads(reads, drawn[is_open[self._stripe_of(drawn)]])

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        window = UniformStripes(self.mapping, self.stripe, *self._numbers, self.subset).window(0, self.draws)
        return EpochPlan(self.mapping, window.sample_of, window.reads, subset=self.subset)

    def _begin(self, position: int) -> None:
        """Find the stripes of which positions before this one draw samples."""
        if position < self._upto:
            self._begun[:], self._upto = False, 0
        for part in blocks(position - self._upto):
            self._begun[self._stripe_of(self._drawn(self._upto + part.start, self._upto + part.stop))] = True
        self._upto = position

    def _due(self, first: int, places: NDArray[Any]) -> NDArray[np.void]:
        """Return the reads of the stripes that begin at the positions from `first` on, which draw these places."""
        stripes, at = self._unknown(self._begun, places)
        reads = self._table(stripes)
        reads["deadline"] = first + at
        return reads

    def _unknown(self, known: Mask, places: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Return the stripes of these places that are not known, and the first place of each, by its index, ascending.

        They are known then.
        """
        stripes = self._stripe_of(places)
        new = np.flatnonzero(~known[stripes])
        stripes, at = np.unique(stripes[new], return_index=True)
        known[stripes] = True
        in_order = np.argsort(at)
        return stripes[in_order], new[at[in_order]]

    def _drawn(self, first: int, end: int) -> NDArray[Any]:
        """Return the places that positions `first` to `end` - 1 draw."""
        return self._places(self._order.numbers(np.arange(first, end)))

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

    @cached_property
    def _sizes(self) -> Numbers:
        """The samples of each stripe that are drawn, shape (stripes,)."""
        if self._members is not None:
            return np.bincount(self._stripe_of(self._members), minlength=len(self._begun))
        begins = np.arange(self._per_chunk) * self.stripe
        found: Numbers = np.clip(self.mapping.chunk_samples()[:, None] - begins, 0, self.stripe).ravel()
        return found

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
