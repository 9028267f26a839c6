"""How does a node server learn how its ranks wait? A thread of each iteration tells it, once a second.

It sends on the connection that this process has anyway, gets no reply, and starts no server. Where the server is stuck
only this thread waits: the training loop never does.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brand.torch.drawable import Drawable
    from brand.torch.waits import Waits

EVERY_S: Final = 1.0
END_LIMIT_S: Final = 1.0
"""How long the end of an iteration waits for the last report."""


class Reporter:
    """Reports how the loop of `ranks` = (rank, number of ranks) waits in an epoch, until `close`."""

    def __init__(self, data_set: Drawable, waits: Waits, ranks: tuple[int, int], epoch: int) -> None:
        self._data_set, self._waits, self._ranks, self._epoch = data_set, waits, ranks, epoch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brand-report", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Reporter(rank {self._ranks[0]} of {self._ranks[1]}, epoch {self._epoch}, {self._waits!r})"

    def close(self) -> None:
        """Send the last report, and end."""
        self._ended.set()
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._report()
        self._report()

    def _report(self) -> None:
        report = self._waits.report(*self._ranks, self._epoch, time.monotonic())
        if self._data_set.tell_loop(report):
            self._waits.sent(report)
