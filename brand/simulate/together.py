"""How much would several jobs read that share a data server? One answer for each policy and memory.

- `follow`: each job draws the samples that pass it (`following`). Memory buffers, then holds the samples that a job
  will still draw, up to `FOLLOWER` for each; the rest caches samples over epochs.
- `joader`: JOADER's dependent sampling, one sample per read (`rounds`). All memory is its cache.
- `coordl`: CoorDL. All jobs draw the same samples at the same time, so they run at the speed of the slowest. Memory
  caches samples over epochs, in addition to the window within which jobs may be apart.
- `alone`: each job draws for itself, and memory caches samples over epochs.

For a large data set, a section of it is simulated, with the same fractions of memory, so that the answer takes
seconds. The subset of a job is a random one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.setup.choose import Facts, choose_order
from brand.orders import Stripes
from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import unit_at
from brand.orders.policies.stripe_policy import BUFFER_SHARE, StripePolicy
from brand.simulate.following import ReadTally, Runner, draws_together, tally
from brand.simulate.rounds import drawn_and_read

Policy = Literal["follow", "joader", "coordl", "alone"]
POLICIES: Final[tuple[Policy, ...]] = ("follow", "joader", "coordl", "alone")
MOST_JOBS: Final = 64
MOST_EPOCHS: Final = 64
"""Epochs of the fastest job that are simulated."""
FOLLOWER: Final = 0.043
"""Memory that each job but one needs to find passing samples, as a fraction of all samples. The rest caches samples."""
WINDOW: Final = 2048
"""Samples within which jobs of `coordl` may be apart."""
_MOST_DRAWS: Final = 1 << 21
"""The most draws that are simulated, if all jobs were as fast as the fastest one."""
_LEAST_SAMPLES: Final = 1 << 14
_LEAST_CHUNKS: Final = 16
"""The fewest chunks that are simulated in any case."""
_MOST_ROUNDS: Final = 20_000
"""`joader`: the most draws of the fastest job that are simulated."""
_LEAST_ELEMENTS: Final = 512
_MOST_ELEMENTS: Final = 4096

_Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that a user plans."""

    speed: float = 1.0
    """Samples per second, or any other unit that all jobs have in common."""
    start: float = 0.0
    """Time at which it begins, in epochs of all samples at the speed of the fastest job."""
    subset: float = 1.0
    """Fraction of the samples that it draws."""
    epochs: int | None = None
    """Number of epochs; None if it does not end."""


@dataclass(frozen=True, slots=True)
class SharedReads:
    """The draws and reads of jobs with a policy. Numbers of samples are fractions of the data set.

    If the jobs end, they count from the first draw to the last; else in the time of one epoch of all samples at the
    speed of the fastest job.
    """

    epochs: list[float]
    """Time of an epoch of each job; 1: that of all samples at the speed of the fastest job."""
    draws: list[float]
    """Samples that each job draws."""
    reads: list[float]
    """Samples that are read for each job. A read that serves several draws is divided evenly."""
    operations: float
    """Reads of the storage."""
    prepared: float
    """Samples that are decoded."""

    @property
    def per_draw(self) -> float:
        return sum(self.reads) / sum(self.draws)

    @property
    def prepared_per_draw(self) -> float:
        return self.prepared / sum(self.draws)


class Together:
    """Some jobs over one data set. Raises `UsageError` if they do not fit together.

    Args:
        facts: Facts of the data set.
        jobs: One or more. Each of them ends, or none.
        epochs: Epochs of the slowest job for which figures are counted, if the jobs do not end.
    """

    def __init__(self, facts: Facts, jobs: Sequence[PlannedJob], epochs: int) -> None:
        if not 1 <= len(jobs) <= MOST_JOBS:
            raise UsageError(f"{len(jobs)} jobs: give 1 to {MOST_JOBS}")
        if len({job.epochs is None for job in jobs}) > 1:
            raise UsageError(
                "some jobs have a number of epochs and others do not end: give each of them a number, or none"
            )
        fastest = max(job.speed for job in jobs)
        self._jobs = [replace(job, speed=job.speed / fastest) for job in jobs]
        self._ends = jobs[0].epochs is not None
        self._lasts = [job.subset / job.speed for job in self._jobs]
        """Time of an epoch of each job."""
        if self._ends:
            each = zip(self._jobs, self._lasts, strict=True)
            self._after, self._until = 0.0, max(job.start + (job.epochs or 0) * lasts for job, lasts in each)
        else:
            self._jobs = _running(self._jobs, self._lasts)
            self._after = max(1.0, *self._lasts)
            self._until = self._after + math.ceil(epochs * max(self._lasts))
        if self._until > MOST_EPOCHS:
            many = f"that takes {math.ceil(self._until)} epochs of the fastest job, and {MOST_EPOCHS} are simulated"
            raise UsageError(f"{many}: give fewer epochs, which differ little, or leave out the slowest job")
        self._facts, self._all = _piece(facts, self._until * len(jobs)), facts.samples
        self._tallied: tuple[StripePolicy, ReadTally] | None = None
        self._runners = self._over(self._facts.samples)

    def sharing(self, policy: Policy, memory: float, prepared: float | None = None) -> SharedReads:
        """Return the answer for a policy. Raises `UsageError` if the memory is too small.

        `memory`: samples that fit into it, as a fraction of all. `prepared`: decoded samples that fit into the memory
        for these; None if there is no such memory, and each job decodes its own samples.
        """
        answers = {"follow": self._follow, "joader": self._joader, "coordl": self._coordl, "alone": self._alone}
        return answers[policy](min(memory, 1.0), prepared)

    @property
    def _counted(self) -> float:
        """The times that are simulated for one time of a `SharedReads`."""
        return 1.0 if self._ends else self._until - self._after

    def _over(self, samples: int) -> list[Runner]:
        """Return the jobs, over a data set of `samples` samples."""
        runners = []
        for number, job in enumerate(self._jobs):
            part = np.zeros(samples, np.bool_)
            order = np.random.default_rng(number).permutation(samples)
            part[order[: max(1, round(job.subset * samples))]] = True
            runners.append(Runner(job.start * samples, job.speed, part, job.epochs or math.inf))
        return runners

    def _first(self) -> _Shares:
        """Return the samples that each job reads before all others, cached ones included. 0 if jobs do not end."""
        first, seen = np.zeros(len(self._jobs)), np.zeros(self._facts.samples, np.bool_)
        if self._ends:
            for at in sorted(range(len(self._jobs)), key=lambda at: self._jobs[at].start):
                first[at] = np.count_nonzero(self._runners[at].part & ~seen) / len(seen)
                seen |= self._runners[at].part
        return first

    def _order(self, memory: float, mixing: float) -> tuple[Mapping, StripePolicy]:
        order = choose_order(self._facts, 0, Stripes(buffer=mixing), None, memory)
        assert isinstance(order.policy, StripePolicy)
        return order.mapping, order.policy

    def _follow(self, memory: float, prepared: float | None) -> SharedReads:
        samples, mixing = self._facts.samples, min(1 / BUFFER_SHARE, memory / 2)
        mapping, policy = self._order(memory, mixing)
        if self._tallied is None or self._tallied[0] != policy:
            after, until = self._after * samples, self._until * samples
            whiles = draws_together(mapping, policy.stripe, 0, self._runners, until)
            self._tallied = None  # free the old one before a new one is made
            self._tallied = policy, tally(mapping, policy.stripe, self._runners, whiles, after=after, until=until)
        found = self._tallied[1]
        spare = min(FOLLOWER * (len(self._jobs) - 1), found.most_held / samples)
        kept = max(0.0, (memory - mixing - spare) / (1 - mixing - spare))
        room = spare if kept else memory - mixing
        missed = found.missed(room * samples)
        comes = (1 - kept) / self._counted
        reads = comes * found.reads(missed) / samples + kept * self._first()
        operations = comes * found.operations(missed).sum() * self._all / samples
        operations += kept * self._first().sum() * self._all / policy.stripe
        draws = found.draws / samples / self._counted
        made = float(draws.sum())
        if prepared is not None:
            made = float(found.reads(found.missed(min(prepared, room) * samples)).sum()) / samples / self._counted
        return SharedReads(self._lasts, draws.tolist(), reads.tolist(), operations, made)

    def _joader(self, memory: float, prepared: float | None) -> SharedReads:
        samples = min(self._all, _MOST_ELEMENTS, max(_LEAST_ELEMENTS, int(_MOST_ROUNDS / self._until)))
        runners, times = self._over(samples), (self._after * samples, self._until * samples)
        drawn, read = drawn_and_read(runners, int(memory * samples), 0, *times)
        unit = samples * self._counted
        made = float(drawn.sum())
        if prepared is not None:
            slots = int(min(memory, prepared) * samples)
            made = float(drawn_and_read(runners, slots, 0, *times, keeps=False)[1].sum())
        operations = float(read.sum()) / unit * self._all
        return SharedReads(self._lasts, (drawn / unit).tolist(), (read / unit).tolist(), operations, made / unit)

    def _coordl(self, memory: float, prepared: float | None) -> SharedReads:
        if any(job.subset < 1 for job in self._jobs) or len({job.epochs for job in self._jobs}) > 1:
            raise UsageError("coordl: all jobs fetch all samples, for the same number of epochs")
        slowest, jobs = min(job.speed for job in self._jobs), len(self._jobs)
        drawn = self._jobs[0].epochs or slowest
        kept = max(0.0, memory - WINDOW / self._all) if memory < 1 else 1.0
        read = (1 - kept) * drawn + (kept if self._ends else 0.0)
        operations = read * self._all / self._order(memory, memory / 2)[1].stripe
        reads = [read / jobs] * jobs
        made = jobs * drawn if prepared is None else drawn
        return SharedReads([1 / slowest] * jobs, [float(drawn)] * jobs, reads, operations, float(made))

    def _alone(self, memory: float, prepared: float | None) -> SharedReads:  # noqa: ARG002 - jobs prepare for themselves
        mapping, policy = self._order(memory, memory / 2)
        stripe_of = unit_at(mapping, policy.stripe, np.arange(mapping.samples))
        drawn_by_any = np.any([runner.part for runner in self._runners], axis=0).mean()
        kept, first = min(1.0, memory / drawn_by_any), self._first()
        epochs = np.array([job.epochs or 1 / lasts for job, lasts in zip(self._jobs, self._lasts, strict=True)])
        draws = epochs * [job.subset for job in self._jobs]
        stripes = np.array([len(np.unique(stripe_of[runner.part])) for runner in self._runners])
        operations = (1 - kept) * epochs @ stripes * self._all / mapping.samples
        operations += kept * first.sum() * self._all / policy.stripe
        reads = (1 - kept) * draws + kept * first
        return SharedReads(self._lasts, draws.tolist(), reads.tolist(), float(operations), float(draws.sum()))


def _running(jobs: Sequence[PlannedJob], lasts: Sequence[float]) -> list[PlannedJob]:
    """Return the jobs as they are when all of them have run for a while.

    The fastest job begins an epoch at 0, and each other job at its first epoch from then on.
    """
    fastest = max(range(len(jobs)), key=lambda at: (jobs[at].speed, jobs[at].subset))
    now = jobs[fastest].start
    return [
        replace(job, start=job.start - now + math.ceil((now - job.start) / lasting) * lasting)
        for job, lasting in zip(jobs, lasts, strict=True)
    ]


def _piece(facts: Facts, times: float) -> Facts:
    """Return the data set, or the section of it that is simulated if each sample is drawn `times` times."""
    least = max(_LEAST_SAMPLES, _LEAST_CHUNKS * facts.chunk_size)
    return replace(facts, samples=min(facts.samples, max(least, int(_MOST_DRAWS / times))))
