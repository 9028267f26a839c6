"""Random schemas and samples, and an obvious slow model of the bytes that they are stored as."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from brand.formats.constants import ARRAY_DTYPES
from brand.formats.header import CODECS, ELEMENTS, FIXED, Schema

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DTYPES = st.sampled_from([*ARRAY_DTYPES.values(), np.dtype(">i2"), np.dtype(">f8"), np.dtype(">c16")])
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": INT64 | st.sampled_from([-(2**63), 2**63 - 1, 0, True, np.int8(-1), np.uint64(5)]),
    "float": st.floats() | INT64 | st.sampled_from([math.inf, -math.inf, math.nan, -0.0, np.float32(0.1)]),
    "str": TEXT,
    "bytes": st.binary(max_size=40)
    | st.binary(max_size=9).map(bytearray)
    | st.binary(max_size=9).map(lambda data: memoryview(data)),
    "json": TREES,
    "ndarray": ARRAYS | st.lists(INT64, max_size=3) | st.booleans(),
    "image": st.binary(max_size=40),
    "audio": st.binary(max_size=40),
}

VALUES |= {name: st.lists(VALUES[codec], max_size=4) for name, codec in ELEMENTS.items()}

NAMES = st.sampled_from(["label", "text", "a", "_", "Z9", "key2", "index_", "x" * 63])
FIELDS = st.dictionaries(NAMES, st.sampled_from(CODECS), min_size=1, max_size=7)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema of any codecs, sometimes with a key, in any order."""
    fields = draw(FIELDS)
    if draw(st.booleans()):
        fields["key"] = "str"
    return Schema.parse(draw(st.permutations(list(fields.items()))))


@st.composite
def data_sets(draw: st.DrawFn, most: int = 5) -> tuple[Schema, list[dict[str, Any]]]:
    """A schema and samples that fit it."""
    schema = draw(schemas())
    sample = st.fixed_dictionaries({name: VALUES[codec] for name, codec in schema.fields})
    return schema, draw(st.lists(sample, min_size=1, max_size=most))


def model_payload(codec: str, value: Any) -> bytes:
    """A payload, element by element."""
    if codec == "str":
        return bytes(value, "utf-8")
    if codec == "json":
        return bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")), "utf-8")
    if codec == "ndarray":
        array = np.asarray(value)
        (number,) = (n for n, dtype in ARRAY_DTYPES.items() if dtype == array.dtype.newbyteorder("<"))
        head = bytes([number, array.ndim]) + b"".join(struct.pack("<I", length) for length in array.shape)
        elements = [array[position] for position in np.ndindex(*array.shape)]
        return head + b"".join(element.astype(ARRAY_DTYPES[number]).tobytes() for element in elements)
    if codec in ELEMENTS:
        inner = ELEMENTS[codec]
        if inner in FIXED:
            return b"".join(model_number(inner, each) for each in value)
        payloads = [model_payload(inner, each) for each in value]
        sizes = [len(payloads), *map(len, payloads)]
        return b"".join(size.to_bytes(4, "little") for size in sizes) + b"".join(payloads)
    return bytes(value)


def model_number(codec: str, value: Any) -> bytes:
    """A number in eight bytes."""
    return int(value).to_bytes(8, "little", signed=True) if codec == "int" else struct.pack("<d", float(value))


def model_record(schema: Schema, sample: dict[str, Any]) -> bytes:
    """A record, field by field, as docs/reference/format.md says."""
    fixed = lengths = payloads = b""
    for name, codec in schema.fields:
        if codec in FIXED:
            fixed += model_number(codec, sample[name])
        else:
            payload = model_payload(codec, sample[name])
            lengths += len(payload).to_bytes(4, "little")
            payloads += payload
    return fixed + lengths + payloads


def same(codec: str, found: Any, given: Any) -> bool:
    """Whether a value came back, to the bit; an array also with its dtype and shape, JSON by its text."""
    if codec == "float":
        return type(found) is float and struct.pack("<d", found) == struct.pack("<d", float(given))
    if codec == "ndarray":
        array = np.asarray(given)
        return (
            found.dtype == array.dtype.newbyteorder("<")
            and found.shape == array.shape
            and found.tobytes() == array.astype(found.dtype).tobytes()
            and bool(found.flags.writeable)
        )
    if codec in ELEMENTS:
        pairs = zip(found, given, strict=True)
        return isinstance(found, list) and all(same(ELEMENTS[codec], each, one) for each, one in pairs)
    if codec == "json":
        return json.dumps(found) == json.dumps(given)
    if codec == "int":
        return type(found) is int and found == int(given)
    return bool(found == (given if codec == "str" else bytes(given)))
