"""Which samples are in memory, and how many references does each have?

A sample stays in memory as long as it has a reference: from an epoch that will draw it, from a client that is copying
it, or from the set of cached samples. Its pages are freed with the last reference. Methods take arrays of distinct
places. One thread owns a `Residents`.

`Leases` has the samples that clients are copying: a leased sample stays in its pages until its client releases it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.memory.directory import Directory, Entries
from brand.node.memory.pages import SINK, PageArray, PagePool, Places
from brand.node.memory.tables import BLOCK, SparseTable, UsedBlocks
from brand.orders.base.dtypes import PackedMask
from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import CachedUnits
from brand.orders.base.random import BLOCK as BLOCK_OF_SAMPLES
from brand.orders.base.random import blocks
from brand.reprs import Reprs

if TYPE_CHECKING:
    from brand.node.memory.decoded import PreparedMemory


SampleChains = tuple[NDArray[np.uint32], NDArray[np.int32]]
"""Number of pages of each of some samples, and all pages, sample by sample."""
Chosen = PackedMask | CachedUnits
"""Some of the samples of a data set."""
_BLOCKS: Final = 128
"""Blocks of a table that are scanned at a time."""
MAX_LEASES: Final = 32
"""Maximum number of leases of one client."""
STALE_S: Final = 1.0
"""A server does not wait for a client that copies for longer than this, in seconds."""


def as_chosen(chosen: Chosen | NDArray[np.bool_]) -> Chosen:
    """Return chosen samples; a mask has the shape (samples,)."""
    return PackedMask(chosen) if isinstance(chosen, np.ndarray) else chosen


class Left:
    """Samples that were left in the page cache, from which clients read them. The server need not read them."""

    def __init__(self, samples: int) -> None:
        self._table = SparseTable(samples, np.bool_)
        self._left: NDArray[np.bool_] = self._table.values

    def __repr__(self) -> str:
        return f"Left({np.count_nonzero(self._left)} of {len(self._left)} samples in the page cache)"

    def mask(self) -> NDArray[np.bool_]:
        """Return which samples were in the page cache at the last look, and missed by no client, shape (samples,)."""
        return self._left

    def leave(self, places: Places) -> None:
        self._left[places] = True

    def miss(self, places: Places) -> None:
        """Remove samples that clients ask for and that are not in memory. The page cache may lack them now."""
        self._left[places] = False


class Residents(Reprs, shows="kept_pages released left"):
    """Samples of one data set in the pages of a pool. `directory` shows cached samples to clients; it may be None."""

    def __init__(self, pool: PagePool, nodes: int = 1, directory: Directory | None = None) -> None:
        self.pool, self.pages_of, self._directory = pool, pool.pages_of, directory
        samples, pages = len(pool.pages_of), pool.allocator.count
        self._heads, self._used = SparseTable(samples, np.int32), UsedBlocks(samples)
        self._head: NDArray[np.int32] = self._heads.values
        """First page of each sample; 0, the sink, if the sample is not in memory."""
        # The tables below have an entry for each page of the arena: that of a sample is at its head.
        self._references = np.zeros(pages, np.uint16)
        """Clients hold at most `MAX_LEASES`, and each epoch holds one: together fewer than 2 to the 16th."""
        self._checked = np.zeros(pages, np.bool_)
        self._sender = np.zeros(pages if nodes > 1 else 0, np.int16)
        """Number of the node that has sent each sample, from 1 on; 0 if none has."""
        self._chosen: Chosen = CachedUnits(Mapping(samples, samples, 1), samples, np.zeros(1, np.bool_))
        """The samples that are chosen for the cache."""
        self._to_keep: Chosen = self._chosen
        """Those of them to cache at present (`keep_less`). Those that are in memory are cached."""
        self.left = Left(samples)
        self.kept_pages = 0
        self.sent_pages = np.zeros(nodes, np.int64)
        """Pages in memory that each node has sent or is sending, shape (nodes,)."""
        self.released = 0
        """References released so far, counted by the pages of their samples."""

    def present(self, places: Places | slice) -> NDArray[np.bool_]:
        return np.not_equal(self._head[places], 0)

    def references(self, places: Places) -> NDArray[np.uint16]:
        found: NDArray[np.uint16] = self._references[self._head[places]]
        return found

    def checked(self, places: Places) -> NDArray[np.bool_]:
        """Return which samples had a right checksum since they were stored in memory."""
        found: NDArray[np.bool_] = self._checked[self._head[places]]
        return found

    def mark_checked(self, places: Places) -> None:
        self._checked[self._head[places]] = True
        self._checked[SINK] = False  # of samples that are not in memory
        if self._directory is not None:
            self._directory.mark_checked(places)

    def shows(self, places: Places, entries: Entries) -> NDArray[np.bool_]:
        """Return which samples are those that a client found with these entries of the directory, shape (places,)."""
        if self._directory is None:
            return np.zeros(len(places), np.bool_)
        return self._directory.shows(places, entries)

    def counts(self, places: Places) -> PageArray:
        """Return the number of pages of each of some samples in memory."""
        return self.pool.counts(places, self._head[places])

    def chains(self, places: Places) -> SampleChains:
        """Return the number of pages of each sample, and all pages, sample by sample. Places may occur twice here."""
        return self.pool.chains(places, self._head[places])

    def contents(self, places: Places) -> NDArray[np.uint8]:
        """Return a copy of the samples' pages, sample by sample, shape (pages, page size)."""
        return self.pool.take_out(places, self._head[places])

    def part(self, place: int, first: int, end: int) -> NDArray[np.uint8]:
        """Return a copy of a sample's pages `first` to `end` - 1, shape (pages, page size)."""
        return self.pool.part(place, int(self._head[place]), first, end)

    def reserve(self, sender: int, pages: int) -> None:
        """Add pages to `sent_pages` for a sample that a node is sending in parts. Subtract them if below 0."""
        self.sent_pages[sender] += pages

    def put(self, places: Places, heads: NDArray[np.int32], sender: int | None = None) -> None:
        """Store samples. Each has one reference, the caller's. `sender`: the node that sent them."""
        self._head[places] = heads
        self._used.add(places)
        self._references[heads] = 1
        if sender is not None:
            self._sender[heads] = sender + 1
            self.sent_pages[sender] += self.pool.total(places, heads)
        kept = places[self.to_keep(places)]
        if len(kept):
            self._keep(kept)

    def refer(self, places: Places) -> None:
        self._references[self._head[places]] += 1

    def let_go(self, places: Places, chains: SampleChains | None = None) -> None:
        """Release a reference to each sample, and free the samples without references.

        `chains` are those of the samples, if the caller has them: following the links of each takes longer.
        """
        if chains is None and len(places) > BLOCK_OF_SAMPLES:  # an epoch ends early: temporaries are to be small
            for part in blocks(len(places)):
                self.let_go(places[part])
            return
        heads = self._head[places]
        left = self._references[heads] - np.uint16(1)
        self._references[heads] = left
        self.released += self.pool.total(places, heads)
        free = left == 0
        gone, freed = places[free], heads[free]
        if len(gone):
            if chains is None:
                self.pool.give_back(gone, freed)
            else:
                self.pool.allocator.give_back(chains[1][np.repeat(free, chains[0])])
            self._head[gone] = 0
            for block in self._used.remove(gone):
                self._heads.release(block * BLOCK, (block + 1) * BLOCK)
            self._checked[freed] = False
            if len(self._sender):
                sent = self._sender[freed] > 0
                pages = self.pool.counts(gone[sent], freed[sent]).astype(np.int64)
                np.subtract.at(self.sent_pages, self._sender[freed[sent]] - 1, pages)
                self._sender[freed] = 0

    def keep(self, chosen: Chosen | NDArray[np.bool_]) -> None:
        """Cache the chosen places from now on, and no others; a mask has the shape (samples,)."""
        self._change(as_chosen(chosen))
        self._chosen = self._to_keep

    def keep_chosen(self) -> None:
        """Cache again the samples that were left out of the last choice because memory was short."""
        if self._to_keep is not self._chosen:
            self.keep(self._chosen)

    def _change(self, chosen: Chosen) -> NDArray[np.intp]:
        """Cache these places. Return those that were cached, and are not any more."""
        before, self._to_keep = self._to_keep, chosen
        dropped = [np.arange(0)]
        for places in self._in_memory():
            was, stays = before.at(places), chosen.at(places)
            gone = places[was & ~stays]
            dropped.append(gone)
            self.kept_pages -= self.pool.total(gone, self._head[gone])
            if self._directory is not None:
                self._directory.hide(gone)
            self.let_go(gone)
            self._keep(places[stays & ~was])
        return np.concatenate(dropped)

    def _in_memory(self) -> Iterator[NDArray[np.intp]]:
        """Yield the places of the samples that are in memory, ascending, some at a time."""
        used, samples = self._used.used(), len(self._head)
        for first in range(0, len(used), _BLOCKS):
            places = (used[first : first + _BLOCKS, None] * BLOCK + np.arange(BLOCK)).ravel()
            places = places[: np.searchsorted(places, samples)]
            yield places[self._head[places] != 0]

    def kept_places(self) -> NDArray[np.intp]:
        """Return the places of all cached samples, ascending."""
        return np.concatenate([np.arange(0), *(places[self.to_keep(places)] for places in self._in_memory())])

    def keep_less(self, chunk_size: int, pages: int) -> NDArray[np.intp]:
        """Evict cached samples of at least `pages` pages, whole chunks at a time, or all. Return their places.

        The samples of these chunks are not cached again before `keep_chosen`, or a new choice.
        """
        places = self.kept_places()
        if not len(places):
            return places
        sizes = np.bincount(places // chunk_size, self.counts(places))
        order = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), pages)) + 1
        return self._change(self._to_keep.without(order[:enough], chunk_size))

    def to_keep(self, places: Places) -> NDArray[np.bool_]:
        return self._to_keep.at(places)

    def kept(self, places: Places | slice = slice(None)) -> NDArray[np.bool_]:
        wanted = self._to_keep.part(places) if isinstance(places, slice) else self._to_keep.at(places)
        return np.logical_and(wanted, np.not_equal(self._head[places], 0))

    def _keep(self, places: Places) -> None:
        heads, counts = self._head[places], self.counts(places)
        self._references[heads] += 1
        self.kept_pages += int(counts.sum(dtype=np.int64))
        if self._directory is not None:
            together = self.pool.allocator.side_by_side(heads, counts)
            places = places[together]
            self._directory.show(places, heads[together], counts[together])
            self._directory.mark_checked(places[self.checked(places)])


Shelved = tuple[tuple[int, NDArray[Any]], ...]
"""Decoded samples: numbers of decode specs, and the places of each."""


@dataclass(slots=True)
class _Lease:
    client: int
    places: NDArray[Any]
    chains: SampleChains
    since_s: float
    prepared: Shelved = ()


class Leases:
    """Leases by number. Each lease holds a reference to its samples. `memory` is that of decoded samples."""

    def __init__(self, residents: Residents, memory: PreparedMemory | None = None) -> None:
        self._residents, self._memory = residents, memory
        self._leases: dict[int, _Lease] = {}
        self._last = 0

    def check(self, client: int) -> None:
        """Raise `UsageError` if a client has the maximum number of leases."""
        if sum(lease.client == client for lease in self._leases.values()) >= MAX_LEASES:
            raise UsageError(f"more than {MAX_LEASES} leases without a release")

    def give(
        self, client: int, places: NDArray[Any], chains: SampleChains, now_s: float, prepared: Shelved = ()
    ) -> int:
        """Create a lease, and return its number. The caller has added the references, and leased the decoded samples.

        `chains` are those of the samples at these places, which are all different.
        """
        self._last += 1
        self._leases[self._last] = _Lease(client, places, chains, now_s, prepared)
        return self._last

    def release(self, client: int, number: int, *, checked: bool) -> NDArray[Any]:
        """Release a lease whose samples a client has copied. Returns their places.

        Raises `UsageError` if the lease is not this client's.
        """
        held = self._leases.get(number)
        if held is None or held.client != client:
            raise UsageError(f"lease {number} is not this client's")
        del self._leases[number]
        if checked:
            self._residents.mark_checked(held.places)
        self._let_go(held)
        return held.places

    def left(self, client: int) -> None:
        for number in [number for number, held in self._leases.items() if held.client == client]:
            self._let_go(self._leases.pop(number))

    def fresh(self, now_s: float) -> bool:
        """Return whether a client is copying that has had its lease for less than `STALE_S`."""
        return any(now_s - lease.since_s < STALE_S for lease in self._leases.values())

    def places(self) -> list[NDArray[Any]]:
        return [lease.places for lease in self._leases.values()]

    def _let_go(self, held: _Lease) -> None:
        self._residents.let_go(held.places, held.chains)
        for want, places in held.prepared:
            assert self._memory is not None
            self._memory.release(want, places)
