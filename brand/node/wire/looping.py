"""The waits of training loops for batches, by cause: histograms with fixed buckets, and the message LOOP.

A step is one batch: the loop waits for it, then trains it. Each step has one cause (`CAUSES`), or `LOOP` if the loop
hardly waited, because the training itself sets the pace. `StepTally` counts steps by cause. Tallies of ranks and of
times add up, so a server answers for all its ranks; differences of two tallies are tallies.

A rank sends a LOOP about once a second: a tally of the steps since the last LOOP, the loop's current wait, and how far
the loop is in its epoch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from brand.errors import ProtocolError
from brand.node.wire.described import FieldSpec, described, maybe, text, whole
from brand.node.wire.messages import MAX_NAME, MAX_REPLICAS, Kind
from brand.reprs import Reprs

CAUSES: Final = ("storage", "node", "decode", "collate", "server")
"""Causes for which a loop can wait: a read of the storage, a sample from another node, copying, decoding and
transforming, collating the batch, and the data server itself.
"""
LOOP: Final = "loop"
"""The loop hardly waited."""
ALL: Final = (*CAUSES, LOOP)
HARDLY: Final = 0.05
"""A loop that waits for at most this fraction of a step hardly waits."""

_STEPS: Final = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
BOUNDS: Final = (*(float(f"{step * 10.0**power:.4g}") for power in range(-4, 2) for step in _STEPS), 100.0)
"""Upper ends of the buckets in seconds: ten in a decade, 0.1 ms to 100 s. One more bucket counts longer waits."""
_MOST: Final = 1 << 53
_WHOLE: Final = whole(_MOST - 1)


@dataclass(slots=True)
class CauseWaits:
    """Waits for one cause."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """Waits by bucket: longer than the previous bucket's bound, and not longer than the bucket's own bound."""

    @property
    def steps(self) -> int:
        return sum(self.counts)

    def count(self, wait_s: float) -> None:
        self.seconds += wait_s
        self.counts[bisect_left(BOUNDS, wait_s)] += 1

    def add(self, other: CauseWaits) -> None:
        self.seconds += other.seconds
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    def since(self, before: CauseWaits) -> CauseWaits:
        """Return the waits that are not in an earlier copy of these waits."""
        counts = [mine - theirs for mine, theirs in zip(self.counts, before.counts, strict=True)]
        return CauseWaits(max(0.0, self.seconds - before.seconds), counts)


@dataclass(slots=True, eq=False, repr=False)
class StepTally(Reprs, shows="steps wait_s seconds cause"):
    """Steps of training loops, by cause."""

    seconds: float = 0.0
    """Seconds of all steps: waits and training."""
    waits: dict[str, CauseWaits] = field(default_factory=dict)
    samples: int = 0
    """Samples of all batches."""

    @property
    def steps(self) -> int:
        return sum(waits.steps for waits in self.waits.values())

    @property
    def wait_s(self) -> float:
        return sum(waits.seconds for waits in self.waits.values())

    @property
    def cause(self) -> str:
        """The cause for which the loops waited longest; `LOOP` if they hardly waited."""
        if self.wait_s <= HARDLY * self.seconds:
            return LOOP
        return max(CAUSES, key=lambda cause: self.waits[cause].seconds if cause in self.waits else 0.0)

    def count(self, cause: str, wait_s: float, seconds: float, samples: int = 0) -> None:
        """Count a step: the loop waited `wait_s` for a batch of `samples` samples.

        `seconds` is the wait plus the training before it.
        """
        self.waits.setdefault(cause, CauseWaits()).count(wait_s)
        self.seconds += seconds
        self.samples += samples

    def add(self, other: StepTally) -> None:
        self.seconds += other.seconds
        self.samples += other.samples
        for cause, waits in other.waits.items():
            self.waits.setdefault(cause, CauseWaits()).add(waits)

    def copy(self) -> StepTally:
        same = StepTally()
        same.add(self)
        return same

    def since(self, before: StepTally) -> StepTally:
        """Return the steps that are not in an earlier copy of this tally."""
        none = CauseWaits()
        waits = {cause: waits.since(before.waits.get(cause, none)) for cause, waits in self.waits.items()}
        return StepTally(max(0.0, self.seconds - before.seconds), waits, self.samples - before.samples)

    def quantile(self, share: float) -> float | None:
        """Return the shortest time, up to the end of its bucket, that at most `share` of the steps waited.

        The end of a bucket is at most 1.28 times its beginning. Infinite past the last bound, None without steps.
        """
        counts = [sum(column) for column in zip(*(waits.counts for waits in self.waits.values()), strict=True)]
        rest = share * sum(counts)
        for bound, count in zip((*BOUNDS, math.inf), counts, strict=False):
            rest -= count
            if count and rest <= 0:
                return bound
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the statistics that users see (`docs/guides/monitor.md`)."""
        quantiles = {f"p{percent}_s": self.quantile(percent / 100) for percent in (50, 95, 99)}
        return {
            "steps": self.steps,
            "samples": self.samples,
            "wait_s": round(self.wait_s, 6),
            "wait_share": round(self.wait_s / self.seconds, 4) if self.seconds else None,
            "cause": self.cause if self.steps else None,
            **{name: value and min(value, BOUNDS[-1]) for name, value in quantiles.items()},
            "causes": {
                cause: {"steps": waits.steps, "wait_s": round(waits.seconds, 6)}
                for cause in ALL
                if (waits := self.waits.get(cause)) is not None and waits.steps
            },
        }


@dataclass(frozen=True, slots=True)
class IterationExtent:
    """The samples of an epoch that an iteration covers."""

    start: int
    """Samples of the epoch that all ranks together had received before the iteration."""
    samples: int
    """Samples of the whole epoch, for all ranks together."""
    due: int
    """Samples that this rank receives in the iteration."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait of one step, which may still last."""

    step: int
    """Number of the batch in the iteration, from 0."""
    wait_s: float
    cause: str


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ProtocolError("seconds are a number that is not negative")
    return float(value)


def _tally(_: Any, value: dict[str, Any]) -> StepTally:
    waits = value.get("waits")
    if not isinstance(waits, dict) or not set(waits) <= set(ALL):
        raise ProtocolError("waits are by cause")
    samples = _WHOLE.checked("samples", value.get("samples"))
    return StepTally(_seconds(value.get("seconds")), {cause: _waits(each) for cause, each in waits.items()}, samples)


def _waits(value: Any) -> CauseWaits:
    match value:
        case [seconds, list(pairs)] if len(pairs) <= len(BOUNDS) + 1:
            found = CauseWaits(_seconds(seconds))
            for pair in pairs:
                bucket, count = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
                found.counts[whole(len(BOUNDS)).checked("bucket", bucket)] = _WHOLE.checked("count", count)
            return found
    raise ProtocolError("the waits of a cause are seconds and buckets")


def _tally_entries(tally: StepTally) -> dict[str, Any]:
    waits = {
        cause: [waits.seconds, [[bucket, count] for bucket, count in enumerate(waits.counts) if count]]
        for cause, waits in tally.waits.items()
    }
    return {"seconds": tally.seconds, "waits": waits, "samples": tally.samples}


def _waiting(name: str, value: Any) -> Waiting:
    match value:
        case [step, wait_s, str(cause)] if cause in ALL:
            return Waiting(_WHOLE.checked("step", step), _seconds(wait_s), cause)
    raise ProtocolError(f"{name} has a step, seconds and a cause")


def _extent(name: str, value: Any) -> IterationExtent:
    match value:
        case [start, samples, due]:
            start, samples, due = (_WHOLE.checked(name, each) for each in (start, samples, due))
            if start <= samples:
                return IterationExtent(start, samples, due)
    raise ProtocolError(f"{name} has a start, the samples of the epoch, and those of the rank")


_EXTENT: Final = FieldSpec(_extent, lambda extent: [extent.start, extent.samples, extent.due])
_WAITING: Final = maybe(FieldSpec(_waiting, lambda waiting: [waiting.step, waiting.wait_s, waiting.cause]))


@described(Kind.LOOP, json_body=True)
@dataclass(frozen=True, slots=True)
class LoopReport:
    """Reports a rank's training loop to its server."""

    run: Annotated[str, text(MAX_NAME)]
    rank: Annotated[int, _WHOLE]
    ranks: Annotated[int, whole(MAX_REPLICAS)]
    epoch: Annotated[int, _WHOLE]
    step: Annotated[int, _WHOLE]
    """Batches that the loop has received in this iteration."""
    taken: Annotated[int, _WHOLE]
    """Samples of these batches."""
    extent: Annotated[IterationExtent, _EXTENT]
    tally: Annotated[StepTally, FieldSpec(_tally, _tally_entries, inner=True)]
    """The steps since the last report."""
    worst: Annotated[Waiting | None, _WAITING] = None
    """The longest wait of these steps."""
    now: Annotated[Waiting | None, _WAITING] = None
    """The wait under way. Its cause is `server` until the server has answered."""

    def check(self) -> None:
        if not self.rank < self.ranks:
            raise ProtocolError(f"rank {self.rank} of {self.ranks}")
