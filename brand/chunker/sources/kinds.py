"""Are these bytes an image, or audio, as their field needs?"""

from __future__ import annotations

from brand.formats.media import HEAD_BYTES, check_image, decode_audio, kind_of


def other_kind(field: str, data: bytes) -> str:
    """Return in words the kind of a file if it does not fit its `image` or `audio` field; empty if it fits."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind is not None:
        return "" if kind.startswith(field) else kind
    if _opens(field, data):
        return ""
    return "text" if _looks_like_text(data) else "something unknown"


def _opens(field: str, data: bytes) -> bool:
    """Return whether Pillow or libsndfile decodes a file whose kind `kind_of` does not know."""
    if len(data) < HEAD_BYTES or _looks_like_text(data):
        return False
    try:
        (check_image if field == "image" else decode_audio)(data)
    except ValueError:
        return False
    return True


def _looks_like_text(data: bytes) -> bool:
    return b"\0" not in data[:512] and data[:512].isascii()
