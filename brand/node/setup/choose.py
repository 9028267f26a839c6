"""Which order and which read sizes suit a data set, its memory and its storage? Users rarely set these numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brand.available import available_bytes
from brand.node.decide.cache.keeping import AHEAD_SHARE
from brand.node.decide.reads.operations import StorageFacts
from brand.node.memory.pages import ROW_BYTES, page_bytes
from brand.node.setup.memory import Memory, check_memory, memory_bytes, remote_bytes
from brand.orders.base.policy import Setting, holds_all
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption, choice_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.profile.profile import (
    Profile,
    best_depth,
    busy_bytes,
    gap_bytes,
    load_profile,
    stripe_bytes,
    stripe_length,
)

WHOLE_WORTH: Final = 1.25
"""Whole units of samples are read if reading their samples one by one takes this many times as long."""

Seconds = Callable[[float, int], float]
"""Returns the seconds that a storage takes for a number of bytes, in a number of reads of equal size."""

DEFAULT_DEPTH: Final = 8
"""Reads in flight if nothing is known about the storage."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes and ranks that draw together."""

    nodes: int = 1
    ranks: int = 1
    """Number of ranks on all nodes together."""
    remote: Memory = None
    """How much of a node's memory other nodes may fill, as a fraction of it or in bytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a data set that its order depends on."""

    id: str
    samples: int
    chunk_size: int
    mean_bytes: float
    read_bytes: int
    """Size of a read that is large enough for the storage (`stripe_bytes`)."""
    share_chunks: int | None = None
    """Chunks that stay together if the data set is partitioned; None if each node has all chunks."""


def facts_of(data: StoredDataSet) -> Facts:
    """Return the facts about a data set, with the stored profile of its storage."""
    header, share = data.header, data.share
    chunks = None if share is None else share.group_chunks
    read_bytes = stripe_bytes(load_profile(data.name))
    return Facts(data.id, header.samples, header.chunk_size, data.mean_bytes, read_bytes, chunks)


def choose_order(
    facts: Facts,
    seed: int,
    option: OrderOption,
    share: float | None,
    memory: Memory,
    nodes: Nodes = Nodes(),
    at_a_time: int = 1,
) -> Order:
    """Return the order of a run. Raises `UsageError`.

    Args:
        facts: Facts about the data set and its storage.
        seed: Seed of the shuffle.
        option: The order that the user gives.
        share: Fraction of the data that fits into the memory of a running server; None to derive it from `memory`.
        memory: Memory of a node.
        nodes: Nodes and ranks that draw together.
        at_a_time: Orders that are drawn at a time; each gets its fraction of the memory.
    """
    held, sample = samples_held(facts, share, memory) / at_a_time, _sample_bytes(facts)
    setting = Setting(
        samples=facts.samples,
        chunk_size=facts.chunk_size,
        held=held,
        filled=1 - 1 / AHEAD_SHARE,
        stripe=stripe_length(facts.read_bytes, facts.mean_bytes, facts.chunk_size),
        fixed=memory is not None or share is not None,
        samples_in=lambda size: _buffer_bytes(size, int(facts.samples * sample)) / sample,
        remote=lambda: remote_bytes(nodes.remote, int(held * facts.mean_bytes)) / facts.mean_bytes,
        nodes=nodes.nodes,
        ranks=nodes.ranks,
        partition=facts.share_chunks,
    )
    return Order(facts.id, facts.samples, facts.chunk_size, seed, choice_of(option).choose_policy(setting))


def _buffer_bytes(size: Memory, all_bytes: int) -> int:
    """Return the bytes of a shuffle buffer that the user gives. Raises `UsageError`."""
    check_memory(size, "buffer")
    return memory_bytes(size, all_bytes, "buffer")


def _sample_bytes(facts: Facts) -> float:
    """Return the memory that a sample takes on average, in bytes: its last page is half full on average."""
    return facts.mean_bytes + ROW_BYTES + page_bytes(facts.mean_bytes) / 2


def samples_held(facts: Facts, share: float | None, memory: Memory) -> float:
    """Return how many samples memory holds; arguments as for `choose_order`."""
    if share is not None:
        return min(share, 1.0) * facts.samples
    sample = _sample_bytes(facts)
    return memory_bytes(memory, int(facts.samples * sample)) / sample


def choose_whole_unit(read_bytes: int, mean_bytes: float, chunk_size: int, seconds: Seconds) -> int:
    """Return how many neighbouring samples a storage reads faster at once than one by one; 1 if there are none.

    `seconds(bytes, operations)` returns the seconds of reads of equal size together.
    """
    unit = stripe_length(read_bytes, mean_bytes, chunk_size)
    size = unit * mean_bytes
    return unit if seconds(size, unit) >= WHOLE_WORTH * seconds(size, 1) else 1


def choose_depth(
    data: StoredDataSet, profile: Profile | None, folders: Sequence[str | os.PathLike[str]]
) -> tuple[int, StorageFacts]:
    """Return the number of reads in flight, and the facts about the storage for decisions.

    As many reads as raise the throughput of the storage, or of the disk of a cache folder if those are more. `profile`
    is that of the storage, if it is known.
    """
    depth = depth_of([profile, *(load_profile(os.fspath(folder)) for folder in folders)])
    return depth, StorageFacts(busy_bytes(profile), gap_bytes(profile, data.mean_bytes))


def depth_of(storages: Sequence[Profile | None]) -> int:
    """Return the reads in flight that suit each of these storages; a storage is None if nothing is known of it."""
    return max(DEFAULT_DEPTH if profile is None else best_depth(profile) for profile in storages)


def use_page_cache(data: StoredDataSet, arena_bytes: int) -> bool:
    """Return whether large reads use the page cache: only if it can hold all the data in addition to the arena.

    A smaller page cache only costs time.
    """
    return int(data.chunk_rows["file_size"].sum()) + arena_bytes <= available_bytes()


def choose_room(facts: Facts, order: Order, share: float | None, memory: Memory, nodes: Nodes = Nodes()) -> int:
    """Return roughly how many samples memory can hold in addition to those that an epoch of this order mixes.

    `share`, `memory` and `nodes` as for `choose_order`. All samples if memory holds all; otherwise the rest of memory,
    rounded down, so that a little more or less memory mostly gives the same number. Samples that an epoch holds there
    are not cached for the next epoch. Each of several nodes draws a part of these samples. Most of that part comes from
    other nodes, which may fill only a fraction of its memory.
    """
    samples = samples_held(facts, share, memory)
    if nodes.nodes == 1 and holds_all(samples, facts.samples):
        return facts.samples
    left = max(1, int(samples - order.policy.held(order.mapping)))
    if nodes.nodes > 1:
        remote = remote_bytes(nodes.remote, int(samples * facts.mean_bytes)) / facts.mean_bytes
        left = max(1, min(left, int(remote * nodes.nodes / 2)))  # two windows at a time
    unit = 1 << max(0, left.bit_length() - 2)
    return left // unit * unit
