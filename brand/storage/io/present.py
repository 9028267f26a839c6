"""Which version of a collection is the present one, without listing the others?

The present version is the one with the highest number. A collection of 10,000 appends has more than 10,000 versions,
and listing their names took longer than all else that opening does. So a writer notes the number, and the time at which
the folder of versions changed last. A reader uses the note only if the folder still has that time and there is no next
version. Otherwise the note is old, or of a copy that is not finished: the reader lists the names. A note may therefore
be missing, damaged or old, and no record has to be kept in step with the folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from brand.errors import UnreadableError
from brand.formats.constants import VERSIONS_NAME
from brand.formats.version import version_name, version_number

NOTE_NAME: Final = "present"
_LONGEST_NOTE: Final = 64
"""Bytes; a note has two numbers."""


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all versions, ascending. Raises `UnreadableError`."""
    try:
        names = os.listdir(folder / VERSIONS_NAME)
    except OSError as error:
        what, path = f"cannot be read: {error.strerror}", folder / VERSIONS_NAME
        raise UnreadableError(what, path=path) from error
    return sorted(number for name in names if (number := version_number(name)) is not None)


def last_number(folder: Path) -> int | None:
    """Return the highest number of a version; None if there is no version. Raises `UnreadableError`."""
    noted = _noted(folder)
    return noted if noted is not None else max(numbers(folder), default=None)


def note_present(folder: Path, number: int) -> None:
    """Note that a version, which was just published, is the present one. The caller has the lock of the collection.

    A note that cannot be written is no error. It is not flushed: after a power cut, an old or empty one is ignored.
    """
    temporary = folder / f".{NOTE_NAME}.tmp"
    try:
        temporary.write_bytes(b"%d %d\n" % (number, _changed(folder)))
        temporary.replace(folder / NOTE_NAME)
    except OSError:
        with suppress(OSError):
            temporary.unlink()


def _noted(folder: Path) -> int | None:
    """Return the number in the note; None if no version was added or removed since it was written, or if it is bad."""
    try:
        with (folder / NOTE_NAME).open("rb") as file:
            number, changed = map(int, file.read(_LONGEST_NOTE).split())
        current = changed == _changed(folder) and (folder / version_name(number)).exists()
    except (OSError, ValueError):
        return None
    # Two changes within one tick of the file system's clock have one time.
    return number if current and not (folder / version_name(number + 1)).exists() else None


def _changed(folder: Path) -> int:
    """Return the time in nanoseconds at which a version was added or removed last."""
    return (folder / VERSIONS_NAME).stat().st_mtime_ns
