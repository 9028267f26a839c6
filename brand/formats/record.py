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


class RecordDecoder:
    """Record -> values of its fields, images and audio as bytes.

    Made once for a schema and the names wanted (None: all).
    """

    def __init__(self, schema: Schema, names: Sequence[str] | None = None) -> None:
        self.schema, self.names = schema, schema.names if names is None else tuple(names)
        self._head = head_struct(schema)
        self._fixed = tuple(name for name, _ in schema.fixed)
        self._variable = tuple(
            (name, DECODERS[codec] if name in self.names else None) for name, codec in schema.variable
        )
        made = (*self._fixed, *(name for name, decode in self._variable if decode is not None))
        self._in_order = made == self.names

    def __reduce__(self) -> tuple[object, ...]:
        return RecordDecoder, (self.schema, self.names)

    def __call__(self, record: Buffer) -> dict[str, Any]:
        """Values by name, in the order asked for. Raises ValueError where the bytes are not a record of this schema."""
        try:
            numbers = self._head.unpack_from(record)
        except struct.error as error:
            raise ValueError(
                f"a record of {len(record)} bytes has no room for its head of {self._head.size}"
            ) from error
        values: dict[str, Any] = dict(zip(self._fixed, numbers, strict=False))
        start = self._head.size
        for (name, decode), length in zip(self._variable, numbers[len(self._fixed) :], strict=True):
            end = start + length
            if decode is not None:
                values[name] = decode(record[start:end])
            start = end
        if start != len(record):
            raise ValueError(f"the fields end at byte {start} of a record of {len(record)}")
        return values if self._in_order else {name: values[name] for name in self.names}


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
        return list(map(operator.itemgetter(name), samples))
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
