"""What do a node server and one of its preparers say to each other? One packet each, over a pair of sockets.

    server     a want and its number: "W" | JSON
               a batch: "B" | u32 number of the want | u32 samples | u32 pages of each sample | i32 pages
    preparer   "R": it is ready
               "S" | i64 for each sample of the batch: bytes of the prepared sample, `CANNOT` or `UNTRIED`

A server waits for the answer to a batch before it sends the next one. What a preparer has made lies in its *staging*
memory: each sample from the next page on. `Setup` lies there when the preparer starts.
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
from brand.formats.preparation import from_json, to_json
from brand.formats.schema import Schema
from brand.node.wire.messages import Chains
from brand.node.wire.prepared import DecodeSpec

PAGE: Final = 4096
"""Bytes of a page of prepared samples."""
STAGING: Final = 64 << 20
"""Bytes of a staging memory, of which only used pages take memory. A sample that is larger is not prepared."""
ENOUGH: Final = 8 << 20
"""A preparer that has made so many bytes leaves the rest of its batch untried."""
MOST_PAGES: Final = 1 << 14
"""The most pages of the samples of a batch, so that its packet is small."""
MOST: Final = 1 << 18
"""Largest packet."""
BATCH_S: Final = 10.0
"""How long a preparer may take for a batch."""
CANNOT: Final = 0
"""Size of a sample that cannot be prepared."""
UNTRIED: Final = -1
"""Size of a sample that a preparer has not tried."""
READY: Final = b"R"

_WANT: Final = b"W"
_BATCH: Final = struct.Struct("<cII")
_SIZES: Final = b"S"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a preparer has to know when it starts."""

    schema: Schema
    dictionary: bytes
    """Of the data set's compression; empty where there is none."""
    page: int
    """Bytes of a page of stored samples."""

    def pack(self) -> bytes:
        """As bytes."""
        dictionary = base64.b64encode(self.dictionary).decode()
        return json.dumps({"schema": self.schema.fields, "dictionary": dictionary, "page": self.page}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Setup:
        """Inverse of `pack`."""
        value = json.loads(data)
        return cls(Schema.parse(value["schema"]), base64.b64decode(value["dictionary"]), value["page"])


def pack_want(number: int, want: DecodeSpec) -> bytes:
    """A want, which the server calls `number` from now on."""
    return _WANT + json.dumps({"number": number, "field": want.field, "how": to_json(want.how)}).encode()


def pack_batch(number: int, chains: Chains) -> bytes:
    """Samples to prepare as want `number` says, by their pages."""
    return _BATCH.pack(b"B", number, len(chains)) + chains.counts.tobytes() + chains.pages.tobytes()


def unpack_order(packet: bytes) -> tuple[int, DecodeSpec | Chains]:
    """What a server sends: the number of a want, and the want or a batch for it. Raises ValueError, KeyError."""
    if packet[:1] == _WANT:
        value: dict[str, Any] = json.loads(packet[1:])
        return value["number"], DecodeSpec(value["field"], from_json(value["how"]))
    _, number, samples = _BATCH.unpack_from(packet)
    counts = np.frombuffer(packet, np.uint32, samples, _BATCH.size)
    return number, Chains(counts, np.frombuffer(packet, np.int32, -1, _BATCH.size + 4 * samples))


def pack_sizes(sizes: list[int]) -> bytes:
    """The answer to a batch."""
    return _SIZES + np.array(sizes, np.int64).tobytes()


def unpack_sizes(packet: bytes, samples: int) -> NDArray[np.int64]:
    """The answer to a batch of so many samples. Raises `ProtocolError`."""
    if packet[:1] != _SIZES or len(packet) != 1 + 8 * samples:
        raise ProtocolError("a preparer answers what it was not asked")
    sizes = np.frombuffer(packet, np.int64, offset=1)
    if sizes.min(initial=0) < UNTRIED or sizes.max(initial=0) > STAGING or pages_of(sizes).sum() * PAGE > STAGING:
        raise ProtocolError("a preparer says that it has made more than there is room for")
    return sizes


def pages_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pages that prepared samples of these sizes take; 0 for those that are not prepared."""
    return (np.maximum(sizes, 0) + (PAGE - 1)) // PAGE
