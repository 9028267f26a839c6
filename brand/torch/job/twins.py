"""Does another process of the same command fetch the same samples in the same order, and believe that it is alone?

Ranks of a launcher that sets no known variables do. No job, store or server connects them, so each binds an abstract
socket whose name says command and order: a second process finds the name taken. The kernel frees a name when its
process has ended.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from brand.node.wire.connection import peer

_TRIES: Final = 20
_STEP_S: Final = 0.01
"""Attempts to ask a process that has just claimed a name, and seconds between them."""
_MOST: Final = 4
"""Names that a process claims: a search that makes many samplers has no need of a file for each."""
_claimed = set[str]()
"""Names that this process, or the process that it was forked from, has claimed or found taken."""


def find_twin(what: str) -> int | None:
    """Return the id of another process of the same command that claimed `what`; None if this process claims it.

    A command is a folder and its arguments, which are the same in all children of `multiprocessing`. A second call for
    the same `what` returns None. So does a call on a system without such sockets.
    """
    if sys.platform != "linux" or not hasattr(socket, "AF_UNIX"):
        return None
    digest = hashlib.blake2s(f"{Path.cwd()}|{sys.argv}|{what}".encode(errors="replace"), digest_size=12).hexdigest()
    name = f"\0brand.twin-{os.getuid()}-{digest}"
    if name in _claimed or len(_claimed) >= _MOST:
        return None
    _claimed.add(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind(name)
            claim.listen()
        except OSError as error:
            return _owner(name) if error.errno == errno.EADDRINUSE else None
        claim.detach()  # open until the process ends
    return None


def _owner(name: str) -> int | None:
    """Return the id of the process that listens at a name; None if it has ended, and only its workers are left."""
    for _ in range(_TRIES):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_STEP_S)
            asking.connect(name)
            process, _ = peer(asking)
            return process if process != os.getpid() and Path("/proc", str(process)).exists() else None
        time.sleep(_STEP_S)  # it has bound the name, and does not listen yet
    return None
