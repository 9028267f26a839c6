"""Records in one memory are a sequence of bytes, wherever in the memory they lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.formats.header import Schema
from brand.formats.record import SMALL, Records, elements, encode_records, payloads, windows

PIECES = st.lists(st.binary(max_size=40) | st.just(b"x" * (3 * SMALL)), max_size=30)


@pytest.mark.slow
@given(PIECES, st.randoms(use_true_random=False))
def test_records_are_the_pieces_in_any_order(pieces: list[bytes], random: object) -> None:
    """One by one, as slices, and as records that lie in another order than the memory."""
    records = Records.of(pieces)
    assert len(records) == len(pieces)
    assert list(records) == pieces
    assert [records[number] for number in range(len(pieces))] == pieces
    assert list(records[1::2]) == pieces[1::2]
    order = np.array(random.sample(range(len(pieces)), len(pieces)), np.int64)  # type: ignore[attr-defined]
    moved = Records(records.memory, records.starts[order], records.sizes[order])
    assert [bytes(piece) for piece in moved.pieces()] == [pieces[number] for number in order.tolist()]


def test_large_pieces_are_views_and_small_ones_copies() -> None:
    """A view of each small piece would cost more than the copy."""
    memory = np.zeros(4 * SMALL, np.uint8)
    starts = np.array([0, SMALL], np.int64)
    assert [type(piece) for piece in Records(memory, starts, np.array([9, 9])).pieces()] == [bytes, bytes]
    large = Records(memory, starts, np.array([SMALL, SMALL]))
    assert [type(piece) for piece in large.pieces()] == [memoryview, memoryview]


@pytest.mark.parametrize("size", [1, 3, 9, 10])
def test_a_window_begins_at_each_place(size: int) -> None:
    """None where the memory is shorter than a window."""
    memory = np.arange(9, dtype=np.uint8)
    found = [window.tobytes() for window in windows(memory, size)]
    assert found == [bytes(range(at, at + size)) for at in range(max(0, 10 - size))]


@given(st.lists(st.lists(st.binary(max_size=9), max_size=4), min_size=1, max_size=6))
def test_elements_of_lists_are_found_in_place(lists: list[list[bytes]]) -> None:
    """Each with the number of its list; empty lists have none, at the front, between others and at the end."""
    schema = Schema.parse({"files": "list[image]", "n": "int"})
    records = encode_records(schema, [{"files": files, "n": 1} for files in lists], range(len(lists)))
    found, owner = elements(payloads(schema, records, "files"))
    assert list(zip(owner.tolist(), map(bytes, found), strict=True)) == [
        (number, file) for number, files in enumerate(lists) for file in files
    ]
