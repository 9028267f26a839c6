"""How do clients and the server tell each other an order that grows? The bodies of DECIDED.

`docs/protocols/joader.md` has the rule.
."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.wire.messages import Kind, frame

MOST_PLACES: Final = 1 << 16
"""The most places in one message: longer orders take several."""
_KNOWN: Final = struct.Struct("<IIQQQ")
_DECIDED: Final = struct.Struct("<Q")


def pack_known_order(run: int, epoch: int, first: int, places: NDArray[np.int32], sure: int, wanted: int) -> bytes:
    """`DECIDED` of a client. The fields are those of `ClientOrders`."""
    return frame(Kind.DECIDED, _KNOWN.pack(run, epoch, first, sure, wanted), places.tobytes())


def unpack_known_order(body: bytes | memoryview) -> tuple[int, int, int, NDArray[np.int32], int, int]:
    """Run, epoch, first position, places from there on, and the fields `sure` and `wanted` of `ClientOrders`.

    Raises `ProtocolError`.
    """
    places = _places(body, _KNOWN)
    run, epoch, first, sure, wanted = _KNOWN.unpack_from(body)
    return run, epoch, first, places, sure, wanted


def pack_decided(decided: int, places: NDArray[np.int32]) -> bytes:
    """`DECIDED` of a server: how many positions are decided, and places from the asked position on."""
    return frame(Kind.DECIDED, _DECIDED.pack(decided), places.tobytes())


def unpack_decided(body: bytes | memoryview) -> tuple[int, NDArray[np.int32]]:
    """Inverse of `pack_decided`. Raises `ProtocolError`."""
    places = _places(body, _DECIDED)
    return _DECIDED.unpack_from(body)[0], places


def _places(body: bytes | memoryview, head: struct.Struct) -> NDArray[np.int32]:
    """The places behind the head of a body. Raises `ProtocolError`."""
    rest = len(body) - head.size
    if rest < 0 or rest % 4 or rest // 4 > MOST_PLACES:
        raise ProtocolError(f"an order of {len(body)} bytes")
    return np.frombuffer(body, np.int32, offset=head.size)
