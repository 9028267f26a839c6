"""PREPARE, which carries the decode specs of a client, and the layout of a decoded sample in memory.

    PREPARE of a client    {"run": number, "wants": [{"field", "codec", parameters ...}], "decoders": {codec: versions}}
    PREPARE of a server    {"numbers": [number, ...], "why": ""}, or no number and the reason

A decoded sample is a chain of pages: a header (`HEADER`), then the values, little-endian, in C order. The reader of a
chain validates it: the header names the decode spec and the sample, and has a checksum of the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.formats.preparation import Preparation, from_json, to_json
from brand.node.wire.described import FieldSpec, several

MOST_WANTS: Final = 16
"""Maximum number of fields that are decoded for one client."""
HEADER: Final = np.dtype(
    [("spec", "<u4"), ("dtype", "<u4"), ("shape", "<u4", (4,)), ("index", "<i8"), ("checksum", "<u8")]
)
"""The header of a chain. `shape` ends with `NO_AXIS` if there are fewer than four axes."""
NO_AXIS: Final = (1 << 32) - 1
DTYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("u1"), 2: np.dtype("<f4")}
"""dtypes of values, by their numbers."""
_NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}


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
    """Return the values behind headers that match and have one dtype and shape, a chain a row.

    None if a checksum is wrong.
    """
    shape, dtype = _shape(rows[0]), DTYPES[int(rows["dtype"][0])]
    data = chains[:, HEADER.itemsize : HEADER.itemsize + int(np.prod(shape)) * dtype.itemsize]
    checksums = np.fromiter(map(xxhash.xxh3_64_intdigest, data), np.uint64, len(data))
    return data.view(dtype).reshape(len(data), *shape) if (checksums == rows["checksum"]).all() else None


def _shape(row: np.void) -> list[int]:
    """Return the shape in a header."""
    return [axis for axis in row["shape"].tolist() if axis != NO_AXIS]
