"""How far may `extras.zip` unpack? The manifest tells its size, and its size bounds what comes out (docs/format.md)."""

from __future__ import annotations

import zipfile
from typing import Final

EXTRAS_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How files are packed in it."""
_FREE_BYTES: Final = 1 << 20
_RATIO: Final = 64
"""Texts reach a tenth of this; what is above is nothing but repetition."""


def most_unpacked(size: int) -> int:
    """Bytes that an archive of `size` bytes may unpack to. A writer that would exceed it stores the files as they are.

    Pure.
    """
    return _FREE_BYTES + _RATIO * size
