"""One sample <-> its record: the bytes before compression (docs/format.md, section 3).

    [8 bytes per fixed field][u32 length per variable field][payloads of the variable fields]

Encoding works on a run of samples, column by column: one list per field, one `struct.pack` and one join a sample.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError
from brand.formats.constants import MAX_SAMPLE
from brand.formats.schema import FIXED, Schema
from brand.formats.values import DECODERS, Buffer, encode_column


@lru_cache(maxsize=64)
def head_struct(schema: Schema) -> struct.Struct:
    """Layout of a record's head: fixed fields, then the lengths of the variable ones."""
    return struct.Struct("<" + "".join(FIXED[c] for _, c in schema.fixed) + "I" * len(schema.variable))


def encode_records(schema: Schema, samples: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> list[bytes]:
    """Records of the samples with these indices. Raises `SchemaError` that names sample and field."""
    fixed = [_fixed_column(n, c, _column(n, samples, indices), indices) for n, c in schema.fixed]
    payloads = [encode_column(n, c, _column(n, samples, indices), indices) for n, c in schema.variable]
    heads = zip(*fixed, *[map(len, column) for column in payloads], strict=True)
    pack = head_struct(schema).pack
    try:
        records = [
            b"".join((pack(*head), *body)) for head, body in zip(heads, _rows(payloads, len(samples)), strict=True)
        ]
    except struct.error as error:
        raise SchemaError(_what_does_not_fit(schema, fixed, payloads, indices)) from error
    for position, record in enumerate(records):
        if len(record) > MAX_SAMPLE:
            raise SchemaError(f"sample {indices[position]} has {len(record):,} bytes; the limit is {MAX_SAMPLE:,}")
    return records


def encode_record(schema: Schema, fixed: Sequence[int | float], payloads: Sequence[bytes]) -> bytes:
    """The record of one sample whose payloads are made already, in the schema's order."""
    return b"".join((head_struct(schema).pack(*fixed, *map(len, payloads)), *payloads))


def decode_record(schema: Schema, record: Buffer, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Values of a record's fields (all, or only `names`), images and audio as bytes.

    Raises ValueError where the bytes are not a record of this schema.
    """
    head = head_struct(schema)
    if len(record) < head.size:
        raise ValueError(f"a record of {len(record)} bytes has no room for its head of {head.size}")
    view = memoryview(record)
    numbers = head.unpack_from(view)
    count = len(schema.fixed)
    values: dict[str, Any] = {n: v for (n, _), v in zip(schema.fixed, numbers[:count], strict=True)}
    end = head.size
    for (name, codec), length in zip(schema.variable, numbers[count:], strict=True):
        start, end = end, end + length
        if end > len(view):
            raise ValueError(f"field {name!r} ends at byte {end} of a record of {len(view)}")
        if names is None or name in names:
            values[name] = DECODERS[codec](view[start:end])
    if end != len(view):
        raise ValueError(f"the fields end at byte {end} of a record of {len(view)}")
    return {name: values[name] for name in (schema.names if names is None else names)}


def fixed_columns(schema: Schema, records: Sequence[bytes]) -> NDArray[np.void]:
    """The fixed fields of many records as one structured array (8 bytes a field), without decoding anything else."""
    size = 8 * len(schema.fixed)
    dtype = np.dtype([(n, "<i8" if c == "int" else "<f8") for n, c in schema.fixed])
    if not schema.fixed:
        return np.empty(len(records), dtype)
    return np.frombuffer(b"".join([record[:size] for record in records]), dtype)


def _rows(columns: Sequence[Sequence[bytes]], count: int) -> Any:
    return zip(*columns, strict=True) if columns else [()] * count


def _column(name: str, samples: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> list[Any]:
    try:
        return [sample[name] for sample in samples]
    except (KeyError, TypeError, IndexError):
        for position, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                kind = type(sample).__name__
                raise SchemaError(f"sample {indices[position]} is a {kind}; each sample must be a dict") from None
            if name not in sample:
                there = ", ".join(map(str, sample)) or "none"
                raise SchemaError(
                    f"sample {indices[position]} has no field {name!r}; its fields are: {there}"
                ) from None
        raise


def _fixed_column(name: str, codec: str, values: list[Any], indices: Sequence[int]) -> list[int] | list[float]:
    convert = operator.index if codec == "int" else _number
    try:
        return [convert(value) for value in values]
    except TypeError:
        for position, value in enumerate(values):
            try:
                convert(value)
            except TypeError:
                found = f"{type(value).__name__} ({value!r:.40})"
                raise SchemaError(
                    f"sample {indices[position]}, field {name!r}: expected {codec}, found {found}"
                ) from None
        raise


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _what_does_not_fit(schema: Schema, fixed: Sequence[Any], payloads: Sequence[Any], indices: Sequence[int]) -> str:
    for (name, _), column in zip(schema.fixed, fixed, strict=True):
        for position, value in enumerate(column):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                return f"sample {indices[position]}, field {name!r}: {value} does not fit 64 bits"
    for (name, _), column in zip(schema.variable, payloads, strict=True):
        for position, value in enumerate(column):
            if len(value) > MAX_SAMPLE:
                return f"sample {indices[position]}, field {name!r}: {len(value):,} bytes; the limit is {MAX_SAMPLE:,}"
    return f"one of the samples {indices[0]} to {indices[-1]} cannot be stored"
