"""What does every order make, and what follows from it?

A plan is two tables: the sample that is drawn at each position, and the reads with the position before which each must
be finished. The executor knows no order; it does the reads in the sequence of the plan. Memory over time follows from
the tables, so it is known before anything is read; `peak` is its maximum.

If nodes ask each other, the order adds a third table: the positions at which a node asks, and the samples that the
owner sends ahead with its answer. Each node computes the same table, so a request consists of its position only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import count_dtype, index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.random import BLOCK, blocks


def read_dtype(mapping: Mapping) -> np.dtype[np.void]:
    """Return the type of a read: `count` samples from `first` of `chunk`, finished before position `deadline` is drawn.

    Each number takes the bytes that it needs, at least two, so that the rows are aligned.
    """
    slot = np.promote_types(np.uint16, count_dtype(mapping.chunk_size))
    deadline, chunk = index_dtype(mapping.samples), index_dtype(mapping.chunks)
    return np.dtype([("deadline", deadline), ("chunk", chunk), ("first", slot), ("count", slot)])


@dataclass(frozen=True, slots=True)
class PeerRequests:
    """The third table: the requests of nodes to each other. Order `slots` makes it if there are several nodes.

    A request is a draw of a sample that another node owns and has not sent ahead: the drawing node asks on demand. The
    owner first answers it. Then the owner sends samples of the asking node's next draws, as many as its memory holds.
    If a position is neither asked for nor sent ahead, the node that draws it owns its sample.
    """

    positions: NDArray[Any]
    """Positions of the requests, ascending, shape (requests,)."""
    prefetched: NDArray[Any]
    """Positions whose samples are sent ahead, request by request, in the order of sending."""
    ends: NDArray[np.int64]
    """The end of the positions of each request in `prefetched`, shape (requests,)."""

    def sent_with(self, number: int) -> NDArray[Any]:
        """Return the positions whose samples are sent after the answer to a request, ascending."""
        start = int(self.ends[number - 1]) if number else 0
        return self.prefetched[start : int(self.ends[number])]


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """The position of the front of `shared` when each position is drawn, as a coordinate (`shared_policy`)."""

    coordinates: NDArray[np.int64]
    """The front at every `STEP`-th position, and at the end."""
    draws: int

    STEP: ClassVar[int] = 64

    @classmethod
    def of(cls, fronts: NDArray[np.integer[Any]], first: int, end: int) -> Track:
        """Return the track with these coordinates at each position, shape (draws,), and at the end.

        All positions count from `first`.
        """
        return cls(np.append(fronts[:: cls.STEP], end).astype(np.int64) + first, len(fronts))

    @classmethod
    def of_lap(cls, lap: int, samples: int) -> Track:
        """Return the track of a job that draws a lap from its beginning to its end."""
        return cls.of(np.arange(samples), lap * samples, samples)

    def at(self, position: int) -> int:
        """Return the front when a position is drawn; positions between two known ones are interpolated."""
        before, more = divmod(position, self.STEP)
        if position >= self.draws or before >= len(self.coordinates) - 1:
            return int(self.coordinates[-1])
        there, after = int(self.coordinates[before]), int(self.coordinates[before + 1])
        return there + (after - there) * more // min(self.STEP, self.draws - before * self.STEP)


@dataclass(frozen=True, slots=True, eq=False)
class PlanWindow:
    """The plan of consecutive positions of an epoch."""

    first: int
    """Its first position."""
    sample_of: NDArray[Any]
    """Place of the sample drawn at each position, shape (positions,)."""
    reads: NDArray[np.void] | None
    """The reads with a deadline in the window, by deadline, of the dtype `read_dtype`; None as in `EpochPlan`."""

    @property
    def end(self) -> int:
        return self.first + len(self.sample_of)


@dataclass(frozen=True, slots=True, eq=False)
class OpenReads:
    """The reads that are due before a position, and whose samples are not all drawn before it."""

    reads: NDArray[np.void]
    """The reads, of the dtype `read_dtype`, in the order in which their next samples are drawn. All have one deadline,
    the position.
    """
    drawn: NDArray[np.int64]
    """Places of their samples that are drawn before the position."""

    @classmethod
    def none(cls, mapping: Mapping) -> OpenReads:
        """Return no reads."""
        return cls(np.empty(0, read_dtype(mapping)), np.arange(0))


class PlanWindows(Protocol):
    """The plan of one epoch, in windows. One thread uses it, except for `whole` and `position_of`."""

    @property
    def mapping(self) -> Mapping: ...

    @property
    def subset(self) -> Subset | None:
        """The samples that are drawn, and that the reads hold of those that they span; None if all are."""
        ...

    @property
    def draws(self) -> int:
        """The number of positions of the epoch."""
        ...

    @property
    def read_count(self) -> int:
        """The number of reads in the tables of all windows: 0 if each sample is a read of its own."""
        ...

    @property
    def position_of(self) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
        """Returns the position of each place, in any thread, if each sample is a read of its own. Else None."""
        ...

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        ...

    def open_reads(self, position: int) -> OpenReads:
        """Return the reads that have to be done before a position, for a job that begins there."""
        ...

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        ...


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan of one epoch."""

    mapping: Mapping
    sample_of: NDArray[Any]
    """Place of the sample drawn at each position, shape (draws,): one for each sample of the subset or data set."""
    reads: NDArray[np.void] | None
    """The reads by deadline, of the dtype `read_dtype`.

    None if each sample is a read of its own, due at its position. The number of a read is then its position; a table of
    13 million such reads would take 156 MB.
    """
    held: NDArray[Any] | None = None
    """Places that the reads hold in memory, read by read, shape (draws,); None if `subset` says which."""
    held_ends: NDArray[np.integer[Any]] | None = None
    """The end of the places of each read in `held`, shape (reads,)."""
    requests: PeerRequests | None = None
    """The requests of nodes to each other; None if no node asks another node."""
    track: Track | None = None
    """The positions of the front, in a plan of `shared`; None in other plans."""
    grows: bool = False
    """Whether the order is decided while jobs draw (`growing`)."""
    subset: Subset | None = None
    """The samples that reads hold of those that they span; None if `held` lists them, or if reads hold all."""

    @property
    def shares(self) -> bool:
        """Whether the job shares reads with other jobs."""
        return self.grows or self.track is not None

    @property
    def narrows(self) -> bool:
        """Whether a read skips samples: those outside the subset, or those that other jobs have read already."""
        return self.shares or len(self.sample_of) < self.mapping.samples

    @property
    def read_count(self) -> int:
        return len(self.sample_of) if self.reads is None else len(self.reads)

    def deadline(self, number: int) -> int:
        return number if self.reads is None else int(self.reads["deadline"][number])

    def reads_at(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Return reads as a table of the dtype `read_dtype`."""
        table: NDArray[np.void]
        if self.reads is None:
            table = np.empty(len(numbers), read_dtype(self.mapping))
            table["deadline"], table["count"] = numbers, 1
            table["chunk"], table["first"] = np.divmod(self.sample_of[numbers], self.mapping.chunk_size)
        else:
            table = self.reads[numbers]
        return table

    def places_read(self, number: int) -> tuple[int, int]:
        """Return the first place that a read reads, and the place after the last."""
        if self.reads is None:
            place = int(self.sample_of[number])
            return place, place + 1
        read = self.reads[number]
        first = int(read["chunk"]) * self.mapping.chunk_size + int(read["first"])
        return first, first + int(read["count"])

    def places_held(self, number: int) -> NDArray[Any]:
        if self.held is None or self.held_ends is None:
            first, end = self.places_read(number)
            return np.arange(first, end) if self.subset is None else self.subset.places(first, end)
        start = int(self.held_ends[number - 1]) if number else 0
        return self.held[start : int(self.held_ends[number])]


def planned_by(mapping: Mapping, sample_of: NDArray[Any], group_of: NDArray[np.integer[Any]]) -> EpochPlan:
    """Return the plan with the order `sample_of` in which the samples of each group share one read.

    `group_of` is the group of each place, shape (samples,); -1 if the place is not drawn. The places of a group are in
    one chunk. A read is due when the first of its samples is drawn; it spans them, and holds no others.
    """
    position_of = np.empty(mapping.samples, np.int64)
    position_of[sample_of] = np.arange(len(sample_of))
    places = np.flatnonzero(group_of >= 0)
    groups = group_of[places]
    by_group = np.argsort(groups, kind="stable")
    places, groups = places[by_group], groups[by_group]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    ends = np.append(starts[1:], len(places))
    deadline = np.minimum.reduceat(position_of[places], starts)
    reads = np.empty(len(starts), read_dtype(mapping))
    reads["deadline"] = deadline
    reads["chunk"], reads["first"] = np.divmod(places[starts], mapping.chunk_size)
    reads["count"] = places[ends - 1] - places[starts] + 1
    order = np.argsort(deadline, kind="stable")
    sizes = (ends - starts)[order]
    held_ends = np.cumsum(sizes)
    held = places[np.repeat(starts[order] - (held_ends - sizes), sizes) + np.arange(len(places))]
    return EpochPlan(mapping, sample_of, reads[order], held.astype(sample_of.dtype), held_ends)


def narrowed(plan: EpochPlan, mask: NDArray[np.bool_]) -> EpochPlan:
    """Return the plan without the samples that `mask`, shape (samples,), excludes. The plan must not have `requests`.

    A read is due when the first of its samples is drawn.
    """
    drawn = mask[plan.sample_of]
    sample_of = plan.sample_of[drawn]
    if plan.reads is None:
        return EpochPlan(plan.mapping, sample_of, None)
    return planned_by(plan.mapping, sample_of, np.where(mask, read_of_sample(plan), -1))


def held_by(
    reads: NDArray[np.void], mapping: Mapping, subset: Subset | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places that these reads hold, read by read, and before them the read of each, by its index.

    A read holds the samples of `subset` that it spans; if that is None, all that it spans.
    """
    first = reads["chunk"].astype(np.int64) * mapping.chunk_size + reads["first"]
    counts = reads["count"].astype(np.int64)
    if subset is not None:
        return subset.members(first, counts)
    of = np.repeat(np.arange(len(reads)), counts)
    return of, np.arange(len(of)) + (first - np.cumsum(counts) + counts)[of]


def read_of_sample(plan: EpochPlan) -> NDArray[Any]:
    """Return the number of the read of each place, shape (samples,); -1 if the place is not drawn."""
    reads, result = plan.reads, np.full(plan.mapping.samples, -1, np.int32)
    if reads is None:
        result[plan.sample_of] = np.arange(len(plan.sample_of), dtype=np.int32)
        return result
    if plan.held is not None and plan.held_ends is not None:
        result[plan.held] = np.repeat(np.arange(len(reads), dtype=np.int32), np.diff(plan.held_ends, prepend=0))
        return result
    if plan.subset is not None:
        step = max(1, BLOCK // plan.mapping.chunk_size)
        for first in range(0, len(reads), step):
            of, places = held_by(reads[first : first + step], plan.mapping, plan.subset)
            result[places] = first + of
        return result
    first = reads["chunk"].astype(np.int64) * plan.mapping.chunk_size + reads["first"]
    order = np.argsort(first)
    return np.repeat(order.astype(np.int32), reads["count"][order])


def memory_over_time(plan: EpochPlan, size_of: NDArray[Any], read_of: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return the size held in memory just before each position is drawn, if every read happens at its deadline.

    Shape (draws,). `size_of` is the size of each place's sample in any unit: 1, bytes, or pages; 0 if it does not
    count. `read_of` is `read_of_sample(plan)`, if the caller has it.
    """
    draws = len(plan.sample_of)
    if plan.reads is None:
        alone: NDArray[np.int64] = size_of[plan.sample_of].astype(np.int64)
        return alone
    read_of = read_of_sample(plan) if read_of is None else read_of
    brought = np.zeros(len(plan.reads), np.int64)
    change = np.zeros(draws, np.int64)
    for part in blocks(draws):
        places = plan.sample_of[part]
        sizes = size_of[places].astype(np.int64)
        np.add.at(brought, read_of[places], sizes)
        change[part.start + 1 : part.stop + 1] -= sizes[: draws - 1 - part.start]
    np.add.at(change, plan.reads["deadline"], brought)
    return np.cumsum(change, out=change)


def peak(plan: EpochPlan, size_of: NDArray[Any], read_of: NDArray[Any] | None = None) -> int:
    """Return the largest size held in memory at any position (see `memory_over_time`)."""
    return int(memory_over_time(plan, size_of, read_of).max())
