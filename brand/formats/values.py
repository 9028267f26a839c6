"""One field of variable size <-> its payload (docs/reference/format.md, section 3).

Images and audio are bytes here, except Pillow images that are stored; see `media`.
"""

from __future__ import annotations

import io
import json
import operator
import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError, cause_of
from brand.formats.constants import ARRAY_DTYPES, MAX_DIMENSIONS
from brand.formats.header import ELEMENTS

_FILES: Final = ("image", "audio")
_U32: Final = 4

Buffer = bytes | bytearray | memoryview
LARGE: Final = 256 << 10
"""From this size on, a copy of the bytes takes longer than a Python call, so each piece is handled by itself."""
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_DTYPE_NUMBERS: Final = {dtype: number for number, dtype in ARRAY_DTYPES.items()}
_NUMBERS: Final = ("I", "F", "I;16B", "I;16L", "I;16N")
"""Modes of Pillow whose pixels RGB would clip."""
_PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Modes of Pillow that PNG stores without loss."""


def instead(codec: str, value: Any) -> str:
    """Return advice for a value that a field of this codec refuses, as the end of a message; may be empty.

    Libraries are recognised by the names of their classes, so that none is imported.
    """
    said = next(_guesses(codec, value), "")
    return said and f"; {said}"


def _guesses(codec: str, value: Any) -> Iterator[str]:
    missing = value is None or (isinstance(value, float) and value != value)
    if missing and codec == "str":
        yield "for a missing text give ''"
    if missing and codec == "int":
        yield "for a missing number give a placeholder, such as -1"
    if value is None and codec == "float":
        yield "for a missing number give float('nan')"
    if codec == "str" and hasattr(value, "isoformat"):
        yield "give its isoformat()"
    if codec == "str":
        yield "a 'bytes' field holds bytes" if isinstance(value, bytes) else "give str(value) if that is meant"
    if codec in ELEMENTS and not isinstance(value, list | tuple):
        lists = "give value.tolist()" if hasattr(value, "tolist") else "give [value] if that is meant"
        yield "for a sample without elements give []" if missing else lists
    if codec in _FILES and isinstance(value, str | os.PathLike):
        yield f"an {codec!r} field holds a file's contents: give Path(name).read_bytes()"
    if codec in (*_FILES, "bytes") and (_is_of("numpy", value) or _is_of("torch", value)):
        yield "an 'ndarray' field holds arrays"
    if codec == "bytes" and isinstance(value, str):
        yield "a 'str' field holds text"


def _is_of(library: str, value: Any) -> bool:
    """Return whether the class of a value, or one of its base classes, is from a library."""
    return any(kind.__module__.partition(".")[0] == library for kind in type(value).__mro__)


def encode_str(value: Any) -> bytes:
    """Return UTF-8. Raises TypeError for any other type than str, UnicodeEncodeError for lone surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"expected str, found {type(value).__name__}")
    return value.encode()


def encode_bytes(value: Any) -> Buffer:
    """Return the bytes of a value; those of a large view of memory without a copy."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, found {type(value).__name__}")
    if isinstance(value, memoryview) and value.nbytes >= LARGE and value.c_contiguous and value.format in ("B", "b"):
        return value.cast("B")
    return bytes(value)


def encode_image(value: Any) -> Buffer:
    """Return the bytes of a file unchanged; for a Pillow image, those of its file or a PNG."""
    return value if isinstance(value, bytes) else file_of(value) if is_picture(value) else encode_bytes(value)


def encode_json(value: Any) -> bytes:
    """Return compact JSON. Raises ValueError or TypeError, which names the place of a value that JSON does not have."""
    try:
        return _JSON(value).encode()
    except (TypeError, ValueError) as error:
        said = next(_not_json(value, ""), "")
        if not said:
            raise
        raise type(error)(said) from error


def _not_json(value: Any, place: str) -> Iterator[str]:
    """Yield in words each value inside of another one that JSON does not have, with its place and advice."""
    at = f" (at {place})" if place else ""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_json(inner, f"{place}[{name!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _not_json(inner, f"{place}[{number}]")
    elif isinstance(value, float):
        if value != value:
            yield f"JSON has no NaN{at}: give None"
        elif value in (float("inf"), -float("inf")):
            yield f"JSON has no infinity{at}"
    elif value is not None and not isinstance(value, str | int):
        kind = type(value).__name__
        if isinstance(value, bytes | bytearray | memoryview) or is_picture(value):
            yield f"JSON has no {kind}{at}: a file or bytes need a field of their own"
        elif hasattr(value, "isoformat"):
            yield f"JSON has no {kind}{at}: give its isoformat()"
        elif _is_of("numpy", value) or _is_of("torch", value):
            yield f"JSON has no {kind}{at}: give its tolist()"
        else:
            yield f"JSON has no {kind}{at}"


def encode_ndarray(value: Any) -> bytes:
    """Return dtype number, dimensions, and elements in C order, little-endian."""
    return b"".join(array_parts(value))


def array_parts(value: Any) -> tuple[bytes, Buffer]:
    """Return the payload of `encode_ndarray` in two pieces; large elements are a view of the array, without a copy."""
    try:
        array = np.asarray(value)
    except TypeError as error:
        if "BFloat16" not in str(error):
            raise
        raise TypeError("NumPy has no bfloat16; give tensor.float(), or tensor.view(torch.uint16)") from None
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _DTYPE_NUMBERS:
        allowed = ", ".join(d.name for d in _DTYPE_NUMBERS)
        raise TypeError(f"arrays of dtype {array.dtype} cannot be stored; there are {allowed}{_other_dtype(array)}")
    if array.ndim > MAX_DIMENSIONS or max(array.shape, default=0) >= 1 << 32:
        raise ValueError(f"an array of shape {array.shape} has too many or too long dimensions")
    head = struct.pack(f"<BB{array.ndim}I", _DTYPE_NUMBERS[dtype], array.ndim, *array.shape)
    elements = np.ascontiguousarray(array, dtype)
    return head, elements.tobytes() if elements.nbytes < LARGE else elements.reshape(-1).view(np.uint8).data


def _other_dtype(array: np.ndarray[Any, Any]) -> str:
    """Return advice for an array of a dtype that is not stored, as the end of a message; may be empty."""
    if array.dtype.kind in "Mm":
        unit = np.datetime_data(array.dtype)[0]
        return f"; give array.astype('int64'), which counts in units of {unit}"
    if array.dtype.kind == "O":
        kinds = sorted({type(value).__name__ for value in array.flat})
        return f"; this one holds {', '.join(kinds)}"
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return f"; give array.astype('float32'), or array.view('uint{8 * array.dtype.itemsize}')"
    return ""


def decode_str(payload: Buffer) -> str:
    return str(payload, "utf-8")


def decode_json(payload: Buffer) -> Any:
    return json.loads(bytes(payload))


def decode_ndarray(payload: Buffer) -> np.ndarray[Any, Any]:
    """Decode the payload of `encode_ndarray` to a new, writable array. Raises ValueError if head and size disagree."""
    number, dimensions = payload[:2] if len(payload) > 1 else (0, 0)
    start = 2 + 4 * dimensions
    if number not in ARRAY_DTYPES or dimensions > MAX_DIMENSIONS or len(payload) < start:
        raise ValueError(
            f"{len(payload)} bytes with dtype number {number} and {dimensions} dimensions are not an array"
        )
    shape = struct.unpack_from(f"<{dimensions}I", payload, 2)
    dtype = ARRAY_DTYPES[number]
    expected = dtype.itemsize
    for length in shape:
        expected *= length
    if len(payload) - start != expected:
        raise ValueError(
            f"an array of shape {shape} and dtype {dtype} has {expected} bytes, not {len(payload) - start}"
        )
    array: np.ndarray[Any, Any] = np.frombuffer(payload, dtype, offset=start).reshape(shape).copy()
    return array


class FieldList(list[Any]):
    """The values of a list field of one sample. PyTorch's default collate leaves such lists as they are."""


def as_float(value: Any) -> float:
    """Return a number as float. Raises TypeError for text, which `float` would parse."""
    if isinstance(value, str | bytes):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    return float(value)


def _items(value: Any) -> Sequence[Any] | NDArray[Any]:
    """Return the elements of a list, a tuple or an array. Raises TypeError: a text has characters, not elements."""
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return value
    raise TypeError(f"expected a list, found {type(value).__name__}")


def _encode_numbers(convert: Callable[[Any], float], dtype: str, value: Any) -> bytes:
    items = _items(value)
    try:
        return np.fromiter(map(convert, items), dtype, len(items)).tobytes()
    except OverflowError:
        raise ValueError("an element does not fit 64 bits") from None


def _encode_list(codec: str, value: Any) -> bytes:
    """Return the number of elements, their sizes and their payloads. Errors name the element at fault."""
    encode, payloads = ENCODERS[codec], list[Buffer]()
    for position, item in enumerate(_items(value)):
        try:
            payloads.append(encode(item))
        except (TypeError, ValueError, RecursionError) as error:
            said = instead(codec, item) if isinstance(error, TypeError) else ""
            raise ValueError(f"element {position}: {error}{said}") from error
    if max(map(len, payloads), default=0) >= 1 << 32:
        raise ValueError("an element has more than 4 GiB")
    return b"".join((struct.pack(f"<{1 + len(payloads)}I", len(payloads), *map(len, payloads)), *payloads))


def _decode_numbers(dtype: str, payload: Buffer) -> FieldList:
    return FieldList(np.frombuffer(payload, dtype).tolist())


def sizes_in(payload: Buffer) -> tuple[int, ...]:
    """Return the sizes of the elements in the payload of `_encode_list`. Raises ValueError if they do not fill it."""
    end = len(payload)
    count = struct.unpack_from("<I", payload)[0] if end >= _U32 else end
    start = _U32 * (1 + count)
    if start > end:
        raise ValueError(f"{end} bytes are not a list of {count} elements")
    sizes = struct.unpack_from(f"<{count}I", payload, _U32)
    if start + sum(sizes) != end:
        raise ValueError(f"{count} elements end at byte {start + sum(sizes)} of a list of {end} bytes")
    return sizes


def _decode_list(codec: str, payload: Buffer) -> FieldList:
    """Decode the payload of `_encode_list`. Raises ValueError if counts and sizes disagree."""
    decode, found, sizes = DECODERS[codec], FieldList(), sizes_in(payload)
    start = _U32 * (1 + len(sizes))
    for size in sizes:
        found.append(decode(payload[start : start + size]))
        start += size
    return found


ENCODERS: Final[dict[str, Callable[[Any], Buffer]]] = {
    "str": encode_str,
    "bytes": encode_bytes,
    "json": encode_json,
    "ndarray": encode_ndarray,
    "image": encode_image,
    "audio": encode_bytes,
    "list[int]": partial(_encode_numbers, operator.index, "<i8"),
    "list[float]": partial(_encode_numbers, as_float, "<f8"),
    **{f"list[{codec}]": partial(_encode_list, codec) for codec in ("str", "ndarray", "image", "audio")},
}

DECODERS: Final[dict[str, Callable[[Buffer], Any]]] = {
    "str": decode_str,
    "bytes": bytes,
    "json": decode_json,
    "ndarray": decode_ndarray,
    "image": bytes,
    "audio": bytes,
    "list[int]": partial(_decode_numbers, "<i8"),
    "list[float]": partial(_decode_numbers, "<f8"),
    **{f"list[{codec}]": partial(_decode_list, codec) for codec in ("str", "ndarray", "image", "audio")},
}


def lengths(pieces: Collection[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def encode_column(name: str, codec: str, values: Sequence[Any], called: Sequence[str]) -> list[list[Buffer]]:
    """Return the payloads of one field, as columns of pieces that follow each other.

    Raises `SchemaError` that names the faulty sample by its entry in `called`.
    """
    encode = ENCODERS[codec]
    try:
        if codec == "ndarray":
            pieces = list(map(array_parts, values))
            return [[head for head, _ in pieces], [elements for _, elements in pieces]]
        if encode in (encode_bytes, encode_image) and set(map(type, values)) == {bytes}:
            return [list(values)]
        # str.encode itself refuses other types, and is three times as fast as a check beforehand.
        return [list(map(str.encode if codec == "str" else encode, values))]
    except Exception:  # also RuntimeError, which PyTorch raises for a tensor that needs a gradient
        for position, value in enumerate(values):
            try:
                encode(value)
            except Exception as error:
                what = f"{error}{instead(codec, value)}" if isinstance(error, TypeError) else cause_of(error)
                raise SchemaError(f"{called[position]}, field {name!r} ({codec}): {what}") from error
        raise


def is_picture(value: Any) -> bool:
    """Return whether a value is a Pillow image, by the name of its class, so that Pillow is not imported."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def has_file(image: Any) -> bool:
    """Return whether a Pillow image knows the file that it was opened from, so that `file_of` may return its bytes."""
    file = getattr(image, "fp", None)
    return bool(getattr(image, "filename", "")) or (file is not None and not file.closed)


def file_of(image: Any) -> bytes:
    """Return the bytes that are stored for a Pillow image. Raises TypeError for pixels that PNG cannot store.

    If the image is still as in the file that Pillow opened, these are the bytes of the file, as a conversion of the
    folder would store them. Otherwise the pixels are stored as PNG, which is lossless.
    """
    contents = _unread(image) or _unchanged(image)
    if contents is not None:
        return contents
    if image.mode not in _PNG_MODES:
        rgb = "image.convert('RGB')" if image.mode not in _NUMBERS else "np.asarray(image) for an 'ndarray' field"
        raise TypeError(f"PNG cannot store pixels of mode {image.mode}: give {rgb}, or the bytes of a file")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _unread(image: Any) -> bytes | None:
    """Return the file of an image whose pixels have not been read, so nothing can have changed them; else None."""
    file = getattr(image, "fp", None)
    if file is None or file.closed or not getattr(image, "tile", None) or image.tell():
        return None
    place = file.tell()
    file.seek(0)
    contents: bytes = file.read()
    file.seek(place)
    return contents


def _unchanged(image: Any) -> bytes | None:
    """Return the file of an image that was read, if its pixels are still those of the file; else None."""
    name = getattr(image, "filename", "")
    if not name:
        return None
    try:
        contents = Path(name).read_bytes()
        with type(image)(io.BytesIO(contents)) as again:
            same = (again.mode, again.size, again.tobytes()) == (image.mode, image.size, image.tobytes())
            same = same and again.getpalette() == image.getpalette()
    except Exception:  # noqa: BLE001 - the file may be another one now, and any error of its decoder says so
        return None
    return contents if same else None
