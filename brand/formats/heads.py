"""Which properties of an image does its head tell, that a decoder to 8-bit RGB would change or drop?

`traits_of` reads the head of a PNG, JPEG, TIFF, WebP, GIF, AVIF, JPEG 2000 or PNM file, without a decoder: a few
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
BITS_LOST: Final = "images_of_10_bits"
FLOATS: Final = "images_of_floats"
FRAMES: Final = "images_of_several_frames"
CMYK: Final = "images_in_cmyk"
ALPHA: Final = "images_with_alpha"
PALETTE: Final = "images_with_palette"
GREY: Final = "images_in_grey"
TRAITS: Final = (TURNED, BITS_16, BITS_32, BITS_LOST, FLOATS, FRAMES, CMYK, ALPHA, PALETTE, GREY)

_SOF: Final = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
"""Markers of a JPEG that begin the facts of its frame."""
_ALONE: Final = frozenset((0x01, 0xFF, *range(0xD0, 0xD9)))
"""Markers of a JPEG without a length."""
_IS_FRAME: Final = np.zeros(1 << 16, np.bool_)
_IS_SEGMENT: Final = np.zeros(1 << 16, np.bool_)
"""Two bytes of a JPEG -> whether they begin its frame, or a part with a length."""
_IS_FRAME[[0xFF00 | marker for marker in _SOF]] = True
_IS_SEGMENT[[0xFF00 | marker for marker in range(256) if marker not in _ALONE]] = True
_XMP: Final = re.compile(rb'tiff:Orientation(?:="|>)([2-8])')
_TIFF_TYPES: Final = {1: "B", 3: "H", 4: "I"}
_LITTLE: Final = struct.Struct("<HI")
_BIG: Final = struct.Struct(">HI")
_CHUNK: Final = struct.Struct(">I4s")
_IDAT: Final = int.from_bytes(b"IDAT")
_TRNS: Final = int.from_bytes(b"tRNS")
_PNG_PLAIN: Final = np.array(
    [int.from_bytes(name) for name in b"PLTE tRNS pHYs tEXt zTXt gAMA cHRM sRGB iCCP bKGD tIME sBIT hIST oFFs".split()]
)
"""Chunks of a PNG before its pixels that have no trait, and the one with a transparent colour."""
_TOGETHER: Final = 8
"""The fewest files for which a step together is faster than a step for each."""
_PNG_HEAD: Final = 33
"""Bytes before the second chunk of a PNG."""
_EXIF_LITTLE: Final = b"Exif\0\0II*\0\x08"
_EXIF_BIG: Final = b"Exif\0\0MM\0*\0\0\0\x08"
"""The usual start of EXIF data, in both orders of bytes; an array of NumPy does not hold the zeros at the end."""
_SILENT, _UPRIGHT, _TURNED, _UNCLEAR = range(4)
"""Result for EXIF data: no orientation, an upright image, a turned image, or data that `_turns_app1` must read."""
_PNM: Final = re.compile(rb"P[56](?:(?:\s|#[^\n]*\n)+\d+){2}(?:\s|#[^\n]*\n)+(\d+)\s")
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
    each PNG and JPEG without parts that seldom occur.
    """
    kinds = np.zeros(len(images), np.int64)
    large = np.flatnonzero(images.sizes >= _PNG_HEAD)
    if not len(large):
        return kinds
    begin = windows(images.memory, 4)[images.starts[large]].view(">u4")
    png, jpeg = large[begin == 0x89504E47], large[begin >> 8 == 0xFFD8FF]
    kinds[jpeg] = _walk_jpeg(images.memory, images.starts[jpeg], images.sizes[jpeg])
    # Bits a channel, and the kind of colours. The numbers of JPEGs end at 511, and those of PNGs begin above 1,024.
    facts = windows(images.memory, 2)[images.starts[png] + 24].view(">u2").astype(np.int64)
    walked = _walk_png(windows(images.memory, 8), images.starts[png], images.sizes[png])
    kinds[png] = np.where(walked > 0, 4 * facts + 2 + walked, 0)
    return kinds


def _walk_jpeg(memory: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the channels of each JPEG, plus 256 if EXIF turns it; 0 for one that `_jpeg` must read.

    One step for all files takes the place of a step for each.
    """
    kinds, active, at = np.zeros(len(starts), np.int64), np.arange(len(starts)), starts + 2
    words, ends, turned = windows(memory, 4), starts + sizes, np.full(len(starts), _SILENT)
    while len(active) >= _TOGETHER:
        active = active[at[active] + 10 <= ends[active]]
        word = words[at[active]].view(">u4").astype(np.int64)
        usual = _IS_SEGMENT[word >> 16]
        active, word = active[usual], word[usual]
        frame, next_one = _IS_FRAME[word >> 16], at[active] + 2 + (word & 0xFFFF)
        files = active[frame]
        kinds[files] = memory[at[files] + 9] + 256 * (turned[files] == _TURNED)
        app1 = (word >> 16 == 0xFFE1) & (turned[active] == _SILENT)  # as in Pillow, the first that says it decides
        files = active[app1]
        turned[files] = _walk_exif(memory, at[files] + 4, np.minimum(next_one[app1], ends[files]))
        at[active] = next_one
        active = active[~frame & (turned[active] != _UNCLEAR)]
    return kinds


def _walk_exif(memory: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whether each APP1 segment turns its image; `_UNCLEAR` where `_turns_app1` must look."""
    found, files = np.full(len(starts), _UNCLEAR), np.flatnonzero(ends - starts >= len(_EXIF_BIG))
    heads = windows(memory, len(_EXIF_BIG))[starts[files]].view(f"S{len(_EXIF_BIG)}")
    little = heads == _EXIF_LITTLE
    known = little | (heads == _EXIF_BIG)
    files, little = files[known], little[known]

    def short(places: NDArray[np.int64]) -> NDArray[np.int64]:
        first, second = memory[places].astype(np.int64), memory[places + 1].astype(np.int64)
        return np.where(little, second << 8 | first, first << 8 | second)

    entry = starts[files] + len(_EXIF_BIG)
    inside = entry + 2 <= ends[files]
    files, little, entry = files[inside], little[inside], entry[inside]
    left, entry = short(entry), entry + 2
    whole = (left > 0) & (entry + 12 * left + 2 <= ends[files])
    files, little, entry, left = files[whole], little[whole], entry[whole], left[whole]
    found[files] = _SILENT
    while len(files):
        here = short(entry) == 274
        value = short(entry + 8)
        found[files[here]] = np.where((value >= 2) & (value <= 8), _TURNED, _UPRIGHT)[here]
        more = ~here & (left > 1)
        files, little, entry, left = files[more], little[more], entry[more] + 12, left[more] - 1
    return found


def _walk_png(words: NDArray[np.void], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 for each PNG whose chunks tell nothing more than its head, 2 if there is a transparent colour, too.

    0 for others, such as those with EXIF. One step for all files takes the place of a step for each; the pixels, which
    most programs cut into chunks of one size, are passed over at once.
    """
    kinds, active, at = np.zeros(len(starts), np.int64), np.arange(len(starts)), np.full(len(starts), 33)
    clear, ends = np.ones(len(starts), np.int64), sizes - 12

    def chunk(files: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return bytes and name of the chunk at an offset of each file."""
        found = words[starts[files] + offsets].view(">u8").astype(np.uint64)
        return (found >> np.uint64(32)).astype(np.int64) + 12, (found & np.uint64(0xFFFFFFFF)).astype(np.int64)

    while len(active) >= _TOGETHER:
        active = active[at[active] + 12 <= ends[active]]
        steps, names = chunk(active, at[active])
        pixels = names == _IDAT
        files, step = active[pixels], steps[pixels]
        last = at[files] + (ends[files] - 1 - at[files]) // step * step
        size, name = chunk(files, last)
        kinds[files] = np.where((name == _IDAT) & (size + last == ends[files]), clear[files], 0)
        clear[active[names == _TRNS]] = 2
        more = (names[:, None] == _PNG_PLAIN).any(axis=1)
        at[active[more]] += steps[more]
        active = active[more]
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
    elif 8 < max(bits) <= 16:
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
    config = head.find(b"av1C")
    if config > 0 and head[config + 6] & 0x40:  # high_bitdepth
        yield BITS_LOST
    if head[8:12] == b"avis":
        yield FRAMES


def _jp2(data: memoryview) -> Iterator[str]:
    at = bytes(data[:_BOXES_BYTES]).find(b"ihdr")
    channels, bits = int.from_bytes(data[at + 12 : at + 14]), data[at + 14]
    if at > 0 and bits != 0xFF and (bits & 0x7F) >= 8:
        yield BITS_16
    if at > 0 and channels == 1:
        yield GREY


def _pnm(data: memoryview) -> Iterator[str]:
    head = _PNM.match(bytes(data[:HEAD_BYTES]))
    if head is not None and int(head[1]) > 255:
        yield BITS_16
    if data[1] == 0x35:
        yield GREY


_READERS: Final[dict[str, Callable[[memoryview], Iterator[str]]]] = {
    "image/jpeg": _jpeg,
    "image/tiff": _tiff,
    "image/png": _png,
    "image/webp": _webp,
    "image/gif": _gif,
    "image/avif": _avif,
    "image/jp2": _jp2,
    "image/pnm": _pnm,
}
