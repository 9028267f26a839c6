"""A Pillow image is stored as the file that it came from, as long as it still is that; else as PNG without loss."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from brand.formats.values import file_of, is_picture


@pytest.fixture(params=["jpg", "png", "webp"])
def path(request: pytest.FixtureRequest, photos: Path) -> Path:
    """A real file of each kind."""
    return next(p for p in sorted(photos.rglob(f"*.{request.param}")))


def test_an_opened_file_is_stored_bit_for_bit(path: Path) -> None:
    """Read or not, from a path or from memory; and it can still be used afterwards."""
    contents = path.read_bytes()
    with Image.open(path) as image:
        assert is_picture(image)
        assert file_of(image) == contents
        image.load()
        assert file_of(image) == contents
    with Image.open(io.BytesIO(contents)) as image:
        stored = file_of(image)
        assert stored == contents or path.suffix == ".webp"  # of which Pillow drops the file when it opens it
        assert image.convert("RGBA").tobytes() == Image.open(io.BytesIO(stored)).convert("RGBA").tobytes()


def smaller(image: Image.Image) -> None:
    image.thumbnail((9, 9))


def drawn(image: Image.Image) -> None:
    ImageDraw.Draw(image).point((0, 0), fill=tuple(255 - v for v in image.convert("RGB").getpixel((0, 0))))  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [smaller, drawn])
def test_pixels_that_were_changed_are_stored(change: Callable[[Image.Image], None], photos: Path) -> None:
    """Also where the image is the object that Pillow opened."""
    with Image.open(photos / "tools" / sorted(p.name for p in (photos / "tools").iterdir())[0]) as opened:
        image = opened if opened.mode == "RGB" else opened.convert("RGB")
        change(image)
        again = Image.open(io.BytesIO(file_of(image)))
        assert again.format == "PNG"
        assert (again.mode, again.size, again.tobytes()) == (image.mode, image.size, image.tobytes())


def test_a_changed_jpeg_is_not_its_file(photos: Path) -> None:
    """Pillow keeps the name of the file on an image that was changed in place."""
    path = photos / "markers" / "left01.jpg"
    with Image.open(path) as image:
        image.load()
        image.putpixel((0, 0), 255 - image.getpixel((0, 0)))  # type: ignore[operator]
        assert image.filename == str(path)
        stored = file_of(image)
        assert stored != path.read_bytes()
        assert Image.open(io.BytesIO(stored)).tobytes() == image.tobytes()


def test_a_file_that_is_gone_leaves_the_pixels(photos: Path, tmp_path: Path) -> None:
    """So does one that was replaced meanwhile."""
    path = tmp_path / "x.jpg"
    path.write_bytes((photos / "markers" / "left01.jpg").read_bytes())
    with Image.open(path) as image:
        image.load()
        path.write_bytes((photos / "markers" / "left05.jpg").read_bytes())
        assert Image.open(io.BytesIO(file_of(image))).tobytes() == image.tobytes()
        path.unlink()
        assert Image.open(io.BytesIO(file_of(image))).tobytes() == image.tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_modes_that_png_holds_lose_nothing(mode: str) -> None:
    """Pixels and mode come back."""
    image = Image.linear_gradient("L").convert("RGB" if mode in ("P", "RGBA", "LA") else "L").convert(mode)
    again = Image.open(io.BytesIO(file_of(image)))
    assert again.size == image.size
    assert again.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize("mode", ["CMYK", "HSV", "YCbCr"])
def test_modes_that_png_does_not_hold_are_refused(mode: str) -> None:
    """With what to give instead."""
    with pytest.raises(TypeError, match=rf"cannot store pixels of mode {mode}: give image.convert\('RGB'\)"):
        file_of(Image.new(mode, (4, 4)))


def test_other_values_are_no_pictures() -> None:
    """Bytes and arrays."""
    assert not any(map(is_picture, (b"x", "x", None, Image)))
