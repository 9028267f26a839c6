"""The training loops of a server's ranks, as their LOOP reports tell: sums, the last seconds, and the last ten minutes.

    reports, one a second   -> rows     one a report, for the last minute: pace, and why a step waits
                            -> cells    one for each `CELL_S` seconds, for the charts of the last ten minutes

This module has no clock: times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from brand.node.wire.looping import HARDLY, LOOP, LoopReport, StepTally, Waiting
from brand.reprs import Reprs

MOST_LOOPS: Final = 4096
"""Maximum number of ranks, over all runs, whose sums a server stores. It drops the rank with the oldest last report."""
CELL_S: Final = 5.0
"""Seconds of a cell of the charts."""
MOST_CELLS: Final = 120
"""Maximum number of stored cells of a rank: ten minutes."""
MOST_ROWS: Final = 64
"""Maximum number of stored rows of a rank: about a minute."""
SILENT_S: Final = 5.0
"""Seconds after a loop's last report from which its current wait is no longer shown, and the loop counts as paused."""
LOOK_S: Final = 10.0
"""Seconds of the last steps that give the pace of a loop and the reason why it waits."""
FORECAST_S: Final = 60.0
"""Seconds of the last steps that give the time until the end of the epoch."""
UNUSUAL: Final = 3.0
"""A loop is busy with one step if that takes longer than `LOOK_S`, and this many times as long as usual."""
LONG_S: Final = 1.0
"""A wait that has lasted this many seconds is reported before it ends."""

Loop = Mapping[str, Any]
"""A loop of `Loops.facts`, with all its `rows` and `cells`."""
Row = Mapping[str, Any]


@dataclass(slots=True)
class _Loop:
    """The reports of one rank of a run, summed up."""

    tally: StepTally = field(default_factory=StepTally)
    rows: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))
    cells: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_CELLS))
    last: LoopReport | None = None
    heard_s: float = 0.0
    stepped_s: float = 0.0
    """Time of the last report that had a step, or of the first report."""

    def hears(self, report: LoopReport, now_s: float) -> None:
        self.tally.add(report.tally)
        if self.last is None or report.tally.steps or report.step < self.last.step:
            self.stepped_s = now_s
        self.last, self.heard_s = report, now_s
        if not report.tally.steps:
            return
        self.rows.append(_row(report))
        number = int(now_s // CELL_S)
        if not self.cells or self.cells[-1]["number"] != number:
            self.cells.append(_new_cell(number))
        _add(self.cells[-1], report)


class Loops(Reprs, shows="_loops"):
    """The training loops of a server's ranks."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, int], _Loop] = {}

    def hears(self, report: LoopReport, now_s: float) -> None:
        key = report.run, report.rank
        loop = self._loops.pop(key, None) or _Loop()
        while len(self._loops) >= MOST_LOOPS:
            del self._loops[next(iter(self._loops))]
        self._loops[key] = loop  # ordered by the last report, the oldest first
        loop.hears(report, now_s)

    def facts(self, held: Iterable[Mapping[str, Any]], now_s: float) -> list[dict[str, Any]]:
        """Return each rank as plain values. `held` are the draws that wait now (`held_draws`)."""
        waits: dict[tuple[str, int | None], Mapping[str, Any]] = {}
        for draw in held:
            waits.setdefault((draw["job"], draw["rank"]), draw)
        return [_facts(key, loop, waits.get(key), now_s) for key, loop in sorted(self._loops.items())]


def shown(loop: Loop, cells: int) -> dict[str, Any]:
    """Return a loop of `Loops.facts` as users see it, with its last `cells` cells; if 0, also without its buckets."""
    inner = {"rows", "cells"} if cells else {"rows", "cells", "buckets", "seconds"}
    found = {name: value for name, value in loop.items() if name not in inner}
    if not cells:
        return found
    return found | {
        "cells": [{name: value for name, value in cell.items() if name != "waits"} for cell in loop["cells"][-cells:]]
    }


def recent(rows: Sequence[Row], over_s: float = LOOK_S) -> list[Row]:
    """Return the last rows that fill `over_s` seconds, the latest first."""
    found, left_s = [], over_s
    for row in reversed(rows):
        if left_s <= 0:
            break
        found.append(row)
        left_s -= row["seconds"]
    return found


def share(rows: Iterable[Row]) -> float:
    """Return the fraction of the time for which a loop waited."""
    rows = list(rows)
    seconds = sum(row["seconds"] for row in rows)
    return sum(row["wait_s"] for row in rows) / seconds if seconds else 0.0


def main_cause(rows: Iterable[Row]) -> str:
    """Return the cause for which a loop waited longest in these rows; `LOOP` if it hardly waited."""
    rows = list(rows)
    if share(rows) <= HARDLY:
        return LOOP
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row["cause"]] = seconds.get(row["cause"], 0.0) + row["wait_s"]
    seconds.pop(LOOP, None)
    return max(seconds, key=seconds.__getitem__, default=LOOP)


@dataclass(frozen=True, slots=True)
class LoopPace:
    """The speed of a loop over its last seconds."""

    samples_per_s: float
    batches_per_s: float
    wait_share: float
    """Fraction of the time for which the loop waited."""


def pace(rows: Sequence[Row], waiting_s: float, busy_s: float = 0.0, over_s: float = LOOK_S) -> LoopPace | None:
    """Return the speed over the steps of the last `over_s` seconds; None before the first step.

    If a step has waited for `waiting_s` seconds by now, more than `LONG_S`, or the loop trains one step for `busy_s`
    seconds, these seconds count, so the speed of a loop that stands still falls to 0.
    """
    waiting_s = waiting_s if waiting_s > LONG_S else 0.0
    found = recent(rows, over_s - waiting_s - busy_s)
    seconds = waiting_s + busy_s + sum(row["seconds"] for row in found)
    if not rows or not seconds:
        return None
    samples, steps = (sum(row[name] for row in found) / seconds for name in ("samples", "steps"))
    return LoopPace(samples, steps, (waiting_s + sum(row["wait_s"] for row in found)) / seconds)


def busy(rows: Sequence[Row], still_s: float) -> float:
    """Return for how many seconds a loop has trained one step; 0 if that is usual. `still_s`: since the last step."""
    steps = sum(row["steps"] for row in rows)
    usual_s = sum(row["seconds"] for row in rows) / steps if steps else 0.0
    return still_s if still_s > max(LOOK_S, UNUSUAL * usual_s) else 0.0


def _facts(key: tuple[str, int], loop: _Loop, held: Mapping[str, Any] | None, now_s: float) -> dict[str, Any]:
    last = loop.last
    assert last is not None
    reports = now_s - loop.heard_s < SILENT_S
    now = last.now if reports else None
    waiting = None if now is None else Waiting(now.step, now.wait_s + now_s - loop.heard_s, now.cause)
    if waiting is not None and waiting.cause == "server" and held is not None:
        waiting = Waiting(waiting.step, waiting.wait_s, held["cause"])
    rows, waiting_s = list(loop.rows), 0.0 if waiting is None else waiting.wait_s
    busy_s = busy(rows, now_s - loop.stepped_s) if reports and waiting_s <= LONG_S else 0.0
    present, steady = pace(rows, waiting_s, busy_s), pace(rows, waiting_s, over_s=FORECAST_S)
    left = max(0, last.extent.due - last.taken)
    return {
        "job": key[0],
        "rank": key[1],
        "ranks": last.ranks,
        "epoch": last.epoch,
        "step": last.step,
        "taken": last.taken,
        "due": last.extent.due,
        "epoch_start": last.extent.start,
        "epoch_samples": last.extent.samples,
        "pace": None if present is None else {name: round(value, 4) for name, value in asdict(present).items()},
        "recent_cause": main_cause(recent(rows)) if rows else None,
        "left_s": None if steady is None or not steady.samples_per_s else round(left / steady.samples_per_s, 6),
        "busy_s": round(busy_s, 1),
        "heard_s": round(now_s - loop.heard_s, 3),
        **loop.tally.to_json(),
        "now": _plain(waiting),
        "seconds": round(loop.tally.seconds, 6),
        "buckets": {cause: list(waits.counts) for cause, waits in loop.tally.waits.items()},
        "rows": rows,
        "cells": list(loop.cells),
    }


def _row(report: LoopReport) -> dict[str, Any]:
    tally = report.tally
    return {
        "steps": tally.steps,
        "samples": tally.samples,
        "seconds": round(tally.seconds, 6),
        "wait_s": round(tally.wait_s, 6),
        "cause": tally.cause,
        "worst": _plain(report.worst),
    }


def _new_cell(number: int) -> dict[str, Any]:
    """Return an empty cell: `step` is the number of batches at its end, `waits` has seconds by cause."""
    place = {"number": number, "epoch": 0, "step": 0}
    return {**place, "steps": 0, "samples": 0, "seconds": 0.0, "wait_s": 0.0, "cause": LOOP, "waits": {}, "worst": None}


def _add(cell: dict[str, Any], report: LoopReport) -> None:
    """Add the steps of a report to a cell."""
    tally, waits = report.tally, cell["waits"]
    for cause, each in tally.waits.items():
        waits[cause] = waits.get(cause, 0.0) + each.seconds
    cell |= {"epoch": report.epoch, "step": report.step, "worst": _longer(cell["worst"], _plain(report.worst))}
    cell["steps"] += tally.steps
    cell["samples"] += tally.samples
    cell["seconds"] = round(cell["seconds"] + tally.seconds, 6)
    cell["wait_s"] = round(sum(waits.values()), 6)
    stalls = [cause for cause in waits if cause != LOOP]
    hardly = not stalls or cell["wait_s"] <= HARDLY * cell["seconds"]
    cell["cause"] = LOOP if hardly else max(stalls, key=waits.__getitem__)


def _longer(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    waits = [wait for wait in (one, other) if wait is not None]
    return max(waits, key=lambda wait: wait["wait_s"], default=None)


def _plain(waiting: Waiting | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 4), "cause": waiting.cause}
