"""The maximum size of the contents of `extras.zip`.

The manifest has the size of the archive, and that size bounds the contents (docs/format.md).
"""

from __future__ import annotations

import zipfile
from typing import Final

EXTRAS_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that the archive may use for its files."""
_FREE_BYTES: Final = 1 << 20
_RATIO: Final = 64
"""Maximum compression ratio. Texts reach a tenth of it; only repetition exceeds it."""


def most_unpacked(size: int) -> int:
    """Return the maximum bytes that an archive of `size` bytes may unpack to. A larger file is stored uncompressed.

    Pure.
    """
    return _FREE_BYTES + _RATIO * size
