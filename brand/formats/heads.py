"""Which properties of an image does its head tell, that a decoder to 8-bit RGB would change or drop?

`traits_of` reads the head of a PNG, JPEG, TIFF, WebP, GIF, AVIF or JPEG 2000 file, without a decoder: a few
microseconds a file, and the same answer on every machine. A file that it cannot read has no traits: decoding tells.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.media import HEAD_BYTES, kind_of
from brand.formats.record import Records, windows
from brand.formats.values import Buffer

TURNED: Final = "images_turned_by_exif"
BITS_16: Final = "images_of_16_bits"
BITS_32: Final = "images_of_32_bits"
FLOATS: Final = "images_of_floats"
FRAMES: Final = "images_of_several_frames"
CMYK: Final = "images_in_cmyk"
ALPHA: Final = "images_with_alpha"
PALETTE: Final = "images_with_palette"
GREY: Final = "images_in_grey"
TRAITS: Final = (TURNED, BITS_16, BITS_32, FLOATS, FRAMES, CMYK, ALPHA, PALETTE, GREY)

_SOF: Final = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
"""Markers of a JPEG that begin the facts of its frame."""
_ALONE: Final = frozenset((0x01, 0xFF, *range(0xD0, 0xD9)))
"""Markers of a JPEG without a length."""
_XMP: Final = re.compile(rb'tiff:Orientation(?:="|>)([2-8])')
_TIFF_TYPES: Final = {1: "B", 3: "H", 4: "I"}
_LITTLE: Final = struct.Struct("<HI")
_BIG: Final = struct.Struct(">HI")
_CHUNK: Final = struct.Struct(">I4s")
_JPEG_TABLE: Final = 89
"""Offset of the second piece after the usual head of a JPEG and one table of 8 bits."""
_JPEG_FRAME: Final = 158
"""Offset of the frame if that piece is a table, too."""
_PLTE: Final = int.from_bytes(b"PLTE")
_IDAT: Final = int.from_bytes(b"IDAT")
_BOXES_BYTES: Final = 1 << 12
"""Bytes at the start of an AVIF file in which the boxes of properties are looked for."""


def traits_of(data: Buffer) -> tuple[str, ...]:
    """Return those of `TRAITS` that an image file has; none for a file whose head is damaged or unknown."""
    view = memoryview(data)
    kind = kind_of(view[:HEAD_BYTES])
    read = _READERS.get(kind or "")
    if read is None:
        return ()
    try:
        return tuple(read(view))
    except (struct.error, IndexError, ValueError):
        return ()


def plain_kinds(images: Records) -> NDArray[np.int64]:
    """Return a number for each image whose first bytes tell all its traits; 0 for one that `traits_of` must read.

    Images with one number have the same traits. A few calls of NumPy for all images take the place of a walk through
    each: a PNG of one piece without further chunks, and a JPEG that begins as most programs write it.
    """
    kinds = np.zeros(len(images), np.int64)
    large = np.flatnonzero(images.sizes >= _JPEG_FRAME + 4)
    starts = images.starts[large]
    if not len(large):
        return kinds
    words = windows(images.memory, 4)

    def word(offset: int) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = words[starts + offset].view(">u4")
        return found

    begin, piece = word(0), word(_JPEG_TABLE)
    png = begin == 0x89504E47
    # A palette may stand before the pixels, and nothing else.
    at = np.where(png & (word(37) == _PLTE), 45 + np.minimum(word(33), 768).astype(np.int64), 33)
    at = np.minimum(at, images.sizes[large] - 8)
    png &= (words[starts + at + 4].view(">u4") == _IDAT) & (
        words[starts + at].view(">u4") + at == images.sizes[large] - 24
    )
    facts = (word(24) >> 16).astype(np.int64)  # bits a channel, and the kind of colours
    jpeg = (begin == 0xFFD8FFE0) & (word(4) >> 16 == 16) & (word(_JPEG_TABLE - 69) == 0xFFDB0043)
    colour = jpeg & (piece == 0xFFDB0043) & np.isin(word(_JPEG_FRAME), (0xFFC00011, 0xFFC20011))
    grey = jpeg & np.isin(piece, (0xFFC0000B, 0xFFC2000B))
    kinds[large] = np.where(png, 3 + facts, np.where(colour, 1, np.where(grey, 2, 0)))
    return kinds


def _jpeg(data: memoryview) -> Iterator[str]:
    at, end, turned = 2, len(data), None
    while at + 10 <= end:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF or data[at] != 0xFF else 2
            continue
        size = data[at + 2] << 8 | data[at + 3]
        if marker in _SOF:
            channels = data[at + 9]
            if channels == 1:
                yield GREY
            elif channels == 4:
                yield CMYK
            return
        if marker == 0xE1 and turned is None:  # as in Pillow, EXIF decides before XMP
            turned = _turns_app1(data[at + 4 : at + 2 + size])
            if turned:
                yield TURNED
        at += 2 + size


def _turns_app1(data: memoryview) -> bool | None:
    """Return whether EXIF or XMP data turn the image; None if they say nothing about it."""
    if bytes(data[:6]) == b"Exif\0\0":
        return _turns(data[6:])
    found = _XMP.search(data) if bytes(data[:28]) == b"http://ns.adobe.com/xap/1.0/" else None
    return True if found else None


def _turns(exif: memoryview) -> bool | None:
    """Return whether EXIF data, which begin as a TIFF does, turn the image; None if they say nothing about it."""
    entry = _LITTLE if len(exif) and exif[0] == 0x49 else _BIG
    with suppress(struct.error):  # damaged, which is no reason to forget the other traits
        _, offset = entry.unpack_from(exif, 2)
        for at in range(offset + 2, offset + 2 + 12 * (entry.unpack_from(exif, offset)[0]), 12):
            tag, _ = entry.unpack_from(exif, at)
            if tag == 274:
                return bool(2 <= entry.unpack_from(exif, at + 8)[0] <= 8)
    return None


def _tags(data: memoryview) -> dict[int, tuple[int, ...]]:
    """Return the short lists of whole numbers in the first folder of a TIFF; 0 holds the offset of the next folder."""
    order = "<" if bytes(data[:2]) == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, first)
    found: dict[int, tuple[int, ...]] = {}
    for entry in range(first + 2, first + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, entry)
        letter = _TIFF_TYPES.get(kind)
        if letter is None or not 1 <= values <= 8:
            continue
        form = f"{order}{values}{letter}"
        place = entry + 8
        if struct.calcsize(form) > 4:
            (place,) = struct.unpack_from(f"{order}I", data, place)
        found[tag] = struct.unpack_from(form, data, place)
    found[0] = struct.unpack_from(f"{order}I", data, first + 2 + 12 * count)
    return found


def _tiff(data: memoryview) -> Iterator[str]:
    # Pillow turns a TIFF by its orientation whenever it loads one, so that is no difference to tell.
    tags = _tags(data)
    bits, (colours,), (samples,) = tags.get(258, (1,)), tags.get(262, (1,))[:1], tags.get(277, (1,))[:1]
    if tags.get(339, (1,))[0] == 3:
        yield FLOATS
    elif max(bits) == 16:
        yield BITS_16
    elif max(bits) == 32:
        yield BITS_32
    if tags[0][0]:
        yield FRAMES
    if colours == 5:
        yield CMYK
    elif colours == 3:
        yield PALETTE
    elif colours in (0, 1):
        yield GREY
    usual = {5: 4, 2: 3, 6: 3}.get(colours, 1)
    if samples > usual and tags.get(338, (0,))[0] in (1, 2):
        yield ALPHA


def _png(data: memoryview) -> Iterator[str]:
    bits, colours = data[24], data[25]
    if bits == 16:
        yield BITS_16
    if colours in (0, 4):
        yield GREY
    elif colours == 3:
        yield PALETTE
    if colours in (4, 6):
        yield ALPHA
    at, end, seen = 33, len(data) - 12, set[bytes]()
    while at <= end:
        size, name = _CHUNK.unpack_from(data, at)
        if name == b"tRNS":
            yield ALPHA
        elif name == b"acTL" and int.from_bytes(data[at + 8 : at + 12]) > 1:
            yield FRAMES
        elif name not in seen and (
            (name == b"eXIf" and _turns(data[at + 8 : at + 8 + size]))
            or (name == b"iTXt" and _XMP.search(data[at + 8 : at + 8 + size]))
        ):
            seen |= {b"eXIf", b"iTXt"}
            yield TURNED
        at += 12 + size


def _webp(data: memoryview) -> Iterator[str]:
    name = bytes(data[12:16])
    if name == b"VP8L" and data[24] & 0x10:
        yield ALPHA
    if name != b"VP8X":
        return
    flags = data[20]
    if flags & 0x10:
        yield ALPHA
    at, frames = 12, 0
    while flags & 0x0E and at + 8 <= len(data):
        (name,), (size,) = struct.unpack_from("4s", data, at), struct.unpack_from("<I", data, at + 4)
        content = data[at + 8 : at + 8 + size]
        if name == b"EXIF" and _turns(content[6:] if bytes(content[:6]) == b"Exif\0\0" else content):
            yield TURNED
        frames += name == b"ANMF"
        at += 8 + size + size % 2
    if frames > 1:
        yield FRAMES


def _gif(data: memoryview) -> Iterator[str]:
    yield PALETTE
    at = 13 + (3 << 1 + (data[10] & 7) if data[10] & 0x80 else 0)
    frames, alpha = 0, False
    while at < len(data) and frames < 2:
        if data[at] == 0x2C:
            frames += 1
            packed = data[at + 9]
            at += 10 + (3 << 1 + (packed & 7) if packed & 0x80 else 0) + 1
        elif data[at] == 0x21:
            alpha |= frames == 0 and data[at + 1] == 0xF9 and data[at + 3] & 1 == 1
            at += 2
        else:
            break
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
    if alpha:
        yield ALPHA
    if frames > 1:
        yield FRAMES


def _avif(data: memoryview) -> Iterator[str]:
    head = bytes(data[:_BOXES_BYTES])
    if b"auxid:1\0" in head or b":alpha" in head:
        yield ALPHA
    angle, mirror = head.find(b"irot"), head.find(b"imir")
    if (angle > 0 and head[angle + 4] & 3) or mirror > 0:
        yield TURNED
    if head[8:12] == b"avis":
        yield FRAMES


def _jp2(data: memoryview) -> Iterator[str]:
    at = bytes(data[:_BOXES_BYTES]).find(b"ihdr")
    channels, bits = int.from_bytes(data[at + 12 : at + 14]), data[at + 14]
    if at > 0 and bits != 0xFF and (bits & 0x7F) >= 8:
        yield BITS_16
    if at > 0 and channels == 1:
        yield GREY


_READERS: Final[dict[str, Callable[[memoryview], Iterator[str]]]] = {
    "image/jpeg": _jpeg,
    "image/tiff": _tiff,
    "image/png": _png,
    "image/webp": _webp,
    "image/gif": _gif,
    "image/avif": _avif,
    "image/jp2": _jp2,
}
