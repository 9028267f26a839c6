"""Is a range first requested with a short timeout (hedged)? Yes, as long as few ranges exceed it.

A store that answers within milliseconds delays one request in some hundreds by seconds. It is much faster to repeat
such a request at once than to wait for it. If the whole store is slow, repeated requests would only add load: then no
range is requested with the short timeout for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from brand.reprs import Reprs

_LATEST: Final = 64
"""Number of recent ranges that are considered."""
_MOST_LATE: Final = 8
"""Maximum number of these that may exceed the short timeout."""
_PAUSE: Final = 1000
"""Number of ranges that are then requested with the long timeout."""


class HedgePolicy(Reprs, shows="_late _pause"):
    """Decides which requests are hedged. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late: deque[bool] = deque(maxlen=_LATEST)
        self._pause = 0

    def next(self) -> bool:
        """Return whether the next range is requested with the short timeout."""
        with self._lock:
            eager = not self._pause
            self._pause = max(0, self._pause - 1)
            return eager

    def note(self, *, late: bool) -> None:
        """Record that a range requested with the short timeout has arrived; `late`: it exceeded the timeout."""
        with self._lock:
            self._late.append(late)
            if sum(self._late) > _MOST_LATE:
                self._pause = _PAUSE
                self._late.clear()
