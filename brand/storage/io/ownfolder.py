"""How are folders and files opened so that no other user can change them, and which are refused?

A folder is opened once, and its descriptor is used from then on: a name that is exchanged later has no effect. Below
the folder that the user gives, no symbolic link is followed. Folders and files there must belong to this user, and
nobody else may have write permission.

The folder that the user gives must belong to this user or to root. Others may have write permission for it, as for
/tmp, for an `emptyDir` of Kubernetes, or for a folder made with umask 002: they can move the names in it, but every
folder and file that Brand opens below it must be this user's own.

A group gets write permission without anybody's intention: from umask 002, and from Kubernetes for a volume with an
`fsGroup` (`chmod -R g+rwX,g+s` at each start). So an own folder or file with it is closed to others, and used. A file
must then have one name: another name could be that of a file elsewhere, which a member of the group linked here.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from brand.errors import CacheError
from brand.formats.constants import MANIFEST_NAME
from brand.formats.publish import storage_reason

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OWN_FILE: Final = 0o600
"""Permissions of the files in an own folder, whatever the umask is."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def open_given(folder: str) -> int:
    """Return a descriptor of the folder that the user gives. It is made if only its last component is missing.

    Raises `CacheError` if it belongs to another user, or if it is a data set: a cache inside it would be copied and
    deleted with it.
    """
    if os.path.lexists(os.path.join(folder, MANIFEST_NAME)):
        raise CacheError(f"{folder} is a data set, not a folder for caches: give a folder on a local disk")
    try:
        make_folder(folder)
        descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        raise refused(folder, error) from error
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        os.close(descriptor)
        raise CacheError(f"{folder} belongs to another user (number {found.st_uid}): give a folder of your own")
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
        raise refused(shown, error) from error
    return _checked(descriptor, shown)


def open_own_file(name: str, flags: int, parent: int, shown: str) -> int:
    """Return a descriptor of a file in the folder `parent`; `shown` is its path. Raises `CacheError`, OSError."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, OWN_FILE, dir_fd=parent)
    except OSError as error:
        error.filename = shown
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise refused(shown, error) from error
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


def _checked(descriptor: int, shown: str) -> int:
    try:
        wrong = _fault(descriptor, shown)
    except BaseException:
        os.close(descriptor)
        raise
    if wrong:
        os.close(descriptor)
        raise CacheError(wrong)
    return descriptor


def _fault(descriptor: int, shown: str) -> str:
    """Return why an open folder or file cannot be used; closes it to the group if that may write to it."""
    found = os.fstat(descriptor)
    folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != os.geteuid():
        return f"{shown} belongs to another user (number {found.st_uid}): give a cache folder of your own"
    if not folder and not stat.S_ISREG(found.st_mode):
        return f"{shown} is neither a file nor a folder: remove it"
    if not found.st_mode & _OTHERS:
        return ""
    # Nobody else can enter the folder of a file, so that a file's permission for all users comes from umask 000.
    if not folder or not found.st_mode & stat.S_IWOTH:
        if not folder and found.st_nlink > 1:
            return f"others may write to {shown}, and it has several names (hard links): remove it"
        with suppress(OSError):  # on a read-only file system; judged by its result
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & stat.S_IRWXU)
        if not os.fstat(descriptor).st_mode & _OTHERS:
            return ""
    group = f"the group {found.st_gid}" if not found.st_mode & stat.S_IWOTH else "other users"
    return (
        f"{group} may write to {shown}, so its contents cannot be trusted: remove it, or, if you trust its contents, "
        f"run `chmod -R go-w {shown}`"
    )
