"""The numbers that fix order `slots`, and its plan across nodes: which samples are sent ahead? (Paper, section 3.4.)

A draw that looks at one of the drawing node's own locations is served as on one node (`slots`). Any other draw is a
request to the owner node. The owner answers it in the same way, and reads a chunk if the location is empty. Then the
owner checks each of the next `window` draws of the asking node that looks at a location of the owner. It sends the
sample ahead if three conditions hold: the location has a sample, the asking node has used the sample that it was sent
for that location before, and the asking node has space. The sample leaves the owner, belongs to that draw, and takes
space in the asking node's remote abstract memory until that draw uses it. The owner never reads in order to send ahead.

The paper lets messages decide. Here the global order of positions is the time, so all of this is a plan. Every node
computes it for itself before the epoch begins, and no lost message or restarted node can change it.

If nothing is sent ahead, it does not matter which node draws, and the plan is that of one node. Otherwise nodes
depend on each other's free space, so the epoch is simulated draw by draw. A draw of a sample that was sent ahead costs
one look-up. The check list of a request costs a few operations on arrays; it is short, because only a node's next draw
of a location can be sent ahead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import MAX_NODES, drawer_of, owner_of_group
from brand.orders.base.plan import EpochPlan, PeerRequests
from brand.orders.base.policy import Foreseen, OrderChoice, Setting, check_number, check_type
from brand.orders.base.random import RandomStream, blocks, group_positions, permutation
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import (
    REFILLS,
    FlatPolicy,
    Refill,
    locations,
    plan_access,
    plan_slots,
    priorities,
    unfilled_files,
    whole_reads,
)

MAX_RANKS: Final = 1 << 16
USUAL_CHUNK: Final = 256
"""Samples per chunk above which an order that reads whole chunks is worth a warning."""
LARGEST_FACTOR: Final = 1.4
"""An epoch reads at most about this many times the square root of the samples per chunk, in data sets.

A chunk is read again when one of its slots is drawn for a second time. That happens after about as many draws as it
takes for two equal birthdays in a year with as many days as a chunk has samples.
"""
AHEAD: Final = 0.8
"""Fraction of the memory for samples of other nodes that a plan fills; the rest is slack for larger samples."""


@dataclass(frozen=True)
class SlotPolicy(FlatPolicy):
    """The policy that reads a whole chunk on a miss (`slots`) and lets nodes send samples ahead."""

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

    def caution(self, chunk_size: int) -> str:
        most = LARGEST_FACTOR * chunk_size**0.5
        if self.group_chunks == 1 or chunk_size <= USUAL_CHUNK:
            return ""
        return (
            f"order='slots' may read {most:,.0f} times the bytes of the data set: the factor grows with the samples per"
            f" chunk, {chunk_size:,} here. Convert with --chunk-size 64, for 5 to 9 times, or use order='stripes',"
            " which reads it once"
        )

    @property
    def foreseen(self) -> Foreseen | None:
        return None if self.nodes == 1 else Foreseen(self.nodes, self.ranks)


@dataclass(frozen=True, slots=True)
class Slots(OrderChoice):
    """The order of the paper Brand (section 3.3): a miss reads a whole chunk into all empty slots of its group.

    Args:
        refill: The rule by which a miss chooses the chunk: `"fill_rate"`, the one that fills most slots, or `"random"`
            (the ablation of section 5.3).
        window: How many of a node's next draws another node looks through for samples to send ahead (section 3.4).
            None: as many as its `peer_memory=` holds. 0: nothing is sent ahead (the ablation of section 5.3).
    """

    policy: ClassVar[type[SlotPolicy]] = SlotPolicy
    refill: Refill = "fill_rate"
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not (type(self.window) is int and 0 <= self.window <= MAX_POSITIONS):
            raise UsageError(f"Slots(window={self.window!r}): a whole number of positions from 0 on is needed, or None")

    def choose_policy(self, setting: Setting) -> SlotPolicy:
        """Return the numbers. Nodes use their memories together, and plans contain the samples that they send ahead."""
        if setting.nodes == 1:
            return SlotPolicy(setting.group_chunks(setting.held), self.refill)
        if not setting.ranks or setting.ranks % setting.nodes:
            raise UsageError(
                f"order 'slots' plans what each node sends to the ranks of the others, and {setting.nodes} nodes "
                f"cannot have equally many of {counted(setting.ranks, 'rank')}. Start equally many on each node, and "
                "make the sampler after torch.distributed is initialised, or give it num_replicas= and rank=; or use "
                "order='stripes', which any number of ranks can fetch"
            )
        remote = setting.remote()
        n = setting.group_chunks((setting.held - remote) * setting.nodes)
        if setting.partition is not None:
            if setting.partition < n:
                how = f"`brand partition --group-chunks {n}` (or more) keeps enough chunks together"
                raise UsageError(f"order 'slots' needs {n} chunks on one node for each abstract chunk: {how}")
            n = setting.partition
        ahead = int(remote * AHEAD)
        # Some draws of the window are of the node's own samples and take no space, so space is hardly ever short.
        window = ahead if self.window is None else self.window
        return SlotPolicy(n, self.refill, setting.nodes, setting.ranks, window=window, remote=ahead)


def plan_slots_across_nodes(
    mapping: Mapping, nodes: int, ranks: int, window: int, remote: int, refill: Refill, seed: int, epoch: int
) -> EpochPlan:
    """Return the plan of one epoch with the access sequence of its seed: see `plan_requests`."""
    access = permutation(mapping.samples, seed, RandomStream.ACCESS, epoch)
    return plan_requests(mapping, access, nodes, ranks, window, remote, refill, seed, epoch)


def plan_requests(
    mapping: Mapping,
    access: NDArray[np.integer[Any]],
    nodes: int,
    ranks: int,
    window: int,
    remote: int,
    refill: Refill,
    seed: int,
    epoch: int,
) -> EpochPlan:
    """Return the plan for a given access sequence: a permutation of all places.

    `ranks` draw in turn and are on `nodes` in contiguous blocks of one size. With each request of a node, the owner
    checks the node's next `window` draws. `remote` is the limit of a node's remote abstract memory in samples. If
    either is 0, nothing is sent ahead. With one node the plan is that of `plan_access`. Raises ValueError if a number
    is out of range.
    """
    if ranks < 1 or nodes < 1 or ranks % nodes:
        raise ValueError(f"{ranks} ranks on {nodes} nodes: give every node as many ranks, 1 or more")
    if min(window, remote) < 0:
        raise ValueError(f"window={window}, remote={remote}: give 0 or more")
    if nodes == 1:
        return plan_access(mapping, access, refill, seed, epoch)
    turns, owner = _Turns(nodes, ranks), owner_of_group(mapping.groups, nodes)
    if min(window, remote) == 0:
        asked = np.flatnonzero(owner[mapping.group_of(access)] != drawer_of(np.arange(mapping.samples), nodes, ranks))
        asked = asked.astype(index_dtype(mapping.samples))
        requests = PeerRequests(asked, asked[:0], np.zeros(len(asked), np.int64))
        return replace(plan_access(mapping, access, refill, seed, epoch), requests=requests)
    location = locations(mapping, access)
    del access  # large data sets count every array
    draws = _remote_draws(mapping, location, turns, owner)
    cluster = _Cluster(mapping, turns, owner, draws, window, remote)
    cluster.play(location, refill, _Dice(mapping, seed, epoch))
    return cluster.plan()


@dataclass(frozen=True, slots=True)
class _Turns:
    """The positions that each node draws, as in `drawer_of`; this class also counts the draws of one node."""

    nodes: int
    ranks: int

    @property
    def each(self) -> int:
        return self.ranks // self.nodes

    def of_node(self, node: int, samples: int) -> NDArray[np.intp]:
        first = np.arange(0, samples, self.ranks)[:, None]
        positions = (first + np.arange(node * self.each, (node + 1) * self.each)).ravel()
        return positions[positions < samples]

    def later(self, position: int, draws: int) -> int:
        """Return the position of the node's draw that follows the draw at `position` by `draws` draws."""
        first_rank = position % self.ranks // self.each * self.each
        turn = position // self.ranks * self.each + position % self.each + draws
        return turn // self.each * self.ranks + first_rank + turn % self.each


@dataclass(frozen=True, slots=True)
class _RemoteDraws:
    """The draws of samples that another node owns, numbered in the order of drawing node, owner and position."""

    number_at: NDArray[Any]
    """Number of the draw at each position, shape (samples,); -1 if a node draws a sample that it owns."""
    position: NDArray[Any]
    location: NDArray[Any]
    before: NDArray[Any]
    """Number of the node's previous draw of the same location; -1 if there is none."""
    ends: NDArray[np.int64]
    """End of the numbers of a node's draws from an owner, by node and owner, shape (nodes, nodes)."""


def _remote_draws(mapping: Mapping, location: NDArray[Any], turns: _Turns, owner: NDArray[np.int32]) -> _RemoteDraws:
    samples, kind = mapping.samples, index_dtype(mapping.samples)
    number_at = np.full(samples, -1, kind)
    position, before = np.empty(samples, kind), np.empty(samples, kind)
    ends = np.empty((turns.nodes, turns.nodes), np.int64)
    first = 0
    for node in range(turns.nodes):
        drawn = turns.of_node(node, samples)
        whose = owner[location[drawn] // mapping.chunk_size]
        drawn, whose = drawn[whose != node], whose[whose != node]
        drawn = drawn[group_positions(whose)]
        own = slice(first, first + len(drawn))
        position[own] = drawn
        number_at[drawn] = np.arange(own.start, own.stop)
        before[own] = _last_before(location[drawn], first)
        ends[node] = first + np.cumsum(np.bincount(whose, minlength=turns.nodes))
        first = own.stop
    position = position[:first].copy()
    return _RemoteDraws(number_at, position, location[position], before[:first].copy(), ends)


def _last_before(location: NDArray[Any], first: int) -> NDArray[Any]:
    """Return, for each draw, the number of the previous draw of the location, or -1. Numbers begin at `first`."""
    order = group_positions(location)
    again = np.diff(location[order], prepend=-1) == 0
    before = np.full(len(location), -1, order.dtype)
    before[order[again]] = order[np.flatnonzero(again) - 1] + first
    return before


class _Dice:
    """Random numbers that break ties, made when the first group needs them and held until all groups have used them."""

    def __init__(self, mapping: Mapping, seed: int, epoch: int) -> None:
        self._mapping, self._stream = mapping, (seed, epoch)
        self._thrown = np.zeros(mapping.groups, np.int32)
        self._steps: list[NDArray[np.int64]] = []
        self._left: list[int] = []
        """How many groups have still to use each step."""

    def throw(self, group: int) -> NDArray[np.int64]:
        step = int(self._thrown[group])
        self._thrown[group] += 1
        if step == len(self._steps):
            self._steps.append(priorities(self._mapping, *self._stream, step))
            self._left.append(self._mapping.groups)
        found: NDArray[np.int64] = self._steps[step][group]
        self._left[step] -= 1
        if not self._left[step]:
            self._steps[step] = self._steps[step][:0].copy()
        return found


class _Cluster:
    """The state of all nodes: the sample at each location, the filled files, and the samples that were sent ahead."""

    def __init__(
        self, mapping: Mapping, turns: _Turns, owner: NDArray[np.int32], draws: _RemoteDraws, window: int, remote: int
    ) -> None:
        kind = index_dtype(mapping.samples)
        self._mapping, self._turns, self._draws, self._window = mapping, turns, draws, window
        self._owner: list[int] = owner.tolist()
        self._position = draws.position.data
        self._lies = np.full(mapping.groups * mapping.chunk_size, -1, kind)
        """The place whose sample is at each location; -1 if it is empty."""
        self._unfilled = unfilled_files(mapping)
        self._waiting = np.ones(len(draws.position), np.bool_)
        """Whether each remote draw has no sample sent ahead."""
        self._room = [remote] * turns.nodes
        """Free space of each node's remote abstract memory, in samples."""
        self._sample_of = np.empty(mapping.samples, kind)
        self._held, self._held_end = np.empty(mapping.samples, kind), 0
        self._deadlines, self._chunks, self._held_ends = array("q"), array("q"), array("q")
        self._prefetched, self._sent = np.empty(len(draws.position), kind), 0
        self._asked, self._sent_ends = array("q"), array("q")

    def play(self, location: NDArray[Any], refill: Refill, dice: _Dice) -> None:
        """Simulate all draws of the epoch, in order of position. `location`: that of each draw, shape (samples,)."""
        lies, sample_of, waiting = self._lies.data, self._sample_of.data, self._waiting.data  # faster, one by one
        room, ranks, each = self._room, self._turns.ranks, self._turns.each
        for part in blocks(len(location)):
            steps = zip(location[part].tolist(), self._draws.number_at[part].tolist(), strict=True)
            for position, (where, number) in enumerate(steps, part.start):
                remote = number >= 0
                if remote and not waiting[number]:  # sent ahead: the draw frees its space in the asking node
                    room[position % ranks // each] += 1
                    continue
                if lies[where] < 0:
                    self._refill(position, where, refill, dice)
                sample_of[position] = lies[where]
                lies[where] = -1
                if remote:
                    self._send_ahead(position, number)

    def _refill(self, position: int, where: int, refill: Refill, dice: _Dice) -> None:
        """Read one chunk of the group of an empty location, as `slots` does it for all groups at once."""
        slots, n = self._mapping.chunk_size, self._mapping.group_chunks
        group, slot = divmod(where, slots)
        lies = self._lies[group * slots : (group + 1) * slots]
        unfilled = self._unfilled[group]
        candidates = np.flatnonzero(unfilled[:, slot])
        fills = unfilled[candidates] & (lies < 0)
        score = dice.throw(group)[candidates]
        if refill == "fill_rate":
            score += fills.sum(axis=1) << 32  # priorities are below 2 ** 32: they break ties
        best = int(score.argmax())
        chunk = group * n + int(candidates[best])
        filled = np.flatnonzero(fills[best])
        places = filled + chunk * slots
        unfilled[candidates[best], filled] = False
        lies[filled] = places
        end = self._held_end + len(filled)
        self._held[self._held_end : end] = places
        self._held_end = end
        self._deadlines.append(position)
        self._chunks.append(chunk)
        self._held_ends.append(end)

    def _send_ahead(self, position: int, number: int) -> None:
        """Process the check list of a request that the owner has just answered: remote draw `number`."""
        draws, node = self._draws, position % self._turns.ranks // self._turns.each
        self._asked.append(position)
        if self._room[node]:
            owner = self._owner[int(draws.location[number]) // self._mapping.chunk_size]
            last = self._turns.later(position, self._window)
            end = bisect_right(self._position, last, number + 1, int(draws.ends[node, owner]))
            sent = np.flatnonzero(self._waiting[number + 1 : end]) + (number + 1)
            sent = sent[draws.before[sent] <= number]  # the node has used what it was sent for that location before
            sent = sent[self._lies[draws.location[sent]] >= 0][: self._room[node]]
            where, positions = draws.location[sent], draws.position[sent]
            self._sample_of[positions] = self._lies[where]
            self._lies[where] = -1
            self._waiting[sent] = False
            self._room[node] -= len(sent)
            self._prefetched[self._sent : self._sent + len(sent)] = positions
            self._sent += len(sent)
        self._sent_ends.append(self._sent)

    def plan(self) -> EpochPlan:
        kind = self._sample_of.dtype
        reads = whole_reads(self._mapping, np.array(self._deadlines), np.array(self._chunks))
        requests = PeerRequests(
            np.array(self._asked).astype(kind), self._prefetched[: self._sent].copy(), np.array(self._sent_ends)
        )
        held_ends = np.array(self._held_ends).astype(kind)
        return EpochPlan(self._mapping, self._sample_of, reads, self._held, held_ends, requests)
