"""Reports of clients, and the last warnings of the log. For statistics; no decision depends on them.

`Loops` sums up the waits of training loops, as reported in LOOP, by run and rank. `why` answers why a step waits: one
sentence about all training loops of a server, and advice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from brand.node.serve.troubles import Troubles
from brand.node.wire.client_messages import Replaced
from brand.node.wire.looping import HARDLY, LOOP, LoopReport, StepTally, Waiting
from brand.reprs import Reprs

MAX_REPORTS: Final = 1000
MOST_LOOPS: Final = 4096
"""Maximum number of ranks, over all runs, whose sums a server stores. It drops the rank with the oldest last report."""
MOST_ROWS: Final = 240
"""Maximum number of stored reports of a rank."""
SILENT_S: Final = 5.0
"""Seconds after a loop's last report from which its current wait is no longer shown."""
LOOK_S: Final = 10.0
"""The sentence is about this many seconds before the last report of each loop."""
LONG_S: Final = 1.0
"""A wait that has lasted this many seconds is reported before it ends."""
ABSENT_S: Final = 15.0
"""A loop whose last report is older than this many seconds does not count as training."""
NAMES: Final = {"storage": "storage", "node": "another node", "preparation": "preparation", "collate": "collate"} | {
    "server": "the data server",
    LOOP: "nothing",
}
HINTS: Final = {
    "storage": "Storage is at its limit: more memory= caches more of the data; `brand profile` measures the best read "
    "size.",
    "node": "Another node sends late: check its storage, and the network between the two nodes.",
    "preparation": "Copying, decoding and transforms set the pace: more num_workers=, decode=, smaller images, or a "
    "cheaper transform.",
    "collate": "Putting batches together sets the pace: a cheaper collate_fn, or more num_workers=.",
    "server": "The data server answers late: its processors are busy, it makes a plan, or other ranks have not begun.",
    LOOP: "Loading keeps up. The training itself sets the pace.",
}

Loop = Mapping[str, Any]
"""A loop of `Loops.facts`, with all its `rows`."""


class Reports(Reprs, shows="_replaced _loops"):
    """Reports of the clients of a server, in addition to its warnings (`troubles`)."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles, self._loops = troubles, Loops()
        self._replaced: list[Replaced] = []

    def replaced(self, report: Replaced) -> None:
        if len(self._replaced) < MAX_REPORTS:
            self._replaced.append(report)

    def loop(self, report: LoopReport) -> None:
        self._loops.hears(report, time.monotonic())

    def facts(self, held: Iterable[Mapping[str, Any]], draws: Mapping[str, float], rows: int = 0) -> dict[str, Any]:
        """Return all reports as plain values; `held` and `rows` as for `Loops.facts`, `draws` as for `why`."""
        loops = self._loops.facts(held)
        return {
            "why": why(loops, draws),
            "loops": [shown(loop, rows) for loop in loops],
            "replaced": [asdict(report) for report in self._replaced],
            "recent_warnings": self._troubles.recent(time.monotonic()),
        }


@dataclass(slots=True)
class _Loop:
    """The reports of one rank of a run, summed up."""

    tally: StepTally = field(default_factory=StepTally)
    rows: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))
    last: LoopReport | None = None
    heard_s: float = 0.0

    def hears(self, report: LoopReport, row: dict[str, Any], now_s: float) -> None:
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
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 4), "cause": waiting.cause}


def why(loops: Sequence[Loop], draws: Mapping[str, float]) -> dict[str, Any]:
    """Return `cause`, `text` and `hint`. `draws`: seconds that draws waited, by cause, used if no loop reports."""
    late = [loop for loop in loops if loop["now"] is not None and loop["now"]["wait_s"] > LONG_S]
    if late:
        loop = max(late, key=lambda loop: loop["now"]["wait_s"])
        step, wait_s, cause = (loop["now"][name] for name in ("step", "wait_s", "cause"))
        return _said(cause, f"step {step:,}{_of(loop)} is waiting for {NAMES[cause]}, {_time(wait_s)} so far")
    recent = [(loop, rows) for loop in loops if loop["heard_s"] < ABSENT_S and (rows := _recent(loop["rows"]))]
    if recent:
        return _about(*max(recent, key=lambda pair: _share(pair[1])))
    if loops:
        return {"cause": None, "text": "no rank trains at the moment", "hint": ""}
    return _without_loops(draws)


def _about(loop: Loop, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cause for which the loop with the longest waits waits."""
    share = _share(rows)
    if share <= HARDLY:
        return _said(LOOP, "no step is waiting")
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row["cause"]] = seconds.get(row["cause"], 0.0) + row["wait_s"]
    seconds.pop(LOOP, None)
    cause = max(seconds, key=seconds.__getitem__, default=LOOP)
    waits = [row["worst"] for row in rows if row["worst"]]
    worst = max([one for one in waits if one["cause"] == cause] or waits, key=lambda one: one["wait_s"], default=None)
    if worst is None or cause == LOOP:
        return _said(LOOP, "no step is waiting")
    time = f"{100 * share:.0f} % of the last {sum(row['seconds'] for row in rows):.0f} s were waits"
    text = f"step {worst['step']:,}{_of(loop)} waited {_time(worst['wait_s'])} for {NAMES[cause]}; {time}"
    return _said(cause, text)


def _without_loops(draws: Mapping[str, float]) -> dict[str, Any]:
    cause = max(draws, key=draws.__getitem__)
    if draws[cause] < 0.001:
        return {"cause": None, "text": "no BrandLoader has reported yet", "hint": ""}
    text = f"no BrandLoader reports; requests waited {_time(sum(draws.values()))}, most of it for {NAMES[cause]}"
    return {"cause": None, "text": text, "hint": "A plain DataLoader does not report how long its loop waited."}


def _recent(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the last rows that fill `LOOK_S`."""
    found, left_s = [], LOOK_S
    for row in reversed(rows):
        if left_s <= 0:
            break
        found.append(row)
        left_s -= row["seconds"]
    return found


def _share(rows: Sequence[Mapping[str, Any]]) -> float:
    seconds = sum(row["seconds"] for row in rows)
    return sum(row["wait_s"] for row in rows) / seconds if seconds else 0.0


def _said(cause: str, text: str) -> dict[str, Any]:
    return {"cause": cause, "text": text, "hint": HINTS[cause]}


def _of(loop: Loop) -> str:
    return f" of rank {loop['rank']}" if loop["ranks"] > 1 else ""


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
