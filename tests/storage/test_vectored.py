"""One range of a file into many pieces of memory, against a plain copy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from numpy.typing import NDArray

from brand.storage.io import vectored
from brand.storage.io.files import PathOf, RangeReader
from brand.storage.io.pagecache import CachedFile
from brand.storage.io.vectored import OPEN_FILES, CopiedReads, DirectFiles, LocalFiles, scatter_memory
from tests.rounds import examples
from tests.support import descriptors

IOVEC = np.dtype([("base", "<u8"), ("length", "<u8")])
Make = Callable[[PathOf], LocalFiles | DirectFiles | CopiedReads]
LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([0, 0, 0, 128])), min_size=1, max_size=40)


def pieces(memory: NDArray[np.uint8], lengths: list[int], gap: int = 3) -> tuple[NDArray[np.void], list[int]]:
    """A vector of pieces of `memory` in falling order, with gaps between them; and where each begins."""
    starts, at = [], len(memory)
    for length in lengths:
        at -= length + gap
        starts.append(at)
    vector = np.empty(len(lengths), IOVEC)
    vector["base"] = memory.ctypes.data + np.array(starts, np.uint64)
    vector["length"] = lengths
    return vector, starts


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 6,000 random bytes."""
    path = tmp_path_factory.mktemp("vectored") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(6000))
    return path


def only(path: Path) -> PathOf:
    """Names of files that are all the same."""
    return lambda number: str(path)


def copied(path_of: PathOf) -> CopiedReads:
    """What exact reads bring, copied."""
    return CopiedReads(RangeReader(path_of))


@pytest.fixture(params=[LocalFiles, DirectFiles])
def make(request: pytest.FixtureRequest) -> Make:
    """Either way of reading files."""
    way: Make = request.param
    return way


@pytest.fixture(params=[LocalFiles, DirectFiles, copied])
def any_make(request: pytest.FixtureRequest) -> Make:
    """Any way of reading."""
    way: Make = request.param
    return way


@pytest.mark.slow
@given(lengths=LENGTHS, offset=st.integers(0, 500), most=st.integers(1, 8), cut=st.integers(1, 90))
@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_piece_gets_its_bytes(
    any_make: Make, file: Path, lengths: list[int], offset: int, most: int, cut: int
) -> None:
    """Any pieces, empty ones among them, few at a call, from a kernel that gives no more than `cut` bytes at a time."""
    data, size = file.read_bytes(), sum(lengths)
    empty = max(len(run) for run in "".join("0" if length == 0 else " " for length in lengths).split(" "))
    most = max(most, empty + 1)  # a call with empty pieces only would look like the end of the file
    memory = np.full(size + 3 * len(lengths) + 5, 0xEE, np.uint8)
    vector, starts = pieces(memory, lengths)
    storage = any_make(only(file))
    real = vectored._preadv

    def short(descriptor: int, address: int, count: int, at: int) -> int:
        """preadv(2), interrupted early."""
        part = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * count)).from_address(address)).copy().view(IOVEC)
        ends = np.cumsum(part["length"].astype(np.int64))
        keep = int(np.searchsorted(ends, cut)) + 1
        if keep <= count and int(ends[keep - 1]) > cut:
            part["length"][keep - 1] -= np.uint64(int(ends[keep - 1]) - cut)
        part = part[:keep]
        return int(real(descriptor, part.ctypes.data, len(part), at))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectored, "_PIECES", most)
        patch.setattr(vectored, "_preadv", short)
        storage.scatter(0, offset, size, vector)
    storage.close()
    want = np.full_like(memory, 0xEE)
    for start, length in zip(starts, lengths, strict=True):
        want[start : start + length] = np.frombuffer(data[offset : offset + length], np.uint8)
        offset += length
    assert (memory == want).all()


def test_more_pieces_than_the_kernel_takes_at_once(any_make: Make, file: Path) -> None:
    """5,000 of one byte, which is more than IOV_MAX."""
    memory = np.zeros(5000, np.uint8)
    vector, _ = pieces(memory, [1] * 5000, gap=0)
    storage = any_make(only(file))
    storage.scatter(0, 700, 5000, vector)
    assert memory[::-1].tobytes() == file.read_bytes()[700:5700]
    storage.close()


def test_nothing_to_read(any_make: Make, file: Path) -> None:
    """A range of no bytes, with pieces or without."""
    storage = any_make(only(file))
    for lengths in ([], [0], [0, 0]):
        vector, _ = pieces(np.zeros(10, np.uint8), lengths)
        storage.scatter(0, 6000, 0, vector)
    storage.close()


@pytest.mark.slow
@pytest.mark.parametrize(("offset", "size"), [(5990, 11), (6000, 1), (9000, 5), (0, 6001)])
def test_a_file_that_is_too_short(make: Make, file: Path, offset: int, size: int) -> None:
    """EOFError names it; pieces beyond its end are not written to."""
    memory = np.full(size + 20, 0xEE, np.uint8)
    vector, _ = pieces(memory, [size], gap=0)
    storage = make(only(file))
    with pytest.raises(EOFError, match=file.name):
        storage.scatter(0, offset, size, vector)
    assert (memory[:20] == 0xEE).all()
    storage.close()


def test_a_file_that_cannot_be_read(any_make: Make, tmp_path: Path) -> None:
    """OSError names it and says why."""
    vector, _ = pieces(np.zeros(20, np.uint8), [10])
    storage = any_make(lambda number: str(tmp_path / ("gone", "folder")[number]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="gone"):
        storage.scatter(0, 0, 10, vector)
    with pytest.raises(IsADirectoryError, match="folder"):
        storage.scatter(1, 0, 10, vector)
    storage.close()


def test_memory_that_is_not_there(file: Path) -> None:
    """EFAULT, not a crash, where the kernel fills the pieces."""
    vector = np.zeros(1, IOVEC)
    vector["base"], vector["length"] = 4096, 10
    storage = LocalFiles(only(file))
    with pytest.raises(OSError, match="Bad address"):
        storage.scatter(0, 0, 10, vector)
    storage.close()


def test_the_caller_has_its_vector_again(any_make: Make, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that was done can be done once more with the same vector."""
    monkeypatch.setattr(vectored, "_PIECES", 2)
    memory: NDArray[Any] = np.zeros(100, np.uint8)
    vector, _ = pieces(memory, [10, 20, 30])
    storage = any_make(only(file))
    storage.scatter(0, 0, 60, vector)
    first = memory.copy()
    memory[:] = 0
    storage.scatter(0, 0, 60, vector)
    assert (memory == first).all()
    storage.close()


def test_files_stay_open_up_to_a_limit(make: Make, tmp_path: Path) -> None:
    """And none is left when the storage is closed."""
    memory = np.zeros(20, np.uint8)
    before, storage = descriptors(), make(lambda number: str(tmp_path / f"{number}"))
    for number in range(OPEN_FILES + 40):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes([number % 256]) * 10)
        vector, _ = pieces(memory, [10], gap=0)
        storage.scatter(number, 0, 10, vector)
        assert (memory[10:] == number % 256).all()
        assert len(descriptors() - before) <= OPEN_FILES + 2  # and the memory that direct reads go through
    storage.close()
    assert descriptors() <= before


def test_a_range_larger_than_the_memory_of_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in several reads, whose edges are anywhere in the pieces."""
    monkeypatch.setattr(vectored, "_BOUNCE_BYTES", 8192)
    data = np.random.default_rng(1).bytes(70_000)
    (tmp_path / "file").write_bytes(data)
    storage = DirectFiles(only(tmp_path / "file"))
    for offset, lengths in ((0, [70_000]), (4095, [1, 30_000, 5, 20_000]), (12_345, [100] * 500)):
        memory = np.zeros(sum(lengths), np.uint8)
        vector, _ = pieces(memory, lengths[::-1], gap=0)
        storage.scatter(0, offset, len(memory), vector[::-1].copy())
        assert memory.tobytes() == data[offset : offset + len(memory)]
    storage.close()


def test_direct_reads_leave_the_page_cache_alone(tmp_path: Path) -> None:
    """What no cache can hold shall not drive out what others need."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    storage, memory = DirectFiles(only(path)), np.zeros(1 << 19, np.uint8)
    with path.open("rb") as opened:
        cached = CachedFile(opened.fileno())
        cached.drop_written()
        storage.scatter(0, 1000, len(memory), pieces(memory, [len(memory)], gap=0)[0])
        assert not storage._able or not cached.holds(0, 1 << 20)
    storage.close()


def test_a_file_system_that_cannot_read_directly() -> None:
    """Then it reads through the page cache."""
    path = Path("/proc/version")
    data = path.read_bytes()
    storage, memory = DirectFiles(only(path)), np.zeros(len(data), np.uint8)
    for _ in range(2):
        storage.scatter(0, 0, len(data), pieces(memory, [len(data)], gap=0)[0])
        assert memory.tobytes() == data
    assert not storage._able
    storage.close()


def test_direct_reads_that_the_kernel_cuts_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what was asked for at a time: what lies behind it in the buffer is of an earlier read."""
    data = np.random.default_rng(2).bytes(50_000)
    (tmp_path / "file").write_bytes(data)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, offset: real(descriptor, [views[0][:8192]], offset))
    storage, memory = DirectFiles(only(tmp_path / "file")), np.zeros(40_000, np.uint8)
    for offset in (5000, 100):
        vector, _ = pieces(memory, [15_000, 20_000, 5000][::-1], gap=0)
        storage.scatter(0, offset, 40_000, vector[::-1].copy())
        assert memory.tobytes() == data[offset : offset + 40_000]
    storage.close()


@pytest.mark.parametrize("way", ["core", "kernel", "one by one"])
@given(lengths=st.lists(st.one_of(st.integers(0, 40), st.just(0)), min_size=1, max_size=2500), data=st.data())
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_memory_is_scattered_in_parts(
    lengths: list[int], data: st.DataObject, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of a body, of any sizes, end up where the samples belong; without the core, and without the kernel."""
    if way != "core":
        monkeypatch.setattr(vectored, "CORE", None)
    if way == "one by one":
        monkeypatch.setattr(vectored, "_copy", lambda *_: -1)
    total = sum(lengths)
    source = np.random.default_rng(total).integers(0, 256, total, np.uint8)
    memory = np.zeros(total + 3 * len(lengths), np.uint8)
    vector, starts = pieces(memory, lengths)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=5)))
    at = 0
    for first, end in zip([0, *cuts], [*cuts, total], strict=True):
        at = scatter_memory(source[first:end].copy(), vector, at)
    want = np.zeros_like(memory)
    ends = np.cumsum(lengths)
    for start, end, length in zip(starts, ends.tolist(), lengths, strict=True):
        want[start : start + length] = source[end - length : end]
    assert np.array_equal(memory, want)
