"""How is an image or audio file decoded, and converted to the size or rate that a model needs?

These are the deterministic steps, before any random transform. A decode spec is plain data. The same bytes give the
same values on every machine with the same decoder: simplejpeg for JPEG if it is installed, else Pillow; libsndfile
(package `soundfile`) for audio, FFmpeg (package `av`) for kinds of it that libsndfile does not open, and soxr for
another rate. A JPEG that becomes at most half as large is decoded at 1/2,
1/4 or 1/8 of its size, which skips much of the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError, SchemaError, UsageError, cause_of, missing_extra
from brand.formats.audio import Waveform, decode_audio, ffmpeg, soundfile
from brand.formats.crops import Crop, random_numbers
from brand.formats.header import ELEMENTS, DecodeDefault, Schema
from brand.formats.jpeg import jpeg_pixels
from brand.formats.media import pillow_errors
from brand.formats.pixels import in_mode, method_of, open_frame, unchanged
from brand.formats.targets import COORDINATES, Coordinates
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

Mode = Literal["RGB", "L", "RGBA", "unchanged"]
Filter = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
CHANNELS: Final[dict[str, int]] = {"RGB": 3, "L": 1, "RGBA": 4}
"""Channels of the modes in which all images have equally many."""
ACROSS: Final = ("TRANSPOSE", "TRANSVERSE", "ROTATE_90", "ROTATE_270")
"""Transpositions after which an image is as wide as it was high."""
MOST_PIXELS: Final = 1 << 16
"""Maximum pixels of a side."""
MOST_IN_ALL: Final = 1 << 28
"""Maximum pixels of a result: a file of one by a million pixels has no proportion that any shorter side could keep."""
MOST_FRAMES: Final = 1 << 20
"""Maximum frames a second."""
MOST_SECONDS: Final = 1 << 24
"""Maximum seconds of an offset or a stretch of audio: half a year."""


@dataclass(frozen=True)
class DecodeImage:
    """Decodes images to uint8, shape (height, width, channels), or to the array that the file holds.

    Args:
        shorter: Pixels of the shorter side; the longer one keeps the proportion, rounded down. None: see `size`.
        size: (height, width) in pixels. None: given by `shorter`, and if both are None by the file.
        mode: "RGB", "RGBA", or "L" for one grey channel, all uint8. "unchanged": the array that the file holds, such as
            palette indices, uint16, int32 or float32, of shape (height, width) if it has one channel.
        filter: Resampling filter, named as in Pillow: "nearest", "box", "bilinear", "bicubic" or "lanczos".
        upright: Whether the image is turned as EXIF says. None: as the data set says, else not.
        frame: Frame of an animation, or page of a TIFF, from 0.
        crop: `RandomResizedCrop(...)`, `CenterCrop(...)`, `Resize(...)` or `Pad(...)`, in place of `shorter` and
            `size`: the part of the image that is decoded. It is resized by PyTorch to the pixels that torchvision's
            transforms of these names (v2, antialiased) give. `filter` is "bilinear" or "bicubic". A crop is random by
            the seed and the epoch of the sampler and the index of the sample.
        flip: Probability that the crop is mirrored, left to right.
        scaled: Whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, if the crop is at least as large as the result
            then.
        normalize: (means, standard deviations), one number for each channel, of values from 0 to 1: the crop becomes
            float32, `(pixels / 255 - mean) / deviation`.
        targets: Fields that move with the crop, by name: "xyxy", "xywh" or "cxcywh" for arrays of boxes, of shape
            (..., 4), "xy" for points, (..., 2), all in pixels of the image; `DecodeMask()` for a mask of the same size.
            Boxes are cut at the border of the result, and those outside have an area of 0.

    Raises `UsageError` if these are not possible.
    """

    codec: ClassVar[str] = "image"
    """Codec of the fields that it decodes."""
    shorter: int | None = None
    size: tuple[int, int] | None = None
    mode: Mode = "RGB"
    filter: Filter = "bilinear"
    upright: bool | None = None
    frame: int = 0
    crop: Crop | None = None
    flip: float = 0.0
    scaled: bool = True
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    targets: Mapping[str, Coordinates | DecodeMask] | None = field(default=None, hash=False)

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
        known = self.upright is None or isinstance(self.upright, bool)
        if not known or type(self.frame) is not int or not 0 <= self.frame < MOST_FRAMES:
            raise UsageError(f"{self}: upright is True or False, and frames are 0 to {MOST_FRAMES - 1:,}")
        self._check_crop()

    def _check_crop(self) -> None:
        if self.crop is None:
            if (self.flip, self.scaled, self.normalize, self.targets) != (0.0, True, None, None):
                raise UsageError(
                    f"{self}: flip=, scaled=, normalize= and targets= are for a crop: give crop=, as Resize(224)"
                )
            return
        if not isinstance(self.crop, Crop):
            kinds = ", ".join(f"{kind.__name__}(...)" for kind in get_args(Crop))
            raise UsageError(f"{self}: crop= is one of {kinds}")
        if (self.shorter, self.size) != (None, None):
            raise UsageError(f"{self}: the crop has the size of the result: leave out shorter= and size=")
        if self.mode not in CHANNELS or self.filter not in ("bilinear", "bicubic"):
            raise UsageError(f"{self}: a crop has the mode {', '.join(CHANNELS)}, and filter bilinear or bicubic")
        if type(self.flip) not in (int, float) or not 0 <= self.flip <= 1 or not isinstance(self.scaled, bool):
            raise UsageError(f"{self}: flip= is a probability, 0 to 1, and scaled= True or False")
        self._check_targets()
        if self.normalize is None:
            return
        given, channels = self.normalize, CHANNELS[self.mode]
        pairs = isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, tuple) for each in given)
        if not pairs or {len(each) for each in given} != {channels} or 0 in given[1]:
            raise UsageError(f"{self}: normalize= is (means, deviations), each a tuple of {channels} numbers")

    def _check_targets(self) -> None:
        if not isinstance(self.targets, Mapping | None):
            raise UsageError(f"{self}: targets= is a dict of fields, such as {{'boxes': 'xyxy', 'mask': DecodeMask()}}")
        for name, kind in (self.targets or {}).items():
            mask = isinstance(kind, DecodeMask) and (kind.shorter, kind.size, kind.crop) == (None, None, None)
            if not mask and kind not in COORDINATES:
                kinds = ", ".join(map(repr, COORDINATES))
                raise UsageError(f"targets={{{name!r}: {kind!r:.80}}}: give {kinds}, or DecodeMask() without a size")

    @property
    def form(self) -> tuple[tuple[int, ...], type[np.generic]] | None:
        """Shape and dtype that all results have; None if they depend on the file."""
        sides = self.size if self.crop is None else self.crop.shape
        if sides is None or self.mode not in CHANNELS:
            return None
        return (*sides, CHANNELS[self.mode]), np.uint8 if self.normalize is None else np.float32

    def __call__(self, data: Buffer) -> NDArray[Any]:
        """Return the pixels of a file. Raises ValueError if it cannot be decoded."""
        if self.crop is not None:
            raise UsageError(f"{self}: a BrandDataset applies the crop, with its random numbers")
        if self.mode == "unchanged":
            return unchanged(data, self.frame, turn=self.upright is True, resize=self._resized)
        with pillow_errors(), open_frame(data, self.frame) as image:
            pixels = np.array(self._resized(*self._decoded(data, image)))
        return pixels[:, :, None] if pixels.ndim == 2 else pixels

    def _resized(self, image: Image.Image, target: tuple[int, int] | None = None) -> Image.Image:
        """Return the image in the width and height of the result; `target`: as they follow from the whole image."""
        from PIL import Image as library

        target = self._target(*image.size) if target is None else target
        return image if image.size == target else image.resize(target, library.Resampling[self.filter.upper()])

    def _target(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the result."""
        if self.size is not None:
            return self.size[1], self.size[0]
        target = width, height
        if self.shorter is not None:
            least = min(width, height)
            target = width * self.shorter // least, height * self.shorter // least
        if target[0] * target[1] > MOST_IN_ALL:
            raise ValueError(f"{target[0]:,} x {target[1]:,} pixels are more than {MOST_IN_ALL:,}")
        return target

    def _decoded(self, data: Buffer, image: Image.Image) -> tuple[Image.Image, tuple[int, int]]:
        """Return the image, at least as large as the result if the file is, and width and height of the result.

        `image` is not loaded yet.
        """
        size = image.size
        method = method_of(image) if self.upright else None
        across = method is not None and method.name in ACROSS
        target = self._target(*size[::-1])[::-1] if across else self._target(*size)
        made = None
        if image.format == "JPEG" and image.mode in ("RGB", "L") and self.mode != "RGBA":
            whole = self.filter == "nearest"  # a value of the file: at a fraction of the size, a pixel is a mean
            factors = () if whole else (8, 4, 2)
            factor = next((k for k in factors if size[0] // k >= target[0] and size[1] // k >= target[1]), 1)
            made = self._by_simplejpeg(data, size, factor)
            if made is None and factor > 1:
                image.draft(None, (size[0] // factor, size[1] // factor))
        made = in_mode(image, self.mode) if made is None else made
        if method is not None:
            made = made.transpose(method)
        return made, target[::-1] if across else target

    def _by_simplejpeg(self, data: Buffer, size: tuple[int, int], factor: int) -> Image.Image | None:
        """Decode a JPEG of this width and height at 1 / `factor` size; None if simplejpeg is missing or refuses it."""
        from PIL import Image

        pixels = jpeg_pixels(data, size, factor)
        if pixels is None:
            return None
        made = Image.fromarray(pixels)
        return made if self.mode == "RGB" else made.convert("L")


@dataclass(frozen=True)
class DecodeMask(DecodeImage):
    """Decodes masks to the array that the file holds, such as the class of each pixel; resizing makes no new values.

    It is `DecodeImage(mode="unchanged", filter="nearest")`: shape (height, width), or (height, width, channels) of a
    mask that is stored in colours. Give `size`, `shorter` and `upright` as for the image that it belongs to.
    """

    mode: Mode = field(default="unchanged", init=False)
    filter: Filter = field(default="nearest", init=False)


@dataclass(frozen=True)
class DecodeAudio:
    """Decodes audio to float32, -1 to 1, shape (frames,), or (channels, frames) with `mono=False`.

    Args:
        rate: Frames a second, resampled by soxr. None: the rate of the file.
        mono: Whether channels are averaged to one.
        seconds: Length of the stretch that is decoded, shorter if the file ends before. None: up to the end.
        offset: Seconds at the begin of the file that are left out. "random": a stretch of `seconds` from anywhere in
            the file, by the seed and the epoch of the sampler and the index of the sample. Only the stretch is decoded,
            where the format permits.

    Raises `UsageError` if these are not possible.
    """

    codec: ClassVar[str] = "audio"
    """Codec of the fields that it decodes."""
    rate: int | None = None
    mono: bool = True
    seconds: float | None = None
    offset: float | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        if self.rate is not None and (type(self.rate) is not int or not 1 <= self.rate <= MOST_FRAMES):
            raise UsageError(f"{self}: a rate is 1 to {MOST_FRAMES:,} frames a second")
        if self.offset == "random" and self.seconds is None:
            raise UsageError(f"{self}: offset='random' needs seconds=, the length of the part")
        offset = 0.0 if self.offset == "random" else self.offset
        for value, least in ((self.seconds, "more than 0"), (offset, "0 or more")):
            if value is not None and (type(value) not in (int, float) or not 0 <= value <= MOST_SECONDS):
                raise UsageError(f"{self}: seconds are {least}, and at most {MOST_SECONDS:,}")
        if self.seconds == 0 or self.offset is None:
            raise UsageError(f"{self}: seconds are more than 0, and offset is 0 or more, or 'random'")

    def __call__(self, data: Buffer) -> NDArray[np.float32]:
        """Return the samples of a file. Raises ValueError if it cannot be decoded, `MissingExtraError`."""
        if self.offset == "random":
            raise UsageError(f"{self}: a BrandDataset chooses the part, with its random numbers")
        return self._finished(decode_audio(data, self.offset, self.seconds))

    def _finished(self, clip: Waveform) -> NDArray[np.float32]:
        """Return the samples with the channels and the rate of the spec."""
        samples = clip.samples.mean(axis=0, keepdims=True, dtype=np.float32) if self.mono else clip.samples
        if self.rate is not None and self.rate != clip.rate:
            samples = _resampled(samples, clip.rate, self.rate)
        return samples[0] if self.mono else samples


def random_part(how: DecodeAudio, data: Buffer, seed: int) -> NDArray[np.float32]:
    """Return the part of a file that `seed` chooses. Raises as a call of `how` does."""
    return how._finished(decode_audio(data, seconds=how.seconds, chance=next(random_numbers(seed))))


Preparation = DecodeImage | DecodeAudio
_OF_CROPS: Final = ("crop", "flip", "scaled", "normalize", "targets")
"""Parameters that no data server gets."""


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
            raise UsageError(
                f"decode={{{name!r}: {how!r:.60}}}: give DecodeImage(...), DecodeMask(...) or DecodeAudio(...)"
            )
        codec = kinds.get(name, "")
        if ELEMENTS.get(codec, codec) != how.codec:
            there = ", ".join(f"{field}: {codec}" for field, codec in kinds.items())
            raise SchemaError(f"decode= names {name!r}, which is no field of kind {how.codec!r}; there are {there}")
        if fields is not None and name not in fields:
            raise SchemaError(f"decode= names {name!r}, which is not among the fields {', '.join(fields)}")
        for target, kind in (getattr(how, "targets", None) or {}).items():
            _check_target(name, target, kind, decode, kinds, fields)
    return dict(decode)


def _check_target(
    image: str,
    name: str,
    kind: Coordinates | DecodeMask,
    decode: Mapping[str, Preparation],
    kinds: Mapping[str, str],
    fields: Collection[str] | None,
) -> None:
    """Raise `SchemaError` if a field cannot move with the crop of the field `image`."""
    what = f"targets= of {image!r} names {name!r}"
    if kinds[image] in ELEMENTS:
        raise SchemaError(f"{what}, and {image!r} is a list of images: targets= is for a single one")
    if name not in kinds or (fields is not None and name not in fields):
        raise SchemaError(f"{what}, which is not among the fields {', '.join(kinds if fields is None else fields)}")
    if name in decode:
        raise SchemaError(f"{what}, which decode= names, too: give one of them")
    others = [
        other for other, how in decode.items() if other != image and name in (getattr(how, "targets", None) or ())
    ]
    if others:
        raise SchemaError(f"{what}, which is a target of {others[0]!r}, too: it can move with one image only")
    if isinstance(kind, DecodeMask) != (kinds[name] == "image"):
        wanted = "DecodeMask() is for a field of images" if isinstance(kind, DecodeMask) else "it needs DecodeMask()"
        raise SchemaError(f"{what}, a field of kind {kinds[name]!r}: {wanted}")


def resolved(decode: Mapping[str, Preparation], defaults: Mapping[str, DecodeDefault]) -> dict[str, Preparation]:
    """Return decode specs in which `upright` is that of the data set, if the user did not say it."""
    return {name: _turned(how, name, defaults) for name, how in decode.items()}


def _turned(how: Any, name: str, defaults: Mapping[str, DecodeDefault]) -> Any:
    if isinstance(how, DecodeImage) and how.upright is None:
        how = replace(how, upright=defaults.get(name, DecodeDefault()).upright)
    if isinstance(how, DecodeImage) and how.targets:
        how = replace(how, targets={each: _turned(kind, each, defaults) for each, kind in how.targets.items()})
    return how


def defaults_of(decode: Mapping[str, DecodeImage], schema: Schema) -> dict[str, DecodeDefault]:
    """Return decode specs as the decode defaults of a data set. Raises `UsageError` for more than mode and orientation.

    Raises `SchemaError` for a field that has no images.
    """
    for name, how in checked(decode, schema, None).items():
        usual = isinstance(how, DecodeImage) and (how.shorter, how.size, how.frame, how.crop) == (None, None, 0, None)
        if not isinstance(how, DecodeImage) or not usual:
            raise UsageError(
                f"decode={{{name!r}: {how!r:.120}}}: a data set remembers mode= and upright= only; give the others to"
                " BrandDataset(decode=...)"
            )
    made = {name: DecodeDefault(how.mode, how.upright is True) for name, how in decode.items()}
    return {name: default for name, default in made.items() if default != DecodeDefault()}


def is_random(how: Preparation) -> bool:
    """Return whether each epoch gets another part of a file."""
    return how.offset == "random" if isinstance(how, DecodeAudio) else how.crop is not None


def for_server(decode: Mapping[str, Preparation], schema: Schema) -> dict[str, Preparation]:
    """Return the decode specs that a data server can apply.

    The client decodes the elements of lists. It decodes what is random, too: each epoch and each job has its own.
    """
    return {name: how for name, how in decode.items() if schema.codec(name) not in ELEMENTS and not is_random(how)}


def to_json(how: Preparation) -> dict[str, Any]:
    """Return a spec that a data server can apply as plain values."""
    return {"codec": how.codec, **{name: of for name, of in asdict(how).items() if name not in _OF_CROPS}}


def from_json(value: Mapping[str, Any]) -> Preparation:
    """Parse and check the values of `to_json`. Raises `UsageError`."""
    kinds: dict[str, type[Preparation]] = {kind.codec: kind for kind in (DecodeImage, DecodeAudio)}
    codec, rest = value.get("codec"), {name: of for name, of in value.items() if name != "codec"}
    if isinstance(rest.get("size"), list):
        rest["size"] = tuple(rest["size"])
    if not isinstance(codec, str) or codec not in kinds or not isinstance(rest.get("mono", True), bool):
        raise UsageError(f"no preparation is {dict(value)!r:.200}")
    try:
        made = kinds[codec](**rest)
    except TypeError:
        raise UsageError(f"no preparation is {dict(value)!r:.200}") from None
    if is_random(made):
        raise UsageError(f"{made}: a data server decodes nothing that is random")
    return made


def decoders(codec: str) -> dict[str, str]:
    """Return the libraries that decode a codec in this process, and their versions: others may give other values.

    Raises `MissingExtraError`.
    """
    if codec == DecodeAudio.codec:
        try:
            rates = _soxr().__version__
        except MissingExtraError:  # audio that keeps its rate needs no resampler
            rates = None
        library = ffmpeg()
        versions = {"libsndfile": soundfile().__libsndfile_version__, "soxr": rates, "numpy": np.__version__}
        versions["av"] = None if library is None else library.__version__
        return {name: str(version) for name, version in versions.items()}
    import PIL
    from PIL import features

    try:
        from simplejpeg import __version__ as fast
    except ImportError:
        fast = None
    parts = {name: features.version(name) for name in ("libjpeg_turbo", "jpg", "jpg_2000", "webp", "libtiff")}
    return {name: str(version) for name, version in {"Pillow": PIL.__version__, "simplejpeg": fast, **parts}.items()}


def _resampled(samples: NDArray[np.float32], rate: int, to: int) -> NDArray[np.float32]:
    """Return samples, shape (channels, frames), at another rate. Raises ValueError, `MissingExtraError`."""
    library = _soxr()
    try:
        return np.ascontiguousarray(library.resample(samples.T, rate, to).T)
    except Exception as error:
        raise ValueError(
            f"soxr cannot convert it from {rate:,} to {to:,} frames a second: {cause_of(error)}"
        ) from error


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise missing_extra(error, "another rate= needs the package soxr", "'brand-data[audio]'") from error
    return soxr
