"""Slow, obvious models of both protocols, written from the paper and the design; and sizes to try them on.

Nothing here is fast, vectorised or clever. What is random (the access sequence, ties, words) is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from brand.protocol.mapping import Mapping
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.plan import Plan


@dataclass(frozen=True)
class Read:
    """One row of a plan's second table, and which places it holds."""

    deadline: int
    chunk: int
    first: int
    count: int
    held: tuple[int, ...]


def reads_of(plan: Plan) -> list[Read]:
    """The second table of a plan as plain values."""
    return [
        Read(deadline, chunk, first, count, tuple(plan.places_held(number).tolist()))
        for number, (deadline, chunk, first, count) in enumerate(plan.reads.tolist())
    ]


def length_of_chunk(mapping: Mapping, chunk: int) -> int:
    """Samples of a chunk: all have the same but the last, and there are none behind it."""
    return max(0, min(mapping.chunk_size, mapping.samples - chunk * mapping.chunk_size))


def model_slots(
    mapping: Mapping, access: Sequence[int], refill: str, priorities: Callable[[int, int], Sequence[int]]
) -> tuple[list[int], list[Read]]:
    """Section 3.3 of the paper, request by request: what is delivered, and what is read.

    `priorities(group, k)` has a random number for each chunk of a group at its `k`-th refill: the largest wins a tie.
    """
    size, n = mapping.chunk_size, mapping.group_chunks
    lies: dict[tuple[int, int], int] = {}  # (group, slot) -> place
    filled: set[int] = set()  # places that were brought into memory in this epoch
    refills = dict.fromkeys(range(mapping.groups), 0)
    delivered: list[int] = []
    reads: list[Read] = []
    for position, asked in enumerate(access):
        slot, group = asked % size, asked // size // n
        if (group, slot) not in lies:
            fillable: dict[int, list[int]] = {}  # candidate -> what it would fill
            for chunk in range(group * n, group * n + n):
                files = [chunk * size + k for k in range(length_of_chunk(mapping, chunk))]
                if slot < len(files) and files[slot] not in filled:
                    fillable[chunk] = [f for f in files if f not in filled and (group, f % size) not in lies]
            best = max(len(files) for files in fillable.values())
            chosen = -1
            for chunk, files in fillable.items():
                equal = refill == "random" or len(files) == best
                dice = priorities(group, refills[group])
                if equal and (chosen < 0 or dice[chunk % n] > dice[chosen % n]):
                    chosen = chunk
            refills[group] += 1
            for place in fillable[chosen]:
                lies[group, place % size] = place
                filled.add(place)
            reads.append(Read(position, chosen, 0, length_of_chunk(mapping, chosen), tuple(fillable[chosen])))
        delivered.append(lies.pop((group, slot)))
    return delivered, reads


@dataclass(frozen=True)
class ModelStripe:
    """A stripe of a group: `number` counts the group's stripes, chunk by chunk; the last of a chunk may be short."""

    number: int
    chunk: int
    first: int
    count: int


def stripes_of_group(mapping: Mapping, stripe: int, group: int) -> list[ModelStripe]:
    """The stripes of a group that have samples."""
    found, number = [], 0
    for chunk in range(group * mapping.group_chunks, (group + 1) * mapping.group_chunks):
        for first in range(0, mapping.chunk_size, stripe):
            count = min(stripe, mapping.chunk_size - first, length_of_chunk(mapping, chunk) - first)
            if count > 0:
                found.append(ModelStripe(number, chunk, first, count))
            number += 1
    return found


def model_tape(
    mapping: Mapping, stripe: int, in_order: Sequence[ModelStripe], words: Callable[[int], Sequence[int]]
) -> list[int]:
    """The places of a group in tape order: the formula of section 2.2 of the design, sample by sample.

    `words(number)` are `stripe` random words of 64 bits for a stripe. The high bits of the first `count` of them, put
    in ascending order, are `p`: the sample whose word is the `k`-th smallest has `p = k`. The low 32 bits of word `k`
    are the digits of the `u` that goes with `p = k`.
    """
    window = 2 * mapping.chunk_size - stripe
    low = 1 << max(0, stripe - 1).bit_length()
    keyed: list[tuple[float, int]] = []
    before = 0
    for one in in_order:
        word = words(one.number)[: one.count]
        by_word = sorted(range(one.count), key=lambda j: (word[j] // low, j))
        for p, sample in enumerate(by_word):
            u = (word[p] % 2**32) / 2**32
            key = before + window * (p + u) / one.count
            keyed.append((key, one.chunk * mapping.chunk_size + one.first + sample))
        before += one.count
    return [place for _, place in sorted(keyed)]


def model_deadlines(in_order: Sequence[ModelStripe], first_draw: Callable[[ModelStripe], int]) -> list[int]:
    """A stripe is due when its first sample is drawn, or earlier: when a stripe behind it in the order is due."""
    return [min(first_draw(later) for later in in_order[k:]) for k in range(len(in_order))]


def model_memory(plan: Plan, size_of: Sequence[int]) -> list[int]:
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


seeds = st.one_of(st.integers(0, 1000), st.integers(0, 2**128 - 1))
"""Seeds of all sizes."""

epochs = st.integers(0, MAX_EPOCH)
"""All epochs that an order has."""

refills = st.sampled_from(("fill_rate", "random"))
"""Both ways to choose a chunk."""


@st.composite
def orders(draw: st.DrawFn, most: int = 150) -> Order:
    """Orders of both protocols."""
    mapping = draw(mappings(most))
    return Order(
        data_set="any",
        samples=mapping.samples,
        chunk_size=mapping.chunk_size,
        group_chunks=min(mapping.group_chunks, mapping.chunks),
        seed=draw(seeds),
        protocol=draw(st.sampled_from(("stripes", "slots"))),
        stripe=draw(st.integers(1, mapping.chunk_size)),
        refill=draw(refills),
    )


def chi_square(counts: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """How far counts are from equal: about the number of counts minus one where they are equal but for chance."""
    found = np.asarray(counts, np.float64)
    return float(((found - found.mean()) ** 2 / found.mean()).sum())
