"""Arrays in files: the elements that are asked for, or an error, whatever becomes of the file meanwhile."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import TruncatedError
from brand.formats.arrays import ArrayFile
from tests.support import FORKS, open_below

HEAD = b"seven b"
COUNT = 5000
VALUES = np.random.default_rng(0).integers(0, 2**63, COUNT).astype("<u8")


@pytest.fixture
def array(tmp_path: Path) -> Iterator[ArrayFile]:
    """5,000 numbers behind a head of seven bytes."""
    with (tmp_path / "array").open("wb+") as file:
        file.write(HEAD + VALUES.tobytes())
        file.flush()
        yield ArrayFile(file.fileno(), tmp_path / "array", VALUES.dtype, len(HEAD), COUNT, "Mend it")


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> ArrayFile:
    """The same, for all examples of a test."""
    path = tmp_path_factory.mktemp("arrays") / "array"
    path.write_bytes(HEAD + VALUES.tobytes())
    with path.open("rb") as file:
        return ArrayFile(file.fileno(), path, VALUES.dtype, len(HEAD), COUNT)


@pytest.mark.slow
@given(st.lists(st.integers(0, COUNT - 1), max_size=3000), st.sampled_from(["<i8", "<u4", "<i2"]))
def test_take_is_indexing(same: ArrayFile, numbers: list[int], dtype: str) -> None:
    """Any numbers, in any order, some of them twice, more than one call of the kernel takes."""
    asked = np.array(numbers, dtype)
    assert np.array_equal(same.take(asked), VALUES[numbers] if numbers else VALUES[:0])


@given(st.integers(-9, COUNT + 9), st.integers(-9, COUNT + 9))
def test_run_is_slicing(same: ArrayFile, first: int, end: int) -> None:
    """Also where the end lies before the beginning."""
    assert np.array_equal(same.run(first, end), VALUES[first:end])


def test_elements_are_taken_without_files_in_memory(array: ArrayFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems that have none."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert np.array_equal(array.take(np.array([4999, 0, 7])), VALUES[[4999, 0, 7]])


@pytest.mark.parametrize("number", [COUNT, -1, 2**62])
def test_an_element_that_is_not_there_is_an_index_error(array: ArrayFile, number: int) -> None:
    """Never the memory behind the array."""
    with pytest.raises(IndexError, match="5,000"):
        array.take(np.array([1, number]))


@pytest.mark.parametrize("size", [0, 3, 4096, len(HEAD) + 8 * COUNT - 1])
def test_a_file_cut_short_is_told_by_what_is_gone(array: ArrayFile, size: int) -> None:
    """With both sizes and the hint; what is still there is read."""
    os.truncate(array.path, size)
    there = max(0, size - len(HEAD)) // 8
    reads = [lambda: array.run(0, COUNT), array.all]
    if size < 8 * COUNT - mmap.PAGESIZE:  # of its last page a mapping has zeros
        reads.append(lambda: array.take(np.array([0, COUNT - 1])))
    for read in reads:
        with pytest.raises(TruncatedError, match=r"cut short.*Mend it") as caught:
            read()
        assert caught.value.path == array.path
        assert (caught.value.expected, caught.value.found) == (f"{len(HEAD) + 8 * COUNT} bytes", size)
    assert np.array_equal(array.run(0, there), VALUES[:there])
    if there:
        assert array.take(np.array([there - 1])) == VALUES[there - 1]


def test_threads_do_not_disturb_each_other(same: ArrayFile) -> None:
    """Each has memory of its own that the kernel copies into."""

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        asked = [rng.integers(0, COUNT, 1500) for _ in range(40)]
        return all(np.array_equal(same.take(numbers), VALUES[numbers]) for numbers in asked)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


@FORKS
@pytest.mark.slow
def test_a_forked_child_has_memory_of_its_own(same: ArrayFile) -> None:
    """What it takes does not appear in its parent's memory while the parent uses it, nor the other way round."""
    asked = np.arange(1000)
    same.take(asked)
    child = os.fork()
    right = all(np.array_equal(same.take(asked + k % 7), VALUES[asked + k % 7]) for k in range(2000))
    if not child:
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right


def test_an_array_holds_one_descriptor(array: ArrayFile) -> None:
    """A segment has two arrays. A released one closes its descriptor and unmaps its file."""
    used, mapped = open_below(array.path), Path("/proc/self/maps").read_text().count(str(array.path))
    with array.path.open("rb") as file:
        more = [ArrayFile(file.fileno(), array.path, VALUES.dtype, len(HEAD), COUNT) for _ in range(10)]
    assert open_below(array.path) == used + 10
    assert array.take(np.array([5])) == more[0].take(np.array([5])) == VALUES[5]
    assert Path("/proc/self/maps").read_text().count(str(array.path)) > mapped
    more.clear()
    assert open_below(array.path) == used
    assert Path("/proc/self/maps").read_text().count(str(array.path)) == mapped
