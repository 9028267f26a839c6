"""The front of a chunk: what is packed is read back, and whatever contradicts itself is one clear error."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import (
    ChecksumError,
    ForeignFileError,
    FormatError,
    LayoutError,
    OversizedError,
    TruncatedError,
    VersionError,
)
from brand.formats.chunk import ChunkFront, front_size, pack_front, parse_preamble, read_front
from brand.formats.constants import ROW
from brand.formats.header import Header, Schema, pack_header
from tests.tools.forge import set_preamble, set_row

ID = bytes(range(16))
NAME = Path("some/chunk.brand")
HUGE = 2**32 - 1


def header(samples: int = 7, chunk_size: int = 4) -> Header:
    """A header of two chunks."""
    return Header(samples, chunk_size, Schema.parse({"text": "str"}), None, "none", 5, {"kind": "python"})


def whole_chunk(sizes: list[int], facts: Header, number: int = 0, dictionary: bytes = b"") -> bytes:
    """A chunk file of samples of these sizes, stored raw."""
    packed = pack_header(facts)
    rows = np.zeros(len(sizes), ROW)
    rows["size"] = rows["raw_size"] = sizes
    rows["offset"] = front_size(len(packed), len(dictionary), len(sizes)) + np.cumsum([0, *sizes[:-1]])
    rows["index"] = np.arange(len(sizes)) + number * facts.chunk_size
    rows["checksum"] = [xxhash.xxh3_64_intdigest(bytes(size)) for size in sizes]
    return pack_front(packed, dictionary, rows, number=number, data_set_id=ID) + bytes(sum(sizes))


def read(data: bytes) -> ChunkFront:
    """Read the front of a chunk file in memory."""
    return read_front(io.BytesIO(data), NAME)


@pytest.fixture
def chunk(tmp_path: Path) -> Path:
    """A good first chunk of four samples."""
    path = tmp_path / "chunk.brand"
    path.write_bytes(whole_chunk([5, 0, 9, 4], header()))
    return path


def error_of(path: Path, kind: type[FormatError], number: int | None = 0) -> FormatError:
    """The error that reading a chunk's front gives, which must be of exactly this class."""
    with path.open("rb") as file, pytest.raises(kind) as caught:
        read_front(file, path)
    assert type(caught.value) is kind
    assert caught.value.path == path
    assert caught.value.chunk == number
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.slow
@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.integers(0, 3), st.binary(max_size=50), st.data())
def test_a_front_comes_back(sizes: list[int], number: int, dictionary: bytes, data: st.DataObject) -> None:
    """Any sizes, number and dictionary: everything that was packed is read."""
    last = data.draw(st.booleans())
    chunk_size = len(sizes) + (data.draw(st.integers(0, 3)) if last else 0)
    samples = number * chunk_size + len(sizes) if last else (number + 2) * chunk_size
    facts = header(samples, chunk_size)
    file = whole_chunk(sizes, facts, number, dictionary)
    front = read(file)
    assert front.header == facts
    assert front.dictionary == dictionary
    assert front.rows["size"].tolist() == sizes
    assert (front.preamble.number, front.preamble.data_set_id, front.preamble.file_size) == (number, ID, len(file))
    assert front.preamble.front_size + sum(sizes) == len(file)
    assert parse_preamble(file, NAME) == front.preamble


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_of_a_front_is_an_error(byte: int, bit: int) -> None:
    """No bit of preamble, header, dictionary or table is without a check."""
    file = bytearray(whole_chunk([3, 4], header(2, 2), dictionary=b"dictionary"))
    byte %= len(file) - 7
    file[byte] ^= 1 << bit
    with pytest.raises(FormatError):
        read(bytes(file))


@pytest.mark.slow
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=70))
def test_any_other_length_is_an_error(cut: int, more: bytes) -> None:
    """A file cut short is a `TruncatedError`, a longer one an `OversizedError`."""
    file = whole_chunk([3, 4], header(2, 2))
    with pytest.raises(TruncatedError):
        read(file[: cut % len(file)])
    with pytest.raises(OversizedError):
        read(file + more)


def test_the_checksum_error_shows_both_sums(chunk: Path) -> None:
    """It names what was expected and what was found."""
    set_preamble(chunk, checksum=0x1234)
    error = error_of(chunk, ChecksumError)
    assert error.expected == f"{0x1234:016x}"
    assert error.found != error.expected


def test_a_wrong_magic_is_no_chunk_of_ours(chunk: Path) -> None:
    """The error shows the eight bytes."""
    set_preamble(chunk, magic=b"\x89PNG\r\n\x1a\n")
    error = error_of(chunk, ForeignFileError, None)
    assert error.found == "89 50 4e 47 0d 0a 1a 0a"


@pytest.mark.parametrize("major", [0, 2, 65535])
def test_another_major_version_is_refused(chunk: Path, major: int) -> None:
    """With the advice to install a newer release."""
    set_preamble(chunk, major=major)
    error = error_of(chunk, VersionError, None)
    assert (error.expected, error.found) == (1, major)
    assert "Install" in error.hint


def test_a_newer_minor_version_is_read(chunk: Path) -> None:
    """A minor version only adds what an older reader may ignore."""
    set_preamble(chunk, minor=9)
    with chunk.open("rb") as file:
        assert len(read_front(file, chunk).rows) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("header_size", (16 << 20) + 1), ("header_size", HUGE), ("dictionary_size", (1 << 20) + 1),
        ("dictionary_size", HUGE), ("samples", (1 << 24) + 1), ("samples", HUGE),
    ],
)  # fmt: skip
def test_a_number_above_its_limit_is_oversized(chunk: Path, field: str, value: int) -> None:
    """Before anything of that size is read; the error shows limit and number."""
    set_preamble(chunk, **{field: value})
    error = error_of(chunk, OversizedError, None)
    assert error.found == value
    assert str(error.expected).startswith("<= ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("header_size", 16 << 20), ("dictionary_size", 1 << 20), ("samples", 1 << 24), ("samples", 0)],
)
def test_a_number_within_its_limit_must_fit_the_file(chunk: Path, field: str, value: int) -> None:
    """The front must end inside the file, and hold at least one row."""
    set_preamble(chunk, **{field: value})
    error_of(chunk, LayoutError)


@pytest.mark.parametrize(("change", "kind"), [(-1, OversizedError), (1, TruncatedError), (2**60, TruncatedError)])
def test_the_stated_size_is_the_size(chunk: Path, change: int, kind: type[FormatError]) -> None:
    """A preamble that states another size than the file has is an error that names both."""
    size = chunk.stat().st_size
    set_preamble(chunk, file_size=size + change)
    error = error_of(chunk, kind)
    assert (error.expected, error.found) == (f"{size + change} bytes", size)


@pytest.mark.parametrize("number", [2, 3, 2**63])
def test_a_number_that_the_data_set_does_not_have_is_refused(chunk: Path, number: int) -> None:
    """A data set of two chunks has no chunk 2."""
    set_preamble(chunk, number=number)
    error_of(chunk, LayoutError, number)


def test_the_number_of_samples_follows_from_the_header(chunk: Path) -> None:
    """The last chunk of seven samples in chunks of four holds three, not four."""
    set_preamble(chunk, number=1)
    assert "4 samples" in str(error_of(chunk, LayoutError, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 0}, {"offset": 2**64 - 1}, {"offset": 2**63}, {"size": 3}, {"size": 6},
        {"size": HUGE, "raw_size": HUGE},
        {"size": 5, "raw_size": 4}, {"raw_size": 0}, {"index": 7}, {"index": 2**64 - 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("slot", [0, 2, 3])
def test_rows_that_overlap_or_leave_a_gap_are_refused(chunk: Path, slot: int, change: dict[str, int]) -> None:
    """Signed rows whose offsets, sizes or index contradict each other, at the start, in the middle and at the end."""
    set_row(chunk, slot, **change)
    error = error_of(chunk, LayoutError)
    assert error.expected is not None
    assert error.found is not None


def test_overlapping_samples_of_equal_total_are_refused(chunk: Path) -> None:
    """One sample longer and the next shorter by as much, with the old offsets."""
    set_row(chunk, 0, size=6, raw_size=6)
    set_row(chunk, 2, size=8, raw_size=8)
    error = error_of(chunk, LayoutError)
    assert "row 1" in error.what


def test_samples_that_end_before_the_file_are_refused(chunk: Path) -> None:
    """No byte of a file is unaccounted for."""
    chunk.write_bytes(chunk.read_bytes() + b"hidden")
    set_preamble(chunk, file_size=chunk.stat().st_size)
    error = error_of(chunk, LayoutError)
    assert (error.expected, error.found) == (chunk.stat().st_size, chunk.stat().st_size - 6)


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_file_shorter_than_a_preamble_is_truncated(tmp_path: Path, size: int) -> None:
    """Also an empty one."""
    path = tmp_path / "chunk.brand"
    path.write_bytes(struct.pack("<8s", b"\x89BRAND\r\n").ljust(size, b"\0")[:size])
    assert error_of(path, TruncatedError, None).found == size
