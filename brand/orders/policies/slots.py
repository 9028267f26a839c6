"""Order `slots`: the paper's, to the letter (section 3.3).

The sample at place `i` is slot `i % C` of chunk `i // C`. A draw looks at one location: (group, slot). If a sample is
there, it is delivered and leaves the memory. If the location is empty, the candidates are those of the group's
chunks whose file for that slot is not filled yet this epoch. The candidate with the highest fill rate is read whole,
and fills every empty location for which its file is not filled yet. Nothing is ever evicted.

All groups do their refills together. Between two refills of a group every draw hits, so the next miss of a location is
its next draw, or the draw after that if a sample is there. A step of the loop is one refill of every group, not one
sample.
"""

from __future__ import annotations

from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan, read_dtype
from brand.orders.base.policy import Policy, check_names, check_type
from brand.orders.base.random import RandomStream, bits, blocks, group_positions, permutation
from brand.orders.base.tickets import MAX_POSITIONS

Refill = Literal["fill_rate", "random"]
REFILLS: Final[tuple[Refill, ...]] = get_args(Refill)
_RECORD: Final[dict[str, Sequence[Any]]] = {
    "stripe": range(1, MAX_POSITIONS + 1),
    "refill": REFILLS,
    "nodes": range(1, 2),
    "ranks": range(1, 2),
    "window": range(1),
    "remote": range(1),
    "all_cached": range(1),
}
"""The fields in the order of writing. A policy that does not use a field accepts these values and writes the first."""
_ALWAYS: Final = ["group_chunks", "stripe", "refill"]
"""The fields of every record. A record has another field only if its value differs from the first in `_RECORD`."""


def plan_slots(mapping: Mapping, refill: Refill, seed: int, epoch: int) -> EpochPlan:
    """Return the plan of one epoch. `refill="random"` takes any candidate: the paper's ablation."""
    return plan_access(mapping, permutation(mapping.samples, seed, RandomStream.ACCESS, epoch), refill, seed, epoch)


def plan_access(mapping: Mapping, access: NDArray[np.integer[Any]], refill: Refill, seed: int, epoch: int) -> EpochPlan:
    """Return the plan for a given access sequence: a permutation of all places."""
    groups = _Groups(mapping, access)
    step = 0
    while (miss := groups.draw_until_miss()).any():
        groups.refill(miss, refill, priorities(mapping, seed, epoch, step))
        step += 1
    return groups.plan()


def locations(mapping: Mapping, access: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Return the location of each access: group * chunk size + slot. Same shape and type."""
    location = mapping.group_of(access)
    location *= mapping.chunk_size
    location += access % mapping.chunk_size
    return location


def priorities(mapping: Mapping, seed: int, epoch: int, step: int) -> NDArray[np.int64]:
    """Return random numbers below 2**32 that break ties at refill number `step` of each group.

    One for each chunk of each group, shape (groups, group_chunks).
    """
    raw = bits(mapping.groups * mapping.group_chunks, seed, RandomStream.REFILL, epoch, step)
    return (raw >> np.uint64(32)).astype(np.int64).reshape(mapping.groups, mapping.group_chunks)


def unfilled_files(mapping: Mapping) -> NDArray[np.bool_]:
    """Return a mask of the files not filled when an epoch begins: all that exist. Shape (groups, n, chunk size)."""
    there = np.arange(mapping.chunk_size) < mapping.chunk_samples()[:, None]
    return there.reshape(mapping.groups, mapping.group_chunks, mapping.chunk_size)


def whole_reads(mapping: Mapping, deadlines: NDArray[Any], chunks: NDArray[Any]) -> NDArray[np.void]:
    reads = np.zeros(len(deadlines), read_dtype(mapping))
    reads["deadline"], reads["chunk"] = deadlines, chunks
    reads["count"] = mapping.chunk_samples()[chunks]
    return reads


class _Groups:
    """The state of all groups: the sample at each location, the filled files, and the progress of the draws."""

    def __init__(self, mapping: Mapping, access: NDArray[np.integer[Any]]) -> None:
        groups, n, slots = mapping.groups, mapping.group_chunks, mapping.chunk_size
        self.mapping = mapping
        location = locations(mapping, access)
        positions = group_positions(location)
        draws = np.zeros(groups * slots, np.int32)
        for part in blocks(mapping.samples):
            np.add.at(draws, location[part], 1)
        del location
        kind = index_dtype(mapping.samples)
        self._never = np.iinfo(kind).max
        """A number later than every position."""
        draw = np.full((groups * slots, n + 1), self._never, kind)
        draw[np.arange(n + 1) < draws[:, None]] = positions
        self._draw = draw.reshape(groups, slots, n + 1)
        self._drawn = np.zeros((groups, slots), np.int32)
        self._chunk = np.full((groups, slots), -1, np.int32)
        """The chunk, within the group, of the sample at a location; -1 if the location is empty."""
        self._unfilled = unfilled_files(mapping)
        self._sample_of = np.empty(mapping.samples, kind)
        self._refills: list[tuple[NDArray[Any], ...]] = []
        self._next = np.full(groups, self._never, kind)
        self._missing = np.zeros(groups, np.int64)

    def draw_until_miss(self) -> NDArray[np.bool_]:
        """Deliver all draws before each group's next miss. Returns a mask of groups with a miss, shape (groups,)."""
        lies = self._chunk >= 0
        next_draw = np.take_along_axis(self._draw, self._drawn[:, :, None], axis=2)[:, :, 0]
        # The first draw that finds the location empty: the next one, or the one that follows the delivery of a sample.
        in_vain = np.take_along_axis(self._draw, (self._drawn + lies)[:, :, None], axis=2)[:, :, 0]
        self._missing = in_vain.argmin(axis=1)
        self._next = np.take_along_axis(in_vain, self._missing[:, None], axis=1)[:, 0]
        group, slot = np.nonzero(lies & (next_draw < self._next[:, None]))
        chunk = group * self.mapping.group_chunks + self._chunk[group, slot]
        self._sample_of[next_draw[group, slot]] = chunk * self.mapping.chunk_size + slot
        self._chunk[group, slot] = -1
        self._drawn[group, slot] += 1
        return self._next < self._never

    def refill(self, miss: NDArray[np.bool_], refill: Refill, priority: NDArray[np.int64]) -> None:
        group = np.flatnonzero(miss)
        unfilled = self._unfilled[group]
        empty = self._chunk[group] < 0
        score = priority[group]
        if refill == "fill_rate":
            fillable = np.count_nonzero(unfilled & empty[:, None, :], axis=2)
            score = score + (fillable.astype(np.int64) << 32)  # priorities are below 2 ** 32: they break ties
        slot = self._missing[group]
        candidate = np.take_along_axis(unfilled, slot[:, None, None], axis=2)[:, :, 0]
        chosen = np.where(candidate, score, -1).argmax(axis=1)
        row = np.arange(len(group))
        fills = unfilled[row, chosen] & empty
        self._unfilled[group, chosen] &= ~fills
        which, where = np.nonzero(fills)
        self._chunk[group[which], where] = chosen[which]
        chunk = group * self.mapping.group_chunks + chosen
        held = (chunk[which] * self.mapping.chunk_size + where).astype(self._sample_of.dtype)
        counts = np.count_nonzero(fills, axis=1).astype(np.int32)
        self._refills.append((self._next[group], chunk.astype(np.int32), held, counts))

    def plan(self) -> EpochPlan:
        del self._draw, self._unfilled, self._chunk
        deadline, chunk, counts = (np.concatenate([step[k] for step in self._refills]) for k in (0, 1, 3))
        order = np.argsort(deadline).astype(np.int32)  # a position is one draw, so no two are equal
        kind = self._sample_of.dtype
        sorted_ends = np.cumsum(counts[order], dtype=kind)
        starts = np.empty_like(sorted_ends)
        starts[order] = sorted_ends - counts[order]
        in_order = np.empty(self.mapping.samples, kind)
        first = 0
        for step, (_, _, held, count) in enumerate(self._refills):
            goes_to = starts[first : first + len(count)]
            in_order[np.repeat(goes_to - (np.cumsum(count) - count), count) + np.arange(len(held))] = held
            first += len(count)
            self._refills[step] = ()  # all refills together are as large as the arrays that are made of them
        reads = whole_reads(self.mapping, deadline[order], chunk[order])
        return EpochPlan(self.mapping, self._sample_of, reads, in_order, sorted_ends)


@dataclass(frozen=True)
class FlatPolicy(Policy):
    """A policy of version 1 (`stripes`, `slots`). Its JSON is one flat record that has the fields of both.

    States contain this record, so it does not change. A later policy writes only its own fields, as `Policy` does.
    """

    def to_json(self) -> dict[str, Any]:
        record = {"group_chunks": self.group_chunks}
        for name, unused in _RECORD.items():
            value = getattr(self, name, unused[0])
            if name in _ALWAYS or value != unused[0]:
                record[name] = value
        return record

    @classmethod
    def from_json(cls, values: Values[str, Any]) -> Self:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        check_names(values, _ALWAYS, ["group_chunks", *_RECORD], cls.name)
        used = {field.name for field in fields(cls)}
        for name in values.keys() - used:
            check_type(name, values[name], type(_RECORD[name][0]))
            if values[name] not in _RECORD[name]:
                raise ValueError(f"{name}={values[name]!r} of an order of {cls.name}, which does not depend on it")
        return cls(**{name: value for name, value in values.items() if name in used})
