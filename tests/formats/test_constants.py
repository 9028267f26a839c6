"""Persistent numbers: whoever changes one makes every data set unreadable, and must see this file go red first."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from brand.formats import constants, header

PINNED = {
    "MAGIC": b"\x89BRAND\r\n",
    "VERSION_MAJOR": 1,
    "VERSION_MINOR": 0,
    "VERSION_OF_COLLECTIONS": 1,
    "VERSION_OF_MERGES": 3,
    "VERSION_OF_LISTS": 2,
    "VERSION_OF_FACTS": 2,
    "PREAMBLE_SIZE": 64,
    "PREAMBLE_CHECKSUM_AT": 56,
    "MAX_HEADER": 16_777_216,
    "MAX_HEADER_UNPACKED": 67_108_864,
    "MAX_DICTIONARY": 1_048_576,
    "MAX_MANIFEST": 67_108_864,
    "MAX_SHARE": 1_048_576,
    "MAX_SAMPLE": 4_294_967_295,
    "MAX_CHUNK_SAMPLES": 16_777_216,
    "MAX_SAMPLES": 281_474_976_710_656,
    "MAX_CHUNKS": 100_000_000,
    "MAX_NODES": 65_536,
    "MAX_PARTS": 65_536,
    "MAX_VERSIONS": 4_294_967_295,
    "MAX_FIELDS": 64,
    "MAX_DIMENSIONS": 32,
    "MANIFEST_NAME": "brand.json",
    "SHARE_NAME": "share.json",
    "VERSIONS_NAME": "versions",
    "WORK_NAME": ".brand-work",
    "SHARED_PLAN_NAME": "plan",
    "SHARE_WORK_NAME": ".brand-partition",
    "COPY_WORK_NAME": ".brand-copy",
    "EXTRAS_NAME": "extras.zip",
    "SKIPPED_NAME": "skipped.tsv",
    "SAMPLES_NAME": "index/samples.npy",
    "PLACE_NAME": "index/place.npy",
    "CHUNKS_NAME": "index/chunks.npy",
    "_EXTRAS_FREE_BYTES": 1_048_576,
    "_EXTRAS_RATIO": 64,
}

DTYPES = {
    1: "|b1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "|u1", 7: "<u2", 8: "<u4", 9: "<u8",
    10: "<f2", 11: "<f4", 12: "<f8", 13: "<c8", 14: "<c16",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_persistent_number_never_changes(name: str) -> None:
    """Name and value are as version 1 was released with."""
    assert getattr(constants, name) == PINNED[name]


def test_every_plain_constant_is_pinned() -> None:
    """A new number of the format is added here, too."""
    plain = {name for name, value in vars(constants).items() if name.isupper() and isinstance(value, int | str | bytes)}
    assert plain == set(PINNED)


def test_dtype_numbers_never_change() -> None:
    """Each number of an `ndarray` payload stands for one dtype, little-endian."""
    assert {number: dtype.str for number, dtype in constants.ARRAY_DTYPES.items()} == DTYPES


def test_rows_never_change() -> None:
    """Fields, offsets and sizes of the two kinds of rows."""
    assert constants.ROW.descr == [
        ("offset", "<u8"), ("size", "<u4"), ("raw_size", "<u4"), ("checksum", "<u8"), ("index", "<u8"),
    ]  # fmt: skip
    assert constants.ROW.itemsize == 32
    assert constants.CHUNK_ROW.descr == [("file_size", "<u8"), ("checksum", "<u8")]
    assert constants.CHUNK_ROW.itemsize == 16


def test_names_of_files_never_change() -> None:
    """Chunks have eight digits, and columns the name of their field."""
    assert constants.chunk_name(0) == "chunks/00000000.brand"
    assert constants.chunk_name(constants.MAX_CHUNKS - 1) == "chunks/99999999.brand"
    assert constants.column_name("label") == "columns/label.npy"


def test_codecs_never_change() -> None:
    """The names of the codecs, and which have a fixed size."""
    assert header.CODECS == (
        "int", "float", "str", "bytes", "json", "ndarray", "image", "audio",
        "list[image]", "list[audio]", "list[str]", "list[ndarray]", "list[int]", "list[float]",
    )  # fmt: skip
    assert header.FIXED == {"int": "q", "float": "d"}


def test_the_document_states_the_same_dtypes(repository: Path) -> None:
    """docs/reference/format.md lists the dtype numbers that the code has."""
    text = " ".join((repository / "docs" / "reference" / "format.md").read_text().split())
    listed = re.search(r"dtype numbers: (.*?)\.", text)
    assert listed
    found = {int(number): np.dtype(name) for number, name in (item.split() for item in listed[1].split(", "))}
    assert found == constants.ARRAY_DTYPES
