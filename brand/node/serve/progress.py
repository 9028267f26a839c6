"""How fast is each training of a server, how far is it in its epoch, and which rank is slow?

    loops   what the training loops have received (`Loops.facts`)
    jobs    how far clients have fetched (`job_stats.jobs`), which is ahead of the loops

Pure functions of these plain values. A job whose loop does not report, because it is that of a plain `DataLoader`, has
only the samples that it fetched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from brand.node.serve.loops import CELL_S, LONG_S, MOST_CELLS, SILENT_S, Loop
from brand.node.serve.why import ABSENT_S, NAMES
from brand.node.wire.looping import HARDLY

FORGOTTEN_S: Final = CELL_S * MOST_CELLS
"""A job whose last report is older than this many seconds is no longer shown."""
SLOWER: Final = 0.9
"""A rank is slow if it trains at less than this fraction of the median pace of its job,"""
BEHIND_S: Final = 3.0
"""or is this many seconds of batches behind the median."""
MUCH_LONGER: Final = 2.0
"""A rank is slow if it waits for more than this many times the share of the median rank."""


def trainings(loops: Sequence[Loop], jobs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each job as plain values, those that train first."""
    fetching = {job["job"]: job for job in jobs}
    by_job: defaultdict[str, list[Loop]] = defaultdict(list)
    for loop in loops:
        by_job[loop["job"]].append(loop)
    found = [_training(ranks, fetching.get(name)) for name, ranks in by_job.items()]
    found = [job for job in found if job["heard_s"] < FORGOTTEN_S]
    found += [_fetching(job) for name, job in fetching.items() if name not in by_job]
    return sorted(found, key=lambda job: (job["state"] in ("paused", "ended"), job["job"]))


def of_this_run(ranks: Sequence[Loop]) -> list[Loop]:
    """Return the loops that report at present; if none does, those that reported last."""
    latest = min(loop["heard_s"] for loop in ranks)
    return [loop for loop in ranks if loop["heard_s"] - latest < ABSENT_S]


def slow_rank(ranks: Sequence[Loop]) -> dict[str, Any] | None:
    """Return the `rank` of a job that holds up the others, and the reason as `text`; None if no rank stands out."""
    if len(ranks) < 2:
        return None
    silent = max(ranks, key=lambda loop: loop["heard_s"])
    if silent["heard_s"] > SILENT_S and silent["taken"] < silent["due"]:
        return _slow(silent, f"has not reported for {silent['heard_s']:.0f} s")
    stepping = [loop for loop in ranks if loop["pace"] is not None]
    if len(stepping) < 2:
        return None
    return _waits_longest(stepping) or _is_behind(stepping) or _trains_slowly(stepping)


def history(loops: Sequence[Loop]) -> dict[str, list[dict[str, Any]]]:
    """Return, by job, a point for each cell of time: samples per second of its ranks, and how they waited by cause.

    `waits` has the mean share of their time that the ranks waited for each cause, `epoch` is their latest epoch. A step
    that took longer than a cell counts in each cell that it covers. A cell in which no loop trained has no point.
    """
    points: defaultdict[str, defaultdict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for loop in loops:
        before = -1
        for cell in loop["cells"]:
            number = cell["number"]
            covered = max(1, round(cell["seconds"] / CELL_S))
            for each in range(max(before + 1, number - covered + 1), number + 1):
                points[loop["job"]][each].append(cell)
            before = number
    return {job: [_point(number, at) for number, at in sorted(found.items())] for job, found in points.items()}


def _training(ranks: Sequence[Loop], fetching: Mapping[str, Any] | None) -> dict[str, Any]:
    here = of_this_run(ranks)
    epoch = max(loop["epoch"] for loop in here)
    first = next(loop for loop in here if loop["epoch"] == epoch)
    start, samples = first["epoch_start"], first["epoch_samples"]
    # A rank that has not begun the epoch yet has received nothing of it.
    taken = sum(loop["taken"] for loop in here if loop["epoch"] == epoch)
    due = sum(loop["due"] if loop["epoch"] == epoch else first["due"] for loop in here)
    reached = min(samples, start + round((samples - start) * taken / due)) if due else samples
    same = fetching is not None and (fetching["epoch"], fetching["samples"]) == (epoch, samples)
    fetched = min(samples, max(reached, fetching["position"])) if fetching is not None and same else reached
    heard_s = min(loop["heard_s"] for loop in here)
    paces = [loop["pace"] for loop in here if loop["pace"] is not None and heard_s < SILENT_S]
    samples_per_s, batches_per_s, waited = (
        round(sum(pace[name] for pace in paces), 4) if paces else None
        for name in ("samples_per_s", "batches_per_s", "wait_share")
    )
    left = [loop["left_s"] for loop in here if loop["epoch"] == epoch]
    return {
        "job": first["job"],
        "state": _state(here, heard_s, ended=taken >= due),
        "reports": True,
        "heard_s": heard_s,
        "busy_s": min(loop["busy_s"] for loop in here),
        "epoch": epoch,
        "step": max(loop["step"] for loop in here if loop["epoch"] == epoch),
        "taken": reached,
        "fetched": fetched,
        "samples": samples,
        "share": round(reached / samples, 6) if samples else 1.0,
        "samples_per_s": samples_per_s,
        "batches_per_s": batches_per_s,
        "left_s": max(left) if paces and None not in left else None,
        "wait_share": None if waited is None else round(waited / len(paces), 4),
        "ranks": first["ranks"],
        "ranks_here": len(here),
        "slow_rank": slow_rank(here) if paces else None,
    }


def _fetching(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job whose loop does not report: the samples that it fetched."""
    return {
        "job": job["job"],
        "state": "fetching" if job["rate"] else "paused",
        "reports": False,
        "heard_s": None,
        "busy_s": 0.0,
        "epoch": job["epoch"],
        "step": None,
        "taken": None,
        "fetched": job["position"],
        "samples": job["samples"],
        "share": None,
        "samples_per_s": None,
        "batches_per_s": None,
        "left_s": None,
        "wait_share": None,
        "ranks": None,
        "ranks_here": 0,
        "slow_rank": None,
    }


def _state(here: Sequence[Loop], heard_s: float, *, ended: bool) -> str:
    if ended:
        return "ended"
    if heard_s >= SILENT_S:
        return "paused"
    if any(_waiting_s(loop) > LONG_S for loop in here):
        return "waiting"
    return "busy" if all(loop["busy_s"] for loop in here) else "training"


def _waiting_s(loop: Loop) -> float:
    return 0.0 if loop["now"] is None else float(loop["now"]["wait_s"])


def _waits_longest(ranks: Sequence[Loop]) -> dict[str, Any] | None:
    """Return the rank that waits much longer for its batches than the others, if there is one."""
    loop = max(ranks, key=lambda loop: loop["pace"]["wait_share"])
    longest, usual = loop["pace"]["wait_share"], median(other["pace"]["wait_share"] for other in ranks if other != loop)
    if longest <= max(HARDLY, MUCH_LONGER * usual):
        return None
    cause = loop["now"]["cause"] if _waiting_s(loop) > LONG_S else loop["recent_cause"]
    shares = f"{100 * longest:.0f} % of its time, the other ranks {100 * usual:.0f} %"
    return _slow(loop, f"waits for {NAMES[cause]}: {shares}")


def _is_behind(ranks: Sequence[Loop]) -> dict[str, Any] | None:
    """Return the rank that is farther behind in its epoch than the times of reports explain, if there is one."""
    if len({loop["epoch"] for loop in ranks}) > 1:
        return None
    loop = min(ranks, key=lambda loop: loop["step"])
    behind = median(loop["step"] for loop in ranks) - loop["step"]
    usual = median(loop["pace"]["batches_per_s"] for loop in ranks)
    return _slow(loop, f"is {behind:,.0f} batches behind") if behind > max(2.0, BEHIND_S * usual) else None


def _trains_slowly(ranks: Sequence[Loop]) -> dict[str, Any] | None:
    """Return the rank that trains fewer batches a second than the others, if there is one."""
    loop = min(ranks, key=lambda loop: loop["pace"]["batches_per_s"])
    slowest, usual = loop["pace"]["batches_per_s"], median(loop["pace"]["batches_per_s"] for loop in ranks)
    if slowest >= SLOWER * usual:
        return None
    return _slow(loop, f"trains {slowest:.3g} batches a second, the other ranks {usual:.3g}")


def _slow(loop: Loop, text: str) -> dict[str, Any]:
    return {"rank": loop["rank"], "text": f"rank {loop['rank']} {text}"}


def _point(number: int, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the point of the cells of all ranks at one time."""
    waits: defaultdict[str, float] = defaultdict(float)
    stepping = [cell for cell in cells if cell["seconds"]]
    for cell in stepping:
        for cause, wait_s in cell["waits"].items():
            waits[cause] += wait_s / cell["seconds"] / len(stepping)
    return {
        "number": number,
        "epoch": max(cell["epoch"] for cell in cells),
        "samples_per_s": round(sum(cell["samples"] / cell["seconds"] for cell in stepping), 3),
        "waits": {cause: round(part, 4) for cause, part in waits.items()},
    }
