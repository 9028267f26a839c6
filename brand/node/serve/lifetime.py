"""How long does a node server live that a training process has started?

It lives as long as one of the processes that own it; the kernel says when a process ends (pidfd). It ends earlier where
all its clients have left, because a training process may go on without its data sets. It does not end while it starts:
then its first client or the servers of other nodes are still to come, and may take any time.
"""

from __future__ import annotations

import os
import selectors
from typing import Final

from brand.reprs import Reprs

LINGER_S: Final = 10.0
"""A server ends so long after its last client has left."""


class Lifetime(Reprs, shows="_owners _left_s"):
    """The owners of a server, watched by the selector of its loop. Without owners it lives until it is told to end."""

    def __init__(self, selector: selectors.BaseSelector, owners: tuple[int, ...]) -> None:
        self._selector = selector
        self.owned = bool(owners)
        self._owners: dict[int, int] = {}
        """Descriptors (pidfd) by process."""
        self._left_s: float | None = None
        """When the last client left; None: some are connected, or none has come yet."""
        for owner in owners:
            self.own(owner)

    def own(self, process: int) -> None:
        """Live at least as long as this process, too."""
        if process in self._owners:
            return
        try:
            descriptor = os.pidfd_open(process)
        except OSError:  # gone already
            return
        self._owners[process] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _: self._disown(process))

    def over(self, now_s: float, *, used: bool, starting: bool) -> bool:
        """Whether the server ends now.

        `used`: clients or other nodes are connected. `starting`: its first client, or another node, is still to come.
        """
        if used or starting:
            self._left_s = None
        elif self._left_s is None:
            self._left_s = now_s
        left = self._left_s is not None and now_s - self._left_s > LINGER_S
        return self.owned and (left or not self._owners)

    def close(self) -> None:
        """Let go of all descriptors."""
        for process in list(self._owners):
            self._disown(process)

    def _disown(self, process: int) -> None:
        descriptor = self._owners.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)
