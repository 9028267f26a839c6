"""Memory without a name that processes share as an open file, and that vanishes with its last user.

memfd_create makes it. A sandbox may refuse that call (gVisor, old container runtimes); the memory is then a file that
is removed at once, in `/dev/shm` or in the folder of temporary files. Its space is reserved, because the kernel kills a
process that writes to a mapped page for which its file system has no space. Such a file cannot be sealed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

SHARED_FILES: Final = "/dev/shm"
FUTURE_WRITE: Final = getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that another way to make a file would not prevent."""


def anonymous_file(name: str, size: int = 0) -> int:
    """Return an open file of `size` zero bytes that has no name in any folder. The kernel shows `name` to users.

    Raises OSError.
    """
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except AttributeError:  # not Linux
        return _removed_file(size)
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return _removed_file(size)
    return _sized(descriptor, size, reserve=False)


def seal(descriptor: int, *, writers: bool) -> int:
    """Fix the size of an anonymous file. Returns its descriptor for other processes.

    Without `writers`, other processes can only read it, but existing mappings of this process remain writable. If the
    file cannot be sealed, its size is not fixed, and `descriptor` is replaced by one for reading.
    """
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    for more in (0,) if writers else (FUTURE_WRITE, 0):  # before Linux 5.1, no seal stops other processes from writing
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | more)
        except OSError:
            continue
        return descriptor
    if writers:
        return descriptor
    try:
        reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return descriptor
    os.close(descriptor)
    return reading


def _removed_file(size: int) -> int:
    """Return a new file with reserved space that was removed from its folder. Raises OSError."""
    refused: OSError | None = None
    for folder in (SHARED_FILES, None):
        try:
            descriptor, path = tempfile.mkstemp(prefix="brand-", dir=folder)
            Path(path).unlink()
            return _sized(descriptor, size, reserve=True)
        except OSError as error:
            if error.errno in _SCARCE:
                raise
            refused = error
    assert refused is not None
    text = f"memfd_create is refused here, and neither {SHARED_FILES} nor TMPDIR can hold a file of {size:,} bytes"
    raise OSError(refused.errno, f"{text}: {refused.strerror}") from refused


def _sized(descriptor: int, size: int, *, reserve: bool) -> int:
    try:
        if size and reserve:
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
