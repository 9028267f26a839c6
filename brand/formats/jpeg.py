"""How is a JPEG decoded fast? By simplejpeg, at a fraction of its size if that is enough.

The head is read here, in Python: a call that gives the interpreter lock up would have to wait for it again, which costs
more than the head if many threads decode.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.values import Buffer

_SEGMENT: Final = struct.Struct(">BBH")
_FRAME: Final = struct.Struct(">HHB")
_FRAMES: Final = frozenset({0xC0, 0xC1, 0xC2})
"""Markers of the frames that simplejpeg decodes: baseline, extended, progressive."""
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""


def jpeg_size(data: Buffer) -> tuple[int, int] | None:
    """Return width and height of a JPEG with one or three channels; None for any other file, or a damaged head."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    try:
        while True:
            mark, kind, length = _SEGMENT.unpack_from(data, at)
            if mark != 0xFF:
                return None
            if kind in _FRAMES:
                height, width, channels = _FRAME.unpack_from(data, at + 5)
                return (width, height) if width and height and channels in (1, 3) else None
            at += 1 if kind == 0xFF else 2 if kind in _ALONE else 2 + length
    except struct.error:
        return None


def jpeg_pixels(data: Buffer, size: tuple[int, int], factor: int) -> NDArray[np.uint8] | None:
    """Decode a JPEG of this width and height to RGB at 1 / `factor` size; None if simplejpeg is missing or refuses it.

    Pillow decodes some files that simplejpeg refuses, and its error names the fault.
    """
    try:
        import simplejpeg

        width, height = -(-size[0] // factor), -(-size[1] // factor)
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width)
    except Exception:  # noqa: BLE001 - simplejpeg may be missing, or refuse the file in any way
        return None
    return pixels
