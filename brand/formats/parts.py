"""From an image file to the pixels that a crop needs: decoded no larger than that.

The crop is resized elsewhere (`brand.torch.fetch.cropping`), because that takes PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brand.formats.crops import Placement
from brand.formats.jpeg import jpeg_pixels, jpeg_size
from brand.formats.media import pillow_errors
from brand.formats.pixels import in_mode, method_of, open_frame
from brand.formats.preparation import ACROSS, DecodeImage
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]


def decode_part(how: DecodeImage, data: Buffer, place: Callable[[int, int], Placement]) -> tuple[Pixels, Placement]:
    """Return pixels, shape (height, width, channels), and the placement of the crop in them.

    `place` returns the placement in an image of a height and a width. Raises ValueError if the file cannot be decoded.
    """
    size = None if how.frame or how.mode == "RGBA" else jpeg_size(data)
    if size is None or how.upright:
        return _by_head(how, data, size, place)
    width, height = size
    placement = place(height, width)
    factor = placement.factor if how.scaled else 1
    pixels = jpeg_pixels(data, size, factor)
    if pixels is None:
        return _by_head(how, data, None, place)
    return _in_channels(how, pixels), placement.on_grid(factor, height, width)


def image_size(how: DecodeImage, data: Buffer) -> tuple[int, int]:
    """Return height and width of the image in a file. Raises ValueError if the file has no head of an image."""
    size = None if how.frame or how.upright else jpeg_size(data)
    if size is not None:
        return size[1], size[0]
    with pillow_errors(), open_frame(data, how.frame) as image:
        return _upright_size(how, image)


def _upright_size(how: DecodeImage, image: Image.Image) -> tuple[int, int]:
    """Return height and width of an image, turned if `how` says so."""
    method = method_of(image) if how.upright else None
    return image.size if method is not None and method.name in ACROSS else image.size[::-1]


def _by_head(
    how: DecodeImage, data: Buffer, size: tuple[int, int] | None, place: Callable[[int, int], Placement]
) -> tuple[Pixels, Placement]:
    """Decode a file whose head Pillow reads. `size`: width and height for simplejpeg; None: Pillow decodes."""
    from PIL import Image as library

    with pillow_errors(), open_frame(data, how.frame) as image:
        method = method_of(image) if how.upright else None
        height, width = _upright_size(how, image)
        placement, factor = place(height, width), 1
        if image.format == "JPEG" and image.mode in ("RGB", "L") and how.scaled and how.mode != "RGBA":
            factor = placement.factor
        fast = None if size is None else jpeg_pixels(data, size, factor)
        if fast is None and factor > 1:
            image.draft(None, (image.width // factor, image.height // factor))
        made = in_mode(image, how.mode) if fast is None else library.fromarray(fast)
        pixels = np.array(made if method is None else made.transpose(method))
    return _in_channels(how, pixels), placement.on_grid(factor, height, width)


def _in_channels(how: DecodeImage, pixels: Pixels) -> Pixels:
    """Return pixels in RGB, or in the mode of `how`, with the channels of that mode."""
    if how.mode == "L" and pixels.ndim == 3:
        from PIL import Image as library

        pixels = np.array(library.fromarray(pixels).convert("L"))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
