"""Why does the training loop wait for a batch? `Course` says where a batch was, `StepWaits` counts the steps by cause.

`Reporter` tells the node server once a second.

    the loop asks for batch N        start of the wait
    batch N is there                 end of the wait; whatever batch N waited for longest meanwhile is the cause

The wait is measured in the loop, batch by batch, so what is prepared ahead costs nothing here. Batches are made in
order, so what holds up batch N while the loop waits for it is never the work of an earlier batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from brand.node.wire.looping import CAUSES, HARDLY, LOOP, LoopReport, StepTally, Waiting
from brand.torch.fetch.spans import Span

Monitor = Callable[[int, dict[str, float]], object]

EVERY_S: Final = 1.0
"""Time between two reports to the node server."""
END_LIMIT_S: Final = 1.0
"""How long the end of an iteration waits for the last report."""


class Course:
    """Where a batch was at which time. Times are those of `time.monotonic`."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        """What the request that brought its samples has waited for."""
        self.collate_s = self.done_s = float("inf")
        """Since when the batch is put together, and since when it is there."""

    def __repr__(self) -> str:
        state = "there" if self.done_s < float("inf") else "collated" if self.collate_s < float("inf") else "decoded"
        return f"Course({len(self.spans)} spans, {state})"

    @property
    def doing(self) -> str:
        """What the batch waits for now that its samples have come."""
        return "collate" if self.collate_s < float("inf") else "preparation"

    def cause(self, start_s: float, end_s: float) -> str:
        """What the batch waited for longest between two moments; `LOOP` where it was there before."""
        shares = dict.fromkeys(CAUSES, 0.0)
        for span in (*self.spans, Span("collate", self.collate_s, self.done_s)):
            shares[span.cause] += max(0.0, min(end_s, span.end_s) - max(start_s, span.start_s))
        # The rest is work in this process: copying samples, decoding, transforming.
        shares["preparation"] += max(0.0, min(end_s, self.done_s) - start_s - sum(shares.values()))
        cause = max(shares, key=shares.__getitem__)
        return cause if shares[cause] > 0 else LOOP


class StepWaits:
    """The steps of one loader since it was made. The loop notes them; other threads may look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally = StepTally()
        self._reported = StepTally()
        """What the server was told."""
        self._worst: Waiting | None = None
        """The longest wait since then."""
        self._last: Waiting | None = None
        self._step, self._asks = 0, "server"
        """Batches of this iteration, and what a request waits for that has not been answered."""
        self._waiting: tuple[float, Course | None] | None = None
        """Since when the loop waits now, and for which batch, once its samples have come."""
        self._samples = 0
        self._monitors: list[_Watch] = []

    def __repr__(self) -> str:
        return f"StepWaits({self._tally!r}, last {self._last!r})"

    def monitor(self, callback: Monitor, every: int) -> None:
        """See `BrandLoader.monitor`."""
        self._monitors.append(_Watch(callback, every, self._tally.copy(), self._samples))

    def begins(self, asks: str) -> None:
        """An iteration begins, whose requests wait for this, as far as this process knows before they are answered."""
        self._step, self._asks = 0, asks

    def waits(self, since_s: float, course: Course | None = None) -> None:
        """The loop waits for its next batch; `course` is the batch's, as soon as its samples have come."""
        self._waiting = since_s, course

    def waits_no_more(self) -> None:
        """No batch is left, or it is an error."""
        self._waiting = None

    def taken(self, course: Course, start_s: float, end_s: float, trained_s: float, samples: int) -> Waiting:
        """The loop has its batch, for which it waited from `start_s` to `end_s`. Before, it trained for `trained_s`.

        Returns the step.
        """
        wait_s = end_s - start_s
        hardly = wait_s <= HARDLY * (wait_s + trained_s)
        last = Waiting(self._step, wait_s, LOOP if hardly else course.cause(start_s, end_s))
        with self._lock:
            self._tally.count(last.cause, wait_s, wait_s + trained_s)
            self._last, self._waiting = last, None
            self._worst = last if self._worst is None or wait_s > self._worst.wait_s else self._worst
            self._step += 1
            self._samples += samples
        for watch in self._monitors:
            watch.step(self._tally, self._samples)
        return last

    def report(self, rank: int, ranks: int, epoch: int, now_s: float) -> LoopReport:
        """What is new since the last report that was sent. `sent` follows where this one is."""
        with self._lock:
            new = self._tally.since(self._reported)
            return LoopReport("", rank, ranks, epoch, self._step, new, self._worst, self._now(now_s))

    def sent(self, report: LoopReport) -> None:
        """The server is told."""
        with self._lock:
            self._reported.add(report.tally)
            self._worst = None if self._worst is report.worst else self._worst

    def to_json(self, now_s: float) -> dict[str, Any]:
        """What users see (`docs/waiting.md`)."""
        with self._lock:
            tally, last, now = self._tally.to_json(), self._last, self._now(now_s)
        return {**tally, "last": _plain(last), "now": _plain(now)}

    def _now(self, now_s: float) -> Waiting | None:
        """The wait under way."""
        waits = self._waiting
        if waits is None:
            return None
        since_s, course = waits
        return Waiting(self._step, max(0.0, now_s - since_s), self._asks if course is None else course.doing)


class Reporter:
    """Reports how the loop of `ranks` = (rank, number of ranks) waits in an epoch, once a second, until `close`.

    A thread calls `tell`, which sends on the connection that this process has anyway, gets no reply and starts no
    server. If the server is stuck, only this thread waits: the training loop never does.
    """

    def __init__(
        self, tell: Callable[[LoopReport], bool], waits: StepWaits, ranks: tuple[int, int], epoch: int
    ) -> None:
        self._tell, self._waits, self._ranks, self._epoch = tell, waits, ranks, epoch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brand-report", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Reporter(rank {self._ranks[0]} of {self._ranks[1]}, epoch {self._epoch}, {self._waits!r})"

    def close(self) -> None:
        """Send the last report, and end."""
        self._ended.set()
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._report()
        self._report()

    def _report(self) -> None:
        report = self._waits.report(*self._ranks, self._epoch, time.monotonic())
        if self._tell(report):
            self._waits.sent(report)


class _Watch:
    """Calls a monitor every so many steps."""

    def __init__(self, callback: Monitor, every: int, tally: StepTally, samples: int) -> None:
        self._callback, self._every, self._tally, self._samples = callback, every, tally, samples
        self._missing = every

    def __repr__(self) -> str:
        return f"_Watch({self._missing} of {self._every} steps to go)"

    def step(self, tally: StepTally, samples: int) -> None:
        """A step is over."""
        self._missing -= 1
        if self._missing:
            return
        new, before = tally.since(self._tally), self._samples
        self._missing, self._tally, self._samples = self._every, tally.copy(), samples
        self._callback(tally.steps, row_of(new, samples - before))


QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def row_of(tally: StepTally, samples: int) -> dict[str, float]:
    """What a monitor gets: numbers only, so that any log takes them."""
    seconds = max(tally.seconds, 1e-9)
    return {
        "step_s": seconds / max(1, tally.steps),
        "samples_per_s": samples / seconds,
        "wait_share": tally.wait_s / seconds,
        **{f"wait_{name}": tally.quantile(share) or 0.0 for name, share in QUANTILES.items()},
        **{f"{cause}_s": tally.waits[cause].seconds if cause in tally.waits else 0.0 for cause in CAUSES},
    }


def _plain(waiting: Waiting | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 6), "cause": waiting.cause}
