"""How is an image or audio file decoded, and converted to the size or rate that a model needs?

These are the deterministic steps, before any random transform. A decode spec is plain data. The same bytes give the
same values on every machine with the same decoder: simplejpeg for JPEG if it is installed, else Pillow; libsndfile
(package `soundfile`) for audio, and soxr for another rate. A JPEG that becomes at most half as large is decoded at 1/2,
1/4 or 1/8 of its size, which skips much of the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError, SchemaError, UsageError
from brand.formats.header import ELEMENTS, Schema
from brand.formats.media import as_rgb, decode_audio, open_image, pillow_errors, soundfile
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

Mode = Literal["RGB", "L"]
Filter = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
MOST_PIXELS: Final = 1 << 16
"""Maximum pixels of a side."""
MOST_IN_ALL: Final = 1 << 28
"""Maximum pixels of a result: a file of one by a million pixels has no proportion that any shorter side could keep."""
MOST_FRAMES: Final = 1 << 20
"""Maximum frames a second."""


@dataclass(frozen=True)
class DecodeImage:
    """Decodes images to uint8, shape (height, width, channels).

    Args:
        shorter: Pixels of the shorter side; the longer one keeps the proportion, rounded down. None: see `size`.
        size: (height, width) in pixels. None: given by `shorter`, and if both are None by the file.
        mode: "RGB", or "L" for one grey channel.
        filter: Resampling filter, named as in Pillow: "nearest", "box", "bilinear", "bicubic" or "lanczos".

    Raises `UsageError` if these are not possible.
    """

    codec: ClassVar[str] = "image"
    """Codec of the fields that it decodes."""
    shorter: int | None = None
    size: tuple[int, int] | None = None
    mode: Mode = "RGB"
    filter: Filter = "bilinear"

    def __post_init__(self) -> None:
        sides = (self.shorter,) if self.size is None else self.size
        if self.size is not None and (self.shorter is not None or not isinstance(sides, tuple) or len(sides) != 2):
            raise UsageError(f"{self}: give shorter=, or size=(height, width)")
        for side in sides:
            if side is not None and (type(side) is not int or not 1 <= side <= MOST_PIXELS):
                raise UsageError(f"{self}: a side has 1 to {MOST_PIXELS:,} pixels")
        if self.mode not in get_args(Mode) or self.filter not in get_args(Filter):
            raise UsageError(
                f"{self}: modes are {', '.join(get_args(Mode))}; filters are {', '.join(get_args(Filter))}"
            )

    def __call__(self, data: Buffer) -> NDArray[np.uint8]:
        """Return the pixels of a file. Raises ValueError if it cannot be decoded."""
        from PIL import Image

        with pillow_errors(), open_image(data) as image:
            target = self._target(*image.size)
            if target[0] * target[1] > MOST_IN_ALL:
                raise ValueError(f"{target[0]:,} x {target[1]:,} pixels are more than {MOST_IN_ALL:,}")
            small = self._decoded(data, image, target)
            if small.size != target:
                small = small.resize(target, Image.Resampling[self.filter.upper()])
            pixels = np.array(small)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels

    def _target(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the result."""
        if self.size is not None:
            return self.size[1], self.size[0]
        if self.shorter is None:
            return width, height
        least = min(width, height)
        return width * self.shorter // least, height * self.shorter // least

    def _decoded(self, data: Buffer, image: Image.Image, target: tuple[int, int]) -> Image.Image:
        """Return the image, at least as large as the result if the file is; `image` is not loaded yet."""
        width, height = image.size
        if image.format == "JPEG" and image.mode in ("RGB", "L"):
            factor = next((k for k in (8, 4, 2) if width // k >= target[0] and height // k >= target[1]), 1)
            fast = self._by_simplejpeg(data, (width, height), factor)
            if fast is not None:
                return fast
            if factor > 1:
                image.draft(None, (width // factor, height // factor))
        rgb = as_rgb(image)
        return rgb if self.mode == "RGB" else rgb.convert("L")

    def _by_simplejpeg(self, data: Buffer, size: tuple[int, int], factor: int) -> Image.Image | None:
        """Decode a JPEG of this width and height at 1 / `factor` size; None if simplejpeg is missing or refuses it."""
        from PIL import Image

        try:
            import simplejpeg

            width, height = (-(-side // factor) for side in size)
            pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width)
        except (ImportError, ValueError):
            return None  # Pillow decodes some files that simplejpeg refuses, and its error names the fault
        made = Image.fromarray(pixels)
        return made if self.mode == "RGB" else made.convert("L")


@dataclass(frozen=True)
class DecodeAudio:
    """Decodes audio to float32, -1 to 1, shape (frames,), or (channels, frames) with `mono=False`.

    Args:
        rate: Frames a second, resampled by soxr. None: the rate of the file.
        mono: Whether channels are averaged to one.

    Raises `UsageError` if the rate is not possible.
    """

    codec: ClassVar[str] = "audio"
    """Codec of the fields that it decodes."""
    rate: int | None = None
    mono: bool = True

    def __post_init__(self) -> None:
        if self.rate is not None and (type(self.rate) is not int or not 1 <= self.rate <= MOST_FRAMES):
            raise UsageError(f"{self}: a rate is 1 to {MOST_FRAMES:,} frames a second")

    def __call__(self, data: Buffer) -> NDArray[np.float32]:
        """Return the samples of a file. Raises ValueError if it cannot be decoded, `MissingExtraError`."""
        clip = decode_audio(data)
        samples = clip.samples.mean(axis=0, keepdims=True, dtype=np.float32) if self.mono else clip.samples
        if self.rate is not None and self.rate != clip.rate:
            samples = np.ascontiguousarray(_soxr().resample(samples.T, clip.rate, self.rate).T)
        return samples[0] if self.mono else samples


Preparation = DecodeImage | DecodeAudio


def checked(
    decode: Mapping[str, Preparation], schema: Schema, fields: Collection[str] | None
) -> dict[str, Preparation]:
    """Check decode specs of fields.

    The fields must exist, be decoded, have the right codec or be lists of it, and be among `fields` (None: all). Raises
    `SchemaError`, `UsageError`.
    """
    kinds = dict(schema.fields)
    for name, how in decode.items():
        if not isinstance(how, Preparation):
            raise UsageError(f"decode={{{name!r}: {how!r:.60}}}: give DecodeImage(...) or DecodeAudio(...)")
        codec = kinds.get(name, "")
        if ELEMENTS.get(codec, codec) != how.codec:
            there = ", ".join(f"{field}: {codec}" for field, codec in kinds.items())
            raise SchemaError(f"decode= names {name!r}, which is no field of kind {how.codec!r}; there are {there}")
        if fields is not None and name not in fields:
            raise SchemaError(f"decode= names {name!r}, which is not among the fields {', '.join(fields)}")
    return dict(decode)


def for_server(decode: Mapping[str, Preparation], schema: Schema) -> dict[str, Preparation]:
    """Return the decode specs that a data server can apply: the elements of lists are decoded by the client."""
    return {name: how for name, how in decode.items() if schema.codec(name) not in ELEMENTS}


def to_json(how: Preparation) -> dict[str, Any]:
    return {"codec": how.codec, **asdict(how)}


def from_json(value: Mapping[str, Any]) -> Preparation:
    """Parse and check the values of `to_json`. Raises `UsageError`."""
    kinds: dict[str, type[Preparation]] = {kind.codec: kind for kind in (DecodeImage, DecodeAudio)}
    codec, rest = value.get("codec"), {name: of for name, of in value.items() if name != "codec"}
    if isinstance(rest.get("size"), list):
        rest["size"] = tuple(rest["size"])
    if not isinstance(codec, str) or codec not in kinds or not isinstance(rest.get("mono", True), bool):
        raise UsageError(f"no preparation is {dict(value)!r:.200}")
    try:
        return kinds[codec](**rest)
    except TypeError:
        raise UsageError(f"no preparation is {dict(value)!r:.200}") from None


def decoders(codec: str) -> dict[str, str]:
    """Return the libraries that decode a codec in this process, and their versions: others may give other values.

    Raises `MissingExtraError`.
    """
    if codec == DecodeAudio.codec:
        try:
            rates = _soxr().__version__
        except MissingExtraError:  # audio that keeps its rate needs no resampler
            rates = None
        versions = {"libsndfile": soundfile().__libsndfile_version__, "soxr": rates, "numpy": np.__version__}
        return {name: str(version) for name, version in versions.items()}
    import PIL
    from PIL import features

    try:
        from simplejpeg import __version__ as fast
    except ImportError:
        fast = None
    parts = {name: features.version(name) for name in ("libjpeg_turbo", "jpg", "jpg_2000", "webp", "libtiff")}
    return {name: str(version) for name, version in {"Pillow": PIL.__version__, "simplejpeg": fast, **parts}.items()}


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise MissingExtraError("another rate= needs the package soxr: pip install 'brand-data[audio]'") from error
    return soxr
