"""Why does the training loop wait for a batch, and which stage of a `BrandLoader` should be made faster?

`Stages` has the seconds of each stage, `BatchTimes` the times of a batch, `StepWaits` the steps by cause of their wait.
`Reporter` sends the steps to the data server once a second.

    the loop asks for batch N        start of the wait
    batch N is there                 end of the wait; the cause is whatever batch N waited for longest meanwhile

The wait is measured in the loop, batch by batch, so prefetched batches cost nothing here. Batches are made in order, so
the loop never waits for batch N because of the work of an earlier batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from brand.node.wire.looping import CAUSES, HARDLY, LOOP, IterationExtent, LoopReport, StepTally, Waiting
from brand.reprs import Reprs
from brand.torch.fetch.fetched import Span

Monitor = Callable[[int, dict[str, float]], object]

EVERY_S: Final = 1.0
"""Seconds between two reports to the data server."""
END_LIMIT_S: Final = 1.0
"""Seconds for which the end of an iteration waits for the last report."""
QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
NAMES: Final = {
    "storage": "waiting for the data server or for direct reads, that is for storage",
    "gather": "copying samples out of the shared memory and checking them",
    "decode": "decoding and transforming, all threads together",
    "collate": "putting batches together, all threads together",
    "full": "waiting for the training loop to take a batch",
    "loop_waits": "the training loop waiting for a batch",
    "training": "the training loop itself",
}
MAKING: Final = ("storage", "gather", "decode", "collate")
"""The stages that make batches,"""
SHARED: Final = ("decode", "collate")
"""and those in which all threads of a loader work."""


class BatchTimes(Reprs, shows="spans collate_s done_s"):
    """The times of a batch, those of `time.monotonic`, in seconds."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        """The waits of the request that fetched its samples."""
        self.collate_s = self.done_s = float("inf")
        """The times at which collating began, and at which the batch was done."""

    def made_elsewhere(self, spans: Sequence[Span], collate_s: float) -> None:
        """Note the waits and the beginning of collating, as a worker process tells them: its clock is the same."""
        self.spans, self.collate_s = spans, collate_s

    def begin_collate(self) -> float:
        """Note that collating begins now. Returns the time."""
        self.collate_s = time.monotonic()
        return self.collate_s

    def end(self) -> None:
        """Note that the batch is done."""
        self.done_s = time.monotonic()

    @property
    def doing(self) -> str:
        """The cause for which the batch waits now that its samples have been fetched."""
        return "collate" if self.collate_s < float("inf") else "decode"

    def cause(self, start_s: float, end_s: float) -> str:
        """Return the cause for which the batch waited longest between two times; `LOOP` if it was done before."""
        shares = dict.fromkeys(CAUSES, 0.0)
        for span in (*self.spans, Span("collate", self.collate_s, self.done_s)):
            shares[span.cause] += max(0.0, min(end_s, span.end_s) - max(start_s, span.start_s))
        # The rest is work in this process: copying samples, decoding, transforming.
        shares["decode"] += max(0.0, min(end_s, self.done_s) - start_s - sum(shares.values()))
        cause = max(shares, key=shares.__getitem__)
        return cause if shares[cause] > 0 else LOOP


@dataclass(frozen=True, slots=True)
class LoopIdentity:
    """The rank and the iteration of a training loop."""

    rank: int
    ranks: int
    epoch: int
    extent: IterationExtent


class StepWaits(Reprs, shows="_tally _last"):
    """The steps of one loader since it was made. The loop counts them; other threads may read the counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally = StepTally()
        self._reported = StepTally()
        """The counts that the server has received."""
        self._worst: Waiting | None = None
        """The longest wait since the last report."""
        self._last: Waiting | None = None
        self._step, self._taken, self._asks = 0, 0, "server"
        """Batches and samples of this iteration, and the assumed cause of a wait for an unanswered request."""
        self._waiting: tuple[float, BatchTimes | None] | None = None
        """The time since which the loop waits now, and the times of its batch, once its samples were fetched."""
        self._monitors: list[_Watch] = []

    def monitor(self, callback: Monitor, every: int) -> None:
        """See `BrandLoader.monitor`."""
        self._monitors.append(_Watch(callback, every, self._tally.copy()))

    def begin(self, asks: str) -> None:
        """Begin an iteration. `asks` is the assumed cause of a wait for a request that was not answered yet."""
        with self._lock:
            self._step, self._taken, self._asks = 0, 0, asks

    def wait(self, since_s: float, times: BatchTimes | None = None) -> None:
        """Note that the loop waits for its next batch. `times` is the batch's, once its samples have been fetched."""
        self._waiting = since_s, times

    def stop_waiting(self) -> None:
        """Note that the loop waits no more: no batch is left, or the batch is an error."""
        self._waiting = None

    def taken(self, times: BatchTimes, start_s: float, end_s: float, trained_s: float, samples: int) -> Waiting:
        """Count a batch: a wait from `start_s` to `end_s`, after training for `trained_s` seconds. Returns the step."""
        wait_s = end_s - start_s
        hardly = wait_s <= HARDLY * (wait_s + trained_s)
        last = Waiting(self._step, wait_s, LOOP if hardly else times.cause(start_s, end_s))
        with self._lock:
            self._tally.count(last.cause, wait_s, wait_s + trained_s, samples)
            self._last, self._waiting = last, None
            self._worst = last if self._worst is None or wait_s > self._worst.wait_s else self._worst
            self._step += 1
            self._taken += samples
        for watch in self._monitors:
            watch.step(self._tally)
        return last

    def report(self, of: LoopIdentity, now_s: float) -> LoopReport:
        """Return the counts since the last report that was sent. If this report is sent, `sent` must follow."""
        with self._lock:
            new, now = self._tally.since(self._reported), self._now(now_s)
            place = self._step, self._taken, of.extent
            return LoopReport("", of.rank, of.ranks, of.epoch, *place, new, self._worst, now)

    def sent(self, report: LoopReport) -> None:
        """Note that the server has received a report."""
        with self._lock:
            self._reported.add(report.tally)
            self._worst = None if self._worst is report.worst else self._worst

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Return the waits as users see them (`docs/guides/monitor.md`)."""
        with self._lock:
            tally, last, now = self._tally.to_json(), self._last, self._now(now_s)
        return {**tally, "last": _plain(last), "now": _plain(now)}

    def _now(self, now_s: float) -> Waiting | None:
        """Return the present wait; None if the loop does not wait."""
        waits = self._waiting
        if waits is None:
            return None
        since_s, times = waits
        return Waiting(self._step, max(0.0, now_s - since_s), self._asks if times is None else times.doing)


class Reporter(Reprs, shows="_of _waits"):
    """Reports the waits and the progress of a loop once a second, until `close`.

    A thread calls `tell`, which sends on the connection that this process has anyway, gets no reply and starts no
    server. If the server is stuck, only this thread waits, never the training loop.
    """

    def __init__(self, tell: Callable[[LoopReport], bool], waits: StepWaits, of: LoopIdentity) -> None:
        self._tell, self._waits, self._of = tell, waits, of
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brand-report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last report, and end the thread."""
        self._ended.set()
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._report()
        self._report()

    def _report(self) -> None:
        report = self._waits.report(self._of, time.monotonic())
        if self._tell(report):
            self._waits.sent(report)


class _Watch:
    """Calls a monitor after every `every` steps."""

    def __init__(self, callback: Monitor, every: int, tally: StepTally) -> None:
        self._callback, self._every, self._tally = callback, every, tally
        self._missing = every

    def step(self, tally: StepTally) -> None:
        """Count a step."""
        self._missing -= 1
        if self._missing:
            return
        new = tally.since(self._tally)
        self._missing, self._tally = self._every, tally.copy()
        self._callback(tally.steps, row_of(new))


def row_of(tally: StepTally) -> dict[str, float]:
    """Return the row of a monitor: numbers only, so that any log accepts them."""
    seconds = max(tally.seconds, 1e-9)
    return {
        "step_s": seconds / max(1, tally.steps),
        "samples_per_s": tally.samples / seconds,
        "wait_share": tally.wait_s / seconds,
        **{f"wait_{name}": tally.quantile(share) or 0.0 for name, share in QUANTILES.items()},
        **{f"{cause}_s": tally.waits[cause].seconds if cause in tally.waits else 0.0 for cause in CAUSES},
    }


def _plain(waiting: Waiting | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    return {"step": waiting.step, "wait_s": round(waiting.wait_s, 6), "cause": waiting.cause}


class Stages:
    """Seconds spent in each stage (`NAMES`), of all threads, since the loader was made.

    `shared`: the stages in which several threads or processes work at a time.
    """

    def __init__(self, threads: int, shared: Sequence[str] = SHARED) -> None:
        self.threads, self._shared = threads, shared
        """Number of threads that decode at a time, and the stages in which they work."""
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._decoded = 0
        self._lock = threading.Lock()

    def set_threads(self, threads: int) -> None:
        """Set the number of threads that decode at a time."""
        self.threads = threads

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds spent in a stage."""
        with self._lock:
            self._seconds[stage] += seconds

    def count(self, samples: int) -> None:
        """Add samples that have been decoded."""
        with self._lock:
            self._decoded += samples

    def merge(self, totals: Mapping[str, float]) -> None:
        """Add the `totals` of another process."""
        seconds = dict(totals)
        self.count(int(seconds.pop("decoded")))
        for stage, value in seconds.items():
            self.add(stage, value)

    def totals(self) -> dict[str, float]:
        """Return the seconds by stage, and the number of samples that have been `decoded`."""
        with self._lock:
            return {**self._seconds, "decoded": self._decoded}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the `with` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    @property
    def slowest(self) -> str:
        """The stage that limits the throughput: `training` if the loop hardly waits."""
        with self._lock:
            seconds = dict(self._seconds)
        if seconds["loop_waits"] <= 0.05 * (seconds["loop_waits"] + seconds["training"]):
            return "training"
        work = {stage: seconds[stage] / (self.threads if stage in self._shared else 1) for stage in MAKING}
        return max(work, key=work.__getitem__)

    def to_json(self) -> dict[str, Any]:
        """Return the seconds by stage, and the slowest stage."""
        with self._lock:
            seconds = {f"{stage}_s": round(value, 3) for stage, value in self._seconds.items()}
        return {**seconds, "slowest": self.slowest}

    def __repr__(self) -> str:
        with self._lock:
            lines = [f"{value:10.2f} s  {stage:10}  {NAMES[stage]}" for stage, value in self._seconds.items()]
        return "\n".join([*lines, f"slowest: {self.slowest}"])
