"""Schemas: which names and codecs there may be."""

from __future__ import annotations

from typing import Any

import pytest

from brand.errors import SchemaError
from brand.formats.header import CODECS, ELEMENTS, Schema


@pytest.mark.parametrize(
    "fields", [{"a": "int", "b": "str"}, [("a", "int"), ("b", "str")], (["a", "int"], ["b", "str"])]
)
def test_a_mapping_and_pairs_mean_the_same(fields: Any) -> None:
    """Order is kept."""
    assert Schema.parse(fields).fields == (("a", "int"), ("b", "str"))


def test_fields_are_told_apart_by_size() -> None:
    """Fixed and variable fields, each in the schema's order."""
    schema = Schema.parse({codec.translate({91: "_", 93: ""}): codec for codec in reversed(CODECS)})
    assert schema.fixed == (("float", "float"), ("int", "int"))
    assert [codec for _, codec in schema.variable] == [
        *reversed(ELEMENTS), "audio", "image", "ndarray", "json", "bytes", "str",
    ]  # fmt: skip
    assert schema.codec("json") == "json"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "1 to 64 fields"), ({f"f{k}": "int" for k in range(65)}, "1 to 64 fields"),
        ({"": "int"}, "field name"), ({"1a": "int"}, "field name"), ({"a-b": "int"}, "field name"),
        ({"a" * 64: "int"}, "field name"), ({"ä": "int"}, "field name"), ({"a\n": "int"}, "field name"),
        ({"../a": "int"}, "field name"), ({3: "int"}, "field name"), ([("a", "int"), ("a", "str")], "twice"),
        ({"index": "int"}, "reserved"), ({"a": "text"}, "unknown codec 'text'"), ({"a": int}, "unknown codec"),
        ({"key": "bytes"}, "must be 'str'"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(fields: Any, message: str) -> None:
    """The error says which field is wrong and what is allowed."""
    with pytest.raises(SchemaError, match=message):
        Schema.parse(fields)


def test_an_unknown_field_is_named() -> None:
    """Together with those that there are."""
    with pytest.raises(SchemaError, match=r"no field 'c'.*a, b"):
        Schema.parse({"a": "int", "b": "str"}).codec("c")


def test_the_largest_schema_is_allowed() -> None:
    """64 fields with names of 63 letters."""
    assert len(Schema.parse({f"f{k:062d}": "int" for k in range(64)}).fields) == 64
