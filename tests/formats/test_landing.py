"""Pieces of mapped files: what the kernel copies is what the file has, by the core and without it."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.formats.landing import ROOM, landing
from tests.native.support import without_core
from tests.rounds import examples

CONTENT = np.random.default_rng(0).bytes(3 * ROOM)


def mapping(path: Path) -> np.ndarray:
    """A file as memory."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """A file of three times the room of a landing."""
    path = tmp_path_factory.mktemp("landing") / "file"
    path.write_bytes(CONTENT)
    return mapping(path)


def brought(memory: np.ndarray, pieces: list[tuple[int, int]]) -> bytes | None:
    """Those pieces of a mapped file, as its landing copies them."""
    starts, sizes = np.array(pieces, np.int64).reshape(-1, 2).T.copy()
    out = np.empty(int(sizes.sum()), np.uint8)
    there = landing()
    assert there is not None
    right = there.copy(starts.astype(np.uint64) + np.uint64(memory.ctypes.data), sizes, out)
    return out.tobytes() if right else None


@given(
    st.lists(
        st.tuples(st.integers(0, len(CONTENT)), st.sampled_from([0, 1, 32, 700, ROOM // 3, ROOM, ROOM + 1])),
        max_size=30,
    ),
    st.integers(1, 90),
)
@examples(60)
def test_pieces_come_side_by_side(mapped: np.ndarray, pieces: list[tuple[int, int]], times: int) -> None:
    """Any number of pieces, also more than a call takes, and pieces that are larger than the room."""
    cut = [(start, min(size, len(CONTENT) - start)) for start, size in pieces]
    cut *= times if sum(size for _, size in cut) < ROOM else 1
    wanted = b"".join(CONTENT[start : start + size] for start, size in cut)
    assert brought(mapped, cut) == wanted
    with without_core():
        assert brought(mapped, cut) == wanted


def test_a_page_that_is_gone_is_an_answer(tmp_path: Path) -> None:
    """With the core and without it, and all that is still there comes."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT[: 4 * mmap.PAGESIZE])
    memory = mapping(path)
    with path.open("r+b") as file:
        file.truncate(mmap.PAGESIZE)
    gone, there = [(0, 10), (3 * mmap.PAGESIZE, 10)], [(5, 10), (mmap.PAGESIZE - 1, 1)]
    assert brought(memory, gone) is None
    assert brought(memory, there) == CONTENT[5:15] + CONTENT[mmap.PAGESIZE - 1 : mmap.PAGESIZE]
    with without_core():
        assert brought(memory, gone) is None
        assert brought(memory, there) is not None


def test_a_thread_has_one_landing() -> None:
    mine = landing()
    assert landing() is mine
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(landing).result() is not mine
