"""How do the options that a user gives become the numbers of a policy?

An `OrderChoice` has the options of one policy, and it is the only class that turns them into numbers. It needs facts
about the data set, the memory, the storage and the nodes: a `Setting`. So a new policy is one module with two classes,
and one line in `registry`. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from brand.orders.base.mapping import chunks_per_group
from brand.orders.base.policy import Policy

OWNED_GROUPS: Final = 256
"""The most groups of a policy whose groups only have owners: enough for even partitions."""

Size = str | int | float | None
"""An amount of memory, in the form of `memory=` of a data set."""


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
        """Number of chunks."""
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
