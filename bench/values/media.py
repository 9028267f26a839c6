"""Images and sounds of many kinds, small, equal in each run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

_SIZE: Final = (24, 16)
TEN_BITS_AVIF: Final = (
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUIAAAD5bWV0YQAAAAAAAAAvaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
    "AFBpY3R1cmVIYW5kbGVyAAAAAA5waXRtAAAAAAABAAAAHmlsb2MAAAAARAAAAQABAAAAAQAAASEAAAApAAAAKGlpbmYAAAAAAAEA"
    "AAAaaW5mZQIAAAAAAQAAYXYwMUNvbG9yAAAAAGppcHJwAAAAS2lwY28AAAAUaXNwZQAAAAAAAABAAAAAQAAAABBwaXhpAAAAAAMK"
    "CgoAAAAMYXYxQ4EATAAAAAATY29scm5jbHgAAgACAAIAAAAAF2lwbWEAAAAAAAAAAQABBAECgwQAAAAxbWRhdAoKAAAAAq//jV84"
    "CDIbEAC6AgssUUEAAAgFsvCSQfzoL7hZjA7/luS4"
)
"""A grey ramp of 64 x 64 pixels in 10 bits, in Base64: Pillow writes 8 bits."""
ORIENTATION: Final = 274
"""Number of the EXIF tag."""


def pixels(mode: str = "RGB", seed: int = 0, size: tuple[int, int] = _SIZE) -> Image.Image:
    """Return an image of smooth values and some noise, in a mode of Pillow."""
    random = np.random.default_rng(seed)
    width, height = size
    across, down = np.meshgrid(np.linspace(0, 200, width), np.linspace(0, 50, height))
    smooth = np.stack([across + down, 250 - across, down * 4 + seed % 40], axis=-1)
    rgb = np.clip(smooth + random.integers(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(rgb[..., 0].astype(np.uint16) * 250 + 17)
    if mode == "I":
        return Image.fromarray(rgb[..., 0].astype(np.int32) * 70_000)
    if mode == "F":
        return Image.fromarray(rgb[..., 0].astype(np.float32) / 300)
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray((across + 20).astype(np.uint8))
        made = Image.fromarray(rgb).convert(mode[:-1])
        made.putalpha(alpha)
        return made
    if mode == "P":
        return Image.fromarray(rgb).quantize(16)
    return Image.fromarray(rgb).convert(mode)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """Return the bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def turned(image: Image.Image, orientation: int = 6) -> bytes:
    """Return a JPEG that EXIF turns."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, "JPEG", exif=exif)


def image_files() -> dict[str, bytes]:
    """Return image files of many kinds: name -> bytes. The names sort in this order."""
    frames = [pixels("RGB", seed) for seed in (1, 2, 3)]
    transparent = pixels("P", 4)
    return {
        "a1.jpg": encoded(pixels("RGB", 1), "JPEG"),
        "a10.JPEG": encoded(pixels("RGB", 2), "JPEG", quality=60, subsampling=2),
        "a2.JPG": encoded(pixels("L", 3), "JPEG"),
        "b-cmyk.jpg": encoded(pixels("CMYK", 4), "JPEG"),
        "b-progressive.jpeg": encoded(pixels("RGB", 5, (70, 45)), "JPEG", progressive=True),
        "b-turned.jpg": turned(pixels("RGB", 6)),
        "c-rgb.PNG": encoded(pixels("RGB", 7), "PNG"),
        "c-rgba.png": encoded(pixels("RGBA", 8), "PNG"),
        "d-16.png": encoded(pixels("I;16", 9), "PNG"),
        "d-1.png": encoded(pixels("1", 10), "PNG"),
        "d-grey.png": encoded(pixels("L", 11), "PNG"),
        "d-la.png": encoded(pixels("LA", 12), "PNG"),
        "d-palette.png": encoded(pixels("P", 13), "PNG"),
        "d-see-through.png": encoded(transparent, "PNG", transparency=3),
        "e-float.tif": encoded(pixels("F", 14), "TIFF"),
        "e-int32.tif": encoded(pixels("I", 15), "TIFF"),
        "e-pages.tiff": encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]),
        "e-lzw.tif": encoded(pixels("RGB", 16), "TIFF", compression="tiff_lzw"),
        "f.bmp": encoded(pixels("RGB", 17), "BMP"),
        "f.ppm": encoded(pixels("RGB", 18), "PPM"),
        "f.pgm": encoded(pixels("L", 19), "PPM"),
        "g.webp": encoded(pixels("RGB", 20), "WEBP", lossless=True),
        "g-rgba.webp": encoded(pixels("RGBA", 21), "WEBP", lossless=True),
        "g-lossy.webp": encoded(pixels("RGB", 22, (64, 40)), "WEBP", quality=50),
    }


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def wave(seconds: float = 0.5, rate: int = 16_000, channels: int = 1, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return a sweep with a little noise: float64, (frames, channels), -1 to 1."""
    random = np.random.default_rng(seed)
    at = np.arange(round(seconds * rate)) / rate
    sweep = 0.4 * np.sin(2 * np.pi * (220 + 400 * at[:, None]) * at[:, None] * (1 + 0.1 * np.arange(channels)))
    made: np.ndarray[Any, Any] = sweep + random.normal(0, 0.01, sweep.shape)
    return made


def by_ffmpeg(container: str, codec: str, samples: np.ndarray[Any, Any], rate: int, **options: str) -> bytes:
    """Return an audio file that FFmpeg's libraries encode from (frames, channels)."""
    import av

    buffer = io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[samples.shape[1]]
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout=layout)
        stream.options = dict(options)
        resampler = av.AudioResampler(
            stream.codec_context.format, layout, rate, stream.codec_context.frame_size or 1024
        )
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T, np.float32), "fltp", layout)
        frame.sample_rate = rate
        frame.time_base = Fraction(1, rate)
        frame.pts = 0
        for each in [*resampler.resample(frame), *resampler.resample(None)]:
            for packet in stream.encode(each):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return buffer.getvalue()
