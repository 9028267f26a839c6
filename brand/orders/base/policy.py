"""What does one order decide, in addition to the numbers that every order has? The base classes for new orders.

A policy holds a few numbers. From these numbers, the sizes of the data set and the seed it makes the plan of an epoch.
`Order` holds a policy and the server asks it; only `policies` knows the list of policies.

An `OrderChoice` has the options of one policy, and it is the only class that turns them into numbers. It needs facts
about the data set, the memory, the storage and the nodes: a `Setting`. So a new policy is one module with two classes,
and one line in `registry`. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.joins import Join, alone
from brand.orders.base.mapping import Mapping, chunks_per_group
from brand.orders.base.part import ONE_NODE, Subset
from brand.orders.base.plan import EpochPlan, PlanWindows, narrowed
from brand.orders.base.tickets import MAX_POSITIONS

OWNED_GROUPS: Final = 256
"""The most groups of a policy whose groups only have owners: enough for even partitions."""

Size = str | int | float | None
"""An amount of memory, in the form of `memory=` of a data set."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The nodes and ranks for which a plan lists the requests between nodes."""

    nodes: int
    ranks: int
    """Ranks on all nodes together, the same number on each; node 0 has the first of them."""


@dataclass(frozen=True, slots=True)
class LockStep:
    """Jobs that draw at the speed of the slowest of them."""

    jobs: int
    """Jobs that begin together."""
    window: int
    """Samples that a job may be ahead of another job."""


@dataclass(frozen=True)
class Policy(ABC):
    """The rule by which an order reads and draws the samples of a data set.

    A subclass is a frozen dataclass. Its fields are whole numbers and texts, and no field has the name of a field of
    `Order`. A policy checks its fields when it is made, and raises ValueError if one is invalid.
    """

    name: ClassVar[str]
    """The name of the order in JSON."""
    version: ClassVar[int] = 1
    """The number of the way in which epochs are planned. A change of the order of any epoch changes it."""
    grows: ClassVar[bool] = False
    """Whether the order is decided while jobs draw, and no plan contains it."""
    group_chunks: int
    """`n`: chunks that share an abstract chunk."""

    def __post_init__(self) -> None:
        check_number("group_chunks", self.group_chunks, 1, MAX_POSITIONS)

    @abstractmethod
    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """Return the plan of one epoch."""

    def windows(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> PlanWindows | None:  # noqa: ARG002 - most orders have none
        """Return the plan of one epoch in windows; None if it can only be made as a whole."""
        return None

    def mapping(self, samples: int, chunk_size: int) -> Mapping:
        """Return the mapping from places to chunks to groups for a data set of these sizes."""
        return Mapping(samples, chunk_size, self.group_chunks)

    def check_fits(self, mapping: Mapping) -> None:
        """Raise ValueError if the policy cannot plan a data set of these sizes."""
        if self.group_chunks > mapping.chunks:
            raise ValueError(f"group_chunks={self.group_chunks} of an order of {mapping.chunks} chunks")

    def held(self, mapping: Mapping) -> int:
        """Estimate how many samples an epoch holds in memory at a time: a chunk of each group."""
        return mapping.groups * mapping.chunk_size

    @property
    def kept_unit(self) -> int | None:
        """Consecutive samples of a chunk that the server caches together; None if it caches no sample."""
        return None

    @property
    def foreseen(self) -> Foreseen | None:
        """The nodes and ranks that plans depend on; None if plans do not depend on nodes."""
        return None

    def caution(self, chunk_size: int) -> str:  # noqa: ARG002 - most orders read each byte once
        """Return what a user should know about the order for chunks of so many samples; empty if nothing."""
        return ""

    @property
    def needs_all(self) -> bool:
        """Whether epochs are made for memory that holds all samples."""
        return False

    @property
    def no_part(self) -> str | None:
        """The reason why the order has no subsets; None if it has."""
        return None if self.foreseen is None else ONE_NODE

    @property
    def common(self) -> Hashable | None:
        """The numbers that orders of one seed must have in common to share laps; None if such jobs never share."""
        return None

    @property
    def rejoins(self) -> bool:
        """Whether a job that has lost the other jobs joins them again within an epoch."""
        return False

    @property
    def lock_step(self) -> LockStep | None:
        """The rule by which jobs that share wait for each other; None if each job has its own speed."""
        return None

    def drawn(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> Iterator[NDArray[Any]]:
        """Yield the places in the order in which an epoch draws them, in parts if parts cost less memory."""
        yield self.plan_joined(mapping, seed, subset, alone(epoch)).sample_of

    def plan_joined(self, mapping: Mapping, seed: int, subset: Subset | None, joins: Sequence[Join]) -> EpochPlan:
        """Return the plan of an epoch of a job with these joins; a job that shares with no other job has one join.

        `subset`: the samples that the job draws; None if it draws all.
        """
        plan = self.plan(mapping, seed, joins[0].lap)
        return plan if subset is None else narrowed(plan, subset.mask)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values. A field that has its default value is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}

    @classmethod
    def from_json(cls, values: Values[str, Any]) -> Self:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        known = [field.name for field in fields(cls)]
        check_names(values, [field.name for field in fields(cls) if field.default is MISSING], known, cls.name)
        return cls(**values)


def check_names(values: Values[str, Any], needed: list[str], known: list[str], name: str) -> None:
    """Raise ValueError if a needed field is missing, or if the order does not know a field."""
    if not set(needed) <= set(values) <= set(known):
        raise ValueError(f"{name!r}: an order has the fields {', '.join(known)}")


def check_type(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} of an order is {value!r}, not of type {kind.__name__}")


def check_number(name: str, value: Any, least: int, most: int) -> None:
    """Raise ValueError unless a field of an order is a whole number from `least` to `most`."""
    check_type(name, value, int)
    if not least <= value <= most:
        raise ValueError(f"{name}={value} of an order is not from {least} to {most:,}")


def holds_all(held: float, samples: int) -> bool:
    """Return whether memory for `held` samples, which may be rounded, holds all of them."""
    return held > samples - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The data set, the memory, the storage and the nodes for which a policy is chosen."""

    samples: int
    chunk_size: int
    """Samples of a chunk."""
    held: float
    """Samples that the memory of a node holds."""
    filled: float
    """Fraction of the memory that an order may fill; the rest is free for read-ahead."""
    stripe: int
    """Samples of a stripe that is read at the full bandwidth of the storage."""
    fixed: bool
    """Whether the user chose `held`. If not, it depends on the memory that is available right now."""
    samples_in: Callable[[Size], float]
    """Returns the number of samples that fit into an amount of memory. Raises `UsageError`."""
    remote: Callable[[], float]
    """Returns the number of samples of other nodes that the memory of a node may hold. Raises `UsageError`."""
    nodes: int = 1
    ranks: int = 1
    """Ranks on all nodes together."""
    partition: int | None = None
    """Chunks that stay together on one node of a partitioned data set; None if each node has all chunks."""

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)

    @property
    def owned_chunks(self) -> int:
        """Chunks of a group that only has an owner: at least two, because the group replaces a damaged chunk."""
        return min(self.chunks, max(2, -(-self.chunks // OWNED_GROUPS)))

    def group_chunks(self, memory: float) -> int:
        """Return the smallest `n` for which memory for `memory` samples can hold the abstract memory.

        As in the paper, but a fraction of the memory is free for read-ahead. If there are few groups, each of them gets
        more memory, because their peaks do not even out.
        """
        room = memory * self.filled / self.chunk_size
        groups = max(1.0, room - 0.3 * np.sqrt(room) if room < 64 else room)
        return chunks_per_group(self.samples, self.chunk_size, groups * self.chunk_size)


class OrderChoice(ABC):
    """The options of an order, as a user gives them. A subclass is a frozen dataclass."""

    __slots__ = ()
    policy: ClassVar[type[Policy]]
    """The class of the policy; its name also names the choice with default options."""
    baseline: ClassVar[bool] = False
    """Whether the order is for comparison only; such an order has no name for users."""

    @abstractmethod
    def choose_policy(self, setting: Setting) -> Policy:
        """Return the policy for this data set, memory, storage and these nodes. Raises `UsageError` if none fits."""
