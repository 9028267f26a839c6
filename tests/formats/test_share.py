"""share.json: what is packed is read back; anything else is one error; and whose a chunk is follows from the cuts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    UnreadableError,
    VersionError,
)
from brand.formats.header import canonical_json
from brand.formats.manifest import Share, pack_share, parse_share, read_share
from tests.formats.test_header import JSON
from tests.formats.test_manifest import GOOD as MANIFEST

NAME = Path("some/share.json")
GOOD = Share(bytes(range(16)), node=1, group_chunks=2, cuts=(0, 4, 6, 9))
WHOLE = replace(GOOD, cuts=(0, 2, MANIFEST.header.chunks))
"""A share of the data set of `MANIFEST`."""


@st.composite
def shares(draw: st.DrawFn) -> Share:
    """A share of up to eight nodes."""
    group_chunks, nodes = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    groups = draw(st.lists(st.integers(1, 6), min_size=nodes, max_size=nodes))
    cuts = [0, *(np.cumsum(groups) * group_chunks).tolist()]
    cuts[-1] -= draw(st.integers(0, group_chunks - 1))  # the last group may be short
    return Share(draw(st.binary(min_size=16, max_size=16)), draw(st.integers(0, nodes - 1)), group_chunks, tuple(cuts))


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The good share, changed and signed again."""
    value = json.loads(pack_share(GOOD))
    change(value)
    value = {key: value[key] for key in value if key != "checksum"}
    return json.dumps(value | {"checksum": xxhash.xxh3_64_hexdigest(canonical_json(value))}).encode()


@pytest.mark.slow
@given(shares())
def test_a_share_comes_back(share: Share) -> None:
    """Pack, parse: the same facts."""
    assert parse_share(pack_share(share), NAME) == share


@pytest.mark.slow
@given(shares())
def test_every_chunk_has_one_owner_and_is_in_one_share(share: Share) -> None:
    """As found out chunk by chunk; each node has a run of at least one, and together they have all."""
    chunks = np.arange(share.cuts[-1])
    owners = [next(node for node in range(share.nodes) if chunk < share.cuts[node + 1]) for chunk in chunks.tolist()]
    assert share.owners(chunks).tolist() == owners
    runs = [replace(share, node=node) for node in range(share.nodes)]
    for one in runs:
        assert one.here(chunks).tolist() == [owner == one.node for owner in owners]
        assert chunks[one.here(chunks)].tolist() == list(one.chunks)
    assert [chunk for one in runs for chunk in one.chunks] == chunks.tolist()


def test_samples_of_a_share_are_counted() -> None:
    """Ten samples in chunks of four: the last chunk is short."""
    assert [replace(WHOLE, node=node).samples(MANIFEST.header) for node in (0, 1)] == [8, 2]


@pytest.mark.slow
@given(shares(), st.data())
def test_damaged_bytes_are_an_error(share: Share, data: st.DataObject) -> None:
    """One byte changed, left out or put in anywhere: a `FormatError`, or white space that means nothing."""
    good = pack_share(share)
    at = data.draw(st.integers(0, len(good) - 1))
    put = data.draw(st.binary(max_size=2))
    bad = good[:at] + put + good[at + data.draw(st.integers(0, 1)) :]
    try:
        found = parse_share(bad, NAME)
    except FormatError:
        return
    assert found == share
    assert b"".join(bad.split()) == b"".join(good.split())


def test_no_flipped_bit_is_missed() -> None:
    """No bit of a partition file is without a check."""
    data = bytearray(pack_share(GOOD))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            parse_share(bytes(data), NAME)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.slow
@given(JSON, st.sampled_from(sorted({*json.loads(pack_share(GOOD))} - {"checksum"})))
def test_any_json_in_any_key_is_a_share_or_a_format_error(value: Any, key: str) -> None:
    """Nothing that JSON can hold gets another error out of it, signed as it is."""
    try:
        data = changed(lambda share: share.update({key: value}))
    except UnicodeEncodeError:
        return
    try:
        share = parse_share(data, NAME)
    except FormatError:
        return
    assert 0 <= share.node < share.nodes


@pytest.mark.parametrize(
    "change",
    [
        {"id": "12"}, {"id": 5}, {"node": 3}, {"node": -1}, {"node": True}, {"node": 0.5}, {"node": "1"},
        {"group_chunks": 0}, {"group_chunks": 3}, {"group_chunks": None}, {"cuts": []}, {"cuts": [0]}, {"cuts": 4},
        {"cuts": [0, 4, 4, 9]}, {"cuts": [0, 6, 4, 9]}, {"cuts": [2, 4, 6, 9]}, {"cuts": [0, 4, 6, 6]},
        {"cuts": [0, 4.0, 6, 9]}, {"cuts": [0, -4, 6, 9]}, {"cuts": [0, [4], 6, 9]}, {"cuts": [0, 5, 6, 9]},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_value_is_a_layout_error(change: dict[str, Any]) -> None:
    """Types, ranges and order are checked, though it is signed; the message says what to do."""
    with pytest.raises(LayoutError, match=r"some/share\.json.*brand partition"):
        parse_share(changed(lambda value: value.update(change)), NAME)


@pytest.mark.parametrize("key", ["id", "node", "group_chunks", "cuts"])
def test_a_missing_key_is_a_layout_error(key: str) -> None:
    """Though it is signed."""
    with pytest.raises(LayoutError):
        parse_share(changed(lambda value: value.pop(key)), NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"cuts": [0, 4, 6, 10**8 + 1]}, {"cuts": [0, 4, 6, 10**40]}, {"group_chunks": 10**8 + 1},
        {"cuts": list(range(0, 2 * (65_536 + 2), 2))},
    ],
    ids=range(4),
)  # fmt: skip
def test_more_than_the_format_allows_is_an_oversized_error(change: dict[str, Any]) -> None:
    """Too many chunks or nodes, found out before anything is made of them."""
    with pytest.raises(OversizedError):
        parse_share(changed(lambda value: value.update(change)), NAME)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"3", b'"share"', b"\xff\xfe", b"[" * 100_000, b"{}", b'{"format": "brand-share"}'],
    ids=range(10),
)
def test_what_is_no_share_file_is_a_layout_error(data: bytes) -> None:
    """The manifest of a data set included."""
    with pytest.raises(LayoutError, match="partition file"):
        parse_share(data, NAME)
    with pytest.raises(LayoutError, match="partition file"):
        parse_share(changed(lambda value: value.update(format="brand")), NAME)


def test_another_major_version_is_refused_and_a_newer_minor_one_is_read() -> None:
    """What a newer minor version adds is ignored."""
    with pytest.raises(VersionError, match="newest"):
        parse_share(changed(lambda value: value.update(version=[2, 0])), NAME)
    assert parse_share(changed(lambda value: value.update(version=[1, 3], more={"x": 1})), NAME) == GOOD


def test_an_edit_by_hand_is_noticed() -> None:
    """Another node written into the file is a `ChecksumError`; indentation does not matter."""
    data = pack_share(GOOD)
    with pytest.raises(ChecksumError):
        parse_share(data.replace(b'"node": 1', b'"node": 0'), NAME)
    assert parse_share(json.dumps(json.loads(data)).encode(), NAME) == GOOD


def test_a_folder_without_a_share_file_is_no_share(tmp_path: Path) -> None:
    """None, and with one the share."""
    assert read_share(tmp_path, MANIFEST) is None
    (tmp_path / "share.json").write_bytes(pack_share(WHOLE))
    assert read_share(tmp_path, MANIFEST) == WHOLE


@pytest.mark.parametrize(
    ("share", "what"),
    [(replace(WHOLE, data_set_id=bytes(16)), "another data set"), (replace(WHOLE, cuts=(0, 2, 4)), "number of chunks")],
)
def test_a_share_of_another_data_set_is_foreign(tmp_path: Path, share: Share, what: str) -> None:
    """By its id, or by its number of chunks."""
    (tmp_path / "share.json").write_bytes(pack_share(share))
    with pytest.raises(ForeignFileError, match=what):
        read_share(tmp_path, MANIFEST)


def test_a_share_file_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """Too large, or a folder in its place."""
    path = tmp_path / "share.json"
    path.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(OversizedError):
        read_share(tmp_path, MANIFEST)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnreadableError):
        read_share(tmp_path, MANIFEST)


def test_the_largest_share_file_can_be_read(tmp_path: Path) -> None:
    """65,536 nodes with the longest numbers are below the limit of its size."""
    cuts = tuple(range(0, 65_536 * 1_500 + 1, 1_500))
    data = pack_share(Share(bytes(16), 65_535, 1_500, cuts))
    assert len(data) <= 1 << 20
    assert parse_share(data, NAME).nodes == 65_536


def test_the_example_of_the_document_is_a_share(repository: Path) -> None:
    """docs/reference/format.md shows the file of node 1, byte for byte."""
    page = (repository / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
    block = re.search(r"^## 10\. .*?```json\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert block
    share = parse_share(block[1].encode(), NAME)
    assert pack_share(share) == block[1].encode()
    assert (share.node, share.cuts) == (1, (0, 3, 6, 8))
