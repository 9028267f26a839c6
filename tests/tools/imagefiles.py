"""Image files that Pillow does not write, and files of forms that occur seldom, with what they hold."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from brand.formats import heads

Values = NDArray[Any]


class SeldomFile(NamedTuple):
    """An image file, and what is true of it."""

    data: bytes
    traits: set[str]
    values: Values | None = None
    """The array that was written into it, if Pillow has another or none."""
    refused: str = ""
    """Words with which `mode="unchanged"` is refused."""


def png(values: Values, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of 16 bits in 1 to 4 channels, which Pillow does not write, with chunks before its pixels."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + values[y].astype(">u2").tobytes() for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def tiff(
    values: Values,
    *,
    order: Literal["<", ">"] = "<",
    deflated: bool = False,
    orientation: int = 1,
    colours: int | None = None,
    extra: tuple[int, ...] = (),
) -> bytes:
    """A TIFF of one strip, of any dtype and number of channels; `extra`: the meaning of those beyond the colours."""
    height, width, channels = values.shape
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    data = zlib.compress(data) if deflated else data
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    bits = struct.pack(f"{order}{channels}H", *[8 * values.dtype.itemsize] * channels)
    several = len(bits) > 4
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, 8 if several else int.from_bytes(bits, "little" if order == "<" else "big")),
        (259, 3, 1, 8 if deflated else 1),
        (262, 3, 1, (1 if channels - len(extra) < 3 else 2) if colours is None else colours),
        (273, 4, 1, 8 + len(bits)),
        (274, 3, 1, orientation),
        (277, 3, 1, channels),
        (278, 4, 1, height),
        (279, 4, 1, len(data)),
        (339, 3, 1, kind),
    ]
    entries = b"".join(
        struct.pack(f"{order}HHI", tag, form, count)
        + (struct.pack(f"{order}HH", value, 0) if form == 3 and count == 1 else struct.pack(f"{order}I", value))
        for tag, form, count, value in tags
    )
    if extra:
        more = struct.pack(f"{order}{len(extra)}H", *extra).ljust(4, b"\0")
        place = 12 * [tag for tag, *_ in tags].index(339)
        entries = entries[:place] + struct.pack(f"{order}HHI", 338, 3, len(extra)) + more + entries[place:]
    start = 8 + len(bits) + len(data)
    magic = b"II*\0" if order == "<" else b"MM\0*"
    folder = struct.pack(f"{order}H", len(entries) // 12) + entries + bytes(4)
    return magic + struct.pack(f"{order}I", start) + bits + data + folder


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _app1(*parts: bytes, jpeg: bytes | None = None) -> bytes:
    """A JPEG with EXIF or XMP data in these segments."""
    jpeg = JPEG if jpeg is None else jpeg
    made = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts)
    return jpeg[:2] + made + jpeg[2:]


def _exif(entry: bytes, order: str = ">") -> bytes:
    """EXIF data of one entry."""
    return b"Exif\0\0" + (b"MM" if order == ">" else b"II") + struct.pack(f"{order}HIH", 42, 8, 1) + entry + bytes(4)


def _texts(*, packed: bool = False, international: bool = False, name: str = "Raw profile type exif") -> bytes:
    info, text = PngImagePlugin.PngInfo(), PROFILE if name.startswith("Raw") else XMP.decode()
    if international:
        info.add_itxt(name, text, zip=packed)
    else:
        info.add_text(name, text, zip=packed)
    return saved(RGB, "PNG", pnginfo=info)


def _bmp_of_alpha(values: Values, masks: tuple[int, ...] = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)) -> bytes:
    """A BMP with the head that states where colours and transparency are."""
    pixels = values[::-1, :, [2, 1, 0, 3]].tobytes()
    head = struct.pack("<IiiHHIIiiII", 108, values.shape[1], values.shape[0], 1, 32, 3, len(pixels), 0, 0, 0, 0)
    head += struct.pack("<4I", *masks) + b"BGRs" + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


CHANCE = np.random.default_rng(11)
Y, X = np.mgrid[:12, :8]
COLOURS = np.stack([X * 30, Y * 20, X * 10 + Y * 5, X + 100], axis=-1).astype(np.uint8)
RGB, RGBA, GREY = (Image.fromarray(COLOURS[..., part]) for part in (slice(3), slice(4), 0))
DEEP = (X * 3000 + Y * 100 + 7).astype(np.uint16)
DEEP_COLOURS = np.stack([DEEP, DEEP // 2, DEEP // 3, DEEP // 5], axis=-1)
INDICES = ((X + Y) % 5).astype(np.uint8)
INDEXED = Image.fromarray(INDICES, "L").convert("P")
INDEXED.putdata(INDICES.ravel().tolist())
INDEXED.putpalette([1, 2, 3, 90, 0, 0, 0, 90, 0, 0, 0, 90, 90, 90, 0])
ICC = CHANCE.integers(0, 255, 9000, dtype=np.uint8).tobytes()
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
JPEG = saved(RGB, "JPEG")
MPO = saved(RGB, "MPO", save_all=True, append_images=[RGB.rotate(180)])
SIX = _exif(struct.pack(">HHIHH", 274, 3, 1, 6, 0))
PROFILE = f"\nexif\n{len(SIX):8}\n{SIX.hex()}\n"
TWELVE_BITS = base64.b64decode(
    "/0//UQApAAAAAAAEAAAAAwAAAAAAAAAAAAAABAAAAAMAAAAAAAAAAAABCwEB/1IADAAAAAEAAAQEAAH/XAAEQGD/ZAAlAAFDcmVhdGVk"
    "IGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAAAjAAH/k8/kSAg3Iu37EYcFF8UOUGR0uKFaPv/Z"
)
SIGNED = base64.b64decode(
    "/0//UQApAAAAAAAEAAAAAwAAAAAAAAAAAAAABAAAAAMAAAAAAAAAAAABjwEB/1IADAAAAAEAAAQEAAH/XAAEQID/ZAAlAAFDcmVhdGVk"
    "IGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAAAkAAH/k8D+RIAHkYy24i7WEykKUKdvJ6AbZ7//2Q=="
)
COLOURS_OF_16_BITS = base64.b64decode(
    "/0//UQAvAAAAAAAEAAAAAwAAAAAAAAAAAAAABAAAAAMAAAAAAAAAAAADDwEBDwEBDwEB/1IADAAAAAEBAAQEAAH/XAAEQID/ZAAlAAFD"
    "cmVhdGVkIGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAABYAAH/k8/8MFgI7GR4RUNM6Z0eW/5Ei/IzoA8hS/9/wf4EwBum"
    "7BeS1Y1KT1daVQjOunX3C+DH/gwqHFxkJpjOuRkA0sTuRSZxhiMPV7sf/9k="
)
"""JPEG 2000 that Pillow does not write: codes without boxes."""
G, A, P = {heads.GREY}, {heads.ALPHA}, {heads.PALETTE}
DEEP_GREY, LOST, CLOSED = {heads.BITS_16, heads.GREY}, {heads.CHANNELS_LOST}, {heads.UNOPENED}
TURNED, FRAMES = {heads.TURNED}, {heads.FRAMES}
_SGI = struct.pack(">HBBHHHHII4x80sI404x", 474, 0, 2, 2, 8, 12, 1, 0, 65535, b"", 0)

SELDOM: dict[str, SeldomFile] = {
    "BigTIFF of 16 bits": SeldomFile(saved(Image.fromarray(DEEP), "TIFF", big_tiff=True), DEEP_GREY, DEEP),
    "BigTIFF of pages": SeldomFile(saved(RGB, "TIFF", big_tiff=True, save_all=True, append_images=[RGB]), FRAMES),
    "TIFF, red to infrared": SeldomFile(tiff(COLOURS, extra=(0,)), LOST),
    "TIFF, red to infrared, 16 bits": SeldomFile(
        tiff(DEEP_COLOURS, extra=(0,)), {*LOST, heads.BITS_16}, refused="Pillow reduces to 8 bits"
    ),
    "TIFF, grey and more": SeldomFile(tiff(COLOURS[..., :2], extra=(0,)), LOST | G),
    "TIFF, CMYK and more": SeldomFile(
        tiff(np.dstack([COLOURS, COLOURS[..., :1]]), colours=5, extra=(0,)), {*LOST, heads.CMYK}
    ),
    "TIFF, grey with associated alpha": SeldomFile(tiff(COLOURS[..., 2:], extra=(1,)), A | G, COLOURS[..., 2:]),
    "TIFF, white is 0": SeldomFile(tiff(COLOURS[..., :1], colours=0), G, 255 - COLOURS[..., 0]),
    "TIFF of float64": SeldomFile(tiff(DEEP[..., None] / 7), CLOSED),
    "TIFF of float16": SeldomFile(tiff((DEEP[..., None] / 7).astype(np.float16)), CLOSED),
    "TIFF of int64": SeldomFile(tiff(DEEP[..., None].astype(np.int64)), CLOSED),
    "TIFF of uint32, big-endian": SeldomFile(tiff(DEEP[..., None].astype(np.uint32), order=">"), CLOSED),
    "TIFF of five channels": SeldomFile(tiff(np.dstack([DEEP_COLOURS, DEEP]), colours=1), CLOSED),
    "TIFF with a palette of 16 bits": SeldomFile(tiff(DEEP[..., None], colours=3), CLOSED),
    "JPEG of 12 bits": SeldomFile(JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), CLOSED),
    "JPEG 2000 without boxes": SeldomFile(saved(RGB, "JPEG2000", no_jp2=True), set()),
    "JPEG 2000 without boxes, 16 bits": SeldomFile(
        saved(Image.fromarray(DEEP), "JPEG2000", no_jp2=True), DEEP_GREY, DEEP
    ),
    "JPEG 2000 of 12 bits": SeldomFile(
        TWELVE_BITS, DEEP_GREY, (np.mgrid[:3, :4] * np.array([[[1000]], [[300]]])).sum(axis=0) + 5
    ),
    "JPEG 2000 of signed values": SeldomFile(SIGNED, DEEP_GREY, refused="values of 16 bits are in a form"),
    "JPEG 2000 in colours of 16 bits": SeldomFile(
        COLOURS_OF_16_BITS, {heads.BITS_16}, refused="Pillow reduces to 8 bits"
    ),
    "JPEG 2000 with alpha": SeldomFile(saved(RGBA, "JPEG2000"), A),
    "JPEG 2000, grey with alpha": SeldomFile(saved(RGBA.convert("LA"), "JPEG2000"), A | G),
    "BMP with a palette": SeldomFile(saved(INDEXED, "BMP"), P, INDICES),
    "BMP with alpha": SeldomFile(_bmp_of_alpha(COLOURS), A, COLOURS),
    "BMP with alpha, without masks": SeldomFile(_bmp_of_alpha(COLOURS, (0, 0, 0, 0)), A, COLOURS),
    "BMP of 32 bits": SeldomFile(_bmp_of_alpha(COLOURS, (0xFF0000, 0xFF00, 0xFF, 0)), set(), COLOURS[..., :3]),
    "BMP, grey": SeldomFile(saved(GREY, "BMP"), G),
    "BMP of 1 bit": SeldomFile(saved(GREY.convert("1"), "BMP"), G),
    "TGA with a palette": SeldomFile(saved(INDEXED, "TGA"), P, INDICES),
    "TGA with alpha": SeldomFile(saved(RGBA, "TGA"), A, COLOURS),
    "PCX with a palette": SeldomFile(saved(INDEXED, "PCX"), P, INDICES),
    "DDS with alpha": SeldomFile(saved(RGBA, "DDS"), A, COLOURS),
    "ICO": SeldomFile(saved(RGBA, "ICO", sizes=[(8, 8)]), A),
    "SGI of 16 bits": SeldomFile(
        _SGI + DEEP[::-1].astype(">u2").tobytes(), DEEP_GREY, refused="Pillow reduces to 8 bits"
    ),
    "PFM": SeldomFile(saved(GREY.convert("F"), "PPM"), {heads.FLOATS, heads.GREY}),
    "PBM": SeldomFile(saved(GREY.resize((40, 30)).convert("1"), "PPM"), G),
    "PGM in one line": SeldomFile(b"P5 8 12 65535 " + DEEP.astype(">u2").tobytes(), DEEP_GREY, DEEP),
    "PGM as text": SeldomFile(
        b"P2\n8 12\n65535\n" + " ".join(map(str, DEEP.ravel())).encode(), DEEP_GREY, refused="written as text"
    ),
    "PNG of 16 bits with a transparent colour": SeldomFile(
        png(DEEP[..., None], (b"tRNS", struct.pack(">H", int(DEEP[3, 3])))), DEEP_GREY | {heads.ALPHA_LOST}, DEEP
    ),
    "PNG of 16 bits a channel with a transparent colour": SeldomFile(
        png(DEEP_COLOURS[..., :3], (b"tRNS", struct.pack(">3H", *map(int, DEEP_COLOURS[3, 3, :3])))),
        {heads.BITS_16, heads.ALPHA_LOST},
        DEEP_COLOURS[..., :3],
    ),
    "PNG with a profile of ImageMagick": SeldomFile(_texts(), TURNED),
    "PNG with a packed profile of ImageMagick": SeldomFile(_texts(packed=True), TURNED),
    "PNG with a profile in Unicode": SeldomFile(_texts(international=True), TURNED),
    "PNG with packed XMP": SeldomFile(_texts(packed=True, international=True, name="XML:com.adobe.xmp"), TURNED),
    "animated PNG whose first image is apart": SeldomFile(
        saved(RGB, "PNG", save_all=True, append_images=[RGB.rotate(180)], default_image=True), FRAMES
    ),
    "WebP with XMP": SeldomFile(saved(RGB, "WEBP", lossless=True, xmp=XMP), TURNED),
    "AVIF with XMP": SeldomFile(saved(RGB, "AVIF", xmp=XMP), TURNED),
    "AVIF with a long profile and alpha": SeldomFile(saved(RGBA, "AVIF", icc_profile=ICC), A),
    "AVIF with a long profile, turned": SeldomFile(saved(RGB, "AVIF", icc_profile=ICC, exif=SIX), TURNED),
    "JPEG of several images": SeldomFile(MPO, FRAMES),
    "JPEG with a map of brightness": SeldomFile(
        _app1(b'http://ns.adobe.com/xap/1.0/\0<x hdrgm:Version="1.0"/>', jpeg=MPO), set()
    ),
    "JPEG with a long orientation": SeldomFile(_app1(_exif(struct.pack(">HHII", 274, 4, 1, 6))), TURNED),
    "JPEG with an orientation of one byte": SeldomFile(
        _app1(_exif(struct.pack("<HHIBBH", 274, 1, 1, 6, 0, 0), "<")), set()
    ),
    "JPEG with EXIF in two parts": SeldomFile(_app1(SIX[:18], b"Exif\0\0" + SIX[18:]), TURNED),
    "JPEG with XMP that EXIF contradicts": SeldomFile(
        _app1(b"http://ns.adobe.com/xap/1.0/\0" + XMP, _exif(struct.pack(">HHIHH", 274, 3, 1, 1, 0))), set()
    ),
}
