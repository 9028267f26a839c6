"""Mapped arrays, and the release of their pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.formats import arrays
from brand.formats.arrays import map_array, release


def test_an_empty_file_is_an_empty_array(tmp_path: Path) -> None:
    """There is nothing to map."""
    (tmp_path / "empty").touch()
    assert map_array(tmp_path / "empty", np.dtype("<u8")).shape == (0,)


def resident_bytes(path: Path) -> int:
    """How much of a mapped file counts as memory of this process."""
    _, _, after = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return 1024 * int(after.partition("Rss:")[2].split()[0])


def test_released_pages_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, also what was just written; arrays in memory are left alone."""
    monkeypatch.setattr(arrays, "WINDOW_BYTES", 32)
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
