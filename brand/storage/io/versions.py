"""Which versions does a collection have, and which one does a path name? `photos.brand` names the present version, and
`photos.brand@3` the third.

The present version is the one with the highest number, so no other record has to be kept in step with the folder of
versions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from brand.errors import MissingFileError, NotADataSetError, UnreadableError
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME
from brand.formats.version import Version, read_version, version_name, version_number

_PINNED: Final = re.compile(r"(.+)@(\d{1,10})")


def is_collection(folder: Path) -> bool:
    """Return whether a folder holds a collection, possibly without a version yet."""
    return (folder / VERSIONS_NAME).is_dir() and not (folder / MANIFEST_NAME).exists()


def named_version(path: Path) -> tuple[Path, Version, bool] | None:
    """Return folder and version of the collection that a path names, and whether the path has the number.

    None if the path does not name a collection. Raises a `FormatError` if the version cannot be read.
    """
    number: int | None = None
    match = None if path.exists() else _PINNED.fullmatch(str(path))
    if match is not None:
        path, number = Path(match[1]), int(match[2])
    if not is_collection(path):
        return None
    if number is None:
        return path, present_version(path), False
    known = numbers(path)
    if number not in known:
        told = f"the versions are {', '.join(map(str, known))}" if known else "there is no version"
        what, missing = f"there is no version {number}: {told}", path / version_name(number)
        raise MissingFileError(what, path=missing, hint=f"`brand versions {path}` lists their contents")
    return path, read_version(path, number), True


def pinned(path: str, number: int) -> str:
    """Return the path that names this version, for a path that names the collection, or a version of it."""
    match = _PINNED.fullmatch(path)
    return path if match is not None and int(match[2]) == number else f"{path}@{number}"


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all versions, ascending. Raises `UnreadableError`."""
    try:
        names = os.listdir(folder / VERSIONS_NAME)
    except OSError as error:
        what, path = f"cannot be read: {error.strerror}", folder / VERSIONS_NAME
        raise UnreadableError(what, path=path) from error
    return sorted(number for name in names if (number := version_number(name)) is not None)


def present_version(folder: Path) -> Version:
    """Return the version with the highest number. Raises a `FormatError`."""
    known = numbers(folder)
    if not known:
        what = "a collection without a version: run the interrupted `brand append` again"
        raise NotADataSetError(what, path=folder)
    return read_version(folder, known[-1])
