"""Sends small messages together, because gRPC's cost of a message hardly depends on its size.

A message of more than `PARCEL` bytes is sent by itself. Smaller messages that wait are sent as one parcel, in order:

    u32 count | u32 size of each | the messages

A message that is just small enough to look like a parcel, yet too large to fit into one, is sent by itself after an
empty parcel (count 0). The empty parcel marks the next piece as one message.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

from brand.errors import ProtocolError

PARCEL: Final = (1 << 20) - 1
"""Largest parcel in bytes."""
MAX_COUNT: Final = 4096
"""Maximum number of messages in a parcel."""
_COUNT: Final = struct.Struct("<I")
_WORD: Final = 4
_ALONE: Final = _COUNT.pack(0)


def pack(waiting: deque[bytes]) -> tuple[list[bytes], int]:
    """Remove the first waiting message and those that fit with it. Returns the data to send, and the messages' size."""
    first = waiting.popleft()
    size = len(first)
    if size > PARCEL:
        return [first], size
    length = 2 * _WORD + size
    if length > PARCEL:
        return [_ALONE, first], size
    messages = [first]
    while waiting and len(messages) < MAX_COUNT and length + _WORD + len(waiting[0]) <= PARCEL:
        message = waiting.popleft()
        messages.append(message)
        size += len(message)
        length += _WORD + len(message)
    sizes = struct.pack(f"<{1 + len(messages)}I", len(messages), *map(len, messages))
    return [b"".join((sizes, *messages))], size


class Unpacking:
    """Extracts the messages from one node's data. Checks each size before it reads a byte."""

    def __init__(self) -> None:
        self._alone = False

    def __repr__(self) -> str:
        return f"Unpacking({'the next message alone' if self._alone else 'parcels'})"

    def messages(self, data: bytes) -> list[bytes]:
        """Return the messages in one piece. Raises `ProtocolError`."""
        if self._alone or len(data) > PARCEL:
            self._alone = False
            return [data]
        if data == _ALONE:
            self._alone = True
            return []
        return list(_split(data))


def _split(data: bytes) -> Iterator[bytes]:
    count = _COUNT.unpack_from(data)[0] if len(data) >= _WORD else 0
    begin = _WORD * (1 + count)
    if not 0 < count <= MAX_COUNT or begin > len(data):
        raise ProtocolError("a parcel without its sizes")
    ends = list(accumulate(struct.unpack_from(f"<{count}I", data, _WORD), initial=begin))
    if ends[-1] != len(data):
        raise ProtocolError("a parcel whose sizes do not add up")
    return (data[a:b] for a, b in pairwise(ends))
