"""How long does a server live that a training has started? As long as one of its client processes.

The kernel reports the end of a process (pidfd). If a sandbox refuses pidfd_open, the server looks every second whether
/proc still has the process with this start time.

The number of a process means another process in another PID namespace, for example in another container that shares the
network. So a client names its namespace with its number. From another namespace, the process is the one that the kernel
names at the other end of the connection. If this namespace does not have it at all, its end cannot be seen, and the
server ends once all its clients have disconnected for a while.

The server ends earlier if all its clients have disconnected, because a training process may continue without its data
sets. It does not end while it starts, because its first client or other nodes may take any time to connect.
"""

from __future__ import annotations

import errno
import os
import selectors
from contextlib import suppress
from pathlib import Path
from typing import Final

from brand.errors import ProtocolError
from brand.reprs import Reprs

LINGER_S: Final = 10.0
"""Seconds after which a server ends once its last client has disconnected."""
POLL_S: Final = 1.0
"""Seconds between two looks at the processes whose end the kernel does not report."""
PROC: Final = Path("/proc")
_NO_PROCESS: Final = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open for the number of no process: it has ended, or the number is that of a thread."""


def owner_here(owner: int, space: int, peer: int, own_space: int) -> int:
    """Return the number of a client's owner in this PID namespace, or 0 if it has none here.

    `owner` is its number in the client's namespace `space` (0: unknown), `peer` the client's own number here.
    """
    return owner if space == own_space != 0 else peer


def processes_known() -> bool:
    """Whether /proc shows the processes of this PID namespace by their numbers. It may be that of another namespace."""
    try:
        return str((PROC / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def started_at(process: int) -> str:
    """Return the time at which a process started, as /proc tells it; "" if the process has ended."""
    try:
        state, *facts = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else facts[18]


class Lifetime(Reprs, shows="_owners _left_s"):
    """The client processes that keep a server alive, watched by the selector of its loop.

    Without such processes, the server lives until it is stopped.
    """

    def __init__(self, selector: selectors.BaseSelector, owners: tuple[int, ...]) -> None:
        self._selector = selector
        self.owned = bool(owners)
        self._owners: dict[int, int] = {}
        """Descriptors (pidfd) by process."""
        self._polled: dict[int, str] = {}
        """Start times of the processes whose end the kernel does not report; "" if /proc does not show them."""
        self._polled_s = float("-inf")
        self._unseen = False
        """Whether the end of a client process cannot be seen."""
        self._left_s: float | None = None
        """Time at which the last client disconnected; None if clients are connected, or none has connected yet."""
        for owner in owners:
            self.own(owner)

    def own(self, process: int) -> None:
        """Live at least as long as this process, too; 0 for a process that this PID namespace does not have.

        Raises `ProtocolError` if the process belongs to another user.
        """
        if process in self._owners or process in self._polled:
            return
        if process == 0:
            self._unseen = True
            return
        if not 0 < process < 1 << 31:
            raise ProtocolError(f"process {process} cannot own a server")
        try:
            os.kill(process, 0)
        except ProcessLookupError:  # it has ended already
            return
        except PermissionError:  # without this check, process 1 of a machine could own a server, and never end it
            raise ProtocolError(f"process {process} belongs to another user, so it cannot own a server") from None
        try:
            descriptor = os.pidfd_open(process)
        except AttributeError:  # a Python or C library without it
            self._poll_from_now(process)
            return
        except OSError as error:
            if error.errno not in _NO_PROCESS:
                self._poll_from_now(process)
            return
        self._owners[process] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _: self._disown(process))

    def over(self, now_s: float, *, used: bool, starting: bool) -> bool:
        """Return whether the server ends now.

        `used`: clients or other nodes are connected. `starting`: its first client, or another node, is not connected.
        """
        if self._polled and now_s - self._polled_s > POLL_S:
            self._polled_s = now_s
            self._polled = {process: began for process, began in self._polled.items() if _runs(process, began)}
        if used or starting:
            self._left_s = None
        elif self._left_s is None:
            self._left_s = now_s
        left = self._left_s is not None and now_s - self._left_s > LINGER_S
        return self.owned and (left or not (self._owners or self._polled or self._unseen))

    def close(self) -> None:
        for process in list(self._owners):
            self._disown(process)

    def _poll_from_now(self, process: int) -> None:
        known = processes_known()
        began = started_at(process) if known else ""
        if began or not known:
            self._polled[process] = began

    def _disown(self, process: int) -> None:
        descriptor = self._owners.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)


def _runs(process: int, began: str) -> bool:
    """Return whether a process still runs that started at this time."""
    if began:
        return started_at(process) == began
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False
