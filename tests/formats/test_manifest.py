"""brand.json: what is packed is read back; anything else is one error that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import ChecksumError, FormatError, LayoutError, NotADataSetError, OversizedError, VersionError
from brand.formats.header import Header, Schema, canonical_json
from brand.formats.manifest import Manifest, index_names, pack_manifest, parse_manifest, read_manifest
from tests.formats.test_header import HEADERS, JSON
from tests.tools.damage import truncate

NAME = Path("some/brand.json")
HEADER = Header(10, 4, Schema.parse({"label": "int", "text": "str"}), ("ü", "b"), "none", 0, {"kind": "python"})
GOOD = Manifest(
    data_set_id=bytes(range(16)),
    header=HEADER,
    dictionary_size=0,
    stored_bytes=100,
    raw_bytes=100,
    largest_sample=20,
    files=dict.fromkeys(index_names(HEADER), (128, "0" * 32)),
    companions={"extras.zip": (5, "f" * 32)},
)


def signed(value: dict[str, Any]) -> bytes:
    """Bytes of a manifest whose checksum is right."""
    value = {key: value[key] for key in value if key != "checksum"}
    return json.dumps(value | {"checksum": xxhash.xxh3_64_hexdigest(canonical_json(value))}).encode()


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The good manifest, changed and signed again."""
    value = json.loads(pack_manifest(GOOD))
    change(value)
    return signed(value)


@pytest.mark.slow
@given(HEADERS, st.binary(min_size=16, max_size=16), st.integers(0, 1 << 20), st.integers(0, 2**50))
def test_a_manifest_comes_back(header: Header, identity: bytes, dictionary_size: int, stored: int) -> None:
    """Pack, parse: the same facts."""
    files = dict.fromkeys(index_names(header), (stored, "ab" * 16))
    largest = min(stored, 2**32 - 1)
    manifest = Manifest(identity, header, dictionary_size, stored, stored + 5, largest, files, {})
    assert parse_manifest(pack_manifest(manifest), NAME) == manifest


def test_a_manifest_is_made_for_people_and_machines() -> None:
    """Indented, UTF-8 as it is, with a line end; its keys are those of the specification."""
    data = pack_manifest(GOOD)
    assert data.endswith(b"}\n")
    assert "ü".encode() in data
    assert json.loads(data).keys() == {
        "format", "version", "id", "header", "chunks", "dictionary_size", "stored_bytes", "raw_bytes",
        "largest_sample", "files", "companions", "checksum",
    }  # fmt: skip


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_flipped_bit_is_an_error(byte: int, bit: int) -> None:
    """No bit of a manifest is without a check."""
    data = bytearray(pack_manifest(GOOD))
    data[byte % len(data)] ^= 1 << bit
    with pytest.raises(FormatError):
        parse_manifest(bytes(data), NAME)


@pytest.mark.slow
def test_no_flipped_bit_at_all_is_missed() -> None:
    """The same for every single bit."""
    data = bytearray(pack_manifest(GOOD))
    for byte in range(len(data)):
        for bit in range(8):
            data[byte] ^= 1 << bit
            with pytest.raises(FormatError):
                parse_manifest(bytes(data), NAME)
            data[byte] ^= 1 << bit


@given(st.integers(0, 10**6))
def test_a_manifest_cut_short_is_an_error(size: int) -> None:
    """At any length; only the line end may be missing, which is white space."""
    data = pack_manifest(GOOD)
    with pytest.raises(LayoutError):
        parse_manifest(data[: size % (len(data) - 1)], NAME)


def test_an_edit_by_hand_is_noticed() -> None:
    """A changed number is a `ChecksumError` that says how to mend it; indentation does not matter."""
    data = pack_manifest(GOOD)
    with pytest.raises(ChecksumError, match="reindex"):
        parse_manifest(data.replace(b'"samples": 10', b'"samples": 12'), NAME)
    assert parse_manifest(json.dumps(json.loads(data)).encode(), NAME) == GOOD


def test_a_missing_checksum_is_noticed() -> None:
    """It cannot be left out."""
    value = json.loads(pack_manifest(GOOD))
    del value["checksum"]
    with pytest.raises(ChecksumError):
        parse_manifest(json.dumps(value).encode(), NAME)


@pytest.mark.parametrize("version", [[2, 0], [0, 9], [99, 0, 1]])
def test_another_major_version_is_refused(version: list[int]) -> None:
    """Before anything else is looked at, as its checksum may be another; with what to do."""
    value = json.loads(pack_manifest(GOOD)) | {"version": version}
    with pytest.raises(VersionError, match="newest") as caught:
        parse_manifest(json.dumps(value).encode(), NAME)
    assert (caught.value.expected, caught.value.found) == (1, version[0])


def test_a_newer_minor_version_with_more_keys_is_read() -> None:
    """What an older release does not know it ignores."""
    data = changed(lambda value: value.update(version=[1, 7], more={"x": 1}))
    assert parse_manifest(data, NAME) == GOOD


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"3", b'"brand"', b"\xff\xfe", b"\0" * 50, b"[" * 100_000, b"{}",
        b'{"format": "brand"}',
        b'{"format": "brand", "version": 1}', b'{"format": "brand", "version": []}',
        b'{"format": "brand", "version": "1.0"}', b'{"format": "brand", "version": ["1"]}',
        b'{"format": "brand", "version": {"0": 1}}', b'{"format": "zarr", "version": [1, 0]}',
        b'{"format": "brand", "version": [' + b"1" * 5000 + b"]}",
    ],
    ids=range(18),
)  # fmt: skip
def test_what_is_no_manifest_is_a_layout_error(data: bytes) -> None:
    """The error names the file and what to do."""
    with pytest.raises(LayoutError, match=r"some/brand\.json.*reindex"):
        parse_manifest(data, NAME)


@pytest.mark.parametrize("data", [
    b'{"format": "brand", "version": [1, 0], "x": "\\ud800"}',
    b'{"format": "brand", "version": [1, 0], "\\udfff": 1}',
])  # fmt: skip
def test_text_that_is_no_unicode_is_a_format_error(data: bytes) -> None:
    """JSON may hold half a character by an escape; it cannot be checksummed, and is refused."""
    with pytest.raises(FormatError):
        parse_manifest(data, NAME)


@pytest.mark.parametrize("depth", [*range(900, 1000, 7), 5000])
def test_a_deep_manifest_is_a_format_error(depth: int) -> None:
    """Also where it is just not too deep to be parsed."""
    data = b'{"format": "brand", "version": [1, 0], "x": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(FormatError):
        parse_manifest(data, NAME)


@pytest.mark.parametrize(
    "key", ["id", "header", "dictionary_size", "stored_bytes", "raw_bytes", "largest_sample", "files", "companions"]
)
def test_a_missing_key_is_a_layout_error(key: str) -> None:
    """Though it is signed."""
    with pytest.raises(LayoutError):
        parse_manifest(changed(lambda value: value.pop(key)), NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "12"}, {"id": 5}, {"id": "x" * 32}, {"id": None}, {"header": []}, {"dictionary_size": None},
        {"dictionary_size": float("inf")}, {"stored_bytes": float("inf")}, {"raw_bytes": float("nan")},
        {"dictionary_size": -1}, {"files": []}, {"files": {"index/place.npy": 3}}, {"files": 1},
        {"companions": None}, {"companions": {"extras.zip": [1]}}, {"companions": {"extras.zip": [1, 2, 3]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_value_is_a_layout_error(change: dict[str, Any]) -> None:
    """Types are checked, though it is signed."""
    with pytest.raises(LayoutError):
        parse_manifest(changed(lambda value: value.update(change)), NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}}, {"files": {"index/samples.npy": [1, "0"]}}, {"companions": {"../secret": [1, "0"]}},
        {"companions": {"/dev/zero": [1, "0"]}}, {"companions": {"chunks/00000000.brand": [1, "0"]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_list_of_other_files_is_a_layout_error(change: dict[str, Any]) -> None:
    """`files` names index and columns, `companions` the two that there may be; no other path is ever opened."""
    with pytest.raises(LayoutError):
        parse_manifest(changed(lambda value: value.update(change)), NAME)


@pytest.mark.slow
@given(JSON, st.sampled_from(sorted({*json.loads(pack_manifest(GOOD))} - {"checksum"})))
def test_any_json_in_any_key_is_a_manifest_or_a_format_error(value: Any, key: str) -> None:
    """Nothing that JSON can hold gets another error out of it, signed as it is."""
    try:
        data = changed(lambda manifest: manifest.update({key: value}))
    except UnicodeEncodeError:
        return
    try:
        parse_manifest(data, NAME)
    except FormatError:
        return


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    """A file above 64 MiB is an `OversizedError`."""
    (tmp_path / "brand.json").touch()
    truncate(tmp_path / "brand.json", (64 << 20) + 1)
    with pytest.raises(OversizedError):
        read_manifest(tmp_path)


def _nothing(folder: Path) -> None: ...


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_nothing, "no such folder"),
        (lambda folder: folder.mkdir(), "not a data set"),
        (lambda folder: (folder / "chunks").mkdir(parents=True), "reindex"),
        (lambda folder: (folder / ".brand-work").mkdir(parents=True), "not finished"),
        (lambda folder: (folder / "share.json").mkdir(parents=True), "not finished: run the same `brand partition`"),
        (lambda folder: folder.write_text("x"), "a data set is a folder"),
        (lambda folder: (folder / "brand.json").mkdir(parents=True), "a data set is a folder"),
    ],
)  # fmt: skip
def test_a_missing_manifest_is_explained(tmp_path: Path, prepare: Callable[[Path], object], message: str) -> None:
    """`NotADataSetError` says what is there instead, and what to do."""
    prepare(tmp_path / "x")
    with pytest.raises(NotADataSetError, match=message):
        read_manifest(tmp_path / "x")
