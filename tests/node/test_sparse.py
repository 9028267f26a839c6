"""The memory of a sparse table, and the blocks in use, against plain arrays."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from brand.node.memory import tables
from brand.node.memory.tables import BLOCK, SparseTable, UsedBlocks
from tests.node.support import memory_kib

PAGES = 4096
"""Pages of the table, of 4 KiB each."""


def test_memory_follows_the_entries_in_use() -> None:
    """A table of 16 MiB: one entry of each second page takes 8 MiB, also if all are read, and nothing once released."""
    table = SparseTable(PAGES * BLOCK, np.int32)
    before = memory_kib(os.getpid(), "RssAnon")

    def grown() -> int:
        return memory_kib(os.getpid(), "RssAnon") - before

    assert not any(table.values[first : first + BLOCK].any() for first in range(0, PAGES * BLOCK, BLOCK))
    assert grown() < 1 << 10
    table.values[:: 2 * BLOCK] = 7
    assert abs(grown() - (8 << 10)) < 1 << 10
    assert table.values[2 * BLOCK] == 7
    for block in range(0, PAGES, 2):
        table.release(block * BLOCK, (block + 1) * BLOCK)
    assert grown() < 1 << 10
    assert not table.values[2 * BLOCK]


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.int32, np.int64])
@given(count=st.integers(1, 3 * 4096), data=st.data())
def test_released_entries_are_0_and_no_others(dtype: type, count: int, data: st.DataObject) -> None:
    """At the edges of pages, within one page, and up to the end of the table."""
    table = SparseTable(count, dtype)
    table.values[:] = 1
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(first, count))
    table.release(first, end)
    expected: NDArray[Any] = np.ones(count, dtype)
    expected[first:end] = 0
    assert np.array_equal(table.values, expected)


def large_table(count: int) -> UsedBlocks:
    """The blocks of a table that is too large to keep its memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "SMALL", 0)
        return UsedBlocks(count)


def test_a_small_table_keeps_its_blocks() -> None:
    blocks = UsedBlocks(tables.SMALL)
    blocks.add(np.arange(3))
    assert blocks.remove(np.arange(3)) == []
    assert blocks.used().tolist() == list(range(tables.SMALL // BLOCK))


@given(st.lists(st.sets(st.integers(0, 4 * BLOCK), max_size=20), max_size=8))
def test_blocks_are_found_when_their_last_entry_goes(steps: list[set[int]]) -> None:
    """Against a counter, entry by entry."""
    blocks, counter, inside = large_table(4 * BLOCK + 1), Counter[int](), set[int]()
    for step in steps:
        new, gone = step - inside, step & inside
        blocks.add(np.array(sorted(new), np.int64))
        counter.update(entry // BLOCK for entry in new)
        counter.subtract(entry // BLOCK for entry in gone)
        inside ^= step
        empty = {entry // BLOCK for entry in gone if not counter[entry // BLOCK]}
        assert blocks.remove(np.array(sorted(gone), np.int64)) == sorted(empty)
        assert blocks.used().tolist() == sorted(block for block, number in counter.items() if number)
