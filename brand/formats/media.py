"""Which kind of image or audio file are these bytes, and what does an image decode to?

The kind is found from the first bytes, never from the name. Decoding of images is left to Pillow, which is imported
when the first image is decoded; `audio` decodes audio.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from brand.errors import BrandError, MissingExtraError, cause_of
from brand.formats.audio import decode_audio, duration
from brand.formats.values import Buffer

if TYPE_CHECKING:
    from PIL import Image

HEAD_BYTES: Final = 64
"""Number of bytes at a file's start that `kind_of` needs."""

_SIGNATURES: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"II+\0", "image/tiff"),
    (0, b"MM\0+", "image/tiff"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\xff\x4f\xff\x51", "image/jp2"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypM4A ", "audio/mp4"),
    (4, b"ftypM4B ", "audio/mp4"),
    (0, b"#!AMR", "audio/amr"),
    (4, b"ftypavis", "image/avif"),
    *((4, b"ftyp" + brand, "image/heif") for brand in (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis")),
    (4, b"ftypmif1", "image/heif"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "image/jxl"),
    (0, b"\xff\x0a", "image/jxl"),
    (0, b"P5\n", "image/pnm"),
    (0, b"P6\n", "image/pnm"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (8, b"AIFF", "audio/aiff"),
    (8, b"AIFC", "audio/aiff"),
    (0, b".snd", "audio/au"),
    (0, b"caff", "audio/caf"),
    (0, b"ID3", "audio/mp3"),
    (0, b"\xff\xfb", "audio/mp3"),
    (0, b"\xff\xf3", "audio/mp3"),
    (0, b"\xff\xf2", "audio/mp3"),
)
_PLUGINS: Final = {
    "image/heif": ("HEIF", "pillow_heif", "pillow-heif", "import pillow_heif; pillow_heif.register_heif_opener()"),
    "image/jxl": ("JPEG XL", "pillow_jxl", "pillow-jxl-plugin", "import pillow_jxl"),
}
"""Kind of image that Pillow reads with a plug-in only -> its name; module, package and first line of the plug-in."""
_CONTAINERS: Final[dict[str, tuple[bytes, ...]]] = {
    "image/webp": (b"RIFF",),
    "audio/wav": (b"RIFF", b"RIFX", b"RF64"),
    "audio/aiff": (b"FORM",),
}


def kind_of(head: Buffer) -> str | None:
    """Return `image/png`, `audio/wav`, ... from the first `HEAD_BYTES` of a file; None for any other file."""
    start = bytes(head[:HEAD_BYTES])
    for offset, signature, kind in _SIGNATURES:
        if start.startswith(signature, offset) and start.startswith(_CONTAINERS.get(kind, (b"",))):
            return kind
    return None


def check_image(data: Buffer) -> None:
    """Decode the first frame and drop it. Raises ValueError if Pillow cannot."""
    with pillow_errors(), open_image(data) as image:
        image.load()


def check_file(field: str, data: Buffer) -> None:
    """Decode a file of an `image` or `audio` field and drop it. Raises ValueError if it does not decode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if field == "image":
            check_image(data)
        else:
            decode_audio(data)


def open_image(data: Buffer) -> Image.Image:
    """Open an image and read only its head. Raises errors that `pillow_errors` turns into a ValueError."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        if missing := _missing_plugin(data):
            raise ValueError(missing) from None
        raise


@contextmanager
def pillow_errors() -> Iterator[None]:
    """Turn every error that Pillow raises for bad input into a ValueError."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError as error:  # the error's own text holds a memory address
        raise ValueError("Pillow cannot decode it: the image format is unknown") from error
    except BrandError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        raise ValueError(f"Pillow refuses it: {cause_of(error)}") from error
    except Exception as error:  # each decoder of Pillow, and each plug-in, raises errors of its own
        raise ValueError(f"Pillow cannot decode it: {cause_of(error)}") from error


def load_plugin(module: str) -> None:
    """Import a plug-in of Pillow, and register it if the import alone does not. Raises `MissingExtraError`."""
    try:
        plugin = importlib.import_module(module)
    except ImportError as error:
        package = next((package for _, name, package, _ in _PLUGINS.values() if name == module), module)
        raise MissingExtraError(f"there is no plug-in {module} ({error}): pip install {package}") from error
    for name in dir(plugin):
        if re.fullmatch("register_[a-z0-9]+_opener", name):
            getattr(plugin, name)()


def registered_plugins() -> tuple[str, ...]:
    """Return the modules of the plug-ins of Pillow that this process has registered; none if Pillow is not imported."""
    opened = getattr(sys.modules.get("PIL.Image"), "OPEN", {})
    modules = dict.fromkeys(getattr(factory, "__module__", "") for factory, _ in opened.values())
    return tuple(
        name for name in modules if name not in ("", "__main__", "__mp_main__") and not name.startswith("PIL.")
    )


class PillowPlugins:
    """The plug-ins of Pillow: another process that unpickles the object registers those of the process that pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_plugins, (registered_plugins(),)


def _with_plugins(modules: Iterable[str]) -> PillowPlugins:
    for module in modules:
        with suppress(MissingExtraError):  # then the error of the first such image names it
            load_plugin(module)
    return PillowPlugins()


def _missing_plugin(data: Buffer) -> str:
    """Return which plug-in reads a file that Pillow does not open; empty if no plug-in is known."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind not in _PLUGINS:
        return ""
    name, module, package, code = _PLUGINS[kind]
    return (
        f"it is {name}, which Pillow reads only with the plug-in {module}: pip install {package}, then --plugin"
        f" {module} for a command, or in Python: {code}"
    )


def misfit(field: str, data: Buffer) -> str:
    """Return in words why a file does not fit its `image` or `audio` field; empty if it fits."""
    kind = kind_of(data[:HEAD_BYTES])
    if field == "image" and kind in _PLUGINS:
        try:
            with pillow_errors(), open_image(data):
                return ""
        except ValueError as error:
            return str(error).removeprefix("Pillow cannot decode it: ")
    found = _other_kind(field, data, kind)
    return found and f"not {'an' if field[0] in 'ai' else 'a'} {field} file: its contents are {found}"


def _other_kind(field: str, data: Buffer, kind: str | None) -> str:
    if kind is not None:
        return "" if kind.startswith(field) else kind
    if _opens(field, data):
        return ""
    return "text" if _looks_like_text(data) else "something unknown"


def _opens(field: str, data: Buffer) -> bool:
    """Return whether Pillow or libsndfile decodes a file whose kind `kind_of` does not know."""
    if len(data) < HEAD_BYTES or _looks_like_text(data):
        return False
    try:
        (check_image if field == "image" else duration)(data)
    except ValueError:
        return False
    return True


def _looks_like_text(data: Buffer) -> bool:
    start = bytes(data[:512])
    return b"\0" not in start and start.isascii()
