"""The files of versions: what is written is read again, and what is damaged or contradicts itself is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import ChecksumError, LayoutError, MissingFileError, OversizedError, UnreadableError, VersionError
from brand.formats.constants import MAX_MANIFEST
from brand.formats.manifest import pack_signed
from brand.formats.version import (
    MARKER,
    Listed,
    Overlay,
    PartOf,
    Version,
    make_version,
    npy_list,
    number_within,
    pack_version,
    parse_version,
    read_version,
    version_name,
    version_number,
)

PATH = Path("all.brand/versions/00000007.json")
A, B, C = "a" * 32, "b" * 32, "c" * 32
LISTED = Listed(3, "d" * 32)


def version(**changes: Any) -> Version:
    """A version of three parts: one whole, one without two samples, one without any."""
    parts = (
        PartOf(A, 0, 100, 100, A),
        PartOf(B, 100, 110, 7, C, LISTED),
        PartOf(None, 110, 113, 0, "e" * 32, Listed(3, "f" * 32)),
    )
    facts: dict[str, Any] = {
        "collection": "0" * 16,
        "number": 7,
        "parts": parts,
        "deleted": Listed(6, "1" * 32),
        "overlays": {"score": Overlay("float", Listed(100, "2" * 32))},
        "parent": "0" * 16 + "0000000500000000",
        "note": "Grüße",
    }
    return make_version(**(facts | changes))


def test_what_is_packed_is_parsed_again() -> None:
    """All facts; and those that follow from them."""
    made = version()
    assert parse_version(pack_version(made), PATH) == made
    assert (made.number, made.collection, made.samples, made.present) == (7, "0" * 16, 113, 107)
    assert [part.first for part in made.parts] == [0, 100, 110]
    assert len(made.lists) == 4
    assert json.loads(pack_version(made))["version"] == [1, 1]


def test_the_id_says_what_the_version_holds() -> None:
    """Two versions of one number with different contents have different ids; the same contents have the same."""
    assert version().id == version().id
    assert version().id[:24] == "0" * 16 + "00000007"
    assert len({version().id, version(note="x").id, version(deleted=None).id}) == 3


def test_a_number_is_found_in_ids_of_its_own_collection_only() -> None:
    """Any other value has none."""
    made = version()
    assert number_within(made.collection, made.id) == 7
    for other in (None, 7, "", "0" * 16, A, "0" * 31 + "x"):
        assert number_within(made.collection, other) is None


@pytest.mark.parametrize(
    "part",
    [
        PartOf(A, 0, 0, 0, A),
        PartOf(A, 0, 10, 9, A),
        PartOf(A, 0, 10, 10, A, LISTED),
        PartOf(None, 0, 3, 0, A),
        PartOf(None, 0, 3, 3, A),
        PartOf(A, 0, 3, 0, A, LISTED),
    ],
)
def test_a_part_whose_counts_do_not_fit_is_refused(part: PartOf) -> None:
    """Its samples, its run and what is absent."""
    with pytest.raises(LayoutError, match="malformed"):
        parse_version(pack_version(version(parts=(part,), deleted=None)), PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ()},
        {"parts": (PartOf(A, 0, 3, 3, A), PartOf(A, 3, 6, 3, B))},
        {"deleted": Listed(114, A)},
        {"number": 0},
        {"parent": "1" * 32},
    ],
)
def test_a_version_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    """No part, a part twice, more deleted than there are, number 0, a parent of another collection."""
    with pytest.raises(LayoutError, match="malformed"):
        parse_version(pack_version(version(**changes)), PATH)


def test_an_id_of_other_contents_is_refused() -> None:
    """A file that was signed anew after its contents were changed."""
    with pytest.raises(LayoutError, match="its id"):
        parse_version(pack_version(replace(version(), note="another")), PATH)


def facts(**changes: Any) -> bytes:
    """The bytes of a version with some keys changed, rightly signed."""
    value = json.loads(pack_version(version()))
    value = {key: each for key, each in value.items() if key not in ("checksum", "format", "version")}
    return pack_signed(MARKER, value | changes, minor=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "x"},
        {"id": 7},
        {"parts": 7},
        {"parts": [7]},
        {"parts": [{"id": A}]},
        {"parts": [{"id": "../x", "end": 3, "samples": 3, "origin": A, "absent": None}]},
        {"parts": [{"id": A, "end": -3, "samples": 3, "origin": A, "absent": None}]},
        {"parts": [{"id": A, "end": 3.0, "samples": 3, "origin": A, "absent": None}]},
        {"deleted": [1]},
        {"deleted": [1, "../../etc/passwd"]},
        {"deleted": [True, A]},
        {"overlays": {"x": ["str", 1, A]}},
        {"overlays": {"../x": ["int", 1, A]}},
        {"overlays": {"x": None}},
        {"overlays": []},
        {"parent": 7},
    ],
)
def test_hostile_values_are_refused(changes: dict[str, Any]) -> None:
    """Types, names that lead elsewhere, numbers that are none."""
    with pytest.raises(LayoutError):
        parse_version(facts(**changes), PATH)


def test_too_many_samples_are_refused() -> None:
    """Before anything is allocated."""
    huge = {"id": A, "end": 1 << 60, "samples": 1 << 60, "origin": A, "absent": None}
    with pytest.raises(OversizedError):
        parse_version(facts(parts=[huge]), PATH)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-9], LayoutError),
        (lambda data: data.replace(b"Gr", b"gR"), ChecksumError),
        (lambda data: data.replace(b"brand-version", b"brand-share"), LayoutError),
        (lambda data: data.replace(b"  1,\n  1", b"  2,\n  0"), VersionError),
    ],
)
def test_damage_is_found(change: Callable[[bytes], bytes], error: type[Exception]) -> None:
    """Cut off, edited, another kind of file, a newer major version."""
    data = pack_version(version())
    assert change(data) != data
    with pytest.raises(error):
        parse_version(change(data), PATH)


def test_a_version_is_read_by_its_number(tmp_path: Path) -> None:
    """A file under another's name, a missing one, a folder, and one that is too large are refused."""
    (tmp_path / "versions").mkdir()
    (tmp_path / version_name(7)).write_bytes(pack_version(version()))
    assert read_version(tmp_path, 7) == version()
    (tmp_path / version_name(8)).write_bytes(pack_version(version()))
    with pytest.raises(LayoutError, match="another version"):
        read_version(tmp_path, 8)
    with pytest.raises(MissingFileError, match="brand versions"):
        read_version(tmp_path, 9)
    (tmp_path / version_name(9)).mkdir()
    with pytest.raises(UnreadableError):
        read_version(tmp_path, 9)
    with (tmp_path / version_name(10)).open("wb") as file:
        file.truncate(MAX_MANIFEST + 1)
    with pytest.raises(OversizedError):
        read_version(tmp_path, 10)


@pytest.mark.parametrize(
    ("name", "number"),
    [("00000001.json", 1), ("123456789.json", 123456789), ("0000001.json", None), ("000000001.json", None)],
)
def test_a_number_has_one_name(name: str, number: int | None) -> None:
    """Eight digits, more where these are too few, and no other file is a version."""
    assert version_number(name) == number


def test_a_list_is_named_by_its_bytes() -> None:
    """The same numbers have the same file; NumPy reads it."""
    listed, data = npy_list(np.array([1, 5, 9], "<u8"))
    assert (listed, data) == npy_list(np.array([1, 5, 9], "<u8"))
    assert listed.count == 3
    assert listed.name == f"lists/{listed.digest}.npy"
    assert listed.digest != npy_list(np.array([1, 5, 8], "<u8"))[0].digest
