"""How are folders and files opened so that no other user can change them, and which are refused?

A folder is opened once, and its descriptor is used from then on: a name that is exchanged later has no effect. Below
the folder that the user gives, no symbolic link is followed. Folders and files there must belong to this user, and
nobody else may have write permission. The folder that the user gives may belong to root or may be one that holds files
of each user, such as /tmp.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from brand.errors import CacheError
from brand.formats.constants import MANIFEST_NAME
from brand.formats.publish import storage_reason

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def open_given(folder: str) -> int:
    """Return a descriptor of the folder that the user gives. It is made if only its last component is missing.

    Raises `CacheError` if another user could exchange its contents, or if it is a data set: a cache inside it would be
    copied and deleted with it.
    """
    if os.path.lexists(os.path.join(folder, MANIFEST_NAME)):
        raise CacheError(f"{folder} is a data set, not a folder for caches: give a folder on a local disk")
    try:
        make_folder(folder)
        descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        raise refused(folder, error) from None
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        os.close(descriptor)
        raise CacheError(f"{folder} belongs to another user (number {found.st_uid}): give a folder of your own")
    if found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX:
        os.close(descriptor)
        raise CacheError(_writable(folder, found, "give a folder of your own, or run"))
    return descriptor


def open_own_folder(name: str, parent: int, shown: str, *, make: bool = True) -> int:
    """Return a descriptor of a folder in the folder `parent`; `shown` is its path.

    If it is missing and `make`, make it. Raises `CacheError`, FileNotFoundError.
    """
    try:
        if make:
            make_folder(name, parent)
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refused(shown, error) from None
    return _checked(descriptor, shown)


def open_own_file(name: str, flags: int, parent: int, shown: str) -> int:
    """Return a descriptor of a file in the folder `parent`; `shown` is its path. Raises `CacheError`, OSError."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=parent)
    except OSError as error:
        error.filename = shown
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise refused(shown, error) from None
        raise
    return _checked(descriptor, shown)


def make_folder(name: str, parent: int | None = None) -> None:
    """Make a folder that only this user can enter, if it does not exist. Raises OSError."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        pass
    except OSError:
        if not os.access(name, os.F_OK, dir_fd=parent):
            raise


def check_names(folder: int, shown: str) -> None:
    """Check that no entry of a folder is a symbolic link. Raises `CacheError`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise CacheError(f"{shown}/{entry.name} is a symbolic link, which Brand never makes: remove it")


def refused(shown: str, error: OSError) -> CacheError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return CacheError(f"{shown} is a symbolic link or not a folder: remove it, or give another cache folder")
    return CacheError(f"the cache folder {shown} cannot be used: {storage_reason(error)}; give another one")


def _writable(shown: str, found: os.stat_result, how: str) -> str:
    """Return the message for a folder or file to which others may write, with the usual cause of that."""
    group = f"the group {found.st_gid}" if not found.st_mode & stat.S_IWOTH else "other users"
    told = f"{group} may write to {shown}, so its contents cannot be trusted: {how} `chmod -R go-w {shown}`"
    if not found.st_mode & stat.S_IWOTH and found.st_mode & stat.S_ISGID:
        told += " (Kubernetes does this at each start if a pod has an fsGroup; set fsGroupChangePolicy: OnRootMismatch)"
    return told


def _checked(descriptor: int, shown: str) -> int:
    found = os.fstat(descriptor)
    wrong = ""
    if found.st_uid != os.geteuid():
        wrong = f"{shown} belongs to another user (number {found.st_uid}): give a cache folder of your own"
    elif found.st_mode & _OTHERS:
        wrong = _writable(shown, found, "remove it, or, if you trust its contents, run")
    elif not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        wrong = f"{shown} is neither a file nor a folder: remove it"
    if wrong:
        os.close(descriptor)
        raise CacheError(wrong)
    return descriptor
