"""Server-side decoding: decode specs, decoded samples in memory, and the messages between a server and a decode worker.

    PREPARE of a client    {"run": number, "wants": [{"field", "codec", parameters ...}], "decoders": {codec: versions}}
    PREPARE of a server    {"numbers": [number, ...], "why": ""}, or no number and the reason

A decoded sample is a chain of pages: a header (`HEADER`), then the values, little-endian, in C order. The reader of a
chain validates it: the header names the decode spec and the sample, and has a checksum of the values.

A server and a decode worker exchange one packet a message, over a pair of sockets:

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
import xxhash
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.formats.header import Schema
from brand.formats.preparation import Preparation, from_json, to_json
from brand.node.wire.described import FieldSpec, several
from brand.node.wire.messages import Chains

MOST_WANTS: Final = 16
"""Maximum number of fields that are decoded for one client."""
HEADER: Final = np.dtype(
    [("spec", "<u4"), ("dtype", "<u4"), ("shape", "<u4", (4,)), ("index", "<i8"), ("checksum", "<u8")]
)
"""The header of a chain. `shape` ends with `NO_AXIS` if there are fewer than four axes."""
NO_AXIS: Final = (1 << 32) - 1
DTYPES: Final[dict[int, np.dtype[Any]]] = {
    number: np.dtype(kind) for number, kind in enumerate(("u1", "<f4", "<u2", "<i4", "<u4", "i1", "?"), 1)
}
"""dtypes of values, by their numbers."""
_NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}
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
class DecodeSpec:
    """A field, and how it is decoded. Equal specs have equal values."""

    field: str
    how: Preparation


def _want(name: str, value: Any) -> DecodeSpec:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} are objects")
    return DecodeSpec(str(value.get("field", "")), from_json({key: of for key, of in value.items() if key != "field"}))


def _decoders(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} are an object")
    return value


WANTS: Final = several(FieldSpec(_want, lambda want: {"field": want.field, **to_json(want.how)}), MOST_WANTS, least=1)
DECODERS: Final = FieldSpec(_decoders)
"""Versions of libraries, by codec."""


def pack_values(spec: int, index: int, values: NDArray[Any]) -> tuple[bytes, NDArray[np.uint8]]:
    """Return header and values of a decoded sample. Raises ValueError if no decoder returns values of this kind."""
    flat = np.ascontiguousarray(values)
    number = _NUMBERS.get(flat.dtype)
    if number is None or flat.ndim > 4:
        raise ValueError(f"values of dtype {flat.dtype} with {flat.ndim} axes")
    data = flat.reshape(-1).view(np.uint8)
    header = np.zeros(1, HEADER)
    header["spec"], header["dtype"], header["index"] = spec, number, index
    header["shape"] = [*flat.shape, *[NO_AXIS] * (4 - flat.ndim)]
    header["checksum"] = xxhash.xxh3_64_intdigest(data.data)
    return header.tobytes(), data


def unpack_chains(
    memory: NDArray[np.uint8], counts: NDArray[np.int64], page: int, spec: int, indices: NDArray[np.uint64]
) -> NDArray[Any] | list[NDArray[Any] | None]:
    """Return the values of decoded samples whose chains of `counts` pages are contiguous in `memory`, as views.

    One array if all are right and have one shape. If not, an array for each, and None for a chain that is incomplete,
    or that does not match `spec` or the sample of this index.
    """
    ends = np.cumsum(counts) * page
    starts = ends - counts * page
    rows = memory[starts[:, None] + np.arange(HEADER.itemsize)].view(HEADER)[:, 0]
    lengths = np.where(rows["shape"] == NO_AXIS, 1, rows["shape"]).astype(np.float64).prod(axis=1)
    itemsize = np.array([DTYPES[number].itemsize if number in DTYPES else 0 for number in rows["dtype"].tolist()])
    known = (rows["spec"] == spec) & (rows["index"] == indices.astype(np.int64)) & (itemsize > 0)
    known &= lengths * itemsize + HEADER.itemsize <= ends - starts
    alike = (rows[["dtype", "shape"]] == rows[["dtype", "shape"]][:1]) & (counts == counts[:1])
    if len(rows) and (known & alike).all():
        together = _together(memory[: int(ends[-1])].reshape(len(rows), -1), rows)
        if together is not None:
            return together
    found: list[NDArray[Any] | None] = []
    for start, row, fits in zip((starts + HEADER.itemsize).tolist(), rows, known.tolist(), strict=True):
        found.append(_values(memory[start:], row) if fits else None)
    return found


def _values(memory: NDArray[np.uint8], row: np.void) -> NDArray[Any] | None:
    """Return the values behind a header that matches; None if their checksum is wrong."""
    shape = _shape(row)
    values = np.frombuffer(memory, DTYPES[int(row["dtype"])], int(np.prod(shape))).reshape(shape)
    right = xxhash.xxh3_64_intdigest(values.reshape(-1).view(np.uint8).data) == row["checksum"]
    return values if right else None


def _together(chains: NDArray[np.uint8], rows: NDArray[np.void]) -> NDArray[Any] | None:
    """Return the values behind matching headers of one dtype and shape, a chain a row; None if a checksum is wrong."""
    shape, dtype = _shape(rows[0]), DTYPES[int(rows["dtype"][0])]
    data = chains[:, HEADER.itemsize : HEADER.itemsize + int(np.prod(shape)) * dtype.itemsize]
    checksums = np.fromiter(map(xxhash.xxh3_64_intdigest, data), np.uint64, len(data))
    return data.view(dtype).reshape(len(data), *shape) if (checksums == rows["checksum"]).all() else None


def _shape(row: np.void) -> list[int]:
    return [axis for axis in row["shape"].tolist() if axis != NO_AXIS]


@dataclass(frozen=True, slots=True)
class Setup:
    """The values that a decode worker needs when it starts."""

    schema: Schema
    dictionary: bytes
    """Dictionary of the data set's compression; empty if there is none."""
    page: int
    """Bytes of a page of stored samples."""
    plugins: tuple[str, ...] = ()
    """Modules of the plug-ins of Pillow with which it decodes."""

    def pack(self) -> bytes:
        dictionary = base64.b64encode(self.dictionary).decode()
        return json.dumps(
            {"schema": self.schema.fields, "dictionary": dictionary, "page": self.page, "plugins": self.plugins}
        ).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Setup:
        value = json.loads(data)
        return cls(
            Schema.parse(value["schema"]), base64.b64decode(value["dictionary"]), value["page"], tuple(value["plugins"])
        )


def pack_want(number: int, want: DecodeSpec) -> bytes:
    return _WANT + json.dumps({"number": number, "field": want.field, "how": to_json(want.how)}).encode()


def pack_batch(number: int, chains: Chains) -> bytes:
    """Return the packet of samples, by their pages, to decode with spec `number`."""
    return _BATCH.pack(b"B", number, len(chains)) + chains.counts.tobytes() + chains.pages.tobytes()


def unpack_order(packet: bytes) -> tuple[int, DecodeSpec | Chains]:
    """Return a decode spec's number, and the spec or a batch, from a server's packet. Raises ValueError, KeyError."""
    if packet[:1] == _WANT:
        value: dict[str, Any] = json.loads(packet[1:])
        return value["number"], DecodeSpec(value["field"], from_json(value["how"]))
    _, number, samples = _BATCH.unpack_from(packet)
    counts = np.frombuffer(packet, np.uint32, samples, _BATCH.size)
    return number, Chains(counts, np.frombuffer(packet, np.int32, -1, _BATCH.size + 4 * samples))


def pack_sizes(sizes: list[int]) -> bytes:
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
