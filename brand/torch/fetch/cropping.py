"""How does an image file become the crop that a model gets? Decoded no larger than needed, then resized by PyTorch.

`brand.formats.crops` decides the part and its place from the seed of the sample. The resize is that of torchvision's
transforms (v2) for uint8 tensors: antialiased, channels last, and written into the row of the batch without a copy.

Every function of PyTorch gives the interpreter lock up, and waits for it again. If many threads decode, this costs more
than small functions do. So views are made by NumPy, and PyTorch is called once or twice for an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.crops import Pad, Placement, random_numbers
from brand.formats.parts import Pixels, decode_part, image_size
from brand.formats.preparation import DecodeImage
from brand.formats.targets import mask_of, moved, placed
from brand.formats.values import Buffer
from brand.reprs import Reprs
from brand.torch.pytorch import missing_torch, torch

_OPERATORS: Final = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}
"""Filter -> the operator of PyTorch that `torch.nn.functional.interpolate` calls with antialias=True."""


def placement_of(how: DecodeImage, height: int, width: int, seed: int) -> tuple[Placement, bool]:
    """Return the crop of an image of this size that `seed` chooses, and whether it is mirrored."""
    assert how.crop is not None
    numbers = random_numbers(seed)
    mirrored = next(numbers) < how.flip
    return how.crop.place(height, width, numbers), mirrored


class TargetMover(Reprs, shows="_how"):
    """Moves the boxes, points and masks of images with their crops, as a spec says that has `targets`. Picklable."""

    def __init__(self, how: DecodeImage) -> None:
        self._how, self.targets = how, dict(how.targets or {})

    def __call__(self, file: Buffer, seed: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the targets for the crop of an image file that `seed` chooses.

        `values` has those of the sample, by name. Raises ValueError, which names the target that does not fit.
        """
        height, width = image_size(self._how, file)
        at, mirrored = placement_of(self._how, height, width, seed)
        found = {}
        for name, kind in self.targets.items():
            value = values[name]
            try:
                if isinstance(kind, str):
                    found[name] = moved(value, kind, at, mirrored=mirrored)
                    continue
                mask = kind(value.data if isinstance(value, np.ndarray) else value)
                if mask.shape[:2] != (height, width):
                    sizes = f"{mask.shape[1]} x {mask.shape[0]} pixels, and its image {width} x {height}"
                    raise ValueError(f"it has {sizes}: a mask moves with an image of its own size")
                found[name] = mask_of(mask, at, mirrored=mirrored)
            except ValueError as error:
                raise ValueError(f"{name!r}, a target of the crop: {error}") from error
        return found


class ImageCropper(Reprs, shows="_how"):
    """Decodes images to crops, as a spec says that has a `crop`. Picklable. Raises `MissingExtraError` without PyTorch.

    Threads may share it.
    """

    def __init__(self, how: DecodeImage) -> None:
        if torch is None:
            raise missing_torch("DecodeImage(crop=...) resizes with PyTorch")
        assert how.crop is not None
        self._how = how
        self._fill = how.crop.fill if isinstance(how.crop, Pad) else 0
        self._scale = None if how.normalize is None else [np.array(each, np.float32) for each in how.normalize]

    def __call__(self, data: Buffer, seed: int, row: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the crop of a file that `seed` chooses, shape (height, width, channels).

        If `row` is given, which has that shape, the crop is written there. Raises ValueError if the file cannot be
        decoded.
        """
        mirrored, scale = [False], self._scale

        def place(height: int, width: int) -> Placement:
            at, mirrored[0] = placement_of(self._how, height, width, seed)
            return at

        pixels, at = decode_part(self._how, data, place)
        if row is None:
            row = np.empty((*at.result, pixels.shape[2]), np.uint8 if scale is None else np.float32)
        canvas = row if scale is None else np.empty(row.shape, np.uint8)
        self._draw(pixels, at, canvas)
        if mirrored[0]:
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
        placed(resized, at, canvas)

    def _resize(self, part: Pixels, size: tuple[int, int], out: Pixels) -> None:
        if part.shape[:2] == size:
            out[...] = part
            return
        planes, rows = (torch.from_numpy(each.transpose(2, 0, 1)[None]) for each in (part, out))
        operator = getattr(torch._C._nn, _OPERATORS[self._how.filter])
        operator(planes, size, align_corners=False, out=rows)
