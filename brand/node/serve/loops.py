"""How do the training loops of this node's ranks wait? What ranks have told in LOOP, summed up by run and rank."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from brand.node.wire.looping import LoopReport, Tally, Waiting

MOST_LOOPS: Final = 4096
"""Ranks of runs of which a server keeps a sum. It drops the one that it has not heard of for longest."""
MOST_ROWS: Final = 240
"""Reports of a rank that it keeps."""
SILENT_S: Final = 5.0
"""What a loop waits for now is not told any more so long after its last report."""


class _Loop:
    """What is known of the loops of one rank of a run."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.rows: deque[dict[str, Any]] = deque(maxlen=MOST_ROWS)
        self.last: LoopReport | None = None
        self.heard_s = 0.0

    def __repr__(self) -> str:
        return f"_Loop({self.tally!r}, {len(self.rows)} rows, last {self.last!r})"

    def hears(self, report: LoopReport, row: dict[str, Any], now_s: float) -> None:
        """The rank reports."""
        self.tally.add(report.tally)
        self.last, self.heard_s = report, now_s
        if report.tally.steps:
            self.rows.append(row)


class Loops:
    """The training loops of a server's ranks."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, int], _Loop] = {}
        self._reports = 0

    def __repr__(self) -> str:
        return f"Loops({len(self._loops)} ranks, {self._reports} reports)"

    def hears(self, report: LoopReport, now_s: float) -> None:
        """A rank reports."""
        key = report.run, report.rank
        loop = self._loops.pop(key, None) or _Loop()
        while len(self._loops) >= MOST_LOOPS:
            del self._loops[next(iter(self._loops))]
        self._loops[key] = loop  # the last one heard of comes last
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

    def facts(self, held: Iterable[Mapping[str, Any]], rows: int = 0) -> list[dict[str, Any]]:
        """Each rank as plain values, with its last `rows` rows. `held` are the draws that wait now (`held_draws`)."""
        now_s = time.monotonic()
        waits: dict[tuple[str, int | None], Mapping[str, Any]] = {}
        for draw in held:
            waits.setdefault((draw["job"], draw["rank"]), draw)
        return [self._facts(key, loop, waits.get(key), now_s, rows) for key, loop in sorted(self._loops.items())]

    def _facts(
        self, key: tuple[str, int], loop: _Loop, held: Mapping[str, Any] | None, now_s: float, rows: int
    ) -> dict[str, Any]:
        last = loop.last
        assert last is not None
        now = last.now if now_s - loop.heard_s < SILENT_S else None
        waiting = None if now is None else Waiting(now.step, now.wait_s + now_s - loop.heard_s, now.cause)
        if waiting is not None and waiting.cause == "server" and held is not None:
            waiting = Waiting(waiting.step, waiting.wait_s, held["cause"])
        facts = {
            "job": key[0],
            "rank": key[1],
            "ranks": last.ranks,
            "epoch": last.epoch,
            "step": last.step,
            "heard_s": round(now_s - loop.heard_s, 3),
            **loop.tally.to_json(),
            "recent": loop.rows[-1]["cause"] if loop.rows else None,
            "now": _waiting(waiting),
        }
        if rows:
            facts |= {"rows": list(loop.rows)[-rows:], "buckets": buckets(loop.tally), "seconds": loop.tally.seconds}
        return facts


def buckets(tally: Tally) -> dict[str, list[int]]:
    """Waits by bucket (`BOUNDS`), by cause."""
    return {cause: list(waits.counts) for cause, waits in tally.waits.items()}


def _waiting(waiting: Waiting | None) -> dict[str, Any] | None:
    """A wait as plain values."""
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 4), "cause": waiting.cause}
