"""The waits of the training loops of this node's ranks, as reported in LOOP, summed up by run and rank."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from brand.node.wire.looping import LoopReport, StepTally, Waiting
from brand.reprs import Reprs

MOST_LOOPS: Final = 4096
"""Maximum number of ranks, over all runs, whose sums a server stores. It drops the rank with the oldest last report."""
MOST_ROWS: Final = 240
"""Maximum number of stored reports of a rank."""
SILENT_S: Final = 5.0
"""Seconds after a loop's last report from which its current wait is no longer shown."""


class _Loop(Reprs, shows="tally rows last"):
    """The reports of one rank of a run, summed up."""

    def __init__(self) -> None:
        self.tally = StepTally()
        self.rows: deque[dict[str, Any]] = deque(maxlen=MOST_ROWS)
        self.last: LoopReport | None = None
        self.heard_s = 0.0

    def hears(self, report: LoopReport, row: dict[str, Any], now_s: float) -> None:
        """Add a report of the rank."""
        self.tally.add(report.tally)
        self.last, self.heard_s = report, now_s
        if report.tally.steps:
            self.rows.append(row)


class Loops(Reprs, shows="_loops _reports"):
    """The training loops of a server's ranks."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, int], _Loop] = {}
        self._reports = 0

    def hears(self, report: LoopReport, now_s: float) -> None:
        """Add a report of a rank."""
        key = report.run, report.rank
        loop = self._loops.pop(key, None) or _Loop()
        while len(self._loops) >= MOST_LOOPS:
            del self._loops[next(iter(self._loops))]
        self._loops[key] = loop  # ordered by the last report, the oldest first
        self._reports += 1
        tally = report.tally
        row = {
            "number": self._reports,
            "epoch": report.epoch,
            "step": report.step,
            "steps": tally.steps,
            "seconds": round(tally.seconds, 4),
            "wait_s": round(tally.wait_s, 4),
            "cause": tally.cause,
            "worst": _waiting(report.worst),
        }
        loop.hears(report, row, now_s)

    def facts(self, held: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return each rank as plain values. `held` are the draws that wait now (`held_draws`)."""
        now_s = time.monotonic()
        waits: dict[tuple[str, int | None], Mapping[str, Any]] = {}
        for draw in held:
            waits.setdefault((draw["job"], draw["rank"]), draw)
        return [_facts(key, loop, waits.get(key), now_s) for key, loop in sorted(self._loops.items())]


def shown(loop: dict[str, Any], rows: int) -> dict[str, Any]:
    """Return a loop of `Loops.facts` with its last `rows` rows; if `rows` is 0, also without its buckets."""
    if rows:
        return {**loop, "rows": loop["rows"][-rows:]}
    return {name: value for name, value in loop.items() if name not in ("rows", "buckets", "seconds")}


def _facts(key: tuple[str, int], loop: _Loop, held: Mapping[str, Any] | None, now_s: float) -> dict[str, Any]:
    last = loop.last
    assert last is not None
    now = last.now if now_s - loop.heard_s < SILENT_S else None
    waiting = None if now is None else Waiting(now.step, now.wait_s + now_s - loop.heard_s, now.cause)
    if waiting is not None and waiting.cause == "server" and held is not None:
        waiting = Waiting(waiting.step, waiting.wait_s, held["cause"])
    return {
        "job": key[0],
        "rank": key[1],
        "ranks": last.ranks,
        "epoch": last.epoch,
        "step": last.step,
        "heard_s": round(now_s - loop.heard_s, 3),
        **loop.tally.to_json(),
        "now": _waiting(waiting),
        "seconds": round(loop.tally.seconds, 6),
        "buckets": {cause: list(waits.counts) for cause, waits in loop.tally.waits.items()},
        "rows": list(loop.rows),
    }


def _waiting(waiting: Waiting | None) -> dict[str, Any] | None:
    """Return a wait as plain values."""
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 4), "cause": waiting.cause}
