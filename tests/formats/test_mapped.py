"""Mapped arrays touched a window at a time: the same elements as without windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.formats import arrays
from brand.formats.arrays import flush, gather, map_array, release, scatter


@pytest.fixture(scope="module")
def small_windows() -> Any:
    """Windows of four elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "WINDOW_BYTES", 32)
        yield


@pytest.mark.slow
@given(size=st.integers(1, 30), data=st.data())
def test_gather_is_indexing(
    small_windows: None, tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    """Any indices in any order, some of them twice."""
    path = tmp_path_factory.mktemp("mapped") / "array"
    np.arange(100, 100 + size, dtype="<u8").tofile(path)
    array = map_array(path, np.dtype("<u8"))
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=40)), np.int64)
    assert gather(array, indices).tolist() == (indices + 100).tolist()


@pytest.mark.slow
@given(size=st.integers(1, 30), data=st.data())
def test_scatter_is_assignment(
    small_windows: None, tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    """What is written is in the file; of two values for one element the last one stays, as in NumPy."""
    path = tmp_path_factory.mktemp("mapped") / "array"
    array = map_array(path, np.dtype("<u8"), "w+", size)
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=40)), np.int64)
    expected = np.zeros(size, "<u8")
    expected[indices] = np.arange(len(indices))
    scatter(array, indices, np.arange(len(indices)))
    flush(array)
    assert np.fromfile(path, "<u8").tolist() == expected.tolist()


def test_an_empty_file_is_an_empty_array(tmp_path: Path) -> None:
    """There is nothing to map."""
    (tmp_path / "empty").touch()
    assert map_array(tmp_path / "empty", np.dtype("<u8")).shape == (0,)


def resident_bytes(path: Path) -> int:
    """How much of a mapped file counts as memory of this process."""
    _, _, after = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return 1024 * int(after.partition("Rss:")[2].split()[0])


def test_released_pages_come_again(small_windows: None, tmp_path: Path) -> None:
    """Nothing is lost, also what was just written; arrays in memory are left alone."""
    array = map_array(tmp_path / "array", np.dtype("<u4"), "w+", 1 << 16)
    array[:] = 7
    memory = np.ones(300)
    assert resident_bytes(tmp_path / "array") == array.nbytes
    release(array[2:], memory)
    assert resident_bytes(tmp_path / "array") == 0
    assert (array == 7).all()
    assert (memory == 1.0).all()


def test_an_array_that_fits_in_a_window_keeps_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "WINDOW_BYTES", 1 << 18)
    array = map_array(tmp_path / "array", np.dtype("<u4"), "w+", 1 << 16)
    array[:] = 7
    release(array)
    assert resident_bytes(tmp_path / "array") == array.nbytes
