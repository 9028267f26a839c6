"""However messages travel, alone or together, they arrive as they were; and what is no parcel is told."""

from __future__ import annotations

import struct
from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.cluster.streams import MAX_COUNT, PARCEL, Unpacking, pack
from brand.errors import ProtocolError

SIZES = st.integers(0, 2000) | st.integers(PARCEL - 12, PARCEL + 12) | st.integers(0, 1_200_000)


def travel(messages: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What is sent, and what arrives."""
    waiting, sent, counted = deque(messages), list[bytes](), 0
    while waiting:
        before = sum(map(len, waiting))
        data, size = pack(waiting)
        assert size == before - sum(map(len, waiting))
        sent += data
        counted += size
    assert counted == sum(map(len, messages))
    unpacking = Unpacking()
    return sent, [message for data in sent for message in unpacking.messages(data)]


@pytest.mark.slow
@given(st.lists(SIZES, max_size=12))
def test_messages_arrive_as_they_were(sizes: list[int]) -> None:
    """Of any sizes, those around the largest parcel among them."""
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert travel(messages)[1] == messages


@given(st.integers(PARCEL - 20, PARCEL + 20), st.binary(max_size=8))
def test_a_message_that_looks_like_a_parcel(size: int, head: bytes) -> None:
    """Is still a message."""
    messages = [head, head.ljust(size, b"\0"), head]
    assert travel(messages)[1] == messages


def test_small_messages_share_parcels() -> None:
    """As many as fit, up to a count; none is larger than a parcel may be."""
    sent, arrived = travel([b"x" * 100] * 30_000)
    assert len(arrived) == 30_000
    assert len(sent) == 8
    assert max(map(len, sent)) <= PARCEL
    assert len(travel([b""] * (2 * MAX_COUNT + 1))[0]) == 3


def test_large_messages_are_not_copied() -> None:
    """What is sent is the message itself, and so is what arrives."""
    large = bytes(PARCEL + 1)
    sent, arrived = travel([large])
    assert sent[0] is large
    assert arrived[0] is large


@given(st.binary(max_size=64) | st.lists(st.integers(0, 20), max_size=6).map(lambda n: struct.pack(f"<{len(n)}I", *n)))
def test_any_bytes(data: bytes) -> None:
    """Are messages whose sizes add up, or an error."""
    try:
        messages = Unpacking().messages(data)
    except ProtocolError:
        return
    assert len(data) == 4 * (1 + len(messages)) + sum(map(len, messages))
    assert b"".join(messages) == data[len(data) - sum(map(len, messages)) :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        struct.pack("<I", 1),
        struct.pack("<2I", 1, 1),
        struct.pack("<2I", 1, 0) + b"x",
        struct.pack("<3I", 2, (1 << 32) - 1, 5) + b"xxxx",
        struct.pack("<I", (1 << 32) - 1),
        struct.pack(f"<{MAX_COUNT + 2}I", MAX_COUNT + 1, *[0] * (MAX_COUNT + 1)),
    ],
)
def test_parcels_that_cannot_be(data: bytes) -> None:
    """Sizes are checked before a byte is taken."""
    with pytest.raises(ProtocolError, match="a parcel"):
        Unpacking().messages(data)
