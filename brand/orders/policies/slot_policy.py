"""The numbers that fix order `slots`, in addition to those of every order.

The numbers of nodes and ranks also fix it, because nodes send each other samples ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from brand.errors import UsageError
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import MAX_NODES
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Foreseen, OrderChoice, Setting, check_number, check_type
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.prefetch import plan_slots_across_nodes
from brand.orders.policies.slots import REFILLS, FlatPolicy, Refill, plan_slots

MAX_RANKS: Final = 1 << 16
AHEAD: Final = 0.8
"""Fraction of the memory for samples of other nodes that a plan fills; the rest is slack for larger samples."""


@dataclass(frozen=True)
class SlotPolicy(FlatPolicy):
    """The policy that reads a whole chunk on a miss (`slots`) and lets nodes send samples ahead (`prefetch`)."""

    name: ClassVar[str] = "slots"
    refill: Refill = "fill_rate"
    """The rule by which a miss chooses the chunk."""
    nodes: int = 1
    """Nodes that own groups and draw."""
    ranks: int = 1
    """Ranks on all nodes together, the same number on each; node 0 has the first of them."""
    window: int = 0
    """Next draws of a node that the owner checks with each request of that node; 0: it sends nothing ahead."""
    remote: int = 0
    """The limit of a node's remote abstract memory: the most samples that other nodes may have sent it ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("refill", self.refill, str)
        if self.refill not in REFILLS:
            raise ValueError(f"refill {self.refill!r} is none of {', '.join(map(repr, REFILLS))}")
        check_number("nodes", self.nodes, 1, MAX_NODES)
        check_number("ranks", self.ranks, 1, MAX_RANKS)
        if self.ranks % self.nodes:
            raise ValueError(f"ranks={self.ranks} of an order is no multiple of {self.nodes} nodes")
        check_number("window", self.window, 0, MAX_POSITIONS)
        check_number("remote", self.remote, 0, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        if self.nodes == 1:
            return plan_slots(mapping, self.refill, seed, epoch)
        across = self.nodes, self.ranks, self.window, self.remote
        return plan_slots_across_nodes(mapping, *across, self.refill, seed, epoch)

    @property
    def foreseen(self) -> Foreseen | None:
        return None if self.nodes == 1 else Foreseen(self.nodes, self.ranks)


@dataclass(frozen=True, slots=True)
class Slots(OrderChoice):
    """The paper's order: a miss reads a whole chunk, chosen by fill rate or at random (the paper's ablation)."""

    policy: ClassVar[type[SlotPolicy]] = SlotPolicy
    refill: Refill = "fill_rate"

    def choose_policy(self, setting: Setting) -> SlotPolicy:
        """Return the numbers.

        The nodes use their memories together, and plans contain the samples that nodes send ahead.
        """
        if setting.nodes == 1 or setting.ranks % setting.nodes:
            return SlotPolicy(setting.group_chunks(setting.held), self.refill)
        remote = setting.remote()
        n = setting.group_chunks((setting.held - remote) * setting.nodes)
        if setting.partition is not None:
            if setting.partition < n:
                how = f"`brand partition --group-chunks {n}` (or more) keeps enough chunks together"
                raise UsageError(f"order 'slots' needs {n} chunks on one node for each abstract chunk: {how}")
            n = setting.partition
        ahead = int(remote * AHEAD)
        # Some draws of the window are of the node's own samples and take no space, so space is hardly ever short.
        return SlotPolicy(n, self.refill, setting.nodes, setting.ranks, window=ahead, remote=ahead)
