"""Which part of an image does a model get, and at which size? A crop decides it from the size of the image.

    RandomResizedCrop    a random part, resized to one size
    CenterCrop           the middle, after the image was resized
    Resize               the whole image
    Pad                  the whole image in its proportion, and a border

A crop is plain data, and `place` a pure function: the random numbers are an argument. The parameters are distributed,
and rounded, as in torchvision's transforms of these names.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from brand.errors import UsageError

MOST_SIDE: Final = 1 << 16
"""Maximum pixels of a side of a result."""
_TRIES: Final = 10
"""Number of random parts that may exceed the image before its middle is taken, as in torchvision."""
_FACTORS: Final = (8, 4, 2)
"""Fractions of the size, 1 / factor, at which a JPEG can be decoded."""
_BLOCK: Final = struct.Struct("<16I")

Size = int | tuple[int, int]


class Placement(NamedTuple):
    """A part of an image, the size to which it is resized, and its place in the result. All numbers are pixels."""

    top: int
    left: int
    height: int
    width: int
    """The part: its rows and columns in the image."""
    rows: int
    columns: int
    """The size to which the part is resized."""
    result: tuple[int, int]
    """Height and width of the result."""
    down: int = 0
    right: int = 0
    """The place of the resized part in the result. If it is negative, that many rows or columns are cut off."""

    @property
    def factor(self) -> int:
        """The largest factor of a JPEG that leaves the part at least as large as it becomes; 1 if there is none."""
        for factor in _FACTORS:
            if self.height >= self.rows * factor and self.width >= self.columns * factor:
                return factor
        return 1

    def on_grid(self, factor: int, height: int, width: int) -> Placement:
        """Return the placement in the pixels of an image of this size that is decoded at `1 / factor` of it.

        The part is moved by at most half a pixel of the smaller image.
        """
        if factor == 1:
            return self
        most_rows, most_columns = -(-height // factor), -(-width // factor)
        top, left = min(round(self.top / factor), most_rows - 1), min(round(self.left / factor), most_columns - 1)
        bottom, right = -(-(self.top + self.height) // factor), -(-(self.left + self.width) // factor)
        if self.top + self.height < height:
            bottom = max(top + 1, min(round((self.top + self.height) / factor), most_rows))
        if self.left + self.width < width:
            right = max(left + 1, min(round((self.left + self.width) / factor), most_columns))
        return self._replace(top=top, left=left, height=bottom - top, width=right - left)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Takes a random part of an image, resized to one size.

    Args:
        size: (height, width) in pixels of the result; an int is a square.
        scale: Smallest and largest area of the part, as fractions of the image's area.
        ratio: Smallest and largest width of the part, as multiples of its height.

    Raises `UsageError` if these are not possible.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        for pair, most, what in ((self.scale, 1.0, "scale= is two fractions of the area"), (self.ratio, 1e4, "ratio=")):
            numbers = isinstance(pair, tuple) and len(pair) == 2 and all(type(each) in (int, float) for each in pair)
            if not numbers or not 0 < pair[0] <= pair[1] <= most:
                raise UsageError(f"{self}: {what}, from the smaller one to the larger one, above 0, at most {most:g}")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of every result."""
        return _both(self.size)

    def place(self, height: int, width: int, numbers: Iterator[float]) -> Placement:
        """Return the part of an image of this size that these random numbers, from 0 to below 1, choose."""
        area, (low, high), (narrow, wide) = height * width, self.scale, self.ratio
        down, across = next(numbers), next(numbers)  # first, so that they are the same after any number of tries
        for _ in range(_TRIES):
            part = area * (low + (high - low) * next(numbers))
            ratio = math.exp(math.log(narrow) + (math.log(wide) - math.log(narrow)) * next(numbers))
            columns, rows = round(math.sqrt(part * ratio)), round(math.sqrt(part / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top, left = int(down * (height - rows + 1)), int(across * (width - columns + 1))
                return Placement(top, left, rows, columns, *self.shape, self.shape)
        rows, columns = height, width
        if width / height < narrow:
            rows = round(width / narrow)
        elif width / height > wide:
            columns = round(height * wide)
        return Placement((height - rows) // 2, (width - columns) // 2, rows, columns, *self.shape, self.shape)


@dataclass(frozen=True)
class CenterCrop:
    """Takes the middle of an image. A smaller image gets a black border.

    Args:
        size: (height, width) in pixels of the result; an int is a square.
        resize: Size to which the image is resized before, as `size` of `Resize`. None: it is not resized.

    Raises `UsageError` if these are not possible.
    """

    size: Size
    resize: Size | None = None

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        if self.resize is not None:
            _check_size(self, self.resize)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of every result."""
        return _both(self.size)

    def place(self, height: int, width: int, numbers: Iterator[float]) -> Placement:  # noqa: ARG002 - not random
        """Return the whole image and its place, of which the middle is in the result."""
        rows, columns = (height, width) if self.resize is None else _resized(height, width, self.resize)
        down, right = (_middle(*sides) for sides in zip((rows, columns), self.shape, strict=True))
        return Placement(0, 0, height, width, rows, columns, self.shape, down, right)


@dataclass(frozen=True)
class Resize:
    """Resizes an image.

    Args:
        size: (height, width) in pixels of the result. An int is the shorter side; the longer one keeps the proportion,
            rounded down, and results differ in size.

    Raises `UsageError` if this is not possible.
    """

    size: Size

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of every result; None if they depend on the image."""
        return None if isinstance(self.size, int) else self.size

    def place(self, height: int, width: int, numbers: Iterator[float]) -> Placement:  # noqa: ARG002 - not random
        """Return the whole image."""
        rows, columns = _resized(height, width, self.size)
        return Placement(0, 0, height, width, rows, columns, (rows, columns))


@dataclass(frozen=True)
class Pad:
    """Resizes an image in its proportion until it just fits, in the middle of a border.

    Args:
        size: (height, width) in pixels of the result; an int is a square.
        fill: Value of the border in each channel, 0 to 255.

    Raises `UsageError` if these are not possible.
    """

    size: Size
    fill: int = 0

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        if type(self.fill) is not int or not 0 <= self.fill <= 255:
            raise UsageError(f"{self}: fill= is 0 to 255")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of every result."""
        return _both(self.size)

    def place(self, height: int, width: int, numbers: Iterator[float]) -> Placement:  # noqa: ARG002 - not random
        """Return the whole image and its place in the border."""
        most_rows, most_columns = self.shape
        if most_rows * width <= most_columns * height:
            rows, columns = most_rows, max(1, most_rows * width // height)
        else:
            rows, columns = max(1, most_columns * height // width), most_columns
        down, right = (most_rows - rows) // 2, (most_columns - columns) // 2
        return Placement(0, 0, height, width, rows, columns, self.shape, down, right)


Crop = RandomResizedCrop | CenterCrop | Resize | Pad


def random_numbers(seed: int) -> Iterator[float]:
    """Yield numbers from 0 to below 1 without end: the same ones for a seed on every machine. `seed` has 64 bits."""
    block = 0
    while True:
        digest = hashlib.blake2b(struct.pack("<QQ", seed, block), digest_size=_BLOCK.size).digest()
        for word in _BLOCK.unpack(digest):
            yield word / (1 << 32)
        block += 1


def _check_size(crop: Crop, size: Size) -> None:
    sides = (size,) if isinstance(size, int) else size
    right = isinstance(sides, tuple) and len(sides) in (1, 2) and (len(sides) == 2 or isinstance(size, int))
    if not right or not all(type(side) is int and 1 <= side <= MOST_SIDE for side in sides):
        raise UsageError(f"{crop}: a size is a number of pixels, or (height, width), each 1 to {MOST_SIDE:,}")


def _both(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _resized(height: int, width: int, size: Size) -> tuple[int, int]:
    """Return the height and width that an image gets; an int is the shorter side."""
    if not isinstance(size, int):
        return size
    return (size, size * width // height) if height <= width else (size * height // width, size)


def _middle(side: int, result: int) -> int:
    """Return the place of a side in the middle of a result, rounded as torchvision's `CenterCrop` does."""
    return (result - side) // 2 if side <= result else -round((side - result) / 2)
