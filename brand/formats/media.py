"""Which kind of image or audio file are these bytes, and what do they decode to?

The kind is found from the first bytes, never from the name. Decoding is left to Pillow and to libsndfile (package
`soundfile`), which are imported when the first image or audio file is decoded.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

HEAD_BYTES: Final = 64
"""Number of bytes at a file's start that `kind_of` needs."""

_SIGNATURES: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypavis", "image/avif"),
    (0, b"P5\n", "image/pnm"),
    (0, b"P6\n", "image/pnm"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (8, b"AIFF", "audio/aiff"),
    (8, b"AIFC", "audio/aiff"),
    (0, b".snd", "audio/au"),
    (0, b"caff", "audio/caf"),
    (0, b"ID3", "audio/mp3"),
    (0, b"\xff\xfb", "audio/mp3"),
    (0, b"\xff\xf3", "audio/mp3"),
    (0, b"\xff\xf2", "audio/mp3"),
)
_CONTAINERS: Final[dict[str, tuple[bytes, ...]]] = {
    "image/webp": (b"RIFF",),
    "audio/wav": (b"RIFF", b"RIFX", b"RF64"),
    "audio/aiff": (b"FORM",),
}
_ERRORS: Final = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, struct.error, zlib.error)
"""Errors that Pillow raises for bad input."""


class Waveform(NamedTuple):
    """A decoded audio file."""

    samples: NDArray[np.float32]
    """Shape (channels, frames), -1 to 1."""
    rate: int
    """Frames a second."""


def kind_of(head: Buffer) -> str | None:
    """Return `image/png`, `audio/wav`, ... from the first `HEAD_BYTES` of a file; None for any other file."""
    start = bytes(head[:HEAD_BYTES])
    for offset, signature, kind in _SIGNATURES:
        if start.startswith(signature, offset) and start.startswith(_CONTAINERS.get(kind, (b"",))):
            return kind
    return None


def decode_image(data: Buffer) -> Image.Image:
    """Return the first frame as an RGB Pillow image, loaded, as torchvision's `ImageFolder` gives it.

    Raises ValueError if Pillow cannot decode it.
    """
    with pillow_errors(), open_image(data) as image:
        return as_rgb(image)


def as_rgb(image: Image.Image) -> Image.Image:
    """Return the image with three channels; transparent colours of a palette are those behind the transparency."""
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def check_image(data: Buffer) -> None:
    """Decode the first frame and drop it, like `decode_image` with less memory. Raises ValueError if Pillow cannot."""
    with pillow_errors(), open_image(data) as image:
        image.load()


def decode_audio(data: Buffer) -> Waveform:
    """Return all frames as float32. Raises ValueError if libsndfile cannot, `MissingExtraError` without soundfile."""
    library = soundfile()
    try:
        samples, rate = library.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (library.SoundFileError, ValueError, TypeError, EOFError, MemoryError) as error:
        raise ValueError(f"libsndfile cannot decode it: {error}") from error
    return Waveform(np.ascontiguousarray(samples.T), int(rate))


def duration(data: Buffer) -> float:
    """Return the seconds of an audio file, from its head; nan if libsndfile cannot open it. Decodes nothing.

    Raises `MissingExtraError` if soundfile is not installed.
    """
    library = soundfile()
    try:
        facts = library.info(io.BytesIO(data))
        return facts.frames / facts.samplerate if facts.frames >= 0 else math.nan
    except (library.SoundFileError, ValueError, TypeError, EOFError, MemoryError, ZeroDivisionError):
        return math.nan


def open_image(data: Buffer) -> Image.Image:
    """Open an image and read only its head. Raises errors that `pillow_errors` turns into a ValueError."""
    from PIL import Image

    return Image.open(io.BytesIO(data))


@contextmanager
def pillow_errors() -> Iterator[None]:
    """Turn every error that Pillow raises for bad input into a ValueError."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError as error:  # the error's own text holds a memory address
        raise ValueError("Pillow cannot decode it: the image format is unknown") from error
    except (Image.DecompressionBombError, MemoryError) as error:
        raise ValueError(f"Pillow refuses it: {error}") from error
    except _ERRORS as error:
        raise ValueError(f"Pillow cannot decode it: {error}") from error


def soundfile() -> Any:
    """Return the library that decodes audio. Raises `MissingExtraError`."""
    try:
        import soundfile as library
    except ImportError as error:
        raise MissingExtraError(
            "decoding audio needs the package soundfile: pip install 'brand-data[audio]'"
        ) from error
    return library


def has_soundfile() -> bool:
    try:
        soundfile()
    except MissingExtraError:
        return False
    return True


def other_kind(field: str, data: bytes) -> str:
    """Return in words the kind of a file if it does not fit its `image` or `audio` field; empty if it fits."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind is not None:
        return "" if kind.startswith(field) else kind
    if _opens(field, data):
        return ""
    return "text" if _looks_like_text(data) else "something unknown"


def _opens(field: str, data: bytes) -> bool:
    """Return whether Pillow or libsndfile decodes a file whose kind `kind_of` does not know."""
    if len(data) < HEAD_BYTES or _looks_like_text(data):
        return False
    try:
        (check_image if field == "image" else decode_audio)(data)
    except ValueError:
        return False
    return True


def _looks_like_text(data: bytes) -> bool:
    return b"\0" not in data[:512] and data[:512].isascii()
