"""Why is a step waiting? One sentence about all training loops of a server, and advice. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brand.node.wire.looping import HARDLY, LOOP

LOOK_S: Final = 10.0
"""The sentence is about this many seconds before the last report of each loop."""
LONG_S: Final = 1.0
"""A wait that has lasted this many seconds is reported before it ends."""
SILENT_S: Final = 15.0
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


def why(loops: Sequence[Loop], draws: Mapping[str, float]) -> dict[str, Any]:
    """Return `cause`, `text` and `hint`. `draws`: seconds that draws waited, by cause, used if no loop reports."""
    late = [loop for loop in loops if loop["now"] is not None and loop["now"]["wait_s"] > LONG_S]
    if late:
        loop = max(late, key=lambda loop: loop["now"]["wait_s"])
        step, wait_s, cause = (loop["now"][name] for name in ("step", "wait_s", "cause"))
        return _said(cause, f"step {step:,}{_of(loop)} is waiting for {NAMES[cause]}, {_time(wait_s)} so far")
    recent = [(loop, rows) for loop in loops if loop["heard_s"] < SILENT_S and (rows := _recent(loop["rows"]))]
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
    worst = max((row["worst"] for row in rows if row["worst"]), key=lambda one: one["wait_s"], default=None)
    cause = max(seconds, key=seconds.__getitem__, default=LOOP)
    same = [row["worst"] for row in rows if row["worst"] and row["worst"]["cause"] == cause]
    worst = max(same, key=lambda one: one["wait_s"], default=worst)
    if worst is None or cause == LOOP:
        return _said(LOOP, "no step is waiting")
    time = f"{100 * share:.0f} % of the last {sum(row['seconds'] for row in rows):.0f} s were waits"
    text = f"step {worst['step']:,}{_of(loop)} waited {_time(worst['wait_s'])} for {NAMES[cause]}; {time}"
    return _said(cause, text)


def _without_loops(draws: Mapping[str, float]) -> dict[str, Any]:
    cause = max(draws, key=draws.__getitem__)
    if draws[cause] < 0.001:
        return {"cause": None, "text": "no BrandLoader has reported yet", "hint": ""}
    text = f"no BrandLoader reports; draws waited {_time(sum(draws.values()))}, most of it for {NAMES[cause]}"
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
