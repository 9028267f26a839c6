"""How does a file appear whole or not at all?

It gets a temporary name, an fsync and a rename. A `Target` receives the finished files of a data set; a folder is one,
and `brand.stores` has the other. `storage_errors` turns a refusal of the storage into a message.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import xxhash

from brand.errors import BrandError, StorageError
from brand.reprs import Reprs

_REASONS: Final = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than allowed here",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENODEV: "its file system cannot map files (mmap), or the device is gone: write to another file system",
    errno.EIO: "the device reports an input/output error",
    errno.EMFILE: "too many open files (see `ulimit -n`)",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}


class Target(Protocol):
    """The place for finished files of a data set. Any number of threads may use it. All methods raise OSError."""

    def publish(self, temporary: Path, name: str) -> None:
        """Move a finished local file into the data set, below which it is `name`. `temporary` is gone afterwards."""

    def finish(self, name: str, data: bytes) -> None:
        """Write the manifest, once all other files are durable. Raises `TargetExistsError`."""


class FolderTarget(Reprs, shows="folder"):
    """A `Target` in a folder. Temporary files must be on its file system. An existing manifest is replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def publish(self, temporary: Path, name: str) -> None:
        final = self.folder / name
        final.parent.mkdir(exist_ok=True)
        publish_file(temporary, final)

    def finish(self, name: str, data: bytes) -> None:
        for part in self.folder.iterdir():
            if part.is_dir() and not part.name.startswith("."):
                sync_folder(part)
        publish_bytes(self.folder / name, data)


_REMEDIES: Final = {
    errno.ENODEV: "Its file system cannot map files (mmap): copy the folder to another file system, as `cp -r` does",
    errno.EACCES: "Let this user read it: its owner runs `chmod -R a+rX FOLDER`, if all users may read it",
    errno.EPERM: "Let this user read it: its owner runs `chmod -R a+rX FOLDER`, if all users may read it",
    errno.EMFILE: "This process has too many open files: raise the limit, `ulimit -n`",
    errno.ENFILE: "This machine has too many open files: raise the limit, `sysctl fs.file-max`",
    errno.ENOMEM: "No memory can be mapped: raise the limit of this process, `ulimit -v`, or `sysctl vm.max_map_count`",
    errno.ESTALE: "The server of this network drive has replaced it: open the data set again",
    errno.ENOTCONN: "The network drive is not connected: mount it again",
}
"""Error number -> advice, if the file itself is right."""


@contextmanager
def storage_errors(path: str | Path, what: str, remedy: str = "") -> Iterator[None]:
    """Turn an OSError into a `StorageError` that names the action, the path and the remedy.

    `remedy` is for errors other than those of full disks and of stores.
    """
    try:
        yield
    except BrandError:  # some of Brand's errors are OSErrors, too
        raise
    except OSError as error:
        reason, hint = storage_reason(error), remedy
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = ". Free some space and run the same command again: it continues where it stopped"
        elif "://" in str(error.filename):
            hint = ". Run the same command again when this is repaired: it continues where it stopped"
        raise StorageError(f"{what} {error.filename or path}: {reason}{hint}") from error


def storage_reason(error: OSError) -> str:
    """Return in words why the storage refused."""
    number = error.errno or 0
    if error.strerror not in (None, os.strerror(number)):
        return str(error.strerror)  # Brand's own words, such as those about a store
    return _REASONS.get(number, error.strerror or str(error))


def remedy_for(error: OSError | ValueError, repair: str) -> str:
    """Return advice for a file that cannot be read: the one for this cause, or `repair`, which restores a file.

    Empty for an object of a store that refuses: the reason has the advice.
    """
    remedy = _REMEDIES.get(getattr(error, "errno", None) or 0)
    if remedy is None:
        return repair
    return "" if "://" in str(getattr(error, "filename", "")) else remedy


def publish_file(temporary: Path, final: Path) -> None:
    """Flush a finished file to the device and give it its name. Both names must be on one file system."""
    sync_file(temporary)
    temporary.replace(final)


def publish_bytes(final: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a small file whole or not at all. `mode`: its permissions, less those of the umask."""
    temporary = final.with_name(f".{final.name}.tmp")
    with open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
        file.write(data)
    publish_file(temporary, final)
    sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that renames survive a power cut."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush the contents of a file to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> tuple[int, str]:
    """Return (size, XXH3-128 in hexadecimal) of a file."""
    with path.open("rb") as file:
        return digest_of(file)


def digest_of(file: BinaryIO) -> tuple[int, str]:
    """Return (size, XXH3-128 in hexadecimal) of an open file, from its current position to its end."""
    digest, size = xxhash.xxh3_128(), 0
    while block := file.read(1 << 20):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()
