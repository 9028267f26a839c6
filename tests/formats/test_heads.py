"""Which properties does the head of an image tell? Compared with what Pillow says of the same file."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from brand.formats import heads
from brand.formats.heads import traits_of
from brand.formats.manyheads import plain_kinds
from brand.formats.record import Records
from tests.tools.imagefiles import SELDOM

RGB = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 20, 3), dtype=np.uint8))
DEEP = Image.fromarray(np.arange(800, dtype=np.uint16).reshape(40, 20) * 80)
SEE_THROUGH = RGB.convert("RGBA").rotate(45)
OTHERS = [RGB.transpose(Image.Transpose.ROTATE_180), SEE_THROUGH.convert("RGB")]


def saved(image: Image.Image, form: str, orientation: int | None = None, **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][274] = orientation
    image.save(file, form, **options)
    return file.getvalue()


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


TEN_BITS = base64.b64decode(
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUIAAAD5bWV0YQAAAAAAAAAvaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
    "AFBpY3R1cmVIYW5kbGVyAAAAAA5waXRtAAAAAAABAAAAHmlsb2MAAAAARAAAAQABAAAAAQAAASEAAAApAAAAKGlpbmYAAAAAAAEA"
    "AAAaaW5mZQIAAAAAAQAAYXYwMUNvbG9yAAAAAGppcHJwAAAAS2lwY28AAAAUaXNwZQAAAAAAAABAAAAAQAAAABBwaXhpAAAAAAMK"
    "CgoAAAAMYXYxQ4EATAAAAAATY29scm5jbHgAAgACAAIAAAAAF2lwbWEAAAAAAAAAAQABBAECgwQAAAAxbWRhdAoKAAAAAq//jV84"
    "CDIbEAC6AgssUUEAAAgFsvCSQfzoL7hZjA7/luS4"
)
"""An AVIF file of 10 bits, which Pillow does not write."""
FRAMES: dict[str, Any] = {"save_all": True, "append_images": OTHERS}
CASES = {
    "plain jpeg": (saved(RGB, "JPEG"), set()),
    "plain png": (saved(RGB, "PNG"), set()),
    "plain webp": (saved(RGB, "WEBP"), set()),
    "plain tiff": (saved(RGB, "TIFF"), set()),
    "plain avif": (saved(RGB, "AVIF"), set()),
    "plain jp2": (saved(RGB, "JPEG2000"), set()),
    "plain bmp": (saved(RGB, "BMP"), set()),
    "jpeg upright": (saved(RGB, "JPEG", 1), set()),
    "jpeg turned": (saved(RGB, "JPEG", 6), {heads.TURNED}),
    "jpeg mirrored": (saved(RGB, "JPEG", 2), {heads.TURNED}),
    "jpeg out of range": (saved(RGB, "JPEG", 9), set()),
    "jpeg turned by xmp": (saved(RGB, "JPEG", xmp=xmp(6)), {heads.TURNED}),
    "jpeg whose exif wins": (saved(RGB, "JPEG", 1, xmp=xmp(6)), set()),
    "png turned": (saved(RGB, "PNG", 8), {heads.TURNED}),
    "webp turned": (saved(RGB, "WEBP", 3), {heads.TURNED}),
    "avif turned": (saved(RGB, "AVIF", 6), {heads.TURNED}),
    "tiff that Pillow turns": (saved(RGB, "TIFF", 6), set()),
    "grey jpeg": (saved(RGB.convert("L"), "JPEG"), {heads.GREY}),
    "grey png of 1 bit": (saved(RGB.convert("1"), "PNG"), {heads.GREY}),
    "grey png with alpha": (saved(RGB.convert("LA"), "PNG"), {heads.GREY, heads.ALPHA}),
    "cmyk jpeg": (saved(RGB.convert("CMYK"), "JPEG"), {heads.CMYK}),
    "cmyk tiff": (saved(RGB.convert("CMYK"), "TIFF"), {heads.CMYK}),
    "png of 16 bits": (saved(DEEP, "PNG"), {heads.BITS_16, heads.GREY}),
    "tiff of 16 bits": (saved(DEEP, "TIFF"), {heads.BITS_16, heads.GREY}),
    "jp2 of 16 bits": (saved(DEEP, "JPEG2000"), {heads.BITS_16, heads.GREY}),
    "tiff of 32 bits": (saved(RGB.convert("I"), "TIFF"), {heads.BITS_32, heads.GREY}),
    "tiff of floats": (saved(RGB.convert("F"), "TIFF"), {heads.FLOATS, heads.GREY}),
    "palette png": (saved(RGB.convert("P"), "PNG"), {heads.PALETTE}),
    "png with a transparent colour": (saved(RGB.convert("P"), "PNG", transparency=3), {heads.PALETTE, heads.ALPHA}),
    "palette tiff": (saved(RGB.convert("P"), "TIFF"), {heads.PALETTE}),
    "gif": (saved(RGB, "GIF"), {heads.PALETTE}),
    "gif with a transparent colour": (saved(SEE_THROUGH, "GIF"), {heads.PALETTE, heads.ALPHA}),
    "png with alpha": (saved(SEE_THROUGH, "PNG"), {heads.ALPHA}),
    "webp with alpha": (saved(SEE_THROUGH, "WEBP"), {heads.ALPHA}),
    "lossless webp with alpha": (saved(SEE_THROUGH, "WEBP", lossless=True), {heads.ALPHA}),
    "tiff with alpha": (saved(SEE_THROUGH, "TIFF"), {heads.ALPHA}),
    "avif with alpha": (saved(SEE_THROUGH, "AVIF"), {heads.ALPHA}),
    "tiff of pages": (saved(RGB, "TIFF", **FRAMES), {heads.FRAMES}),
    "animated gif": (saved(RGB.convert("P"), "GIF", **FRAMES), {heads.PALETTE, heads.FRAMES}),
    "animated png": (saved(RGB, "PNG", **FRAMES), {heads.FRAMES}),
    "animated webp": (saved(RGB, "WEBP", **FRAMES), {heads.FRAMES}),
    "animated avif": (saved(RGB, "AVIF", **FRAMES), {heads.FRAMES}),
    "avif of 10 bits": (TEN_BITS, {heads.BITS_LOST}),
    "audio": (b"RIFF\0\0\0\0WAVE" + bytes(100), set()),
    "nothing": (b"", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_head_tells_the_traits(name: str) -> None:
    """The traits are these."""
    data, expected = CASES[name]
    assert set(traits_of(data)) == expected
    assert set(traits_of(memoryview(data))) == expected


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("audio", "nothing")])
def test_pillow_says_the_same(name: str) -> None:
    """Mode, orientation and number of frames are those that Pillow finds."""
    data, _ = CASES[name]
    traits = set(traits_of(data))
    with Image.open(io.BytesIO(data)) as image:
        turned = image.getexif().get(274, 1) in range(2, 9) and image.format != "TIFF"
        assert (heads.TURNED in traits) == turned
        assert (heads.FRAMES in traits) == (getattr(image, "n_frames", 1) > 1)
        assert (heads.CMYK in traits) == (image.mode == "CMYK")
        assert (heads.PALETTE in traits) == (image.mode == "P")
        assert (heads.BITS_16 in traits) == image.mode.startswith("I;16")
        assert (heads.BITS_32 in traits) == (image.mode == "I")
        assert (heads.FLOATS in traits) == (image.mode == "F")
        assert (heads.GREY in traits) == (image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16"))
        assert (heads.ALPHA in traits) == (image.mode in ("RGBA", "LA") or "transparency" in image.info)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SELDOM)
def test_seldom_files_tell_their_traits(name: str) -> None:
    """Alone, and among many; Pillow opens, turns and counts frames as the traits say."""
    file = SELDOM[name]
    assert set(traits_of(file.data)) == file.traits
    kinds = plain_kinds(Records.of([CASES["plain jpeg"][0], CASES["plain png"][0], file.data] * 8))
    assert kinds[2] == 0 or (kinds[2] in kinds[:2]) == (not file.traits)
    if heads.UNOPENED in file.traits:
        with pytest.raises(UnidentifiedImageError):
            Image.open(io.BytesIO(file.data))
        return
    with Image.open(io.BytesIO(file.data)) as image:
        assert (heads.TURNED in file.traits) == (image.getexif().get(274, 1) in range(2, 9))
        assert (heads.FRAMES in file.traits) == (getattr(image, "n_frames", 1) > 1)


@given(st.sampled_from(sorted(CASES)), st.data())
def test_damage_raises_nothing(name: str, data: st.DataObject) -> None:
    """A cut file, or one with a wrong byte, has some traits or none."""
    file = bytearray(CASES[name][0])
    if file:
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    assert set(traits_of(bytes(file[: data.draw(st.integers(0, len(file)))]))) <= set(heads.TRAITS)


@given(st.lists(st.tuples(st.sampled_from(sorted(CASES)), st.integers(0, 4000), st.integers(0, 255)), max_size=20))
def test_many_files_at_once_are_those_one_by_one(changes: list[tuple[str, int, int]]) -> None:
    """All files with one number of `plain_kinds` have the same traits, also if a byte is another."""
    files = [data for data, _ in CASES.values()]
    for name, at, byte in changes:
        changed = bytearray(CASES[name][0])
        if at < len(changed):
            changed[at] = byte
        files.append(bytes(changed))
    files *= 8  # fewer are left to the walk through each
    kinds = plain_kinds(Records.of(files))
    found: dict[int, set[str]] = {}
    for kind, data in zip(kinds.tolist(), files, strict=True):
        if kind:
            assert found.setdefault(kind, set(traits_of(data))) == set(traits_of(data))
    assert np.count_nonzero(kinds) >= 5


def test_chunks_of_a_png_before_its_pixels_are_passed_over() -> None:
    """Texts, resolution, a transparent colour and many pieces of pixels; EXIF behind the pixels is seen."""
    info = PngImagePlugin.PngInfo()
    for number in range(5):
        info.add_text(f"Comment {number}", "x" * number)
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (300, 200, 3), dtype=np.uint8))
    plain = saved(noise, "PNG", pnginfo=info, dpi=(72, 72))
    clear = saved(noise.convert("P"), "PNG", pnginfo=info, transparency=7)
    assert plain.count(b"IDAT") > 2
    exif = saved(RGB, "PNG", 6)
    start = exif.index(b"eXIf") - 4
    chunk = exif[start : start + 12 + int.from_bytes(exif[start : start + 4])]
    behind = plain[:-12] + chunk + plain[-12:]
    kinds = plain_kinds(Records.of([plain, clear, behind] * 10))  # some together, the last few one by one
    assert (kinds[:9] > 0).tolist() == [True, True, False] * 3
    assert [set(traits_of(data)) for data in (plain, clear, behind)] == [
        set(),
        {heads.PALETTE, heads.ALPHA},
        {heads.TURNED},
    ]


@pytest.mark.parametrize("order", ["II", "MM"])
def test_exif_of_many_jpegs_is_read_together(order: str) -> None:
    """The orientation among other entries, none, and a second APP1 that is too late; XMP and cut data are left out."""

    def app1(*entries: tuple[int, int], offset: int = 8) -> bytes:
        form = "<" if order == "II" else ">"
        data = b"Exif\0\0" + order.encode() + struct.pack(f"{form}HI H", 42, offset, len(entries))
        data += b"".join(struct.pack(f"{form}HHIHH", tag, 3, 1, value, 0) for tag, value in entries) + bytes(4)
        return b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data

    frame = saved(RGB, "JPEG")[2:]
    none, upright, turned = app1((1, 5)), app1((1, 5), (274, 1)), app1((1, 5), (274, 8), (306, 3))
    xmp = b'\xff\xe1\0\x38http://ns.adobe.com/xap/1.0/\0tiff:Orientation="6"     '
    cases = [none, upright, turned, none + turned, upright + turned, turned + upright, app1((274, 9)), app1()]
    files = [b"\xff\xd8" + case + frame for case in (*cases, xmp, app1((274, 6), offset=9), turned[:-8])]
    kinds = plain_kinds(Records.of(files * 8))[: len(files)]
    plain = kinds > 0
    assert plain.tolist() == [True, True, True, False, True, True, True] + [False] * 4
    said = [heads.TURNED in traits_of(file) for file in files]
    assert (kinds[plain] >= 256).tolist() == [turned for turned, one in zip(said, plain, strict=True) if one]
    assert said[:7] == [Image.open(io.BytesIO(file)).getexif().get(274, 1) in range(2, 9) for file in files[:7]]
