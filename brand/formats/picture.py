"""A decoded picture in a field that holds a file's contents: which bytes are stored?

Those of the file that Pillow opened, where the picture still is what that file holds: the file is then stored bit for
bit, as a conversion of the folder would. Otherwise the pixels, as PNG, which loses nothing. Pillow is known by the
names of its classes, so it is not imported.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

_PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Modes of Pillow that PNG holds without loss."""


def is_picture(value: Any) -> bool:
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def file_of(image: Any) -> bytes:
    """The bytes that are stored for a Pillow image. Raises TypeError for pixels that PNG does not hold."""
    contents = _unread(image) or _unchanged(image)
    if contents is not None:
        return contents
    if image.mode not in _PNG_MODES:
        raise TypeError(f"PNG has no pixels of mode {image.mode}: give image.convert('RGB'), or the bytes of a file")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _unread(image: Any) -> bytes | None:
    """The file of an image whose pixels have not been read yet, so nothing can have changed them."""
    file = getattr(image, "fp", None)
    if file is None or file.closed or not getattr(image, "tile", None) or image.tell():
        return None
    place = file.tell()
    file.seek(0)
    contents: bytes = file.read()
    file.seek(place)
    return contents


def _unchanged(image: Any) -> bytes | None:
    """The file of an image that has been read, where its pixels are still those of the file."""
    name = getattr(image, "filename", "")
    if not name:
        return None
    try:
        contents = Path(name).read_bytes()
        with type(image)(io.BytesIO(contents)) as again:
            same = (again.mode, again.size, again.tobytes()) == (image.mode, image.size, image.tobytes())
            same = same and again.getpalette() == image.getpalette()
    except (OSError, ValueError, SyntaxError):
        return None
    return contents if same else None
