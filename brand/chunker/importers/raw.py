"""The common part of the formats MDS and LitData.

Both store samples after a table of offsets, with columns of bytes whose contents the index does not declare, and raw
pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from brand.chunker.importers.fields import LOOKED_AT, codec_of_bytes
from brand.errors import SourceError
from brand.formats.constants import MAX_SAMPLE

_U32: Final = struct.Struct("<I")
_PIXELS: Final = struct.Struct("<III")
_LONGEST_MODE: Final = 16


def below(root: Path, name: str) -> Path:
    """Return the path of a file that an index names. Raises ValueError if it would be outside the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"it names the file {name!r}, which is not in the folder")
    return root / name


def settled(codecs: Mapping[str, str], rows: Iterator[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return columns and their codecs. For a column of `?`, the first rows decide: images, audio or other bytes.

    No row is read if there is no such column.
    """
    first = list(islice(rows, LOOKED_AT)) if "?" in codecs.values() else []
    return [
        (name, codec_of_bytes(bytes(row[name]) for row in first) if codec == "?" else codec)
        for name, codec in codecs.items()
    ]


def at_offsets(file: BinaryIO, samples: int, size: int | None) -> Iterator[bytes]:
    """Yield the samples of a file that begins with their number and offsets, each u32; read from front to back.

    `size` is that of the whole file, if it is known. Raises EOFError if the file ends too early, or if its table of
    offsets contradicts it.
    """
    (found,) = _U32.unpack(_exactly(file, _U32.size))
    if found != samples:
        raise EOFError(f"it states {found:,} samples, and the index {samples:,}")
    offsets = np.frombuffer(_exactly(file, 4 * (samples + 1)), "<u4").astype(np.int64)
    at = 4 * (samples + 2)
    ends = int(offsets[-1]) if size is None else size
    if int(offsets[0]) < at or (np.diff(offsets) < 0).any() or int(offsets[-1]) != ends:
        raise EOFError("the offsets of its samples contradict each other, or its size")
    _exactly(file, int(offsets[0]) - at)
    for length in np.diff(offsets).tolist():
        yield _exactly(file, length)


def _exactly(file: BinaryIO, size: int) -> bytes:
    if size > MAX_SAMPLE:
        raise EOFError(f"a sample of {size:,} bytes; the limit is {MAX_SAMPLE:,}")
    data = file.read(size)
    if len(data) != size:
        raise EOFError("it is truncated")
    return data


def scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    """Return a number. Raises ValueError if it has another size."""
    (value,) = np.frombuffer(data, dtype)
    return value.item()


def pixels(data: bytes) -> Any:
    """Return a Pillow image from width, height, length of the mode (u32 each), mode and pixels.

    Raises ValueError if they do not fit together.
    """
    from PIL import Image

    width, height, length = _PIXELS.unpack_from(data)
    start = _PIXELS.size + length
    if length > _LONGEST_MODE or width * height > len(data) * 8:
        raise ValueError(f"no image of {width} x {height} pixels")
    return Image.frombytes(data[_PIXELS.size : start].decode(), (width, height), data[start:])


def folder_error(path: Path, error: Exception, what: str) -> SourceError:
    """Return the error for the index of a folder that cannot be read, or is invalid."""
    if isinstance(error, FileNotFoundError):
        return SourceError(str(path), "there is no such file; it lists the files of the folder")
    return SourceError(str(path), f"it is not an index of {what}: {error}")
