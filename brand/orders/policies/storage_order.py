"""Order `storage`: the samples chunk by chunk, as they are stored. All epochs are the same, for any seed and any ranks.

It is for evaluation: nothing is shuffled, reads are as large as those of a shuffled epoch, and no sample waits in
memory for others. On several nodes, each node reads its own chunks in their order, and the positions take a chunk of
each node in turn. Otherwise all ranks would wait for one node, then for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import MAX_NODES, owner_of_chunk
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, read_dtype
from brand.orders.base.policy import OrderChoice, Policy, Setting, check_number
from brand.orders.base.tickets import MAX_POSITIONS
from brand.reprs import Reprs


@dataclass(frozen=True)
class StoragePolicy(Policy):
    """The policy that draws the samples in the order of the chunks (`storage`). A server may cache whole stripes."""

    name: ClassVar[str] = "storage"
    stripe: int = 1
    """Samples of a read. The last stripe of a chunk may be shorter."""
    nodes: int = 1
    """Nodes whose chunks take turns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("stripe", self.stripe, 1, MAX_POSITIONS)
        check_number("nodes", self.nodes, 1, MAX_NODES)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        del seed, epoch
        return StorageWindows(mapping, self.stripe, self.nodes).whole()

    def windows(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> StorageWindows | None:
        del seed, epoch
        return StorageWindows(mapping, self.stripe, self.nodes) if subset is None else None

    def check_fits(self, mapping: Mapping) -> None:
        super().check_fits(mapping)
        if self.stripe > mapping.chunk_size:
            raise ValueError(f"a stripe of {self.stripe} samples of chunks of {mapping.chunk_size}")

    def held(self, mapping: Mapping) -> int:
        del mapping
        return self.stripe * self.nodes

    @property
    def kept_unit(self) -> int:
        return self.stripe


@dataclass(frozen=True, slots=True)
class StorageOrder(OrderChoice):
    """The order of the chunks, for evaluation: the same in every epoch and on any number of ranks.

    Samples are read in large blocks and prefetched, as in a shuffled epoch. The field `index` of a sample is its index.
    """

    policy: ClassVar[type[StoragePolicy]] = StoragePolicy

    def choose_policy(self, setting: Setting) -> StoragePolicy:
        """Return the numbers. A chunk that is hardly larger than a read is read as a whole."""
        together = setting.owned_chunks if setting.partition is None else setting.partition
        length = setting.stripe if 4 * setting.stripe < setting.chunk_size else setting.chunk_size
        room = int(setting.held) // (_READS_HELD * setting.nodes)
        return StoragePolicy(together, max(1, min(length, room)), setting.nodes)


_READS_HELD = 3
"""Reads of each node that memory holds at least: one is drawn while the next one is read, and one is spare.

A smaller memory has shorter reads. With more than that, a storage of few operations a second would be slower than for
a shuffle, whose reads keep their length.
"""


class StorageWindows(Reprs, shows="mapping stripe"):
    """An epoch of `storage`, in windows. It needs memory for a window, and some numbers for each chunk."""

    def __init__(self, mapping: Mapping, stripe: int, nodes: int) -> None:
        self.mapping, self.stripe = mapping, stripe
        owner = owner_of_chunk(mapping.chunks, mapping.group_chunks, nodes)
        of_owner = np.arange(mapping.chunks) - np.searchsorted(owner, owner)
        self._chunks: NDArray[np.intp] = np.argsort(of_owner, kind="stable")
        """The chunks in the order in which they are drawn."""
        self._sizes = mapping.chunk_samples()[self._chunks]
        self._ends: NDArray[np.int64] = np.cumsum(self._sizes)

    @property
    def draws(self) -> int:
        return self.mapping.samples

    @property
    def subset(self) -> None:
        return None

    @property
    def read_count(self) -> int:
        return int((-(-self._sizes // self.stripe)).sum())

    @property
    def position_of(self) -> None:
        return None

    def open_reads(self, position: int) -> OpenReads:
        """Return the read with samples before and from a position on, if there is one."""
        at = int(np.searchsorted(self._ends, position, side="right"))
        size = int(self._sizes[at]) if at < len(self._sizes) else 0
        drawn = position - int(self._ends[at]) + size if size else 0
        first = drawn // self.stripe * self.stripe
        if first == drawn:
            return OpenReads.none(self.mapping)
        reads = np.empty(1, read_dtype(self.mapping))
        chunk, count = int(self._chunks[at]), min(self.stripe, size - first)
        reads["deadline"], reads["chunk"], reads["first"], reads["count"] = position, chunk, first, count
        return OpenReads(reads, chunk * self.mapping.chunk_size + np.arange(first, drawn))

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        window = self.window(0, self.mapping.samples)
        return EpochPlan(self.mapping, window.sample_of, window.reads)

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        low, high = np.searchsorted(self._ends, (first, end - 1), side="right") if first < end else (0, -1)
        some = slice(low, high + 1)
        chunks, sizes = self._chunks[some], self._sizes[some]
        begins = self._ends[some] - sizes
        positions = np.arange(first, end)
        place = chunks * self.mapping.chunk_size - begins
        sample_of = np.repeat(place, np.minimum(self._ends[some], end) - np.maximum(begins, first)) + positions
        return PlanWindow(
            first, sample_of.astype(index_dtype(self.mapping.samples)), self._reads(chunks, sizes, begins, first, end)
        )

    def _reads(
        self,
        chunks: NDArray[np.intp],
        sizes: NDArray[np.int64],
        begins: NDArray[np.int64],
        first: int,
        end: int,
    ) -> NDArray[np.void]:
        """Return the stripes of these chunks that are due from position `first` to `end` - 1."""
        counts = -(-sizes // self.stripe)
        of = np.repeat(np.arange(len(chunks)), counts)
        start = (np.arange(len(of)) - (np.cumsum(counts) - counts)[of]) * self.stripe
        due = begins[of] + start
        here = (due >= first) & (due < end)
        of, start = of[here], start[here]
        reads = np.empty(len(of), read_dtype(self.mapping))
        reads["deadline"], reads["chunk"], reads["first"] = due[here], chunks[of], start
        reads["count"] = np.minimum(self.stripe, sizes[of] - start)
        return reads
