"""How do boxes, points and masks of an image move with its crop?

Coordinates are pixels of the image, and become pixels of the result. They are those of torchvision's transforms of the
same names: boxes are cut at the border of the result, points are not.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brand.formats.crops import Placement

Coordinates = Literal["xyxy", "xywh", "cxcywh", "xy"]
"""The numbers along the last axis of an array: two corners of a box; its first corner and its size; its middle and its
size; or a point."""
COORDINATES: Final = get_args(Coordinates)


def moved(values: Any, kind: Coordinates, at: Placement, *, mirrored: bool) -> NDArray[np.floating[Any]]:
    """Return boxes, or points, in the pixels of the result: an array of the shape of `values`, float32 for integers.

    Boxes outside the result have an area of 0. Raises ValueError if the shape is not (..., 4), or (..., 2) of points.
    """
    given = np.asarray(values)
    numbers = 2 if kind == "xy" else 4
    if given.shape == (0,):
        given = given.reshape(0, numbers)
    if given.shape[-1:] != (numbers,) or given.dtype.kind not in "iuf":
        raise ValueError(f"{kind!r} is an array of shape (..., {numbers}), and this is {given.dtype} {given.shape}")
    points = given.reshape(*given.shape[:-1], numbers // 2, 2).astype(np.float64)
    if kind == "xywh":
        points[..., 1, :] += points[..., 0, :]
    elif kind == "cxcywh":
        middle, half = points[..., 0, :].copy(), points[..., 1, :] / 2
        points[..., 0, :], points[..., 1, :] = middle - half, middle + half
    points -= at.left, at.top
    points *= at.columns / at.width, at.rows / at.height
    points += at.right, at.down
    height, width = at.result
    if mirrored:
        points[..., 0] = width - points[..., 0]
    if kind != "xy":
        if mirrored:
            points[..., 0] = points[..., ::-1, 0].copy()
        points.clip(0, (width, height), out=points)
    if kind == "xywh":
        points[..., 1, :] -= points[..., 0, :]
    elif kind == "cxcywh":
        low, high = points[..., 0, :].copy(), points[..., 1, :].copy()
        points[..., 0, :], points[..., 1, :] = (low + high) / 2, high - low
    dtype = given.dtype if given.dtype.kind == "f" else np.float32
    return points.reshape(np.shape(values)).astype(dtype)


def mask_of(pixels: NDArray[Any], at: Placement, *, mirrored: bool) -> NDArray[Any]:
    """Return the part of a mask, resized to the nearest values, shape (height, width) of the result; 0 is the border.

    `pixels` has the size of the image, shape (height, width) or (height, width, channels).
    """
    rows, columns = nearest(at.height, at.rows) + at.top, nearest(at.width, at.columns) + at.left
    result = placed(pixels[rows[:, None], columns], at, np.zeros((*at.result, *pixels.shape[2:]), pixels.dtype))
    return result[:, ::-1].copy() if mirrored else result


def placed(resized: NDArray[Any], at: Placement, canvas: NDArray[Any]) -> NDArray[Any]:
    """Write the resized part of an image to its place in the result (`canvas`). Return the result."""
    down, right = max(0, at.down), max(0, at.right)
    seen = resized[max(0, -at.down) :, max(0, -at.right) :][: at.result[0] - down, : at.result[1] - right]
    canvas[down : down + seen.shape[0], right : right + seen.shape[1]] = seen
    return canvas


def nearest(size: int, to: int) -> NDArray[np.int64]:
    """Return for each of `to` pixels the nearest one of `size`, rounded as by PyTorch's interpolation "nearest"."""
    scaled = np.arange(to, dtype=np.float32) * np.float32(size / to)
    return np.minimum(scaled.astype(np.int64), size - 1)
