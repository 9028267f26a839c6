"""Statistics that no decision depends on: reports of clients, gauges, and the last warnings of the log.

loops, progress, why    how fast are the trainings, how far, and why does a step wait?
gauges                  is the storage at its limit, and how much memory is left?
problems                what went wrong?
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from brand.errors import counted
from brand.node.decide.state.counters import ReadCounters
from brand.node.serve.gauges import Gauges
from brand.node.serve.loops import CELL_S, Loops, shown
from brand.node.serve.progress import history, trainings
from brand.node.serve.troubles import Troubles
from brand.node.serve.why import why
from brand.node.wire.client_messages import MAX_REPORTS, Replaced
from brand.node.wire.looping import LoopReport
from brand.reprs import Reprs


class Reports(Reprs, shows="_replaced _loops _gauges"):
    """Reports of the clients of a server, in addition to its gauges and its warnings (`troubles`)."""

    def __init__(self, troubles: Troubles, gauges: Gauges) -> None:
        self._troubles, self._gauges, self._loops = troubles, gauges, Loops()
        self._replaced: list[Replaced] = []

    def replaced(self, report: Replaced) -> None:
        if len(self._replaced) < MAX_REPORTS:
            self._replaced.append(report)

    def loop(self, report: LoopReport) -> None:
        self._loops.hears(report, time.monotonic())

    def facts(
        self,
        held: Iterable[Mapping[str, Any]],
        draws: Mapping[str, float],
        reads: ReadCounters,
        jobs: Iterable[Mapping[str, Any]],
        cells: int = 0,
    ) -> dict[str, Any]:
        """Return all reports as plain values: `held` as for `Loops.facts`, `draws` for `why`, `jobs` for `trainings`.

        With `cells`, also the last `cells` cells of each loop, and the history of the last ten minutes for charts.
        """
        now_s = time.monotonic()
        loops = self._loops.facts(held, now_s)
        found = {
            "why": why(loops, draws),
            "training": trainings(loops, jobs),
            **self._gauges.facts(reads, now_s),
            "loops": [shown(loop, cells) for loop in loops],
            "replaced": [asdict(report) for report in self._replaced],
            "recent_warnings": self._troubles.recent(now_s),
        }
        if cells:
            points = {"jobs": history(loops), "server": self._gauges.points()}
            found["history"] = {"cell_s": CELL_S, "now": round(now_s / CELL_S, 3), **points}
        return found


def problems(facts: Mapping[str, Any]) -> list[str]:
    """Return a text for each kind of problem in the statistics of a server, the worst first."""
    found, cluster, cache = [], facts["cluster"], facts["cache"]
    if cluster is not None and (lost := set(range(cluster["nodes"])) - {cluster["node"], *cluster["reachable"]}):
        found.append(f"nodes that cannot be reached: {', '.join(map(str, sorted(lost)))}")
    if cache is not None and cache["state"].startswith("failed"):
        found.append(f"the cache folder {cache['folder']}: {cache['state']}")
    if facts["failed_reads"]:
        failed = counted(facts["failed_reads"], "large read")
        found.append(f"{failed} of the storage failed; clients read their samples directly")
    if facts["replaced"]:
        damaged, chunks = (len({report[name] for report in facts["replaced"]}) for name in ("index", "chunk"))
        where = f"{counted(damaged, 'damaged sample')} of {counted(chunks, 'chunk')}"
        found.append(f"{where} replaced by other samples: `brand verify` lists the damage")
    if facts["timeouts"]:
        found.append(f"{counted(facts['timeouts'], 'sample')} not sent in time by other nodes")
    return found
