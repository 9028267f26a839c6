"""Order `stripes`, the default: each stripe is read exactly once an epoch, at a random time of its group's tape.

The access sequence says from which group each position is drawn (`access`), and the tape of a group which of its
samples is the next one (`tapes`). Both depend on seed and epoch alone, so does the plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from brand.errors import UsageError
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping, chunks_per_group
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import OrderChoice, Policy, Setting, Size, check_number, holds_all
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import FlatPolicy
from brand.orders.policies.uniform_stripes import UniformStripes
from brand.orders.policies.windows import StripeWindows

STRIPES_VERSION: Final = 3
"""The version of the order. Until 1, each epoch was planned as a whole; until 2, stripes were in random order."""
BUFFER_SHARE: Final = 16
"""`1 / BUFFER_SHARE` of the samples are in the shuffle buffer; memory beyond that caches samples."""


@dataclass(frozen=True)
class StripePolicy(FlatPolicy):
    """The policy that reads each stripe of a chunk once an epoch (`stripes`). A server may cache whole stripes."""

    name: ClassVar[str] = "stripes"
    version: ClassVar[int] = STRIPES_VERSION
    stripe: int = 1
    """`r`: samples of a stripe. The last stripe of a chunk may be shorter."""
    all_cached: int = 0
    """1: memory holds all samples, so that epochs from the second one on are uniform shuffles. 0: it does not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("stripe", self.stripe, 1, MAX_POSITIONS)
        check_number("all_cached", self.all_cached, 0, 1)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return self.windows(mapping, seed, None, epoch).whole()

    def windows(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> StripeWindows | UniformStripes:
        kind = UniformStripes if self.all_cached and epoch else StripeWindows
        return kind(mapping, self.stripe, seed, epoch, subset)

    def plan_joined(self, mapping: Mapping, seed: int, subset: Subset | None, joins: Sequence[Join]) -> EpochPlan:
        return self.windows(mapping, seed, subset, joins[0].lap).whole()

    def check_fits(self, mapping: Mapping) -> None:
        super().check_fits(mapping)
        if self.stripe > mapping.chunk_size:
            raise ValueError(f"a stripe of {self.stripe} samples of chunks of {mapping.chunk_size}")

    @property
    def kept_unit(self) -> int:
        return self.stripe

    @property
    def needs_all(self) -> bool:
        return bool(self.all_cached)


@dataclass(frozen=True, slots=True)
class Stripes(OrderChoice):
    """The default order: every stripe of a chunk is read once an epoch, and its samples are spread over the epoch.

    If memory holds all samples, epochs from the second one on are uniform shuffles, unless `buffer` is given.

    Args:
        length: Samples in a stripe; None: the fewest that make reads large enough for the storage (`brand profile`).
        buffer: Size of the shuffle buffer, in the form of `memory=` of the data set; None: a sixteenth of the samples.
            The rest of the memory caches samples, which are then read once and never again.
    """

    policy: ClassVar[type[StripePolicy]] = StripePolicy
    length: int | None = None
    buffer: Size = None

    def choose_policy(self, setting: Setting) -> StripePolicy:
        """Return the numbers. They are the same on any number of nodes: those for the memory of one node."""
        usual = setting.samples / BUFFER_SHARE
        buffered = min(setting.held, usual)
        if self.buffer is not None:
            buffered = min(setting.held, setting.samples_in(self.buffer))
        elif not setting.fixed and buffered < usual:
            # The available memory differs a little from run to run; the order should not.
            buffered = setting.samples / 2.0 ** np.ceil(np.log2(setting.samples / buffered))
        length = setting.stripe if self.length is None else self.length
        if not 1 <= length <= setting.chunk_size:
            raise UsageError(
                f"Stripes(length={length}): a stripe has 1 to {setting.chunk_size} samples, a chunk's size"
            )
        least = chunks_per_group(setting.samples, setting.chunk_size, buffered)
        groups = max(setting.group_chunks(setting.held), least)
        return StripePolicy(groups, length, int(self.buffer is None and holds_all(setting.held, setting.samples)))


def plan_stripes(mapping: Mapping, stripe: int, seed: int, epoch: int) -> EpochPlan:
    """Return the plan of one epoch with stripes of `stripe` samples; the last of a chunk may be shorter."""
    return StripeWindows(mapping, stripe, seed, epoch).whole()


@dataclass(frozen=True)
class LapPolicy(Policy):
    """The base of policies whose jobs draw from one sequence of laps, the epochs of `stripes`."""

    version: ClassVar[int] = STRIPES_VERSION
    stripe: int = 1
    """`r`: samples of a stripe, as in `StripePolicy`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.stripes

    @property
    def stripes(self) -> StripePolicy:
        return StripePolicy(self.group_chunks, self.stripe)

    def check_fits(self, mapping: Mapping) -> None:
        self.stripes.check_fits(mapping)

    @property
    def kept_unit(self) -> int:
        return self.stripe

    @property
    def common(self) -> Hashable:
        return self.stripes

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """Return the lap `epoch`, the plan of a job that is alone."""
        return plan_stripes(mapping, self.stripe, seed, epoch)
