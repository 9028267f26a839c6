"""A value that a field refuses: the message says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import SchemaError
from brand.formats.header import Schema
from brand.formats.record import encode_records


@pytest.mark.parametrize(
    ("codec", "value", "says"),
    [
        ("str", float("nan"), "expected str, found float; for a missing text give ''"),
        ("str", None, "for a missing text give ''"),
        ("str", b"x", "a 'bytes' field holds bytes"),
        ("str", 5, r"give str\(value\) if that is meant"),
        ("int", float("nan"), "expected int, found float .nan.; for a missing number give a placeholder"),
        ("int", None, "such as -1"),
        ("float", None, r"give float\('nan'\)"),
        ("image", "a.png", r"holds a file's contents: give Path\(name\).read_bytes\(\)"),
        ("audio", Path("a.wav"), r"'audio' field holds a file's contents"),
        ("image", np.zeros((2, 2, 3), np.uint8), "an 'ndarray' field holds arrays"),
        ("bytes", np.zeros(3), "an 'ndarray' field holds arrays"),
        ("bytes", "text", "a 'str' field holds text"),
    ],
)
def test_the_message_says_what_to_write(codec: str, value: Any, says: str) -> None:
    """Sample, field and codec are named before it."""
    schema = Schema.parse({"x": codec})
    good = {"str": "a", "int": 1, "float": 1.0}.get(codec, b"a")
    with pytest.raises(SchemaError, match=rf"sample 11, field 'x'.*{says}"):
        encode_records(schema, [{"x": good}, {"x": value}], [10, 11])


def test_a_tuple_becomes_a_dict() -> None:
    """What most PyTorch data sets give."""
    with pytest.raises(SchemaError, match=r"sample 0 is a tuple; each sample must be a dict: give .* for a, b in"):
        encode_records(Schema.parse({"x": "int"}), [(1, 2)], [0])  # type: ignore[list-item]
