"""How does an epoch begin once its plan is made? The node finds the samples that it needs, and the reads that load
them.

For an epoch of 13 million samples, this takes about a second. The loop therefore does it in steps, and goes on with
other epochs meanwhile. A small epoch takes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brand.node.decide.state.account import Account
from brand.node.decide.state.division import Division
from brand.node.decide.state.epoch import Epoch, EpochSetting, readable
from brand.node.decide.state.features import EpochFeature
from brand.node.decide.state.limits import SampleLimits
from brand.node.decide.state.lives import ActiveEpoch, EpochTable, Key, PlanReady
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import EpochStart, Runs
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.owners import split_near
from brand.orders.base.plan import EpochPlan, PeerRequests

PART: Final = 1 << 18
"""About the number of samples of one step, which takes a few milliseconds."""


@dataclass(frozen=True, slots=True)
class _EpochBuild:
    plan: EpochPlan
    begin: EpochStart
    epoch: Epoch
    parts: Iterator[int]
    """Does the remaining work, and yields numbers of samples."""


class EpochBuilder:
    """The epochs that are being built. Each becomes active when it is complete."""

    def __init__(
        self,
        residents: Residents,
        runs: Runs,
        lives: EpochTable,
        limits: SampleLimits,
        members: Members,
        unreachable: Callable[[], Iterable[NodeNumber]],
        features: EpochFeature,
    ) -> None:
        self._residents, self._runs, self._lives, self._features = residents, runs, lives, features
        self._limits, self._members, self._unreachable = limits, members, unreachable
        self._makings: dict[Key, _EpochBuild] = {}
        self._last_number = 0

    def __repr__(self) -> str:
        return f"EpochBuilder({sorted(self._makings)})"

    def __len__(self) -> int:
        return len(self._makings)

    def has(self, key: Key) -> bool:
        """Return whether an epoch is being built for exactly the ranks that have begun it."""
        making, life = self._makings.get(key), self._lives.get(key)
        if making is None or life is None or not isinstance(life.stage, PlanReady):
            return False
        return making.plan is life.stage.plan and making.begin is life.stage.begin

    def make_more(self) -> None:
        """Do one step of each epoch that is being built. Discards those that are not wanted any more or now begin
        differently.
        """
        self._makings = {key: making for key, making in self._makings.items() if self.has(key)}
        for key in list(self._makings):
            self._go_on(key)

    def make(self, key: Key) -> None:
        """Begin a planned epoch, here and for the nodes that can take its samples."""
        ready, run = self._lives[key].stage, self._runs[key[0]]
        assert isinstance(ready, PlanReady)
        plan, division, owners = ready.plan, ready.begin.division, self._members.owners(run.order.mapping)
        ranks = run.ranks(division.replicas) or {0: self._members.node}
        requests, foreseen = None, self._members.foreseen_by(run.order)
        if foreseen is not None and division == Division(run.order.draws, 0, foreseen.ranks):
            requests = requests_of_ranks(plan.requests, ranks, foreseen.nodes, division.replicas)
        if division.batch:
            known = run.known(division.replicas)
            node_of_rank = np.array([known[rank] for rank in range(division.replicas)])
            rank_at = split_near(owners.near(plan.sample_of[division.start :], known), node_of_rank, division.batch)
            division = replace(division, rank_at=rank_at)
        self._last_number += 1
        setting = EpochSetting(owners, self._limits, self._unreachable)
        epoch = self._features.make(key, ready, division, self._last_number, setting)
        if epoch is None:
            epoch = Epoch(plan, division, self._last_number, setting, requests)
        parts = epoch.expecting(ranks, run.fronts(key[1]), ready.read_of)
        self._makings[key] = _EpochBuild(plan, ready.begin, epoch, parts)
        at_once = self._members.nodes > 1 or plan.grows  # meanwhile nodes may join or leave, and orders may grow
        while not self._go_on(key) and at_once:
            pass

    def _go_on(self, key: Key) -> bool:
        """Do one step of the remaining work. Return whether that was all, so that the epoch is active."""
        making, done = self._makings[key], 0
        for samples in making.parts:
            done += samples
            if done >= PART:
                return False
        del self._makings[key]
        epoch, begin = making.epoch, making.begin
        if epoch.plan.shares:  # it holds the samples in memory, so that they are not read again
            # Samples that other nodes have sent are left out: these are sent again in time, and their memory is small.
            present = readable(epoch, np.flatnonzero(self._residents.present(slice(None))))
            found = present[epoch.states.due(present)]
            epoch.states.mark_present(found)
            self._residents.refer(found)
        begin = replace(begin, whole=begin.whole and begin.times <= 1)
        self._lives[key].activate(ActiveEpoch(epoch, Account(epoch.division), begin))
        return True


def requests_of_ranks(
    requests: PeerRequests | None, ranks: dict[int, NodeNumber], nodes: int, replicas: int
) -> PeerRequests | None:
    """Return the table of requests if the ranks are at the nodes that it foresees: neighbouring ranks at each node.

    Returns None otherwise. Without the table, all samples are sent without requests, as with `stripes`.
    """
    return requests if all(node == rank * nodes // replicas for rank, node in ranks.items()) else None
