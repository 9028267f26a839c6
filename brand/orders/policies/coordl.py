"""Order `coordl`: jobs draw the laps of `stripes` in lock step. A baseline for `shared`.

All jobs draw the same order at the same time, so each sample is read and decoded once for all of them, and memory
holds no more than a window of samples for it. The price: no job is faster than the slowest job.

Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and mitigating data stalls in DNN training", PVLDB 14(5), 2021,
coordinated prep. Their jobs wait for a job that has died; these jobs do not (`brand.node.decide.sharing.lockstep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan, Track
from brand.orders.base.policy import BY_ONE_NODE, LockStep, OrderChoice, Setting, check_number
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.stripe_policy import LapPolicy, Stripes

MOST_JOBS: Final = 255
WINDOW: Final = 2048
ONE_PACE: Final = (
    "jobs in lock step draw the same samples: leave out subset=, or give order='shared', with which each job goes at "
    "its own pace"
)
"""The reason to refuse an order of a subset."""


@dataclass(frozen=True)
class CoordlPolicy(LapPolicy):
    """The policy of a fixed number of jobs that draw each lap together."""

    name: ClassVar[str] = "coordl"
    one_node: ClassVar[bool] = True  # only one server decides for all jobs
    jobs: int = 1
    """Jobs that begin together."""
    window: int = WINDOW
    """Samples that a job may be ahead of another job."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("jobs", self.jobs, 1, MOST_JOBS)
        check_number("window", self.window, 1, MAX_POSITIONS)

    @property
    def common(self) -> CoordlPolicy:
        """All numbers, because jobs that wait for each other must agree on when to wait."""
        return self

    @property
    def no_part(self) -> str:
        return ONE_PACE

    @property
    def lock_step(self) -> LockStep:
        return LockStep(self.jobs, self.window)

    def plan_joined(
        self, mapping: Mapping, seed: int, mask: NDArray[np.bool_] | None, joins: Sequence[Join]
    ) -> EpochPlan:
        assert mask is None, "an order in lock step has no subset"
        lap = joins[0].lap
        return replace(self.plan(mapping, seed, lap), track=Track.of_lap(lap, mapping.samples))


@dataclass(frozen=True, slots=True)
class CoorDL(OrderChoice):
    """A baseline, to compare with `Shared()`: the coordinated preparation of CoorDL (Mohan et al., PVLDB 14(5), 2021).

    All jobs have the order of `Stripes()` and go in lock step, at the speed of the slowest job, on one node.

    Args:
        jobs: Jobs that begin together.
        window: Samples that a job may be ahead of another job.
    """

    policy: ClassVar[type[CoordlPolicy]] = CoordlPolicy
    baseline: ClassVar[bool] = True
    jobs: int
    window: int = WINDOW

    def choose_policy(self, setting: Setting) -> CoordlPolicy:
        """Return the numbers, those of `Stripes()` among them."""
        if setting.nodes > 1:
            raise UsageError(BY_ONE_NODE)
        laps = Stripes().choose_policy(setting)
        try:
            return CoordlPolicy(laps.group_chunks, laps.stripe, self.jobs, self.window)
        except ValueError as error:
            raise UsageError(f"CoorDL(...): {error}") from None
