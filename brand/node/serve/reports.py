"""Reports of clients, and the last warnings of the log. For statistics; no decision depends on them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from brand.node.serve.loops import Loops, shown
from brand.node.serve.troubles import Troubles
from brand.node.serve.why import why
from brand.node.wire.client_messages import Replaced
from brand.node.wire.looping import LoopReport
from brand.reprs import Reprs

MAX_REPORTS: Final = 1000


class Reports(Reprs, shows="_replaced _loops"):
    """Reports of the clients of a server, in addition to its warnings (`troubles`)."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles, self._loops = troubles, Loops()
        self._replaced: list[Replaced] = []
        """Samples that clients have replaced."""

    def replaced(self, report: Replaced) -> None:
        if len(self._replaced) < MAX_REPORTS:
            self._replaced.append(report)

    def loop(self, report: LoopReport) -> None:
        """Add a rank's report of the waits of its training loop."""
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
