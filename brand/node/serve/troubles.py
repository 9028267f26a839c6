"""Warnings about storage that fails or stalls: a log line when a trouble begins, and counts while it lasts.

`late_draws` decides which draws wait too long, and finds the cause. `Troubles` words the warnings and writes them to
the log. The server's loop calls it with its clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from brand.errors import counted
from brand.node.decide.draws.job_stats import LATE_S, LateDraw, late_draws
from brand.node.decide.epochs.epochs import Epochs
from brand.node.serve.repeats import Repeats
from brand.node.wire.numbers import FIRST_NODE, ClientNumber, NodeNumber
from brand.printable import printable
from brand.reprs import Reprs

EVERY_S: Final = 30.0
"""Seconds between two sums of a trouble that lasts."""
LOOK_EVERY_S: Final = 0.5
MOST_RECENT: Final = 20
"""Maximum number of warnings that statistics show."""

log = logging.getLogger("brand.node")


class Troubles(Reprs, shows="_repeats.counted _told"):
    """Logs the troubles of this node. `file_of` returns the path of a chunk, `process_of` a client's process."""

    def __init__(
        self,
        file_of: Callable[[int], str],
        process_of: Callable[[ClientNumber], int],
        chunk_size: int,
        node: NodeNumber = FIRST_NODE,
    ) -> None:
        self._file_of, self._process_of = file_of, process_of
        self._chunk_size, self._node = chunk_size, node
        self._repeats = Repeats[str](EVERY_S)
        self._latest: dict[str, str] = {}
        """The last text of each kind, logged or counted."""
        self._told: dict[ClientNumber, float] = {}
        """Late draws that were logged or counted: the time since which they wait, by client."""
        self._look_s = 0.0
        self._recent: deque[tuple[float, str]] = deque(maxlen=MOST_RECENT)
        """Time and text of the last warnings."""

    def read_failed(self, path: str, error: BaseException, now_s: float) -> None:
        """Log a large read that has failed. Clients read its samples directly."""
        kind = getattr(error, "strerror", None) or type(error).__name__
        self._say(kind, f"{printable(path)} cannot be read as a whole: {printable(kind)}", now_s)

    def tend(self, epochs: Epochs, now_s: float) -> None:
        """Log notices of runs, and every `LOOK_EVERY_S` draws that wait too long and sums of counted events."""
        for notice in epochs.runs.take_notices():
            self._warn(printable(notice), now_s)
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        found = late_draws(epochs, self._chunk_size, self._node, now_s)
        late = {one.client: one for one in found}
        for client, one in late.items():
            if self._told.get(client) != one.since_s:
                self._say("late", self._waits(one, now_s), now_s)
        self._told = {client: one.since_s for client, one in late.items()}
        for kind, count, seconds in self._repeats.overdue(now_s):
            self._sum_up(kind, count, seconds)

    def recent(self, now_s: float) -> list[dict[str, Any]]:
        """Return the last warnings as plain values, the latest first."""
        return [{"ago_s": round(now_s - at_s, 1), "text": text} for at_s, text in reversed(self._recent)]

    def close(self, now_s: float) -> None:
        for kind, count, seconds in self._repeats.rest(now_s):
            self._sum_up(kind, count, seconds)

    def _waits(self, late: LateDraw, now_s: float) -> str:
        """Return a text that names the process that waits, and the cause."""
        who = f"process {self._process_of(late.client)}"
        who = who if late.rank is None else f"rank {late.rank} of {late.replicas} ({who})"
        what = "the order of the epoch is still being computed"
        if late.chunk is not None:
            file = printable(self._file_of(late.chunk))
            what = {
                "read": f"the storage has not answered a read of {file}",
                "memory": f"a read of {file} has not begun, because earlier reads have not ended or memory is full",
                "node": f"node {late.node} has not sent a sample of {file}",
            }[late.cause]
        waited = f"has waited {now_s - late.since_s:.0f} s for position {late.position:,} of epoch {late.epoch}"
        return f"{who} {waited}: {what}"

    def _say(self, kind: str, text: str, now_s: float) -> None:
        self._latest[kind] = text
        if self._repeats.tell(kind, now_s):
            self._warn(text, now_s)

    def _warn(self, text: str, now_s: float) -> None:
        log.warning("%s", text)
        self._recent.append((now_s, text))

    def _sum_up(self, kind: str, count: int, seconds: float) -> None:
        noun, done = ("request", f"waited longer than {LATE_S:.0f} s") if kind == "late" else ("read", "failed")
        what = f"{counted(count, f'more {noun}')} {'has' if count == 1 else 'have'} {done}"
        log.warning("%s within %.0f s; the last: %s", what, seconds, self._latest[kind])
