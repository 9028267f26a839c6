"""How fast may bytes go where all connections share one bandwidth? One queue of reservations.

Each piece reserves the time that it takes on an empty pipe, after all that was reserved before it. `reserve` has no
clock and does not wait: its caller has one, and does.
"""

from __future__ import annotations

import threading


class Pipe:
    """A pipe for so many bytes per second; None: no limit. The rate may be changed at any time."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, size: int, now: float) -> float:
        """Reserve the pipe for `size` bytes; returns the seconds from `now` until they are through."""
        rate = self.bytes_per_s
        if rate is None:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, now) + size / rate
            return self._free_at - now
