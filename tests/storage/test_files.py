"""Range reads: the bytes of each range, from few open files, whatever the file system knows."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.storage.io import files
from brand.storage.io.files import RangeReader
from tests.support import descriptors

CONTENT = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine files of 1,024 bytes; file k begins with the byte k."""
    path = tmp_path_factory.mktemp("files")
    for number in range(9):
        (path / str(number)).write_bytes(bytes([number]) + CONTENT[1:])
    return path


def reader_of(folder: Path) -> RangeReader:
    """A reader of the numbered files of a folder."""
    return RangeReader(lambda number: str(folder / str(number)))


def read(reader: RangeReader, wanted: list[tuple[int, int, int]]) -> list[bytes]:
    """Read ranges into buffers that held something else before."""
    buffers = [bytearray(b"\xee" * size) for _, _, size in wanted]
    reader.read_into([(n, at, memoryview(b)) for (n, at, _), b in zip(wanted, buffers, strict=True)])
    return [bytes(buffer) for buffer in buffers]


def expected(wanted: list[tuple[int, int, int]]) -> list[bytes]:
    """What is in the files, and zeros past their ends."""
    return [(bytes([n]) + CONTENT[1:])[at : at + size].ljust(size, b"\0") for n, at, size in wanted]


@pytest.mark.slow
@given(wanted=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1100), st.integers(0, 300)), max_size=12))
def test_each_buffer_holds_its_range(folder: Path, wanted: list[tuple[int, int, int]]) -> None:
    """Also past the end of a file, where there are zeros and never what was in the buffer before."""
    assert read(reader_of(folder), wanted) == expected(wanted)


def test_few_files_are_kept_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used least recently is closed, and opened again when it is needed."""
    monkeypatch.setattr(files, "OPEN_FILES", 3)
    before = descriptors()
    reader = reader_of(folder)
    for _ in range(2):
        wanted = [(n, 0, 4) for n in range(9)]
        assert read(reader, wanted) == expected(wanted)
        assert len(descriptors() - before) == 3
    reader.close()
    assert descriptors() <= before
    assert read(reader, [(1, 0, 4)]) == expected([(1, 0, 4)])


@pytest.mark.parametrize("answer", ["would wait", "unknown flag", "half"])
def test_what_the_cache_does_not_hold_is_read_all_the_same(
    folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where RWF_NOWAIT gives nothing, is not known, or gives a part, the range is read without it."""
    preadv = os.preadv

    def without_cache(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if not flags:
            return preadv(descriptor, buffers, offset)
        if answer == "half":
            return preadv(descriptor, [buffer[: len(buffer) // 2] for buffer in buffers], offset)
        raise BlockingIOError if answer == "would wait" else OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", without_cache)
    wanted = [(3, 0, 9), (4, 1000, 100), (3, 5, 7)]
    reader = reader_of(folder)
    assert read(reader, wanted) == expected(wanted)
    assert read(reader, wanted) == expected(wanted)


def test_short_reads_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may give fewer bytes than were asked for, as often as it likes."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at, *_: preadv(fd, [b[:3] for b in buffers], at))
    assert read(reader_of(folder), [(5, 10, 50)]) == expected([(5, 10, 50)])


def test_a_missing_file_is_named(folder: Path) -> None:
    """The error carries the path; what was open stays usable."""
    reader = reader_of(folder)
    with pytest.raises(FileNotFoundError) as caught:
        read(reader, [(1, 0, 4), (77, 0, 4)])
    assert caught.value.filename == str(folder / "77")
    assert read(reader, [(1, 0, 4)]) == expected([(1, 0, 4)])
