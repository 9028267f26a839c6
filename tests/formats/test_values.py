"""Payloads that a hostile writer may have made: a wrong head of an array is a ValueError, and allocates nothing."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from brand.errors import SchemaError
from brand.formats.values import DECODERS, decode_json, decode_ndarray, decode_str, encode_column, encode_ndarray

HUGE = 2**32 - 1


def head(number: int, *shape: int) -> bytes:
    """The head of an array's payload."""
    return struct.pack(f"<BB{len(shape)}I", number, len(shape), *shape)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x06", b"\x06\x01", b"\x06\x01\x01\x00\x00", b"\x06\xff", b"\x06\x20" + bytes(12),
        head(0, 1) + b"x", head(15, 1) + b"x", head(255),
        head(6, 2) + b"x", head(6, 1) + b"xy", head(6) + b"", head(6) + b"xy", head(4, 1) + b"abc",
        head(6, *[1] * 33) + b"x",
        head(6, HUGE), head(14, HUGE, HUGE), head(6, *[HUGE] * 32), head(6, 0) + b"x",
    ],
)  # fmt: skip
def test_a_malformed_array_is_a_value_error(payload: bytes) -> None:
    """Too short, too long, an unknown dtype, too many dimensions, or a shape that does not fit."""
    with pytest.raises(ValueError, match=r"array|payload|bytes"):
        decode_ndarray(payload)


@pytest.mark.parametrize("shape", [(0, HUGE), (HUGE, 0), (0, *[HUGE] * 31), (HUGE, HUGE, 0)])
def test_an_empty_array_of_long_sides_decodes_or_is_a_value_error(shape: tuple[int, ...]) -> None:
    """No element is needed for a shape with a 0 in it; NumPy may still refuse the shape."""
    try:
        array = decode_ndarray(head(6, *shape))
    except ValueError:
        return
    assert array.shape == shape


def test_a_claimed_size_allocates_nothing() -> None:
    """A payload of 10 bytes that claims 64 GiB is refused before anything of that size is asked for."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="bytes"):
            decode_ndarray(head(14, HUGE, 1))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [
        np.array(5), np.array(True), np.zeros(0, np.float32), np.zeros((3, 0, 2), np.complex64),
        np.arange(24).reshape(2, 3, 4)[:, ::-1, ::2], np.arange(6, dtype=">u4").reshape(2, 3).T,
        np.zeros((1,) * 32, np.uint8), np.array([np.nan, np.inf, -0.0], np.float16),
        np.frombuffer(struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF), "<f8"),
    ],
)  # fmt: skip
def test_an_array_comes_back_to_the_bit(array: np.ndarray[Any, Any]) -> None:
    """0-d, empty, strided, big-endian, Fortran order, 32 dimensions, payload of a NaN."""
    found = decode_ndarray(encode_ndarray(array))
    assert found.shape == array.shape
    assert found.dtype == array.dtype.newbyteorder("<")
    assert found.tobytes() == array.astype(found.dtype).tobytes()


def test_a_decoded_array_is_the_readers_own() -> None:
    """It can be written to and does not change with the memory it was read from."""
    memory = bytearray(encode_ndarray(np.arange(3, dtype=np.uint8)))
    array = decode_ndarray(memoryview(memory))
    memory[-1] = 99
    array[0] = 7
    assert array.tolist() == [7, 1, 2]


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_text_that_is_no_utf_8_is_a_value_error(data: bytes) -> None:
    """Also lone surrogates and characters cut short."""
    with pytest.raises(ValueError, match="utf-8"):
        decode_str(data)


@pytest.mark.parametrize("data", [b"", b"{", b"nul", b"\xff", b"[1,]", b"1 2", b"'x'", b"1" * 5000])
def test_json_that_is_none_is_a_value_error(data: bytes) -> None:
    """Nothing, half of it, too much of it, or a number of more digits than Python reads."""
    with pytest.raises(ValueError, match=r".+"):
        decode_json(data)


def test_deep_json_is_a_value_error_or_a_recursion_error() -> None:
    """100,000 brackets do not break the process."""
    with pytest.raises((ValueError, RecursionError)):
        decode_json(b"[" * 100_000)


@pytest.mark.parametrize("codec", ["bytes", "image", "audio"])
def test_bytes_are_copied_from_the_readers_memory(codec: str) -> None:
    """A value does not change when the memory it was read from is used again."""
    memory = bytearray(b"abc")
    value = DECODERS[codec](memoryview(memory))
    memory[:] = b"xyz"
    assert value == b"abc"
    assert type(value) is bytes


@pytest.mark.parametrize("codec", ["list[str]", "list[image]", "list[audio]", "list[ndarray]"])
@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\0\0\0", b"\0\0\0\0x", struct.pack("<I", 1), struct.pack("<I", HUGE), struct.pack("<II", 1, HUGE) + b"x",
        struct.pack("<II", 1, 1) + b"xy", struct.pack("<III", 2, 1, 1) + b"x", struct.pack("<I", 2**31) + bytes(9),
    ],
)  # fmt: skip
def test_a_malformed_list_is_a_value_error_and_allocates_nothing(codec: str, payload: bytes) -> None:
    """A count beyond the payload, or sizes that do not fill it."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"bytes"):
            DECODERS[codec](payload)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["list[int]", "list[float]"])
def test_a_list_of_numbers_has_whole_numbers_of_eight_bytes(codec: str) -> None:
    """Nothing is dropped at the end."""
    assert DECODERS[codec](b"") == []
    with pytest.raises(ValueError, match="multiple"):
        DECODERS[codec](bytes(12))


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        ("list[str]", "abc", r"expected a list, found str; give \[value\]"),
        ("list[image]", b"x", r"expected a list, found bytes; give \[value\]"),
        ("list[str]", None, r"found NoneType; for a sample without elements give \[\]"),
        ("list[str]", {"a"}, "expected a list, found set"), ("list[str]", {"a": 1}, "expected a list, found dict"),
        ("list[str]", iter("ab"), "expected a list, found str_"), ("list[int]", 3, "expected a list, found int"),
        ("list[int]", np.int64(3), r"found int64; give value.tolist\(\)"),
        ("list[str]", ["a", None], "element 1: expected str, found NoneType; for a missing text give ''"),
        ("list[str]", [["a"]], "element 0: expected str, found list"),
        ("list[image]", ["a.jpg"], r"element 0: .*give Path\(name\).read_bytes\(\)"),
        ("list[int]", [2**63], "does not fit 64 bits"), ("list[int]", [1.5], "integer"),
        ("list[int]", ["1"], "integer"),
        ("list[float]", ["1"], "expected a number, found str"), ("list[float]", [None], "NoneType"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_such_list_is_refused_with_advice(codec: str, value: Any, message: str) -> None:
    """A text is not a list of its characters, a file not one of its bytes."""
    with pytest.raises(SchemaError, match=message):
        encode_column("f", codec, [[], value], ["sample 0", "sample 1"])
