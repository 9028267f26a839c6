"""The plan of any consecutive positions of an epoch of `stripes`, without the positions before them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.access import GroupSequence, SequencePart
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, read_dtype
from brand.orders.base.random import group_positions
from brand.orders.policies.tapes import StripeTapes
from brand.reprs import Reprs

_AT_ONCE: Final = 1 << 17
"""Positions whose groups are planned together, so that temporaries are small."""


class StripeWindows(Reprs, shows="tapes access"):
    """One epoch of `stripes`, in windows. It needs memory for a window, and some numbers for each group and stripe.

    With a subset, an epoch has its samples only, as if no others were stored. A read spans those of a stripe.
    """

    def __init__(self, mapping: Mapping, stripe: int, seed: int, epoch: int, subset: Subset | None = None) -> None:
        self.mapping, self.subset, self._numbers = mapping, subset, (mapping, stripe, seed, epoch, subset)
        self.tapes = StripeTapes(mapping, stripe, seed, epoch, subset)
        self.access = GroupSequence(self.tapes.sizes, seed, epoch)
        self._part: SequencePart | None = None
        """The part of the access sequence that was used last."""
        self._groups: NDArray[Any] = np.arange(0)
        """The groups of its positions."""

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        sample_of = np.empty(end - first, index_dtype(self.mapping.samples))
        reads = [np.empty(0, read_dtype(self.mapping))]
        at = first
        while at < end:
            part = self._part_at(at)
            upto = min(end, part.end)
            reads.append(self._plan(part, at, upto, sample_of[at - first : upto - first]))
            at = upto
        return PlanWindow(first, sample_of, np.concatenate(reads))

    @property
    def draws(self) -> int:
        return self.access.draws

    @property
    def read_count(self) -> int:
        return self.tapes.stripes

    @property
    def position_of(self) -> None:
        return None

    def open_reads(self, position: int) -> OpenReads:
        """Return the reads that have to be done before a position, for a job that begins there."""
        if not 0 < position < self.draws:
            return OpenReads.none(self.mapping)
        groups = np.arange(self.mapping.groups)
        found = self.tapes.open_stripes(groups, self._draws_before(position))
        reads = np.empty(len(found.stripes), read_dtype(self.mapping))
        reads["deadline"] = position
        reads["chunk"], reads["first"], reads["count"] = self.tapes.reads(found.groups, found.stripes)
        return OpenReads(reads[np.argsort(found.leads, kind="stable")], found.drawn)

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        window = StripeWindows(*self._numbers).window(0, self.draws)
        return EpochPlan(self.mapping, window.sample_of, window.reads, subset=self.subset)

    def reads_before(self, position: int) -> int:
        """Return the number of reads that are due before a position is drawn."""
        if position >= self.draws:
            return self.tapes.stripes
        before = self._draws_before(position)
        return int(self.tapes.part(np.arange(len(before)), before, np.zeros_like(before)).opened.sum())

    def _draws_before(self, position: int) -> NDArray[np.int64]:
        """Return how often each group is drawn before a position, shape (groups,)."""
        part = self._part_at(position)
        return part.before + np.bincount(self._groups[: position - part.first], minlength=self.mapping.groups)

    def _part_at(self, position: int) -> SequencePart:
        if self._part is None or not self._part.first <= position < self._part.end:
            self._part = self.access.part_at(position)
            self._groups = self.access.groups(self._part)
        return self._part

    def _plan(self, part: SequencePart, first: int, end: int, sample_of: NDArray[Any]) -> NDArray[np.void]:
        """Fill in the draws of some positions of a part. Return the reads that are due there."""
        drawn, count = self._groups[first - part.first : end - part.first], self.mapping.groups
        before = self._draws_before(first)
        counts = np.bincount(drawn, minlength=count)
        positions, ends = group_positions(drawn), np.cumsum(counts)
        groups = np.flatnonzero(counts)
        blocks = (ends[groups] - counts[groups]) // _AT_ONCE
        reads = []
        for some in np.split(groups, np.flatnonzero(np.diff(blocks)) + 1):
            at = positions[ends[some[0]] - counts[some[0]] : ends[some[-1]]]
            tape = self.tapes.part(some, before[some], counts[some])
            sample_of[at] = tape.places
            reads.append(self._due(some, counts[some], tape.stripes, tape.opened, first + at))
        due = np.concatenate(reads)
        # Stable: reads with one deadline keep the order of their group, on every machine.
        found: NDArray[np.void] = due[np.argsort(due["deadline"], kind="stable")]
        return found

    def _due(self, groups: Any, counts: Any, stripes: Any, opened: Any, positions: Any) -> NDArray[np.void]:
        """Return the reads of some groups that are due at their draws, each group's in the order of reading.

        A stripe is due at the first draw from it or from one behind it.
        """
        row = np.repeat(np.arange(len(groups)), counts)
        most = max(int(stripes.max(initial=0)) + 1, int(opened.max()))
        apart = row * (most + 1)  # a running maximum of each row
        behind = np.maximum.accumulate(np.maximum(stripes + 1, opened[row]) + apart) - apart
        starts = np.cumsum(counts) - counts
        last = np.empty_like(behind)
        last[1:], last[starts] = behind[:-1], opened
        more = behind - last
        at = np.repeat(np.arange(len(more)), more)
        number = last[at] + np.arange(len(at)) - (np.cumsum(more) - more)[at]
        found = np.empty(len(at), read_dtype(self.mapping))
        found["deadline"] = positions[at]
        found["chunk"], found["first"], found["count"] = self.tapes.reads(groups[row[at]], number)
        return found
