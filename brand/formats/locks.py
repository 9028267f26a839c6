"""How does one process keep others out of a folder?

By a lock on a file in it (flock), which ends with the process. Some file systems have no locks: Lustre unless it is
mounted with `flock`, NFS without its lock service, and some of FUSE.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Error numbers of a file system without locks."""

ADVICE: Final = (
    "its file system has no locks (flock), which keep two writers apart: have it mounted with them (`-o flock` for"
    " Lustre, `local_lock=flock` for NFS), or write to a folder of another file system, and copy that folder"
)
"""The advice for a file system without locks."""


def take(descriptor: int, path: str | Path, *, shared: bool = False, wait: bool = False) -> bool:
    """Take the lock of an open file until it is closed. Return False if another process has it.

    `shared`: other processes may have it, too, if they share it. `wait`: wait for it. Raises OSError, with advice if
    the file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise OSError(error.errno, ADVICE, os.fspath(path)) from error
        raise
    return True
