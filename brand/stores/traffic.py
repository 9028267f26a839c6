"""How many requests has this process made of a store, and how many bytes have come?

A request that fails counts. What a library repeats by itself does not: it does not tell.
"""

from __future__ import annotations

import threading

from brand.reprs import Reprs


class Traffic(Reprs, shows="_requests _bytes"):
    """Counts reads. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._bytes = 0

    def asked(self) -> None:
        with self._lock:
            self._requests += 1

    def came(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def to_json(self) -> dict[str, int]:
        """The counters as plain values."""
        with self._lock:
            return {"requests": self._requests, "bytes": self._bytes}
