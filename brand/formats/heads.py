"""Which properties of an image does its head tell, that a decoder to 8-bit RGB would change or drop?

`traits_of` reads the head of a PNG, JPEG, TIFF, WebP, GIF, AVIF, BMP or PNM file, without a decoder: a few microseconds
a file. Pillow reads the heads of other kinds, and of unusual TIFF files. A damaged file has no traits: decoding tells.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from brand.formats.media import HEAD_BYTES, kind_of, open_image, pillow_errors
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

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
ALPHA_LOST: Final = "images_with_alpha_lost"
CHANNELS_LOST: Final = "images_with_channels_lost"
UNOPENED: Final = "images_not_opened"
TRAITS: Final = (
    TURNED,
    BITS_16,
    BITS_32,
    BITS_LOST,
    FLOATS,
    FRAMES,
    CMYK,
    ALPHA,
    ALPHA_LOST,
    CHANNELS_LOST,
    PALETTE,
    UNOPENED,
    GREY,
)

SOF: Final = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
"""Markers of a JPEG that begin the facts of its frame."""
ALONE: Final = frozenset((0x01, 0xFF, *range(0xD0, 0xD9)))
"""Markers of a JPEG without a length."""
_XMP: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
PROFILE: Final = b"Raw profile type exif"
"""Keyword of the text in a PNG in which ImageMagick keeps EXIF data, as hexadecimal digits."""
_TEXT_BYTES: Final = 1 << 20
"""Most bytes of a text in a PNG that is searched; Pillow reads no longer ones."""
_BIG_TIFF: Final = 43
_RGB_TIFF, _PALETTE_TIFF = 2, 3
"""Kinds of colours in a TIFF."""
_TIFF_PACKED: Final = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946))
"""Usual compressions of a TIFF."""
_TIFF_TYPES: Final = {1: "B", 3: "H", 4: "I"}
_ORIENTATION: Final = 274
_IMAGES_OF_MPF: Final = 0xB001
"""Tag of a JPEG of several images: their number."""
_DEEP_FORM: Final = re.compile(";16[BLN]$")
"""Pillow's name of raw values of 16 bits."""
_CHUNK: Final = struct.Struct(">I4s")
_PNM: Final = re.compile(rb"P[2356](?:(?:\s|#[^\n]*\n)+\d+){2}(?:\s|#[^\n]*\n)+(\d+)\s")
_BOXES_BYTES: Final = 1 << 12
"""Bytes at the start of a JPEG 2000 or AVIF file in which its properties are looked for, at least."""


def traits_of(data: Buffer) -> tuple[str, ...]:
    """Return those of `TRAITS` that an image file has; none for a file whose head is damaged or unknown."""
    view = memoryview(data)
    kind = kind_of(view[:HEAD_BYTES])
    try:
        return tuple(_READERS.get(kind or "", _by_pillow)(view))
    except (struct.error, IndexError, ValueError):
        return ()


def _jpeg(data: memoryview) -> Iterator[str]:
    at, end, exif, by_xmp, several = 2, len(data), b"", False, False
    while at + 10 <= end:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in ALONE:
            at += 1 if marker == 0xFF or data[at] != 0xFF else 2
            continue
        size = data[at + 2] << 8 | data[at + 3]
        content = data[at + 4 : at + 2 + size]
        if marker in SOF:
            bits, channels = data[at + 4], data[at + 9]
            if bits != 8:
                yield UNOPENED
            if channels == 1:
                yield GREY
            elif channels == 4:
                yield CMYK
            break
        if marker == 0xE1 and bytes(content[:6]) == b"Exif\0\0":
            exif += content[6:]
        elif marker == 0xE1 and bytes(content[:28]) == b"http://ns.adobe.com/xap/1.0/":
            by_xmp = _turned_by_xmp(content)
        elif marker == 0xE2 and bytes(content[:4]) == b"MPF\0":
            several = _entry(content[4:], _IMAGES_OF_MPF) > 1
        at += 2 + size
    if several and b" hdrgm:Version=" not in bytes(data[:at]):  # a map of brightness is no frame, as in Pillow
        yield FRAMES
    if _turned(memoryview(exif), by_xmp=by_xmp):
        yield TURNED


def _turned(exif: memoryview, *, by_xmp: bool) -> bool:
    """Return whether EXIF data, which begin as a TIFF does, turn the image; XMP data decide if they do not say it."""
    value = _entry(exif, _ORIENTATION)
    return by_xmp if value < 0 else 2 <= value <= 8


def _turned_by_xmp(data: Buffer) -> bool:
    found = _XMP.search(data)
    return found is not None and found[1] in b"2345678"


def _entry(data: memoryview, tag: int) -> int:
    """Return the value of a tag, which is a whole number, in data that begin as a TIFF does; -1 if there is none."""
    order = "<" if len(data) and data[0] == 0x49 else ">"
    with suppress(struct.error):  # damaged, which is no reason to forget the other traits
        (offset,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, offset)
        for at in range(offset + 2, offset + 2 + 12 * count, 12):
            found, kind = struct.unpack_from(f"{order}HH", data, at)
            if found == tag:
                form = {3: "H", 4: "I"}.get(kind)
                return 0 if form is None else int(struct.unpack_from(f"{order}{form}", data, at + 8)[0])
    return -1


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
    tags = {} if data[2] + data[3] == _BIG_TIFF else _tags(data)
    bits, colours, samples = set(tags.get(258, (1,))), tags.get(262, (0,))[0], tags.get(277, (1,))[0]
    usual = {0: 1, 1: 1, 2: 3, 3: 1}.get(colours)
    plain = tags.get(339, (1,))[0] == 1 and tags.get(259, (1,))[0] in _TIFF_PACKED and samples == usual
    if not tags or not plain or bits not in ({1}, {8}, {16}) or (bits == {16} and colours in (0, 3)):
        yield from _by_pillow(data)
        return
    if bits == {16}:
        yield BITS_16
    if tags[0][0]:
        yield FRAMES
    if colours != _RGB_TIFF:
        yield PALETTE if colours == _PALETTE_TIFF else GREY


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
    at, end, frames, before, exif, profile, by_xmp = 33, len(data) - 12, 0, True, b"", b"", False
    while at <= end:
        size, name = _CHUNK.unpack_from(data, at)
        content = data[at + 8 : at + 8 + size]
        if name == b"tRNS":
            yield ALPHA_LOST if bits == 16 else ALPHA
        elif name == b"acTL":
            frames += int.from_bytes(content[:4])
        elif name == b"fcTL":
            before = False
        elif name == b"IDAT":
            frames += before and frames > 0  # an animation without the image that other programs show
            before = False
        elif name == b"eXIf":
            exif = bytes(content)
        elif name in (b"tEXt", b"zTXt", b"iTXt"):
            keyword, text = _text(name, bytes(content))
            if keyword == PROFILE:
                profile = bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:]))
            elif keyword == b"XML:com.adobe.xmp":
                by_xmp = _turned_by_xmp(text)
        at += 12 + size
    if frames > 1:
        yield FRAMES
    if _turned(memoryview((exif or profile).removeprefix(b"Exif\0\0")), by_xmp=by_xmp):
        yield TURNED


def _text(name: bytes, content: bytes) -> tuple[bytes, bytes]:
    """Return keyword and text of a chunk of a PNG."""
    keyword, _, text = content.partition(b"\0")
    packed = name == b"zTXt"
    if name == b"iTXt":
        packed, (_, _, text) = text[:1] == b"\1", text[2:].split(b"\0", 2)
    elif packed:
        text = text[1:]
    with suppress(zlib.error):
        return keyword, zlib.decompressobj().decompress(text, _TEXT_BYTES) if packed else text
    return keyword, b""


def _webp(data: memoryview) -> Iterator[str]:
    name = bytes(data[12:16])
    if name == b"VP8L" and data[24] & 0x10:
        yield ALPHA
    if name != b"VP8X":
        return
    flags = data[20]
    if flags & 0x10:
        yield ALPHA
    at, frames, exif, by_xmp = 12, 0, b"", False
    while flags & 0x0E and at + 8 <= len(data):
        (name,), (size,) = struct.unpack_from("4s", data, at), struct.unpack_from("<I", data, at + 4)
        content = data[at + 8 : at + 8 + size]
        if name == b"EXIF":
            exif = bytes(content).removeprefix(b"Exif\0\0")
        elif name == b"XMP ":
            by_xmp = _turned_by_xmp(content)
        frames += name == b"ANMF"
        at += 8 + size + size % 2
    if frames > 1:
        yield FRAMES
    if _turned(memoryview(exif), by_xmp=by_xmp):
        yield TURNED


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
    meta = int.from_bytes(data[:4])  # the box that follows the first one
    head = bytes(data[: max(_BOXES_BYTES, meta + int.from_bytes(data[meta : meta + 4]))])
    if b"auxid:1\0" in head or b":alpha" in head:
        yield ALPHA
    angle, mirror = head.find(b"irot"), head.find(b"imir")
    turned = (angle > 0 and head[angle + 4] & 3) or mirror > 0
    if turned or (b"application/rdf+xml" in head and b"Exif" not in head and _turned_by_xmp(data)):
        yield TURNED
    config = head.find(b"av1C")
    if config > 0 and head[config + 6] & 0x40:  # high_bitdepth
        yield BITS_LOST
    if head[8:12] == b"avis":
        yield FRAMES


def _jp2(data: memoryview) -> Iterator[str]:
    bits, _ = jp2_bits(data)
    if bits > 8:
        yield BITS_16
    yield from (trait for trait in _by_pillow(data) if trait != BITS_16)


def jp2_bits(data: Buffer) -> tuple[int, bool]:
    """Return the bits of a channel of a JPEG 2000 file, and whether its values have signs; 0 if its head is damaged."""
    head = bytes(data[:_BOXES_BYTES])
    at = head.find(b"\xff\x4f\xff\x51")  # the size of the image, at the begin of the codes
    box = head.find(b"ihdr")
    place = at + 42 if at >= 0 else box + 14 if box >= 0 else -1
    if place < 0 or place >= len(head):
        return 0, False
    return (head[place] & 0x7F) + 1, head[place] > 0x7F


def _bmp(data: memoryview) -> Iterator[str]:
    size = int.from_bytes(data[14:18], "little")
    old = size == 12  # of OS/2
    bits = int.from_bytes(data[24:26] if old else data[28:30], "little")
    if bits <= 8:
        stated, entry = 0 if old else int.from_bytes(data[46:50], "little"), 3 if old else 4
        count = min(stated or 1 << bits, 1 << 16)
        colours = bytes(data[14 + size : 14 + size + entry * count])
        greys = (0, 255) if count == 2 else range(count)  # as Pillow looks whether a palette is one of greys
        grey = all(colours[entry * n : entry * n + 3] == bytes((v, v, v)) for n, v in enumerate(greys) if v < 256)
        yield GREY if grey else PALETTE
    elif bits == 32 and size >= 56 and data[30] == 3 and (any(data[66:70]) or not any(data[54:66])):
        yield ALPHA


def _pnm(data: memoryview) -> Iterator[str]:
    head = _PNM.match(bytes(data[:HEAD_BYTES]))
    if head is not None and int(head[1]) > 255:
        yield BITS_16
    if data[1] in b"25":
        yield GREY


def _by_pillow(data: memoryview) -> Iterator[str]:
    """Yield the traits that Pillow tells when it opens a file of a kind that seldom occurs, and reads its head only."""
    if _PNM.match(bytes(data[:HEAD_BYTES])):
        yield from _pnm(data)
        return
    kind = kind_of(data[:HEAD_BYTES])
    try:
        with pillow_errors(), open_image(data) as image:
            mode, bands, frames = image.mode, len(image.getbands()), getattr(image, "n_frames", 1)
            deep = _DEEP_FORM.search(raw_form(image)) or any(tile[0] == "SGI16" for tile in getattr(image, "tile", []))
            clear = "transparency" in image.info
            turned = image.format != "TIFF" and image.getexif().get(_ORIENTATION, 1) in range(2, 9)
            channels = getattr(image, "tag_v2", {}).get(277, 1)
    except ValueError:
        if kind is not None and kind.startswith("image"):
            yield UNOPENED
        return
    found = {
        TURNED: turned,
        BITS_16: mode.startswith("I;16") or (bool(deep) and mode not in ("I", "F")),
        BITS_32: mode == "I",
        FLOATS: mode == "F",
        FRAMES: frames > 1,
        CMYK: mode == "CMYK",
        ALPHA: mode in ("RGBA", "LA", "La", "PA") or clear,
        CHANNELS_LOST: channels > bands,
        PALETTE: mode in ("P", "PA"),
        GREY: mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16"),
    }
    yield from (trait for trait, has in found.items() if has)


def raw_form(image: Image.Image) -> str:
    """Return the form of an image's raw values, by Pillow's name; empty if it has several."""
    tiles: list[Any] = getattr(image, "tile", [])
    forms = {args if isinstance(args, str) else args[0] for args in (tile[3] for tile in tiles) if args}
    return str(forms.pop()) if len(forms) == 1 else ""


_READERS: Final[dict[str, Callable[[memoryview], Iterator[str]]]] = {
    "image/jpeg": _jpeg,
    "image/tiff": _tiff,
    "image/png": _png,
    "image/webp": _webp,
    "image/gif": _gif,
    "image/avif": _avif,
    "image/jp2": _jp2,
    "image/bmp": _bmp,
    "image/pnm": _pnm,
}
