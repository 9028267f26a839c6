"""The arena: its vectors against a plain copy, and who may do what with its memory."""

from __future__ import annotations

import ctypes
import os

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.formats.constants import ROW
from brand.node.memory.allocator import Allocator
from brand.node.memory.arena import Arena
from brand.node.memory.pages import IOVEC, ROW_BYTES, SINK
from tests.rounds import examples

PAGE = 128


@pytest.mark.slow
@given(
    samples=st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=12),
    page=st.sampled_from([64, 128, 512]),
    every=st.booleans(),
    used=st.booleans(),
)
@examples(160)
def test_a_vector_puts_each_byte_where_it_belongs(
    samples: list[tuple[int, bool]], page: int, *, every: bool, used: bool
) -> None:
    """Rows and bytes of the samples that are held follow each other in their chains; the others leave no trace.

    `every`: all are held. `used`: others have used the memory before, so chains do not lie side by side.
    """
    sizes = np.array([size for size, _ in samples])
    held = np.array([hold or every for _, hold in samples])
    counts = -(-(sizes[held] + ROW_BYTES) // page)
    allocator = Allocator((int(counts.sum()) + 3) * page, page)
    arena = Arena(allocator.count, page)
    rng = np.random.default_rng(int(sizes.sum()))
    if used:
        _, single = allocator.take(np.ones(allocator.free, np.int64))
        allocator.give_back(rng.permutation(single))
    data = rng.integers(0, 256, int(sizes.sum()), np.uint8)
    rows = np.zeros(len(samples), ROW)
    rows["size"], rows["index"] = sizes, np.arange(len(samples)) + 1000
    heads, pages = allocator.take(counts) if held.any() else (np.empty(0, np.int32), np.empty(0, np.int32))
    untouched = np.setdiff1d(np.arange(allocator.count), [*pages.tolist(), SINK])
    arena.pages[untouched] = 0xAA
    arena.write_rows(heads, rows[held])
    vector, ends = arena.vector(sizes, held, pages)
    assert vector.dtype == IOVEC
    assert int(vector["length"].sum()) == len(data)
    upto = np.append(0, np.cumsum(vector["length"]))
    assert upto[ends].tolist() == np.cumsum(sizes).tolist()
    chains = np.split(pages, np.cumsum(counts)[:-1])
    whole = bool(held.all()) and all((np.diff(chain) == 1).all() for chain in chains)
    assert len(vector) == len(samples) or not whole
    assert whole or (vector["length"] <= page).all()
    start, base = 0, arena.pages.ctypes.data
    for address, length in vector.tolist():
        assert 0 <= address - base <= allocator.bytes - length
        assert whole or length == 0 or (address - base) // page == (address - base + length - 1) // page
        part = data[start : start + length]
        ctypes.memmove(address, part.ctypes.data, length)
        start += length
    begins = np.cumsum(sizes) - sizes
    at = 0
    for number in np.flatnonzero(held).tolist():
        count = int(counts[np.count_nonzero(held[:number])])
        content = arena.pages[pages[at : at + count]].tobytes()
        size, begin = int(sizes[number]), int(begins[number])
        assert content[:ROW_BYTES] == rows[number].tobytes()
        assert content[ROW_BYTES : ROW_BYTES + size] == data[begin : begin + size].tobytes()
        at += count
    assert (arena.pages[untouched] == 0xAA).all()
    arena.close()


@pytest.mark.parametrize("pages", [[1, 4], [-1, 1], [1], [1, 2, 3], []])
@pytest.mark.parametrize("every", [True, False])
def test_pages_that_are_not_there_get_no_vector(pages: list[int], *, every: bool) -> None:
    """A read would write to whatever lies at these addresses."""
    arena = Arena(4, PAGE)
    held = np.array([True, every])
    sizes = np.array([PAGE if every else 2 * PAGE - ROW_BYTES, PAGE - ROW_BYTES])
    sizes[0] -= ROW_BYTES if every else 0
    with pytest.raises(IndexError, match="do not exist"):
        arena.vector(sizes, held, np.array(pages, np.int32))
    arena.vector(sizes, held, np.array([1, 3], np.int32))
    arena.close()


def test_the_memory_is_sealed_and_gone_when_it_is_closed() -> None:
    """Its size is fixed, others cannot write, and its descriptor is not inherited."""
    arena = Arena(4, PAGE)
    assert not os.get_inheritable(arena.descriptor)
    for size in (0, PAGE, 100 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        os.pwrite(arena.descriptor, b"x", 0)
    arena.pages[1] = 7
    assert os.pread(arena.descriptor, PAGE, PAGE) == bytes([7]) * PAGE
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena.descriptor)
