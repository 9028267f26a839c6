"""Computes the values that a server needs before it runs: its page size, the pages and the home node of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.state.members import Members
from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import (
    ROW_BYTES,
    EqualPages,
    IndexedPages,
    PageArray,
    PageCounts,
    arena_bytes,
    page_bytes,
    pages_needed,
    possible_sizes,
)
from brand.node.setup.memory import Memory, memory_bytes, remote_bytes
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.dtypes import smallest
from brand.orders.base.mapping import MOST_LISTED, Mapping
from brand.storage.dataset.dataset import StoredDataSet

_STEP: Final = 1 << 18
"""Rows of the index that are read at a time."""


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """The division of a server's memory, and the home node of each sample."""

    allocator: Allocator
    pages_of: PageCounts
    """Pages of each place's sample, shape (samples,)."""
    all_pages: int
    """Pages that all samples would take."""
    members: Members
    remote_pages: int
    """Pages that other nodes may fill."""

    @property
    def holds_all(self) -> bool:
        """Whether all samples fit into memory at once, and this node reads all of them."""
        return self.allocator.count >= self.all_pages and self.members.nodes == 1


def lay_out(page: int, pages_of: PageCounts, memory: Memory, peer_memory: Memory, members: Members) -> MemoryLayout:
    """Return the layout of a server for samples that take `pages_of` pages of `page` bytes. Raises `UsageError`."""
    every = arena_bytes(pages_of, page)
    limit = memory_bytes(memory, every)
    # A number of bytes is a hard limit. A fraction of very little data must still hold a page.
    allocator = Allocator(limit if isinstance(memory, str | int) else max(limit, 2 * page), page)
    remote_pages = remote_bytes(peer_memory, allocator.bytes) // page if members.nodes > 1 else 0
    return MemoryLayout(allocator, pages_of, every // page, members, remote_pages)


def measure_pages(sizes: NDArray[np.uint32]) -> tuple[int, PageArray]:
    """Return the page size in bytes, and the pages of each sample, shape (samples,)."""
    page = page_bytes(float(sizes.mean()))
    return page, smallest(pages_needed(sizes, page))


def pages_in(data: StoredDataSet) -> tuple[int, PageCounts]:
    """Return the same as `measure_pages` for the samples of a data set. Raises `FormatError`.

    If its manifest shows that all samples take equally many pages, nothing is read. Otherwise the index is: as a whole,
    or of a data set of more than `MOST_LISTED` samples when a sample is read.
    """
    manifest, samples = data.manifest, data.header.samples
    page = page_bytes(manifest.mean_bytes)
    most = int(pages_needed(np.array([manifest.largest_sample]), page)[0])
    # A sample is never stored in more bytes than its raw size, and no raw size is larger than the largest one.
    equal = manifest.stored_bytes == manifest.raw_bytes == samples * manifest.largest_sample
    if equal or most == 1:
        return page, EqualPages(samples, most)
    if samples <= MOST_LISTED:
        return measure_pages(stored_sizes(data))
    # The last page of a sample has at least one byte.
    total = min(samples * most, (manifest.stored_bytes + samples * (ROW_BYTES + page - 1)) // page)
    return page, IndexedPages(data.rows, data.rows_at, samples, page, manifest.largest_sample, most, total)


def stored_sizes(data: StoredDataSet) -> NDArray[np.uint32]:
    """Return the stored size of each place's sample, shape (samples,). Raises `FormatError`.

    Reads the whole index once. A row with impossible sizes counts as an empty sample (`possible_sizes`).
    """
    samples = data.header.samples
    sizes = np.empty(samples, np.uint32)
    for first in range(0, samples, _STEP):
        rows = data.rows(first, min(first + _STEP, samples))
        sizes[first : first + len(rows)] = possible_sizes(rows, data.manifest.largest_sample)
    return sizes


def members_of(data: StoredDataSet, node: int, nodes: int) -> Members:
    """Return the nodes that serve a data set together, each all of it or its partition of it.

    Raises `UsageError` if `data` is the partition of another node.
    """
    share, here = data.share, NodeNumber(node)
    if share is None:
        return Members(here, nodes)
    if (share.node, share.nodes) != (node, nodes):
        has = f"is the partition of node {share.node} of {share.nodes}"
        raise UsageError(f"{data.name} {has}, but this is node {node} of {nodes}")
    members = Members(here, nodes, share.group_chunks)
    owners = members.owners(Mapping(data.header.samples, data.header.chunk_size, 1)).of_chunk
    if owners is not None and not np.array_equal(owners, share.owners(np.arange(len(owners)))):
        raise UsageError(
            f"{data.name} was partitioned in a way that this version does not know; partition the data set again"
        )
    return members
