"""A pass over the samples of a chunk: blocks are cut as the model cuts them, and damage is told sample by sample."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import ChecksumError, DecodeError, FormatError
from brand.formats import contents
from brand.formats.chunk import read_front
from brand.formats.contents import cut_blocks, read_records
from tests.formats.test_chunk import header, whole_chunk

NAME = Path("some/chunk.brand")


def model(sizes: list[int], limit: int) -> list[list[int]]:
    """One item after the other: a new block where it would not fit."""
    blocks: list[list[int]] = []
    for position, size in enumerate(sizes):
        if not blocks or sum(sizes[p] for p in blocks[-1]) + size > limit:
            blocks.append([])
        blocks[-1].append(position)
    return blocks


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 50))
def test_blocks_are_those_of_the_model(sizes: list[int], limit: int) -> None:
    """Consecutive, complete, within the limit, and no smaller than need be."""
    blocks = cut_blocks(np.array(sizes, np.int64), limit)
    assert [list(range(*block)) for block in blocks] == model(sizes, limit)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int64])
def test_large_sizes_do_not_overflow(dtype: Any) -> None:
    """Sizes near 4 GiB add up as whole numbers, whatever their dtype."""
    assert cut_blocks(np.array([2**32 - 1, 2**32 - 1, 5, 5], dtype), 10) == [(0, 1), (1, 2), (2, 4)]


@pytest.mark.parametrize("block_bytes", [1, 7, 8 << 20])
def test_a_pass_gives_every_record_in_order(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a block."""
    monkeypatch.setattr(contents, "cut_blocks", lambda sizes: cut_blocks(sizes, block_bytes))
    file = whole_chunk([5, 0, 9, 4], header())
    front = read_front(io.BytesIO(file), NAME)
    found = list(read_records(io.BytesIO(file), front, NAME))
    assert [int(row["index"]) for row, _ in found] == [0, 1, 2, 3]
    assert [bytes(record) for _, record in found if not isinstance(record, FormatError)] == [
        bytes(5), b"", bytes(9), bytes(4),
    ]  # fmt: skip


def test_a_damaged_sample_is_told_in_its_place() -> None:
    """The others are given as they are."""
    file = bytearray(whole_chunk([5, 0, 9, 4], header()))
    file[-5] ^= 1
    front = read_front(io.BytesIO(file), NAME)
    errors = [record for _, record in read_records(io.BytesIO(file), front, NAME) if isinstance(record, FormatError)]
    assert [(type(e), e.path, e.chunk, e.sample) for e in errors] == [(ChecksumError, NAME, 0, 2)]
    assert errors[0].expected != errors[0].found


def test_a_sample_that_is_no_frame_is_a_decode_error() -> None:
    """Its checksum is right, so the bytes are as written, and still they are not a zstd frame."""
    file = whole_chunk([5, 0, 9, 4], header())
    front = read_front(io.BytesIO(file), NAME)
    rows = front.rows.copy()
    rows["raw_size"][2] = 10
    changed = type(front)(front.preamble, front.header, front.dictionary, rows)
    errors = [r for _, r in read_records(io.BytesIO(file), changed, NAME) if isinstance(r, FormatError)]
    assert [(type(e), e.chunk, e.sample) for e in errors] == [(DecodeError, 0, 2)]


def test_a_file_that_shrinks_meanwhile_is_told() -> None:
    """What is missing fails its checksum; nothing else happens."""
    file = whole_chunk([5, 0, 9, 4], header())
    front = read_front(io.BytesIO(file), NAME)
    found = [record for _, record in contents.read_records(io.BytesIO(file[:-6]), front, NAME)]
    assert [isinstance(record, ChecksumError) for record in found] == [False, False, True, True]
