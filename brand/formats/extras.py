"""How large may the contents of `extras.zip` be?

The manifest tells the size of the archive, and that size bounds the contents (docs/format.md).
"""

from __future__ import annotations

import zipfile
from typing import Final

EXTRAS_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The ways in which the archive may pack its files."""
_FREE_BYTES: Final = 1 << 20
_RATIO: Final = 64
"""Texts reach a tenth of this ratio; only repetition exceeds it."""


def most_unpacked(size: int) -> int:
    """Bytes that an archive of `size` bytes may unpack to. A writer that would exceed it stores the files as they are.

    Pure.
    """
    return _FREE_BYTES + _RATIO * size
