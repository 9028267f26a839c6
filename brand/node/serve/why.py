"""Why does a step wait? One sentence about all training loops of a server, and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brand.node.serve.loops import LONG_S, Loop, main_cause, recent, share
from brand.node.wire.looping import LOOP

ABSENT_S: Final = 15.0
"""A loop whose last report is older than this many seconds does not count as training."""
NAMES: Final = {
    "storage": "storage",
    "node": "another node",
    "decode": "decoding and transforms",
    "collate": "collate",
    "server": "the data server",
    LOOP: "nothing",
}
HINTS: Final = {
    "storage": "Reads from storage set the pace: more `memory=` caches more of the data, and a cache folder on a local "
    "disk helps from the second epoch on. `brand profile` measures how fast the storage is.",
    "node": "Another node sends late: check its storage, and the network between the two nodes.",
    "decode": "Copying, decoding and transforms set the pace: more `num_workers=`, `decode=`, smaller images, or "
    "a cheaper transform.",
    "collate": "Putting batches together sets the pace: a cheaper `collate_fn`, or more `num_workers=`.",
    "server": "The data server answers late: its processors are busy, it makes a plan, or other ranks have not begun.",
    LOOP: "Loading keeps up. The training itself sets the pace.",
}


def why(loops: Sequence[Loop], draws: Mapping[str, float]) -> dict[str, Any]:
    """Return `cause`, `text` and `hint`. `draws`: seconds that draws waited, by cause, used if no loop reports."""
    present = [loop for loop in loops if loop["heard_s"] < ABSENT_S]
    several = len({loop["job"] for loop in present}) > 1
    late = [loop for loop in present if loop["now"] is not None and loop["now"]["wait_s"] > LONG_S]
    if late:
        loop = max(late, key=lambda loop: loop["now"]["wait_s"])
        step, wait_s, cause = (loop["now"][name] for name in ("step", "wait_s", "cause"))
        text = f"step {step:,}{_of(loop, several=several)} is waiting for {NAMES[cause]}, {_time(wait_s)} so far"
        return _said(cause, text)
    stepping = [loop for loop in present if loop["rows"]]
    if stepping:
        return _about(max(stepping, key=lambda loop: share(recent(loop["rows"]))), several=several)
    if loops:
        return {"cause": None, "text": "no job trains at the moment", "hint": ""}
    return _without_loops(draws)


def _about(loop: Loop, *, several: bool) -> dict[str, Any]:
    """Return the cause for which a loop has waited in its last seconds."""
    rows = recent(loop["rows"])
    cause, waited = main_cause(rows), share(rows)
    waits = [row["worst"] for row in rows if row["worst"]]
    worst = max([one for one in waits if one["cause"] == cause] or waits, key=lambda one: one["wait_s"], default=None)
    if worst is None or cause == LOOP:
        return _said(LOOP, "no step is waiting")
    time = f"{100 * waited:.0f} % of the last {sum(row['seconds'] for row in rows):.0f} s were waits"
    step = f"step {worst['step']:,}{_of(loop, several=several)}"
    return _said(cause, f"{step} waited {_time(worst['wait_s'])} for {NAMES[cause]}; {time}")


def _without_loops(draws: Mapping[str, float]) -> dict[str, Any]:
    cause = max(draws, key=draws.__getitem__)
    if draws[cause] < 0.001:
        return {"cause": None, "text": "no BrandLoader has reported yet", "hint": ""}
    text = f"no BrandLoader reports; fetches waited {_time(sum(draws.values()))}, most of it for {NAMES[cause]}"
    return {"cause": None, "text": text, "hint": "A plain DataLoader does not report how long its loop waited."}


def _said(cause: str, text: str) -> dict[str, Any]:
    return {"cause": cause, "text": text, "hint": HINTS[cause]}


def _of(loop: Loop, *, several: bool) -> str:
    rank = f" of rank {loop['rank']}" if loop["ranks"] > 1 else ""
    return f"{rank} of job {loop['job']}" if several else rank


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
