"""Records: any sample of any schema comes back to the bit, and damage never looks like a sample."""

from __future__ import annotations

import math
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import SchemaError
from brand.formats.header import Schema
from brand.formats.record import RecordDecoder, encode_records, fixed_columns, head_struct, record_parts
from tests.formats.strategies import INT64, TEXT, data_sets, model_payload, model_record, same
from tests.independent_reader import fields
from tests.rounds import examples

MIXED = Schema.parse({"text": "str", "number": "int", "blob": "bytes", "ratio": "float"})


@pytest.mark.slow
@given(data_sets())
def test_every_sample_comes_back(made: tuple[Schema, list[dict[str, Any]]]) -> None:
    """Encode, decode: the same values, whatever the codecs and their order."""
    schema, samples = made
    for record, sample in zip(encode_records(schema, samples, range(len(samples))), samples, strict=True):
        values = RecordDecoder(schema)(memoryview(record))
        assert tuple(values) == schema.names
        for name, codec in schema.fields:
            assert same(codec, values[name], sample[name]), (name, codec)


@pytest.mark.slow
@given(data_sets())
def test_records_are_those_of_the_model(made: tuple[Schema, list[dict[str, Any]]]) -> None:
    """The bytes are the ones that a slow reading of the specification gives, and `record_parts` joined are the same."""
    schema, samples = made
    expected = [model_record(schema, sample) for sample in samples]
    assert list(encode_records(schema, samples, range(len(samples)))) == expected
    for sample, record in zip(samples, expected, strict=True):
        fixed = [int(sample[n]) if c == "int" else float(sample[n]) for n, c in schema.fixed]
        payloads = [model_payload(c, sample[n]) for n, c in schema.variable]
        assert b"".join(record_parts(schema, fixed, payloads)) == record


@pytest.mark.slow
@given(st.lists(st.tuples(TEXT, st.text("ab"), INT64), max_size=30))
def test_records_of_texts_are_those_of_the_model(values: list[tuple[str, str, int]]) -> None:
    """Where all variable fields are texts, one call encodes them: ASCII or not, with numbers or without."""
    samples = [{"text": text, "letters": letters, "number": number} for text, letters, number in values]
    for names in (["text"], ["letters", "text"], ["letters"], ["letters", "number"]):
        schema = Schema.parse({name: "int" if name == "number" else "str" for name in names})
        expected = [model_record(schema, sample) for sample in samples]
        assert list(encode_records(schema, samples, range(len(samples)))) == expected


@pytest.mark.slow
@given(data_sets())
def test_the_independent_reader_decodes_the_same(made: tuple[Schema, list[dict[str, Any]]]) -> None:
    """A decoder that shares no code with Brand finds the same values."""
    schema, samples = made
    for record, sample in zip(encode_records(schema, samples, range(len(samples))), samples, strict=True):
        values = fields([list(field) for field in schema.fields], record)
        for name, codec in schema.fields:
            assert same(codec, values[name], sample[name])


@pytest.mark.slow
@given(data_sets(), st.data())
def test_only_the_fields_asked_for_are_decoded(made: tuple[Schema, list[dict[str, Any]]], data: st.DataObject) -> None:
    """Any choice of fields comes in the order asked for, also after a pickle round trip."""
    schema, samples = made
    names = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    decode = pickle.loads(pickle.dumps(RecordDecoder(schema, names)))
    record = encode_records(schema, samples[:1], [0])[0]
    values = decode(record)
    assert list(values) == names
    assert all(same(schema.codec(name), values[name], samples[0][name]) for name in names)


@pytest.mark.slow
@given(data_sets(most=1), st.data())
def test_a_record_of_another_length_is_refused(made: tuple[Schema, list[dict[str, Any]]], data: st.DataObject) -> None:
    """A record cut short or too long is a ValueError, never a sample, at every length."""
    schema, samples = made
    record = encode_records(schema, samples, [0])[0]
    decode = RecordDecoder(schema, ())
    with pytest.raises(ValueError, match="record of"):
        decode(record[: data.draw(st.integers(0, len(record) - 1))])
    with pytest.raises(ValueError, match="record of"):
        decode(record + data.draw(st.binary(min_size=1, max_size=9)))


@pytest.mark.slow
@examples(300)
@given(data_sets(most=1), st.data())
def test_a_record_with_a_wrong_byte_decodes_or_is_a_value_error(
    made: tuple[Schema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Whatever is in a record, it decodes or is a ValueError (for deep JSON a RecursionError), nothing else."""
    schema, samples = made
    record = bytearray(encode_records(schema, samples, [0])[0])
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        values = RecordDecoder(schema)(bytes(record))
    except (ValueError, RecursionError):
        return
    assert tuple(values) == schema.names


def test_columns_are_the_fixed_fields() -> None:
    """`fixed_columns` takes the numbers from the heads of records, in a structured array."""
    samples = [{"text": "x" * k, "number": -k, "blob": b"", "ratio": k / 3} for k in range(4)]
    columns = fixed_columns(MIXED, encode_records(MIXED, samples, range(4)))
    assert columns["number"].tolist() == [0, -1, -2, -3]
    assert columns["ratio"].tolist() == [k / 3 for k in range(4)]
    assert head_struct(MIXED).format == "<qdII"


def test_columns_without_fixed_fields_have_no_fields() -> None:
    """A schema without numbers has one empty row a sample."""
    schema = Schema.parse({"text": "str"})
    columns = fixed_columns(schema, encode_records(schema, [{"text": "a"}, {"text": ""}], [0, 1]))
    assert columns.shape == (2,)
    assert columns.dtype.names in ((), None)


def test_no_samples_are_no_records() -> None:
    """An empty run is empty."""
    assert list(encode_records(MIXED, [], [])) == []


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        ("int", 2**63), ("int", -(2**63) - 1), ("int", 1.0), ("int", "1"), ("int", None),
        ("float", "1"), ("float", b"1"), ("float", None), ("float", 10**400), ("float", 1j),
        ("str", b"x"), ("str", None), ("str", "\ud800"), ("str", 1),
        ("bytes", "x"), ("bytes", None), ("bytes", 3), ("bytes", [1]),
        ("json", math.nan), ("json", {1, 2}), ("json", b"x"), ("json", "\udfff"), ("json", math.inf),
        ("ndarray", "text"), ("ndarray", [None]), ("ndarray", [[1], [2, 3]]), ("ndarray", np.array(["a"])),
        ("ndarray", np.zeros(1, "M8[s]")), ("ndarray", np.zeros(1, [("a", "i4")])), ("ndarray", np.zeros(1, "g")),
        ("image", None), ("audio", "x"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(codec: str, value: Any) -> None:
    """The error is a `SchemaError` that names sample and field."""
    schema, good = (
        Schema.parse({"f": codec}),
        {"int": 0, "float": 0, "str": "", "json": 0, "ndarray": 0}.get(codec, b""),
    )
    with pytest.raises(SchemaError, match=r"sample 12\b.*'f'"):
        encode_records(schema, [{"f": good}, {"f": value}], [11, 12])


def test_json_that_is_nested_too_deep_is_named() -> None:
    """A tree deeper than the interpreter's stack is a `SchemaError`, too."""
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(SchemaError, match=r"sample 4.*'f'"):
        encode_records(Schema.parse({"f": "json"}), [{"f": tree}], [4])


def test_an_array_of_too_many_dimensions_is_named() -> None:
    """What a reader would refuse is not written."""
    try:
        array = np.zeros((1,) * 33, np.uint8)
    except ValueError:
        pytest.skip("this NumPy has at most 32 dimensions")
    with pytest.raises(SchemaError, match=r"sample 4.*'f'"):
        encode_records(Schema.parse({"f": "ndarray"}), [{"f": array}], [4])


def test_an_array_of_too_long_a_side_is_named() -> None:
    """A side of 2^32 elements does not fit the payload's head, though the array is empty."""
    array = np.empty((2**32, 0), np.uint8)
    with pytest.raises(SchemaError, match=r"sample 4.*'f'"):
        encode_records(Schema.parse({"f": "ndarray"}), [{"f": array}], [4])


@pytest.mark.parametrize("sample", [{}, {"other": 1}, [1], None, 5, "text"])
def test_a_sample_without_the_field_is_named(sample: Any) -> None:
    """A missing field, or something that is no dict, is a `SchemaError` with the sample's index."""
    with pytest.raises(SchemaError, match=r"sample 7\b"):
        encode_records(Schema.parse({"f": "int"}), [{"f": 1}, sample], [6, 7])


def test_fields_that_are_not_in_the_schema_are_left_out() -> None:
    """A sample may have more fields than are stored."""
    schema = Schema.parse({"f": "int"})
    assert list(encode_records(schema, [{"f": 1, "more": object()}], [0])) == [struct.pack("<q", 1)]
