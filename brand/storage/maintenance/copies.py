"""How are files placed in another folder, whole or not at all, and if possible without a copy of their bytes?

A hard link is a second name for the same bytes: it takes no time and no space, and needs one file system. Otherwise the
bytes are copied; a file system that can share blocks (Btrfs, XFS) does this without moving them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

from brand.errors import UnreadableError
from brand.formats.constants import MANIFEST_NAME, chunk_name
from brand.formats.publish import publish_file, sync_folder
from brand.storage.dataset.dataset import StoredDataSet

Way = Literal["linked", "copied", "found"]
"""How a file was placed: a hard link, a copy, or nothing, because it existed."""

WAYS: Final[tuple[Way, ...]] = ("linked", "copied", "found")

_STEP_BYTES: Final = 1 << 30
_copy_file_range: Final = getattr(os, "copy_file_range", None)


def link_or_copy(source: Path, target: Path, spare: Path, *, copy: bool) -> Way:
    """Give `target` the contents of `source`, by a hard link unless `copy`. A target of the right size is kept.

    `spare` is a name on the target's file system for an unfinished file. A copy is on the device when this returns. A
    link is on the device when the caller has flushed its folder. Raises OSError, and `UnreadableError` if `source`
    cannot be read as a whole.
    """
    wanted = source.stat()
    with suppress(FileNotFoundError):
        there = target.stat()
        if there.st_size == wanted.st_size and not (copy and os.path.samestat(there, wanted)):
            return "found"
    spare.unlink(missing_ok=True)
    if not copy and _linked(source, spare):
        spare.replace(target)
        return "linked"
    _copy(source, spare)
    if (size := spare.stat().st_size) != wanted.st_size:
        raise UnreadableError("cannot be copied whole", path=source, expected=f"{wanted.st_size} bytes", found=size)
    publish_file(spare, target)
    return "copied"


def place_files(
    data: StoredDataSet,
    out: Path,
    chunks: Sequence[int],
    spare: Path,
    *,
    copy: bool,
    on_placed: Callable[[int, Way], None],
) -> None:
    """Place the files of a data set, but only these of its chunks, in `out`; its manifest last.

    Calls `on_placed` with the number of each chunk and how it was placed. Raises the errors of `link_or_copy`.
    """
    names = [*data.manifest.files, *data.manifest.companions]
    folders = {out / "chunks", *((out / name).parent for name in names)}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        link_or_copy(data.path / name, out / name, spare, copy=copy)
    for number in chunks:
        data.check_file_size(number)
        name = chunk_name(number)
        on_placed(number, link_or_copy(data.path / name, out / name, spare, copy=copy))
    for folder in folders:
        sync_folder(folder)
    link_or_copy(data.path / MANIFEST_NAME, out / MANIFEST_NAME, spare, copy=copy)
    sync_folder(out)


def _linked(source: Path, spare: Path) -> bool:
    """Make a hard link. Return False if that is impossible: another file system, no links there, or another owner."""
    try:
        os.link(source.resolve(), spare)  # a hard link to a symbolic link would be a symbolic link, too
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy the bytes, in the kernel if it supports that, else through memory."""
    try:
        reader = source.open("rb")
    except OSError as error:
        raise _unreadable(source, error) from error
    with reader, target.open("wb") as writer:
        with suppress(OSError):  # a real fault is raised again below, with the name of the faulty file
            while _copy_file_range is not None and _copy_file_range(reader.fileno(), writer.fileno(), _STEP_BYTES):
                pass
        while block := _read(reader, source):
            writer.write(block)


def _read(reader: BinaryIO, source: Path) -> bytes:
    try:
        return reader.read(1 << 20)
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError) -> UnreadableError:
    return UnreadableError(f"cannot be read: {error.strerror}", path=source)
