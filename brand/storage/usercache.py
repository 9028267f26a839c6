"""Where does Brand keep what it can make again? Below the user's cache folder (XDG base directory specification)."""

from __future__ import annotations

import os
from pathlib import Path

from brand.errors import StorageError


def user_cache(part: str) -> Path:
    """The folder `part` of Brand below XDG_CACHE_HOME, or below ~/.cache where that is not set. Raises `StorageError`.

    The folder need not be there.
    """
    base = Path(os.path.expandvars("${XDG_CACHE_HOME}"))
    if not base.is_absolute():  # not set, or not what the specification allows
        base = Path(os.path.expanduser("~"), ".cache")
    if not base.is_absolute():
        raise StorageError(f"there is no folder for {part}: neither HOME nor XDG_CACHE_HOME names one")
    return base / "brand" / part
