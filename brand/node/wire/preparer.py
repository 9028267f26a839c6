"""Messages between a data server and one of its decode workers: one packet each, over a pair of sockets.

    server     a decode spec and its number: "W" | JSON
               a batch: "B" | u32 number of the spec | u32 samples | u32 pages of each sample | i32 pages
    worker     "R": it is ready
               "S" | i64 for each sample of the batch: bytes of the decoded sample, `CANNOT` or `UNTRIED`

A server waits for the answer to a batch before it sends the next batch. A worker writes decoded samples to its
*staging* memory: each sample from the next page on. `Setup` is stored there when the worker starts.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.formats.header import Schema
from brand.formats.preparation import from_json, to_json
from brand.node.wire.messages import Chains
from brand.node.wire.prepared import DecodeSpec

PAGE: Final = 4096
"""Bytes of a page of decoded samples."""
STAGING: Final = 64 << 20
"""Bytes of a staging memory, of which only used pages occupy memory. A larger sample is not decoded by the server."""
ENOUGH: Final = 8 << 20
"""A decode worker that has written this many bytes leaves the rest of its batch untried."""
MOST_PAGES: Final = 1 << 14
"""Maximum number of pages of the samples of a batch, so that its packet is small."""
MOST: Final = 1 << 18
"""Largest packet in bytes."""
BATCH_S: Final = 10.0
"""Seconds that a decode worker may take for a batch."""
CANNOT: Final = 0
"""Size of a sample that cannot be decoded."""
UNTRIED: Final = -1
"""Size of a sample that a decode worker has not tried."""
READY: Final = b"R"

_WANT: Final = b"W"
_BATCH: Final = struct.Struct("<cII")
_SIZES: Final = b"S"


@dataclass(frozen=True, slots=True)
class Setup:
    """The values that a decode worker needs when it starts."""

    schema: Schema
    dictionary: bytes
    """Dictionary of the data set's compression; empty if there is none."""
    page: int
    """Bytes of a page of stored samples."""

    def pack(self) -> bytes:
        """Return the setup as bytes."""
        dictionary = base64.b64encode(self.dictionary).decode()
        return json.dumps({"schema": self.schema.fields, "dictionary": dictionary, "page": self.page}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Setup:
        """Invert `pack`."""
        value = json.loads(data)
        return cls(Schema.parse(value["schema"]), base64.b64decode(value["dictionary"]), value["page"])


def pack_want(number: int, want: DecodeSpec) -> bytes:
    """Return the packet of a decode spec, which the server refers to as `number` from now on."""
    return _WANT + json.dumps({"number": number, "field": want.field, "how": to_json(want.how)}).encode()


def pack_batch(number: int, chains: Chains) -> bytes:
    """Return the packet of samples, by their pages, to decode with spec `number`."""
    return _BATCH.pack(b"B", number, len(chains)) + chains.counts.tobytes() + chains.pages.tobytes()


def unpack_order(packet: bytes) -> tuple[int, DecodeSpec | Chains]:
    """Return the number of a decode spec, and the spec or a batch for it, from a server's packet.

    Raises ValueError, KeyError.
    """
    if packet[:1] == _WANT:
        value: dict[str, Any] = json.loads(packet[1:])
        return value["number"], DecodeSpec(value["field"], from_json(value["how"]))
    _, number, samples = _BATCH.unpack_from(packet)
    counts = np.frombuffer(packet, np.uint32, samples, _BATCH.size)
    return number, Chains(counts, np.frombuffer(packet, np.int32, -1, _BATCH.size + 4 * samples))


def pack_sizes(sizes: list[int]) -> bytes:
    """Return the answer to a batch."""
    return _SIZES + np.array(sizes, np.int64).tobytes()


def unpack_sizes(packet: bytes, samples: int) -> NDArray[np.int64]:
    """Return the sizes in the answer to a batch of `samples` samples. Raises `ProtocolError`."""
    if packet[:1] != _SIZES or len(packet) != 1 + 8 * samples:
        raise ProtocolError("a decode worker answers a question that it was not asked")
    sizes = np.frombuffer(packet, np.int64, offset=1)
    if sizes.min(initial=0) < UNTRIED or sizes.max(initial=0) > STAGING or pages_of(sizes).sum() * PAGE > STAGING:
        raise ProtocolError("a decode worker reports more bytes than its memory holds")
    return sizes


def pages_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pages of decoded samples of these sizes; 0 for those that are not decoded."""
    return (np.maximum(sizes, 0) + (PAGE - 1)) // PAGE
