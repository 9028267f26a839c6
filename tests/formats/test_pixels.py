"""Pixels of image files: compared with Pillow, with what was written, and with what `datasets` turns upright."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from brand import DecodeImage, DecodeMask
from brand.errors import UsageError
from brand.formats import heads
from brand.formats.heads import traits_of
from brand.formats.pixels import Clipped, clipped, decode_image
from tests.formats.test_heads import CASES, DEEP, RGB, SEE_THROUGH, saved
from tests.tools.imagefiles import SELDOM, png, tiff

UNCHANGED = DecodeImage(mode="unchanged")
RANDOM = np.random.default_rng(3)
PALETTE = Image.fromarray(RANDOM.integers(0, 21, (40, 20), dtype=np.uint8)).convert("L")
CLASSES = np.asarray(PALETTE)


def mask_file(form: str = "PNG", **options: Any) -> bytes:
    """A mask of 21 classes with a palette, as those of Pascal VOC."""
    image = Image.fromarray(CLASSES, "L").convert("P")
    image.putdata(CLASSES.ravel().tolist())
    image.putpalette([value for k in range(256) for value in (k * 37 % 256, k * 91 % 256, k * 53 % 256)])
    return saved(image, form, **options)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


PLAIN = [name for name in CASES if name not in ("audio", "nothing")]


@pytest.mark.parametrize("name", PLAIN)
def test_unchanged_is_the_array_of_pillow(name: str) -> None:
    """Values, shape and kind of numbers."""
    data = CASES[name][0]
    expected = np.asarray(opened(data))
    found = UNCHANGED(data)
    assert np.array_equal(found, expected)
    assert found.dtype == expected.dtype.newbyteorder("=")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_other_modes_are_those_of_pillow(name: str, mode: Any) -> None:
    """Of the colours behind a transparency, too."""
    data = CASES[name][0]
    image = opened(data)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    expected = image.convert("RGBA") if mode == "RGBA" else image.convert("RGB").convert(mode)
    found = DecodeImage(mode=mode)(data)
    assert found.dtype == np.uint8
    assert found.shape == (*expected.size[::-1], len(mode))
    assert np.abs(found.reshape(np.asarray(expected).shape).astype(int) - np.asarray(expected)).max() <= 1
    assert np.array_equal(np.asarray(decode_image(data, mode)), np.asarray(expected))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_png_of_16_bits_keeps_them(channels: int) -> None:
    """In one channel and in several, of which Pillow keeps 8."""
    values = RANDOM.integers(0, 1 << 16, (9, 7, channels), dtype=np.uint16)
    found = UNCHANGED(png(values))
    assert found.dtype == np.uint16
    assert np.array_equal(found, values[..., 0] if channels == 1 else values)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize(
    ("dtype", "channels"),
    [("u2", 1), ("u2", 3), ("i2", 1), ("i4", 1), ("u4", 1), ("f4", 1), ("u1", 1), ("u1", 3), ("i1", 1)],
)
def test_a_tiff_keeps_its_values(order: Literal["<", ">"], dtype: str, channels: int, *, deflated: bool) -> None:
    """Of each kind of numbers that Pillow opens, also the large ones."""
    if (dtype, order) == ("u4", ">"):
        pytest.skip("Pillow does not open it")
    info = np.iinfo(dtype) if dtype[0] != "f" else None
    shape = (9, 7, channels)
    values = RANDOM.integers(info.min, info.max, shape, dtype, endpoint=True) if info else RANDOM.normal(0, 1e6, shape)
    values = values.astype(dtype)
    found = UNCHANGED(tiff(values, order=order, deflated=deflated))
    assert np.array_equal(found, values[..., 0] if channels == 1 else values)
    assert found.dtype == np.dtype({"i2": "i4"}.get(dtype, dtype))


@pytest.mark.parametrize("most", [20, 255, 256, 4095, 65535])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_pnm_keeps_its_values(channels: int, most: int) -> None:
    """Pillow scales them to 255 or to 65,535."""
    values = RANDOM.integers(0, most, (9, 7, channels), endpoint=True).astype(np.uint8 if most < 256 else np.uint16)
    head = b"P%d\n# a comment\n7 9\n%d\n" % (5 if channels == 1 else 6, most)
    data = head + values.astype(values.dtype.newbyteorder(">")).tobytes()
    assert np.array_equal(UNCHANGED(data), values[..., 0] if channels == 1 else values)
    if channels == 1:
        assert np.array_equal(np.asarray(decode_image(data, "unchanged")), values[..., 0])
    assert set(DecodeMask(size=(3, 3))(data).ravel().tolist()) <= set(values.ravel().tolist())
    assert (heads.BITS_16 in traits_of(data)) == (most > 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_deep_images_are_turned_and_resized(orientation: int) -> None:
    """Channel by channel, as Pillow turns and resizes one."""
    values = RANDOM.integers(0, 1 << 16, (9, 7, 3), dtype=np.uint16)
    exif = Image.Exif()
    exif[274] = orientation
    data = png(values, (b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))
    methods = [None, None, 0, 3, 1, 5, 4, 6, 2]
    for how in (DecodeImage(mode="unchanged", upright=True), DecodeMask(size=(5, 4), upright=True)):
        expected = []
        for channel in range(3):
            image = Image.fromarray(np.ascontiguousarray(values[..., channel]))
            method = methods[orientation]
            image = image if method is None else image.transpose(Image.Transpose(method))
            expected.append(np.asarray(image if how.size is None else image.resize((4, 5), Image.Resampling.NEAREST)))
        assert np.array_equal(how(data), np.stack(expected, axis=-1))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_is_what_datasets_does(form: str, orientation: int) -> None:
    """`PIL.ImageOps.exif_transpose`, for each orientation; and by default nothing is turned."""
    data = saved(RGB, form, orientation)
    expected = np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB"))
    assert np.abs(DecodeImage(upright=True)(data).astype(int) - expected).max() <= 1
    assert np.array_equal(np.asarray(decode_image(data, turn=True)), expected)
    assert np.array_equal(DecodeImage(mode="unchanged", upright=True)(data), expected)
    plain = np.asarray(opened(data).convert("RGB"))
    for how in (DecodeImage(), DecodeImage(upright=False)):
        assert np.abs(how(data).astype(int) - plain).max() <= 1
    assert np.array_equal(np.asarray(decode_image(data)), plain)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("how", [{"size": (30, 50)}, {"shorter": 37}, {"shorter": 300}])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_sizes_are_those_of_the_upright_image(form: str, how: dict[str, Any], orientation: int) -> None:
    """Height and width, and the pixels are those of the turned image that is resized."""
    y, x = np.mgrid[:400, :600] / 600
    smooth = Image.fromarray((np.stack([x, y, (x + y) / 2], axis=-1) * 255).astype(np.uint8))
    data = saved(smooth, form, orientation)
    found = DecodeImage(**how, upright=True)(data)
    whole = ImageOps.exif_transpose(opened(data)).convert("RGB")
    expected = whole.resize(found.shape[1::-1], Image.Resampling.BILINEAR)
    if "size" in how:
        assert found.shape[:2] == how["size"]
    else:
        assert min(found.shape[:2]) == how["shorter"]
        assert abs(found.shape[1] / found.shape[0] - whole.width / whole.height) < 0.02
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= (0 if form == "PNG" else 6)


@pytest.mark.parametrize("form", ["PNG", "GIF", "TIFF"])
def test_a_mask_keeps_its_classes(form: str) -> None:
    """The indices of a palette, whatever its colours, in the shape (height, width)."""
    found = DecodeMask()(mask_file(form))
    assert np.array_equal(found, CLASSES)
    assert found.dtype == np.uint8


@pytest.mark.parametrize("how", [{"size": (13, 31)}, {"size": (80, 40)}, {"shorter": 7}, {"shorter": 33}])
@pytest.mark.parametrize("kind", ["palette", "grey", "16 bits", "colours", "grey jpeg", "bits"])
def test_resizing_a_mask_makes_no_classes(kind: str, how: dict[str, Any]) -> None:
    """Each value of the result is a value of the file."""
    data = {
        "palette": mask_file(),
        "grey": saved(PALETTE, "PNG"),
        "16 bits": saved(DEEP, "PNG"),
        "colours": saved(RGB, "PNG"),
        "grey jpeg": saved(PALETTE.resize((160, 320)), "JPEG"),
        "bits": saved(PALETTE.point(lambda v: 255 * (v > 10)).convert("1"), "PNG"),
    }[kind]
    whole, found = DecodeMask()(data), DecodeMask(**how)(data)
    assert found.dtype == whole.dtype
    values = whole.reshape(-1, *whole.shape[2:])
    assert set(map(bytes, found.reshape(-1, *found.shape[2:]))) <= set(map(bytes, values))
    expected = opened(data).resize(found.shape[1::-1], Image.Resampling.NEAREST)
    assert np.array_equal(found, np.asarray(expected))


def test_a_mask_is_turned_as_its_image() -> None:
    """With `upright`, if its file says so."""
    data = mask_file(orientation=6)
    assert np.array_equal(DecodeMask(upright=True)(data), np.rot90(CLASSES, -1))
    assert np.array_equal(DecodeMask()(data), CLASSES)


@pytest.mark.parametrize("form", ["TIFF", "GIF", "PNG", "WEBP"])
def test_frames_are_those_of_pillow(form: str) -> None:
    """Each of three, and an error for a fourth that says how many there are."""
    others = [RGB.rotate(90).resize(RGB.size), SEE_THROUGH.convert("RGB")]
    data = saved(RGB, form, save_all=True, append_images=others, **({"lossless": True} if form == "WEBP" else {}))
    seen = []
    for frame in range(3):
        image = opened(data)
        image.seek(frame)
        expected = np.asarray(image.convert("RGB"))
        found = DecodeImage(frame=frame)(data)
        assert np.array_equal(found, expected)
        seen.append(found.tobytes())
    assert len(set(seen)) == 3
    with pytest.raises(ValueError, match="it has 3 frames, counted from 0, and frame 3 is asked for"):
        DecodeImage(frame=3)(data)
    with pytest.raises(ValueError, match="it has 3 frames"):
        DecodeImage(frame=3, mode="unchanged")(data)


@pytest.mark.parametrize("form", ["JPEG", "BMP"])
def test_a_file_of_one_frame_has_no_other(form: str) -> None:
    """And says so."""
    with pytest.raises(ValueError, match="it has 1 frame"):
        DecodeImage(frame=1)(saved(RGB, form))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SELDOM)
def test_seldom_files_keep_their_values_or_are_refused(name: str) -> None:
    """The values that were written, else those of Pillow; a form that Pillow does not keep is an error."""
    file = SELDOM[name]
    if {heads.UNOPENED, heads.CHANNELS_LOST} & file.traits or file.refused:
        with pytest.raises(ValueError, match=file.refused or "the image format is unknown|more than the . channels"):
            UNCHANGED(file.data)
    else:
        found = UNCHANGED(file.data)
        assert np.array_equal(found, np.asarray(opened(file.data)) if file.values is None else file.values)
    if heads.UNOPENED in file.traits:
        return
    image = opened(file.data)
    image = image.convert("LA") if image.mode == "La" else image
    assert np.abs(DecodeImage()(file.data).astype(int) - np.asarray(image.convert("RGB"))).max() <= 1
    assert np.array_equal(DecodeImage(mode="RGBA")(file.data), np.asarray(image.convert("RGBA")))


@pytest.mark.filterwarnings("ignore")
def test_damaged_exif_turns_nothing() -> None:
    """The pixels are good."""
    data = saved(RGB, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert np.array_equal(DecodeImage(upright=True)(data), DecodeImage()(data))


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not told anything yet."""
    for name, value in vars(Clipped()).items():
        monkeypatch.setattr(clipped, name, value)


DEEP_FILES = {
    "png of 16 bits": png(RANDOM.integers(0, 1 << 16, (9, 7, 1), dtype=np.uint16)),
    "tiff of int32": tiff(RANDOM.integers(-9, 1 << 20, (9, 7, 1), dtype=np.int32)),
    "tiff of floats": tiff(RANDOM.random((9, 7, 1), dtype=np.float32)),
    "tiff of large floats": tiff(RANDOM.random((9, 7, 1), dtype=np.float32) * 1000),
}


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("name", DEEP_FILES)
def test_the_first_clipped_image_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with what helps; and that helps."""
    with caplog.at_level(logging.WARNING, "brand"):
        UNCHANGED(DEEP_FILES[name])
        assert not caplog.records
        DecodeImage()(DEEP_FILES[name])
        decode_image(DEEP_FILES[name])
        DecodeImage(mode="L")(DEEP_FILES[name])
    assert len(caplog.records) == 1
    assert "decode={FIELD: DecodeImage(mode='unchanged')} keeps its values" in caplog.text


@pytest.mark.usefixtures("untold")
def test_values_that_fit_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is a loss of nothing."""
    data = png(RANDOM.integers(0, 256, (9, 7, 1), dtype=np.uint16))
    with caplog.at_level(logging.WARNING, "brand"):
        assert np.array_equal(DecodeImage(mode="L")(data), UNCHANGED(data)[:, :, None])
    assert not caplog.records


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "P"}, {"upright": 1}, {"upright": "yes"}, {"frame": -1}, {"frame": 1.5}, {"frame": True}, {"mode": None}],
)
def test_impossible_specs_are_refused(wrong: dict[str, Any]) -> None:
    """When they are made."""
    with pytest.raises(UsageError):
        DecodeImage(**wrong)


@pytest.mark.filterwarnings("ignore")
@given(name=st.sampled_from(PLAIN), at=st.integers(0, 4000), byte=st.integers(0, 255), cut=st.integers(0, 4000))
def test_damage_is_pixels_or_a_value_error(name: str, at: int, byte: int, cut: int) -> None:
    """In each mode."""
    data = bytearray(CASES[name][0])
    data[at % len(data)] = byte
    data = data[: max(1, len(data) - cut)] if cut < 200 else data
    for how in (DecodeMask(upright=True), DecodeImage(mode="RGBA"), DecodeImage(upright=True, shorter=5)):
        with contextlib.suppress(ValueError):
            how(bytes(data))
