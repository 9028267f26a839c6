"""Is a range first asked for with little patience? While few ranges need more.

A store that answers within milliseconds lets one request in some hundreds wait for seconds. To ask such a one anew at
once is much quicker than to wait. A store that is slow as a whole would only get more to do: then no range is asked for
eagerly for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from brand.reprs import Reprs

_LATEST: Final = 64
"""Ranges that are looked back upon."""
_MOST_LATE: Final = 8
"""So many of them may need patience."""
_PAUSE: Final = 1000
"""Ranges that are asked for patiently from then on."""


class HedgePolicy(Reprs, shows="_late _pause"):
    """For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late: deque[bool] = deque(maxlen=_LATEST)
        self._pause = 0

    def next(self) -> bool:
        """Whether the next range is asked for eagerly."""
        with self._lock:
            eager = not self._pause
            self._pause = max(0, self._pause - 1)
            return eager

    def note(self, *, late: bool) -> None:
        """A range that was asked for eagerly has come; `late`: it needed patience."""
        with self._lock:
            self._late.append(late)
            if sum(self._late) > _MOST_LATE:
                self._pause = _PAUSE
                self._late.clear()
