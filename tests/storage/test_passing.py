"""A chunk that passes by is as the index says, or the sample at fault is named, however the bytes are cut."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brand
from brand.errors import ChecksumError, FormatError, LayoutError, TruncatedError
from brand.formats.chunk import claimed_by, pack_claim
from brand.formats.constants import CHUNK_ROW, CHUNKS_NAME, ROW, SAMPLES_NAME, chunk_name
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, read_manifest
from brand.storage.maintenance.copying import PassingChunk, is_chunk
from tests.rounds import examples


class Chunk:
    """The first chunk of a data set, and what its index says of it."""

    def __init__(self, folder: Path) -> None:
        self.manifest: Manifest = read_manifest(folder)
        header = self.manifest.header
        self.data = (folder / chunk_name(0)).read_bytes()
        self.row = open_array(folder, CHUNKS_NAME, header).run(0, 1)[0]
        self.rows = open_array(folder, SAMPLES_NAME, header).run(0, header.chunk_samples(0))

    def pass_by(self, data: bytes, cuts: list[int]) -> None:
        """Pass these bytes in pieces."""
        passing = PassingChunk("the chunk", 0, self.row, self.rows)
        places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        for start, end in pairwise(places):
            passing.feed(memoryview(data)[start:end])
        passing.finish()


@pytest.fixture(scope="module")
def chunk(tmp_path_factory: pytest.TempPathFactory) -> Chunk:
    """30 samples, some of no bytes at all, also the last one."""
    target = tmp_path_factory.mktemp("sets") / "set"
    samples = [{"data": bytes([k]) * (k % 4) * 9} for k in range(29)] + [{"data": b""}]
    brand.pack(samples, target, {"data": "bytes"}, chunk_size=30, compression="none", jobs=1)
    return Chunk(target)


@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=6))
@examples(60)
def test_the_right_bytes_pass_however_they_are_cut(chunk: Chunk, cuts: list[int]) -> None:
    """No piece has to be a sample, or the preamble."""
    chunk.pass_by(chunk.data, cuts)


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7), cuts=st.lists(st.integers(0, 1 << 20), max_size=6))
@examples(200)
def test_any_bit_that_differs_is_found_in_its_sample(chunk: Chunk, at: int, bit: int, cuts: list[int]) -> None:
    """The error names the sample that has the byte, or no sample where it is in the front."""
    at %= len(chunk.data)
    data = bytearray(chunk.data)
    data[at] ^= 1 << bit
    inside = (chunk.rows["offset"] <= at) & (at < chunk.rows["offset"] + chunk.rows["size"])
    owner: list[int | None] = [int(index) for index in chunk.rows["index"][inside]]
    with pytest.raises(ChecksumError) as told:
        chunk.pass_by(bytes(data), cuts)
    assert (told.value.chunk, [told.value.sample]) == (0, owner or [None])


@given(size=st.integers(0, 1 << 20))
@examples(40)
def test_a_chunk_that_ends_early_is_not_whole(chunk: Chunk, size: int) -> None:
    """At whatever byte, also between two samples."""
    with pytest.raises(TruncatedError):
        chunk.pass_by(chunk.data[: size % len(chunk.data)], [])


def test_a_byte_too_many_is_found(chunk: Chunk) -> None:
    """Before it is written."""
    with pytest.raises(LayoutError, match="more bytes"):
        chunk.pass_by(chunk.data + b"x", [])


@pytest.mark.parametrize("fault", ["gap", "overlap", "front", "end"])
def test_an_index_that_contradicts_itself_is_refused(chunk: Chunk, fault: str) -> None:
    """Before a byte is read by it."""
    rows, row = chunk.rows.copy(), chunk.row.copy()
    if fault in ("gap", "overlap"):
        rows["offset"][5] = int(rows["offset"][5]) + {"gap": 1, "overlap": -1}[fault]
    elif fault == "front":
        rows["offset"] -= rows["offset"][0]
    else:
        row["file_size"] += 1
    with pytest.raises(LayoutError, match="contradicts itself"):
        PassingChunk("the chunk", 0, row, rows)


@given(st.lists(st.sampled_from([0, 0, 1, 7, 2**32 - 1]), min_size=1, max_size=8), st.integers(0, 2**64 - 1))
@examples(50)
def test_any_index_is_taken_or_refused(sizes: list[int], start: int) -> None:
    """Numbers near the limits of their types are a `FormatError` and no other error."""
    rows = np.zeros(len(sizes), ROW)
    rows["size"] = sizes
    rows["offset"] = np.uint64(start)
    row = np.zeros(1, CHUNK_ROW)[0]
    row["file_size"] = start
    with suppress(FormatError):
        PassingChunk("the chunk", 0, row, rows)


def test_64_bytes_say_which_chunk_it_is(chunk: Chunk) -> None:
    """Of which data set, with which number, and whether its table is the one of the index."""
    head, identity = chunk.data[:64], chunk.manifest.data_set_id
    assert is_chunk(head, identity, 0, chunk.row)
    other = chunk.row.copy()
    other["checksum"] ^= np.uint64(1)
    assert not is_chunk(head, identity, 0, other)
    assert not is_chunk(head, identity, 1, chunk.row)
    assert not is_chunk(head, bytes(16), 0, chunk.row)
    assert not is_chunk(head[:63], identity, 0, chunk.row)
    assert not is_chunk(b"x" * 64, identity, 0, chunk.row)


def test_a_claim_is_of_its_data_set_and_is_no_chunk(chunk: Chunk) -> None:
    """A claim, and a chunk, say whose the place is; other bytes say nothing."""
    identity = chunk.manifest.data_set_id
    claim = pack_claim(identity)
    assert len(claim) == 64
    assert claimed_by(claim) == claimed_by(chunk.data[:64]) == identity
    assert not is_chunk(claim, identity, 0, chunk.row)
    assert claimed_by(b"x" * 64) is claimed_by(b"") is None
