"""The abilities of a file system, each tried: in a folder with files of its own, in a data set by reading.

writes      files can be written, flushed (fsync) and renamed; else nothing can be converted to this folder
locks       flock keeps two writers apart: conversions, appends and caches need it, reading and training do not
mappings    files can be mapped (mmap): conversions need it; else each process reads a data set's index into its memory
links       files can have two names (link): collections need it
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from brand.doctor.packages import CheckResult
from brand.errors import BrandError, size
from brand.formats import locks
from brand.formats.publish import storage_reason
from brand.storage.io.device import IN_MEMORY, device_name, mount_of

_BYTES: Final = 4096


def check_folder(folder: Path) -> Iterator[CheckResult]:
    """Check a folder in which no data set is, as a place for one, or for a cache. Leaves nothing in it."""
    part = "folder"
    yield CheckResult(part, "data set", "missing", f"there is none in {folder}: checked as a place for one, or a cache")
    yield check_name(part, folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".brand-doctor-", dir=folder) as own:
            yield from _abilities(part, folder, Path(own))
    except OSError as error:
        told = f"nothing can be written ({storage_reason(error)}): only data sets that are there can be used"
        yield CheckResult(part, "writes", "missing", told, "give a folder of your own")


def check_name(part: str, folder: Path) -> CheckResult:
    """Return the name of a folder's file system and device."""
    try:
        mount = mount_of(folder)
    except BrandError as error:
        return CheckResult(part, "file system", "missing", f"its name, so its profile cannot be stored: {error}")
    note = ", which is memory and not a storage device" if mount.type in IN_MEMORY else ""
    return CheckResult(part, "file system", "ok", device_name(mount) + note)


def _abilities(part: str, folder: Path, own: Path) -> Iterator[CheckResult]:
    first, second = own / "first", own / "second"
    with first.open("wb") as file:
        file.write(bytes(_BYTES))
        file.flush()
        os.fsync(file.fileno())
    first.rename(second)
    free = size(shutil.disk_usage(folder).free)
    yield CheckResult(part, "writes", "ok", f"files can be written and renamed, {free} free")
    yield check_locks(part, second)
    yield check_mappings(part, second)
    try:
        os.link(second, first)
    except OSError as error:
        told = f"a file can have one name only ({error.strerror}): collections (append, delete) need two"
        yield CheckResult(part, "links", "missing", told, "write collections to another file system")
    else:
        yield CheckResult(part, "links", "ok", "files can have two names, as collections need")


def check_locks(part: str, file: Path) -> CheckResult:
    """Check whether flock works on a file. Another process may hold the lock. Raises OSError if it cannot be opened."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        locks.take(descriptor, file, shared=True)
    except OSError as error:
        told = (
            f"flock is refused ({os.strerror(error.errno or 0)}): nothing can be converted, appended or cached here, "
        )
        return CheckResult(part, "locks", "missing", told + "but reading and training take no lock", locks.ADVICE)
    finally:
        os.close(descriptor)
    return CheckResult(part, "locks", "ok", "files can be locked (flock)")


def check_mappings(part: str, file: Path) -> CheckResult:
    """Check whether a file, which is not empty, can be mapped. Raises OSError if it cannot be opened."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mmap.mmap(descriptor, 1, prot=mmap.PROT_READ).close()
    except OSError as error:
        told = (
            f"mmap is refused ({error.strerror}): nothing can be converted here, and each process reads the index of a "
        )
        cure = "convert to another file system, and copy the result"
        return CheckResult(part, "mappings", "missing", told + "data set here into its memory", cure)
    finally:
        os.close(descriptor)
    return CheckResult(part, "mappings", "ok", "files can be mapped (mmap)")
