"""How many requests has this process sent to a store, and how many bytes has it received?

A failed request counts. Retries inside a library do not count, because the library does not report them.
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
        """Return the counters as plain values."""
        with self._lock:
            return {"requests": self._requests, "bytes": self._bytes}
