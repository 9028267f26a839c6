"""How do clients and the server tell each other where a run joined others? The bodies of JOINS (docs/protocols.md)."""

from __future__ import annotations

import struct
from typing import Final

from brand.errors import ProtocolError
from brand.node.wire.messages import Kind, frame
from brand.protocol.joins import Joins

_KNOWN: Final = struct.Struct("<IIi")
_JOINED: Final = struct.Struct("<i")


def pack_known_joins(run: int, epoch: int, known: Joins) -> bytes:
    """`JOINS` of a client."""
    return frame(Kind.JOINS, _KNOWN.pack(run, epoch, known.lap), known.to_bytes())


def unpack_known_joins(body: bytes | memoryview) -> tuple[int, int, Joins]:
    """Run, epoch, and what the client knows. Raises `ProtocolError`."""
    if len(body) < _KNOWN.size:
        raise ProtocolError("half a message of joins")
    run, epoch, lap = _KNOWN.unpack_from(body)
    return run, epoch, _joins(body[_KNOWN.size :], lap)


def pack_joins(joins: Joins) -> bytes:
    """`JOINS` of a server."""
    return frame(Kind.JOINS, _JOINED.pack(joins.lap), joins.to_bytes())


def unpack_joins(body: bytes | memoryview) -> Joins:
    """Inverse of `pack_joins`. Raises `ProtocolError`."""
    if len(body) < _JOINED.size:
        raise ProtocolError("half a message of joins")
    return _joins(body[_JOINED.size :], *_JOINED.unpack_from(body))


def _joins(body: bytes | memoryview, lap: int) -> Joins:
    try:
        return Joins.from_bytes(body, lap)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
