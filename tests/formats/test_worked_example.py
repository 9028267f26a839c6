"""The worked example of the specification (docs/reference/format-example.md) is tested like code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard

from brand.formats.chunk import read_front
from brand.formats.contents import read_records
from brand.formats.record import RecordDecoder
from tests.independent_reader import Chunk, fields
from tests.tools.forge import take_apart

VALUES: list[dict[str, Any]] = [
    {"label": 7, "text": "Grüße", "key": "a.txt"},
    {"label": -1, "text": "", "key": "b.txt"},
]


@pytest.fixture(scope="module")
def section(repository: Path) -> str:
    """Section 9 of the specification, a page of its own."""
    return (repository / "docs" / "reference" / "format-example.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example(section: str) -> bytes:
    """The bytes of the hex block; each line's offset must be where it says."""
    data = b""
    block = re.search(r"```hex\n(.*?)```", section, re.DOTALL)
    assert block
    for line in block[1].splitlines():
        offset, _, rest = line.partition("  ")
        assert int(offset, 16) == len(data), line
        data += bytes.fromhex(rest.split("|")[0])
    return data


@pytest.fixture
def written(section: str, tmp_path: Path) -> Path:
    """The chunk that the section's Python code writes."""
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block
    code = ast.parse(block[1].replace('"example.brand"', repr(str(tmp_path / "example.brand"))))
    exec(compile(code, "docs/reference/format-example.md", "exec"), {})
    return tmp_path / "example.brand" / "chunks" / "00000000.brand"


def test_brand_reads_the_example(example: bytes, tmp_path: Path) -> None:
    """The hex dump is a whole chunk file, and Brand reads its two samples."""
    path = tmp_path / "00000000.brand"
    path.write_bytes(example)
    with path.open("rb") as file:
        front = read_front(file, path)
        decode = RecordDecoder(front.header.schema)
        found = {int(row["index"]): decode(record) for row, record in read_records(file, front, path)}  # type: ignore[arg-type]
    assert found == dict(enumerate(VALUES))
    assert list(found) == [1, 0]


def test_the_independent_reader_reads_the_example(example: bytes) -> None:
    """So does the reader that was written from the document alone."""
    chunk = Chunk(example)
    found = [fields(chunk.header["schema"], chunk.record(slot)) for slot in range(2)]
    assert found == VALUES[::-1]
    assert chunk.rows["index"].tolist() == [1, 0]


def test_pack_writes_the_example(example: bytes, written: Path, tmp_path: Path) -> None:
    """The document's call writes these bytes; with another version of zstd all but the header's frame."""
    shown = tmp_path / "shown.brand"
    shown.write_bytes(example)
    parts, made = take_apart(shown), take_apart(written)
    same_frame = made.header == parts.header
    unpack = zstandard.ZstdDecompressor().decompress
    assert unpack(made.header) == unpack(parts.header)
    made.header = parts.header
    assert made == parts
    if same_frame:
        assert written.read_bytes() == example


def test_the_header_is_shown_as_it_unpacks(section: str, example: bytes) -> None:
    """The JSON in the document is the header, but for the line break."""
    block = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert block
    size = int.from_bytes(example[12:16], "little")
    assert block[1].replace("\n", "").encode() == zstandard.ZstdDecompressor().decompress(example[64 : 64 + size])


def test_the_notes_beside_the_bytes_are_right(section: str, example: bytes) -> None:
    """Numbers in the annotations are the numbers in the bytes."""
    for line in re.findall(r"^[0-9a-f]{4}  .*\|.*$", section, re.MULTILINE):
        data, _, note = line[6:].partition("|")
        value = bytes.fromhex(data)
        stated = re.search(r"(?:= |offset |size |index |chunk |version |label |has )(-?\d+)(?!\S*\.\.)", note)
        if stated:
            assert int.from_bytes(value, "little", signed="label" in note) == int(stated[1]), line
        shown = re.search(r'"(.*)"', note)
        if shown:
            assert value.decode() == shown[1], line
