"""Slow, obvious models of stripes and slots, written from the paper and the design; and sizes to try them on.

Nothing here is fast, vectorised or clever. What is random (the access sequence, ties, words) is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.order import MAX_EPOCH, Order
from brand.orders.policies.other_systems import JoaderPolicy, PoolPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.slots import REFILLS
from brand.orders.policies.storage_order import StoragePolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy


@dataclass(frozen=True)
class Read:
    """One row of a plan's second table, and which places it holds."""

    deadline: int
    chunk: int
    first: int
    count: int
    held: tuple[int, ...]


def table_of(plan: EpochPlan) -> NDArray[np.void]:
    """The second table of a plan."""
    return plan.reads_at(np.arange(plan.read_count))


def reads_of(plan: EpochPlan) -> list[Read]:
    """The second table of a plan as plain values."""
    return [
        Read(deadline, chunk, first, count, tuple(plan.places_held(number).tolist()))
        for number, (deadline, chunk, first, count) in enumerate(table_of(plan).tolist())
    ]


def length_of_chunk(mapping: Mapping, chunk: int) -> int:
    """Samples of a chunk: all have the same but the last, and there are none behind it."""
    return max(0, min(mapping.chunk_size, mapping.samples - chunk * mapping.chunk_size))


Priorities = Callable[[int, int], Sequence[int]]
"""`priorities(group, k)` has a random number for each chunk of a group at its `k`-th refill: the largest wins a tie."""

Location = tuple[int, int]
"""Group and slot."""


class ModelMemory:
    """Section 3.3 of the paper: what lies where, and what a request for a location does."""

    def __init__(self, mapping: Mapping, refill: str, priorities: Priorities) -> None:
        self.mapping, self.refill, self.priorities = mapping, refill, priorities
        self.lies: dict[Location, int] = {}  # location -> place
        self.filled: set[int] = set()  # places that were brought into memory in this epoch
        self.refills = dict.fromkeys(range(mapping.groups), 0)
        self.reads: list[Read] = []

    def location(self, place: int) -> Location:
        """Where a request for a place looks."""
        return place // self.mapping.chunk_size // self.mapping.group_chunks, place % self.mapping.chunk_size

    def deliver(self, position: int, location: Location) -> int:
        """The place whose sample is delivered, after a read where nothing lies at the location."""
        if location not in self.lies:
            self.read(position, *location)
        return self.lies.pop(location)

    def read(self, position: int, group: int, slot: int) -> None:
        """Choose a chunk that fills a location, and fill what it can."""
        size, n = self.mapping.chunk_size, self.mapping.group_chunks
        fillable: dict[int, list[int]] = {}  # candidate -> what it would fill
        for chunk in range(group * n, group * n + n):
            files = [chunk * size + k for k in range(length_of_chunk(self.mapping, chunk))]
            if slot < len(files) and files[slot] not in self.filled:
                fillable[chunk] = [f for f in files if f not in self.filled and (group, f % size) not in self.lies]
        best = max(len(files) for files in fillable.values())
        dice = self.priorities(group, self.refills[group])
        chosen = -1
        for chunk, files in fillable.items():
            equal = self.refill == "random" or len(files) == best
            if equal and (chosen < 0 or dice[chunk % n] > dice[chosen % n]):
                chosen = chunk
        self.refills[group] += 1
        for place in fillable[chosen]:
            self.lies[group, place % size] = place
            self.filled.add(place)
        held = tuple(fillable[chosen])
        self.reads.append(Read(position, chosen, 0, length_of_chunk(self.mapping, chosen), held))


def model_slots(
    mapping: Mapping, access: Sequence[int], refill: str, priorities: Priorities
) -> tuple[list[int], list[Read]]:
    """Section 3.3 of the paper, request by request: what is delivered, and what is read."""
    memory = ModelMemory(mapping, refill, priorities)
    delivered = [memory.deliver(position, memory.location(asked)) for position, asked in enumerate(access)]
    return delivered, memory.reads


@dataclass(frozen=True)
class Nodes:
    """How many nodes and ranks there are, and what they may send ahead."""

    nodes: int
    ranks: int
    window: int
    remote: int

    def drawer(self, position: int) -> int:
        """The node that draws at a position: ranks draw in turn, the first of them are on node 0."""
        return position % self.ranks // (self.ranks // self.nodes)

    def owner(self, group: int, groups: int) -> int:
        """The node that owns a group: the first groups are those of node 0, and each has the same share of them."""
        return group * self.nodes // groups


ONE = Nodes(nodes=1, ranks=1, window=0, remote=0)
"""One node."""


def model_requests(
    mapping: Mapping, access: Sequence[int], nodes: Nodes, refill: str, priorities: Priorities
) -> tuple[list[int], list[Read], list[tuple[int, list[int]]]]:
    """Section 3.4 of the paper, draw by draw: what is delivered, what is read; who asked at which position, and for
    which positions samples were sent ahead with the answer.
    """
    memory = ModelMemory(mapping, refill, priorities)
    sent_ahead: list[dict[Location, int]] = [{} for _ in range(nodes.nodes)]  # each node's remote abstract memory
    delivered: list[int] = []
    requests: list[tuple[int, list[int]]] = []
    for position, asked in enumerate(access):
        node, location = nodes.drawer(position), memory.location(asked)
        owner, here = nodes.owner(location[0], mapping.groups), sent_ahead[node]
        if location in here:
            delivered.append(here.pop(location))
            continue
        delivered.append(memory.deliver(position, location))
        if owner == node:
            continue
        coming = [p for p in range(position + 1, len(access)) if nodes.drawer(p) == node]
        sent = []
        for later in coming[: nodes.window]:
            wanted = memory.location(access[later])
            owned = nodes.owner(wanted[0], mapping.groups) == owner
            if owned and wanted in memory.lies and wanted not in here and len(here) < nodes.remote:
                here[wanted] = memory.lies.pop(wanted)
                sent.append(later)
        requests.append((position, sent))
    return delivered, memory.reads, requests


@dataclass(frozen=True)
class ModelStripe:
    """A stripe of a group: `number` counts the group's stripes, chunk by chunk; the last of a chunk may be short.

    `count` samples from `first` on are read, of which the `places` are of the subset, if there is one.
    """

    number: int
    chunk: int
    first: int
    count: int
    places: tuple[int, ...]


def stripes_of_group(mapping: Mapping, stripe: int, group: int, part: Sequence[bool] = ()) -> list[ModelStripe]:
    """The stripes of a group that have samples. `part`: whether each place is in the subset, if there is one."""
    found, number = [], 0
    for chunk in range(group * mapping.group_chunks, (group + 1) * mapping.group_chunks):
        for first in range(0, mapping.chunk_size, stripe):
            count, begin = min(stripe, length_of_chunk(mapping, chunk) - first), chunk * mapping.chunk_size
            places = [place for place in range(begin + first, begin + first + count) if not part or part[place]]
            if places:
                span = places[-1] - places[0] + 1
                found.append(ModelStripe(number, chunk, places[0] - begin, span, tuple(places)))
            number += 1
    return found


def model_tape(
    mapping: Mapping,
    stripe: int,
    in_order: Sequence[ModelStripe],
    mates: Callable[[int], Sequence[int]],
    parts: Callable[[int], Sequence[int]],
) -> list[int]:
    """The places of a group in tape order: the formula of the order, sample by sample, in whole numbers.

    `mates(number)` are `stripe` random words of 64 bits for a stripe. The high bits of the first of them, one for
    each sample, put in ascending order, are the ranks: the sample whose word is the `k`-th smallest has rank `k`.
    `parts(number)` are words whose first bits are the digits of the `u` that goes with each rank.
    """
    bits = max(0, min(20, 56 - 2 * mapping.chunk_size.bit_length()))
    chunks = {
        one.chunk // mapping.group_chunks * mapping.group_chunks + k
        for one in in_order
        for k in range(mapping.group_chunks)
    }
    stored, drawn = sum(length_of_chunk(mapping, chunk) for chunk in chunks), sum(len(one.places) for one in in_order)
    window = -(-(2 * mapping.chunk_size - stripe) * drawn // stored) if stored else 0
    low = 1 << max(0, stripe - 1).bit_length()
    keyed: list[tuple[int, int, int]] = []
    before = 0
    for one in in_order:
        word, count = mates(one.number), len(one.places)
        for rank, sample in enumerate(sorted(range(count), key=lambda j: (word[j] // low, j))):
            u = parts(one.number)[rank] >> (64 - bits)
            key = (before << bits) + window * ((rank << bits) + u) // count
            keyed.append((key, len(keyed), one.places[sample]))
        before += count
    return [place for *_, place in sorted(keyed)]


def model_deadlines(in_order: Sequence[ModelStripe], first_draw: Callable[[ModelStripe], int]) -> list[int]:
    """A stripe is due when its first sample is drawn, or earlier: when a stripe behind it in the order is due."""
    return [min(first_draw(later) for later in in_order[k:]) for k in range(len(in_order))]


def model_memory(plan: EpochPlan, size_of: Sequence[int]) -> list[int]:
    """What lies in memory just before each draw, where every read happens at its deadline."""
    memory: set[int] = set()
    reads, found = reads_of(plan), []
    for position, place in enumerate(plan.sample_of.tolist()):
        for read in reads:
            if read.deadline == position:
                memory |= set(read.held)
        found.append(sum(size_of[one] for one in memory))
        memory.remove(place)
    return found


@st.composite
def mappings(draw: st.DrawFn, most: int = 150, largest_chunk: int = 12) -> Mapping:
    """Any sizes: chunks of one sample, fewer samples than a chunk, short last chunks and groups, one group of all."""
    samples, size = draw(st.integers(1, most)), draw(st.integers(1, largest_chunk))
    chunks = -(-samples // size)
    return Mapping(samples, size, draw(st.one_of(st.integers(1, chunks), st.just(chunks), st.just(chunks + 1))))


@st.composite
def masks(draw: st.DrawFn, samples: int) -> NDArray[np.bool_]:
    """Subsets: few samples, many, neighbours, all; at least one."""
    first, end = sorted((draw(st.integers(0, samples)), draw(st.integers(0, samples))))
    some = draw(st.lists(st.integers(0, samples - 1), max_size=10))
    mask = np.zeros(samples, np.bool_)
    mask[first:end] = True
    if draw(st.booleans()):
        mask[:: draw(st.integers(1, 9))] ^= True
    mask[[*some, draw(st.integers(0, samples - 1))]] = True
    return mask


seeds = st.one_of(st.integers(0, 1000), st.integers(0, 2**128 - 1))
"""Seeds of all sizes."""

epochs = st.integers(0, MAX_EPOCH)
"""All epochs that an order has."""

refills = st.sampled_from(REFILLS)
"""Both ways to choose a chunk."""


@st.composite
def many_nodes(draw: st.DrawFn, fewest: int = 2) -> Nodes:
    """Some nodes with some ranks each; windows and limits from none to more than an epoch has."""
    count = draw(st.integers(fewest, 5))
    some = st.one_of(st.integers(0, 6), st.integers(0, 200))
    return Nodes(count, count * draw(st.integers(1, 3)), draw(some), draw(some))


@st.composite
def policies(draw: st.DrawFn, mapping: Mapping) -> Policy:
    """Policies of all protocols for a mapping, the paper's also across nodes."""
    name = draw(st.sampled_from(["stripes", "slots", "uniform", "storage", "pool", "joader"]))
    if name == "stripes":
        return StripePolicy(mapping.group_chunks, draw(st.integers(1, mapping.chunk_size)))
    if name == "pool":
        return PoolPolicy(mapping.group_chunks, draw(st.integers(1, mapping.chunks)))
    if name == "joader":
        return JoaderPolicy(mapping.group_chunks)
    if name == "uniform":
        return UniformPolicy(mapping.group_chunks)
    if name == "storage":
        return StoragePolicy(mapping.group_chunks, draw(st.integers(1, mapping.chunk_size)), draw(st.integers(1, 4)))
    nodes = draw(st.one_of(st.just(ONE), many_nodes()))
    return SlotPolicy(mapping.group_chunks, draw(refills), nodes.nodes, nodes.ranks, nodes.window, nodes.remote)


@st.composite
def orders(draw: st.DrawFn, most: int = 150) -> Order:
    """Orders of all protocols."""
    mapping = draw(mappings(most))
    mapping = replace(mapping, group_chunks=min(mapping.group_chunks, mapping.chunks))
    return Order("any", mapping.samples, mapping.chunk_size, draw(seeds), draw(policies(mapping)))


def chi_square(counts: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """How far counts are from equal: about the number of counts minus one where they are equal but for chance."""
    found = np.asarray(counts, np.float64)
    return float(((found - found.mean()) ** 2 / found.mean()).sum())


small_orders = orders(most=60)


@st.composite
def sized_plans(draw: st.DrawFn) -> tuple[Order, EpochPlan, list[int]]:
    """A plan of either protocol, and a size of every sample; some samples may be much larger than others."""
    order = draw(small_orders)
    sizes = st.one_of(st.just(1), st.integers(0, 9), st.integers(0, 2**40))
    size_of = draw(st.lists(draw(st.sampled_from((sizes, st.just(1)))), min_size=order.samples, max_size=order.samples))
    return order, order.plan(draw(st.integers(0, 3))), size_of
