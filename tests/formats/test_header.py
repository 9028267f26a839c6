"""The header: what is packed is read back; bombs and malformed objects are refused without a crash."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import FormatError, LayoutError, OversizedError, SchemaError, VersionError
from brand.formats.header import CODECS, Header, Schema, canonical_json, pack_header, unpack_header
from tests.formats.strategies import TEXT, schemas

NAME = Path("some/chunk.brand")
GOOD: dict[str, Any] = {
    "samples": 10,
    "chunk_size": 4,
    "schema": [["label", "int"]],
    "classes": ["a", "b"],
    "compression": "none",
    "seed": 0,
    "source": {"kind": "python"},
}


def frame(data: bytes) -> bytes:
    """A zstd frame with its content size."""
    return zstandard.ZstdCompressor().compress(data)


HEADERS = st.builds(
    Header,
    st.integers(1, 10**8),
    st.integers(1, 1 << 24),
    schemas(),
    st.none() | st.lists(TEXT, max_size=5).map(tuple),
    st.sampled_from(["none", "zstd"]),
    st.integers(0, 2**64 - 1),
    st.dictionaries(TEXT, TEXT, max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(HEADERS)
def test_a_header_comes_back(header: Header) -> None:
    """Pack, unpack: the same facts."""
    assert unpack_header(pack_header(header), NAME) == header


def test_the_number_of_chunks_follows() -> None:
    """Ten samples in chunks of four make three chunks, the last of two."""
    header = Header.from_json(GOOD, NAME)
    assert header.chunks == 3
    assert [header.chunk_samples(number) for number in range(3)] == [4, 4, 2]


def test_unknown_keys_are_ignored() -> None:
    """That is what a minor version may add."""
    assert Header.from_json(GOOD | {"new": [1]}, NAME) == Header.from_json(GOOD, NAME)


def test_the_json_is_canonical() -> None:
    """Keys sorted, no spaces, UTF-8 as it is."""
    assert canonical_json({"b": [1, 2], "a": "ü"}) == '{"a":"ü","b":[1,2]}'.encode()


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_key_is_an_error(key: str) -> None:
    """The error names the file."""
    value = {name: GOOD[name] for name in GOOD if name != key}
    with pytest.raises(LayoutError, match=r"some/chunk\.brand"):
        Header.from_json(value, NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 0}, {"samples": -1}, {"samples": "10"}, {"samples": True}, {"samples": 1.5}, {"samples": None},
        {"chunk_size": 0}, {"chunk_size": [4]}, {"chunk_size": float("inf")},
        {"schema": []}, {"schema": "label"}, {"schema": [["label"]]}, {"schema": [["label", "int", 1]]},
        {"schema": [["label", "int"], ["label", "int"]]}, {"schema": [[1, 2]]},
        {"schema": [["index", "int"]]}, {"schema": [["../up", "int"]]}, {"schema": [["key", "int"]]}, {"schema": 7},
        {"schema": [[f"f{k}", "int"] for k in range(65)]}, {"schema": None}, {"schema": {"a": 1}},
        {"classes": 3}, {"classes": True},
        {"field_classes": 3}, {"field_classes": []}, {"field_classes": {"none": ["a"]}},
        {"field_classes": {"label": ["a"]}}, {"field_classes": {"text": 3}}, {"field_classes": {"text": None}},
        {"seed": None}, {"seed": "x"}, {"seed": []}, {"seed": float("inf")}, {"seed": float("nan")},
        {"source": None}, {"source": []}, {"source": "python"},
        {"compression": "lz4"}, {"compression": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_value_is_an_error(change: dict[str, Any]) -> None:
    """Types and ranges are checked; whatever is in a header, nothing but a `LayoutError` comes out."""
    with pytest.raises(LayoutError):
        Header.from_json(GOOD | change, NAME)


@pytest.mark.parametrize("codec", ["list[list[int]]", "video", "list[json]", ""])
def test_a_codec_of_a_newer_version_says_what_to_install(codec: str) -> None:
    """It is no damage: a later minor version has added the codec."""
    with pytest.raises(VersionError, match=r"codec that is not known.*Install the newest brand-data"):
        Header.from_json(GOOD | {"schema": [["label", "int"], ["new", codec]]}, NAME)


@pytest.mark.parametrize("codec", CODECS)
def test_the_minor_version_is_the_lowest_that_has_the_codecs(codec: str) -> None:
    """Without lists, chunks and manifests are those of version 1.0, byte for byte."""
    header = Header.from_json(GOOD | {"schema": [["label", "int"], ["other", codec]]}, NAME)
    assert header.minor == (2 if codec.startswith("list[") else 0)


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, True])
def test_a_header_that_is_no_object_is_an_error(value: Any) -> None:
    """Any other JSON is a `LayoutError`."""
    with pytest.raises(LayoutError):
        Header.from_json(value, NAME)


@pytest.mark.parametrize(
    "change",
    [{"samples": 2**48 + 1}, {"samples": 10**300}, {"chunk_size": (1 << 24) + 1}, {"samples": 2**48, "chunk_size": 1}],
    ids=str,
)
def test_claims_above_the_limits_are_oversized(change: dict[str, Any]) -> None:
    """Samples, samples a chunk, and the number of chunks that follows."""
    with pytest.raises(OversizedError):
        Header.from_json(GOOD | change, NAME)


@pytest.mark.slow
@given(JSON, st.sampled_from(sorted(GOOD)))
def test_any_json_in_any_key_is_a_header_or_a_format_error(value: Any, key: str) -> None:
    """Nothing that JSON can hold gets another error out of it."""
    packed = frame(json.dumps(GOOD | {key: value}).encode())
    try:
        header = unpack_header(packed, NAME)
    except FormatError:
        return
    assert header.chunks >= 1


@pytest.mark.parametrize(
    "packed",
    [
        b"", b"x", b"{}", frame(b""), frame(b"{"), frame(b"\xff"), frame(b"[" * 100_000), frame(b"1" * 5000),
        frame(json.dumps(GOOD).encode())[:-1], frame(json.dumps(GOOD).encode()) + b"x",
        frame(json.dumps(GOOD).encode()) * 2,
    ],
    ids=range(11),
)  # fmt: skip
def test_what_does_not_unpack_is_an_error(packed: bytes) -> None:
    """No frame, half a frame, more than a frame, no JSON."""
    with pytest.raises(LayoutError):
        unpack_header(packed, NAME)


def test_a_frame_without_content_size_is_refused() -> None:
    """Nobody could tell how much it unpacks to."""
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(json.dumps(GOOD).encode())
    with pytest.raises(FormatError):
        unpack_header(packed, NAME)


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    """A frame that states more than 64 MiB is an `OversizedError` that costs no memory."""
    packed = frame(bytes((64 << 20) + 1))
    tracemalloc.start()
    try:
        with pytest.raises(OversizedError) as caught:
            unpack_header(packed, NAME)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.found == (64 << 20) + 1


def test_a_header_too_large_to_store_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class names that do not fit the limit are refused by the writer."""
    monkeypatch.setattr("brand.formats.header.MAX_HEADER", 100)
    classes = tuple(map(str, random.Random(0).sample(range(10**9), 50)))
    with pytest.raises(SchemaError, match="limit"):
        pack_header(Header(1, 1, Schema.parse({"label": "int"}), classes, "none", 0, {}))
