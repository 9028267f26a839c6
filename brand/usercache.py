"""Where does Brand store files that it can make again? Below the user's cache folder (XDG specification)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from brand.errors import StorageError

ANOTHER_FOLDER: Final = ": set XDG_CACHE_HOME to a folder that you can write"
"""The remedy if the folder cannot be written, as in a read-only home."""


def user_cache(part: str) -> Path:
    """Return Brand's folder `part` below XDG_CACHE_HOME or ~/.cache, which may not exist. Raises `StorageError`."""
    base = Path(os.path.expandvars("${XDG_CACHE_HOME}"))
    if not base.is_absolute():  # not set, or relative, which the specification does not allow
        base = Path(os.path.expanduser("~"), ".cache")
    if not base.is_absolute():
        raise StorageError(f"there is no folder for {part}: neither HOME nor XDG_CACHE_HOME is an absolute path")
    return base / "brand" / part


def own_folder(part: str, name: str) -> Path:
    """Return the folder `name` in the folder `part`; it is made if it is missing. Raises `StorageError`, OSError.

    Nobody else may write to it, so all its files are from this user. If a group may, as after `chmod -R g+w`, an own
    folder is closed to it.
    """
    folder = user_cache(part) / name
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    for each in (folder.parent, folder):
        found = each.lstat()
        if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_IWOTH:
            if found.st_mode & stat.S_IWGRP:
                each.chmod(0o700)
            continue
        raise StorageError(f"{each} can be changed by another user: remove it, or set XDG_CACHE_HOME to another folder")
    return folder
