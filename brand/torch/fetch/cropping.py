"""How does an image file become the crop that a model gets? Decoded no larger than needed, then resized by PyTorch.

`brand.formats.crops` decides the part and its place from the seed of the sample. The resize is that of torchvision's
transforms (v2) for uint8 tensors: antialiased, channels last, and written into the row of the batch without a copy.

Every function of PyTorch gives the interpreter lock up, and waits for it again. If many threads decode, this costs more
than small functions do. So views are made by NumPy, and PyTorch is called once or twice for an image.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.crops import Pad, Placement, random_numbers
from brand.formats.parts import Pixels, decode_part
from brand.formats.preparation import DecodeImage
from brand.formats.values import Buffer
from brand.reprs import Reprs
from brand.torch.pytorch import missing_torch, torch

_OPERATORS: Final = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}
"""Filter -> the operator of PyTorch that `torch.nn.functional.interpolate` calls with antialias=True."""


class ImageCropper(Reprs, shows="_how"):
    """Decodes images to crops, as a spec says that has a `crop`. Picklable. Raises `MissingExtraError` without PyTorch.

    Threads may share it.
    """

    def __init__(self, how: DecodeImage) -> None:
        if torch is None:
            raise missing_torch("DecodeImage(crop=...) resizes with PyTorch")
        assert how.crop is not None
        self._how, self._crop = how, how.crop
        self._fill = self._crop.fill if isinstance(self._crop, Pad) else 0
        self._scale = None if how.normalize is None else [np.array(each, np.float32) for each in how.normalize]

    def __call__(self, data: Buffer, seed: int, row: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the crop of a file that `seed` chooses, shape (height, width, channels).

        If `row` is given, which has that shape, the crop is written there. Raises ValueError if the file cannot be
        decoded.
        """
        numbers, crop, scale = list[float](), self._crop, self._scale

        def place(height: int, width: int) -> Placement:
            source = random_numbers(seed)
            numbers[:] = (next(source),)
            return crop.place(height, width, source)

        pixels, at = decode_part(self._how, data, place)
        if row is None:
            row = np.empty((*at.result, pixels.shape[2]), np.uint8 if scale is None else np.float32)
        canvas = row if scale is None else np.empty(row.shape, np.uint8)
        self._draw(pixels, at, canvas)
        if numbers[0] < self._how.flip:
            tensor = torch.from_numpy(canvas)
            torch.ops.aten.flip.out(tensor, [1], out=tensor)
        if scale is not None:  # in the order of torchvision's ToDtype(scale=True) and Normalize
            np.divide(canvas, np.float32(255), out=row)
            row -= scale[0]
            row /= scale[1]
        return row

    def _draw(self, pixels: Pixels, at: Placement, canvas: Pixels) -> None:
        """Resize a part of `pixels` to its place in `canvas`; both have the shape (height, width, channels)."""
        part = pixels[at.top : at.top + at.height, at.left : at.left + at.width]
        size = at.rows, at.columns
        if at.result == size and not at.down and not at.right:
            self._resize(part, size, canvas)
            return
        resized = part
        if size != (at.height, at.width):
            resized = np.empty((*size, pixels.shape[2]), np.uint8)
            self._resize(part, size, resized)
        canvas[...] = self._fill
        down, right = max(0, at.down), max(0, at.right)
        seen = resized[max(0, -at.down) :, max(0, -at.right) :][: at.result[0] - down, : at.result[1] - right]
        canvas[down : down + seen.shape[0], right : right + seen.shape[1]] = seen

    def _resize(self, part: Pixels, size: tuple[int, int], out: Pixels) -> None:
        if part.shape[:2] == size:
            out[...] = part
            return
        planes, rows = (torch.from_numpy(each.transpose(2, 0, 1)[None]) for each in (part, out))
        operator = getattr(torch._C._nn, _OPERATORS[self._how.filter])
        operator(planes, size, align_corners=False, out=rows)
