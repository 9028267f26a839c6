"""Which blocks of a file are free, against looking at each block; and what a hole reads as."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.storage.cache.cachefiles import BLOCK, gaps, punch
from tests.rounds import examples

TEXT = bytes(range(1, 201)) * 400


@examples(100)
@given(st.integers(1, 10 * BLOCK), st.lists(st.integers(0, 10 * BLOCK), max_size=12))
def test_gaps_are_the_blocks_that_no_range_touches(size: int, borders: list[int]) -> None:
    """Block by block."""
    some = sorted({min(border, size) for border in borders})
    ranges = list(zip(some[0::2], some[1::2], strict=False))
    touched = {block for first, end in ranges for block in range(first // BLOCK, -(-end // BLOCK))}
    starts, ends = (np.array([each[k] for each in ranges], np.int64) for k in (0, 1))
    found = [block for first, end in gaps(starts, ends, size).tolist() for block in range(first // BLOCK, end // BLOCK)]
    assert sorted(found) == sorted(set(range(-(-size // BLOCK))) - touched)


def test_a_hole_reads_as_zeros_and_takes_no_blocks(tmp_path: Path) -> None:
    """The file keeps its size and its other bytes."""
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        before = os.fstat(file.fileno()).st_blocks
        punch(file.fileno(), 2 * BLOCK, 10 * BLOCK)
        os.fsync(file.fileno())
        assert before - os.fstat(file.fileno()).st_blocks == 8 * BLOCK // 512
    assert path.read_bytes() == TEXT[: 2 * BLOCK] + bytes(8 * BLOCK) + TEXT[10 * BLOCK :]


def test_an_error_is_an_error(tmp_path: Path) -> None:
    """A file that was opened to be read."""
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        punch(file.fileno(), 0, BLOCK)
