"""From an image file to the pixels that its user asks for: mode, orientation, frame.

    open_frame       the file's head, at one frame
    upright          turned as EXIF says
    in_mode          8-bit RGB, L or RGBA, as Pillow converts
    unchanged        the array that the file holds: indices of a palette, 16-bit and 32-bit integers, floats, alpha

The values are those of Pillow. Of 16 bits in several channels, Pillow itself keeps 8, and `unchanged` all. The first
image of a process whose values do not fit 8 bits is told in the log.
"""

from __future__ import annotations

import logging
import mmap
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.heads import BITS_16, CHANNELS_LOST, jp2_bits, raw_form, traits_of
from brand.formats.media import open_image, pillow_errors
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[Any]
log = logging.getLogger("brand")
_DEEP: Final = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Modes of Pillow whose values need more than 8 bits."""
_ORIENTATION: Final = 274
_BITS: Final = 258
"""Tag of a TIFF: bits of each channel."""
_SIGNS: Final = 339
"""Tag of a TIFF: 1 for unsigned integers."""
_LOW_BYTES: Final = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "CMYK")
    for order, other in (("B", "L"), ("L", "B"), ("N", "B" if sys.byteorder == "little" else "L"))
}
"""Form of raw values, from which Pillow takes the high bytes -> a form with which it takes the low bytes."""


_NATIVE: Final = {"I;16BS": "I;16S", "I;32BS": "I;32S", "F;32BF": "F;32F"}
"""Form of big-endian values in a TIFF -> their form once libtiff has swapped their bytes, which Pillow would repeat."""


_GAP: Final = rb"(?:\s|#[^\n]*\n)+"
_PNM: Final = re.compile(rb"P([1-6])" + (_GAP + rb"(\d+)") * 2 + rb"(?:" + _GAP + rb"(\d+))?\s")
"""The head of a PNM: its kind, width, height, and largest value."""


def decode_image(data: Buffer, mode: str = "RGB", *, turn: bool = False) -> Image.Image:
    """Return the first frame as a loaded Pillow image, by default as torchvision's `ImageFolder` gives it.

    `turn`: upright, as EXIF says. With the mode "unchanged", the image has the mode that Pillow gives it. Raises
    ValueError if Pillow cannot decode it.
    """
    from PIL import Image as library

    with pillow_errors(), open_frame(data, 0) as image:
        turned = upright(image) if turn else image
        if mode != "unchanged":
            return in_mode(turned, mode)
        channels = _pnm_channels(data) if image.format == "PPM" else None
        if channels is not None and len(channels) == 1:
            return library.fromarray(channels[0])
        if BITS_16 in traits_of(data) and turned.mode not in _DEEP:
            clipped.tell("has 16 bits in several channels, of which a Pillow image holds 8")
        turned.load()
        return turned.copy() if turned is image else turned


def open_frame(data: Buffer, frame: int) -> Any:
    """Open a Pillow image at a frame, and read only its head.

    Raises errors that `pillow_errors` turns into a ValueError.
    """
    image: Any = open_image(data)
    if frame:
        count = getattr(image, "n_frames", 1)
        if frame >= count:
            raise ValueError(f"it has {count} frames, counted from 0, and frame {frame} is asked for")
        image.seek(frame)
    if image.format == "TIFF" and sys.byteorder == "little" and image.tile and image.tile[0][0] == "libtiff":
        form = raw_form(image)
        _set_raw_form(image, _NATIVE.get(form, form))
    return image


def method_of(image: Image.Image) -> Any:
    """Return the transposition that makes an image upright; None if it is, or if nothing readable says otherwise."""
    from PIL import Image as library

    try:
        orientation = 1 if image.format == "TIFF" else image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF is no reason to refuse the pixels; a TIFF is turned as it is loaded
        return None
    turn = library.Transpose
    return {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)


def upright(image: Image.Image) -> Image.Image:
    """Return an image turned as EXIF says, as `PIL.ImageOps.exif_transpose` and `datasets` turn it."""
    method = method_of(image)
    return image if method is None else image.transpose(method)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in the mode "RGB", "L" or "RGBA", loaded. Values beyond 8 bits are clipped, as Pillow does.

    Transparent colours of a palette become those behind the transparency.
    """
    if image.mode in _DEEP:
        _tell_clipped(image)
    if image.mode == "La":  # of which Pillow makes nothing else
        image = image.convert("LA")
    if mode == "RGBA":
        return image.convert("RGBA")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    rgb = image.convert("RGB")
    return rgb if mode == "RGB" else rgb.convert(mode)


def unchanged(data: Buffer, frame: int, *, turn: bool, resize: Callable[[Image.Image], Image.Image]) -> Pixels:
    """Return the array that a file holds, shape (height, width), or (height, width, channels) if there are several.

    `resize` is applied to the image, or, for 16 bits in several channels, to each channel. Raises ValueError.
    """
    from PIL import Image as library

    with pillow_errors(), open_frame(data, frame) as image:
        channels = _pnm_channels(data) if image.format == "PPM" else _deep_channels(image, data, frame)
        if channels is not None:
            method = method_of(image) if turn else None
            made = [library.fromarray(channel) for channel in channels]
            made = made if method is None else [each.transpose(method) for each in made]
            arrays = [np.array(resize(each)) for each in made]
            return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)
        traits = traits_of(data)
        if BITS_16 in traits and image.mode not in _DEEP:
            raise ValueError(f"its values of 16 bits are in a form ({image.format}) that Pillow reduces to 8 bits")
        if CHANNELS_LOST in traits:
            raise ValueError(
                f"it has more than the {len(image.getbands())} channels that Pillow decodes: pack such images as arrays"
            )
        other = _other_dtype(image)
        values = np.array(resize(upright(image) if turn else image))
    return values.astype(values.dtype.newbyteorder("="), copy=False) if other is None else values.view(other)


def _deep_channels(image: Image.Image, data: Buffer, frame: int) -> list[Pixels] | None:
    """Return the channels of an image with 16 bits in each of several; None for any other image.

    Pillow holds 8 bits of such a value. So it is decoded twice, for the high and for the low bytes.
    """
    form = raw_form(image)
    if image.format == "JPEG2000" and image.mode == "I;16":
        bits, signed = jp2_bits(data)
        if signed or bits > 16:
            raise ValueError(f"its values of {bits} bits are in a form (JPEG2000) that Pillow changes")
        return [np.asarray(image) >> (16 - bits)]
    if form == "LA;16B":  # read as four bytes a pixel
        with _again(data, frame, "RGBA") as four:
            pairs = np.ascontiguousarray(np.asarray(four)).view(">u2").astype(np.uint16)
        return [pairs[..., 0], pairs[..., 1]]
    if form not in _LOW_BYTES:
        return None
    with _again(data, frame, _LOW_BYTES[form]) as low:
        lows = np.asarray(low).astype(np.uint16)
    values: Pixels = np.asarray(image).astype(np.uint16) << 8 | lows
    return [np.ascontiguousarray(values[..., channel]) for channel in range(values.shape[2])]


def _again(data: Buffer, frame: int, form: str) -> Any:
    """Open an image again, to be decoded from raw values of this form."""
    image = open_frame(data, frame)
    _set_raw_form(image, form)
    return image


def _set_raw_form(image: Any, form: str) -> None:
    image.tile[:] = [
        tile._replace(args=form if isinstance(tile.args, str) else (form, *tile.args[1:])) for tile in image.tile
    ]


def _other_dtype(image: Image.Image) -> type[np.integer[Any]] | None:
    """Return the dtype of a TIFF whose integers Pillow takes for signed, or for unsigned, although they are not."""
    tags: Any = getattr(image, "tag_v2", {})
    bits, signs = tags.get(_BITS), tuple(tags.get(_SIGNS, (1,)))
    if (image.mode, bits, signs) == ("I", (32,), (1,)):
        return np.uint32
    return np.int8 if (image.mode, bits, signs) == ("L", (8,), (2,)) else None


def _pnm_channels(data: Buffer) -> list[Pixels] | None:
    """Return the channels of a binary PGM or PPM, whose values Pillow scales to 8 or 16 bits; None for a bitmap.

    Raises ValueError for one that is written as text.
    """
    head = _PNM.match(bytes(data[:1000]))
    if head is None or head[1] in b"14":
        return None
    if head[1] in b"23":
        raise ValueError("its values are written as text: convert it to a binary PGM or PPM")
    width, height, most, channels = int(head[2]), int(head[3]), int(head[4] or 255), 3 if head[1] == b"6" else 1
    dtype = np.dtype(">u2" if most > 255 else "u1")
    values = np.frombuffer(data, dtype, width * height * channels, head.end()).reshape(height, width, channels)
    native = values.astype(dtype.newbyteorder("="))
    return [np.ascontiguousarray(native[..., channel]) for channel in range(channels)]


def _tell_clipped(image: Image.Image) -> None:
    low, high = image.getextrema()
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if image.mode == "F" and low >= 0 and high <= 255:
        clipped.tell(f"holds numbers from {low:g} to {high:g}, whose fractions are lost in 8 bits")
    elif low < 0 or high > 255:
        clipped.tell(f"holds values from {low:g} to {high:g}, which are clipped to 0 to 255")


class Clipped:
    """Tells once in a process, and in those that are forked from it, that an image does not fit 8 bits."""

    def __init__(self) -> None:
        self._told = mmap.mmap(-1, 1)
        """Whether it was told: a byte that the workers of a DataLoader share."""
        self._raises = False

    def raise_first(self) -> None:
        """Raise a ValueError in place of the first message, so that the client of a decode worker tells its user."""
        self._raises = True

    def tell(self, what: str) -> None:
        """Log that an image `what`, unless one was told."""
        if self._told[0]:
            return
        self._told[0] = 1
        told = f"an image {what}: decode={{FIELD: DecodeImage(mode='unchanged')}} keeps its values"
        if self._raises:
            raise ValueError(told)
        log.warning("%s. Further images are not told", told)


clipped: Final = Clipped()
"""The messages of this process."""
