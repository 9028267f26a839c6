"""How long does a data server live that a training process has started?

It lives as long as one of its client processes; the kernel reports the end of a process (pidfd). It ends earlier if all
its clients have disconnected, because a training process may continue without its data sets. It does not end while it
starts, because its first client or the servers of other nodes may take any time to connect.
"""

from __future__ import annotations

import os
import selectors
from typing import Final

from brand.reprs import Reprs

LINGER_S: Final = 10.0
"""Seconds after which a server ends once its last client has disconnected."""


class Lifetime(Reprs, shows="_owners _left_s"):
    """The client processes that keep a server alive, watched by the selector of its loop.

    Without such processes, the server lives until it is stopped.
    """

    def __init__(self, selector: selectors.BaseSelector, owners: tuple[int, ...]) -> None:
        self._selector = selector
        self.owned = bool(owners)
        self._owners: dict[int, int] = {}
        """Descriptors (pidfd) by process."""
        self._left_s: float | None = None
        """Time at which the last client disconnected; None if clients are connected, or none has connected yet."""
        for owner in owners:
            self.own(owner)

    def own(self, process: int) -> None:
        """Live at least as long as this process, too."""
        if process in self._owners:
            return
        try:
            descriptor = os.pidfd_open(process)
        except OSError:  # the process has ended already
            return
        self._owners[process] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _: self._disown(process))

    def over(self, now_s: float, *, used: bool, starting: bool) -> bool:
        """Return whether the server ends now.

        `used`: clients or other nodes are connected. `starting`: its first client, or another node, has not connected
        yet.
        """
        if used or starting:
            self._left_s = None
        elif self._left_s is None:
            self._left_s = now_s
        left = self._left_s is not None and now_s - self._left_s > LINGER_S
        return self.owned and (left or not self._owners)

    def close(self) -> None:
        """Close all descriptors."""
        for process in list(self._owners):
            self._disown(process)

    def _disown(self, process: int) -> None:
        descriptor = self._owners.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)
