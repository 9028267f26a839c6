"""Which order and which way of reading suit a data set, its memory and its storage? Users rarely give these numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np

from brand.errors import UsageError
from brand.node.decide.keeping import AHEAD_SHARE
from brand.node.memory.page_memory import ROW_BYTES
from brand.node.memory.pages import page_bytes
from brand.node.setup.memory import Memory, available_bytes, memory_bytes, remote_bytes
from brand.protocol.mapping import chunks_per_group
from brand.protocol.order import Order
from brand.protocol.policy import Policy
from brand.protocol.slot_policy import SlotPolicy
from brand.protocol.stripe_policy import StripePolicy
from brand.storage.dataset import StoredDataSet
from brand.storage.location import vector_reader
from brand.storage.profile import best_depth, load_profile, stripe_bytes, stripe_length
from brand.storage.vectored import VectorReader

MIXING_SHARE: Final = 16
"""`1 / MIXING_SHARE` of the samples is in memory for mixing; memory beyond that keeps samples instead."""

AHEAD: Final = 0.8
"""Part of the room for samples of other nodes that a plan of `slots` fills; the rest is slack for larger samples."""

DEFAULT_DEPTH: Final = 8
"""Reads in flight where nothing is known about the storage."""


@dataclass(frozen=True, slots=True)
class Stripes:
    """The default protocol: every stripe of a chunk is read once an epoch, and its samples are spread over the draws.

    Args:
        length: Samples in a stripe; None: as few as make reads large enough for the storage (`brand profile`).
        mixing: Memory for mixing, in the form of `memory=` of the data set; None: a sixteenth of the samples. The rest
            of the memory keeps samples, which are then read once and never again.
    """

    length: int | None = None
    mixing: Memory = None


@dataclass(frozen=True, slots=True)
class Slots:
    """The paper's protocol: a miss reads a whole chunk, chosen by fill rate or at random (the paper's ablation)."""

    refill: Literal["fill_rate", "random"] = "fill_rate"


ProtocolChoice = Literal["stripes", "slots"] | Stripes | Slots


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes and ranks that draw together."""

    nodes: int = 1
    ranks: int = 1
    """On all nodes together."""
    remote: Memory = None
    """How much of a node's memory other nodes may fill, as a share of it or in bytes."""


def choose_order(
    data: StoredDataSet,
    seed: int,
    protocol: ProtocolChoice,
    share: float | None,
    memory: Memory,
    nodes: Nodes = Nodes(),
) -> Order:
    """The order of a run. `share`: which part of the data fits into a running server's memory; None: `memory` counts.

    `stripes` have the same order on any number of nodes: the order for the memory of one node. `slots` use the memory
    of all nodes. Raises `UsageError`.
    """
    chosen = {"stripes": Stripes(), "slots": Slots()}.get(protocol) if isinstance(protocol, str) else protocol
    if not isinstance(chosen, Stripes | Slots):
        raise UsageError(f"protocol={protocol!r}: give 'stripes', 'slots', Stripes(...) or Slots(...)")
    header = data.header
    stored = data.mean_bytes
    sample = stored + ROW_BYTES + page_bytes(stored) / 2  # a sample ends in the middle of a page, on average
    every = int(header.samples * sample)
    samples = memory_bytes(memory, every) / sample if share is None else min(share, 1.0) * header.samples
    policy: Policy
    if isinstance(chosen, Slots):
        policy = _choose_slots(data, chosen, samples, nodes)
    else:
        mixing = min(samples, header.samples / MIXING_SHARE)
        if chosen.mixing is not None:
            mixing = min(samples, memory_bytes(chosen.mixing, every) / sample)
        elif memory is None and share is None and mixing < header.samples / MIXING_SHARE:
            # The available memory differs a little from run to run; the order should not.
            mixing = header.samples / 2.0 ** np.ceil(np.log2(header.samples / mixing))
        policy = _choose_stripes(data, chosen, samples, mixing)
    return Order(data.id, header.samples, header.chunk_size, seed, policy)


def _choose_stripes(data: StoredDataSet, chosen: Stripes, samples: float, mixing: float) -> StripePolicy:
    """The numbers of `stripes`, with memory for `samples` samples. `mixing` of these are for mixing."""
    header, length = data.header, chosen.length
    if length is None:
        length = stripe_length(stripe_bytes(load_profile(data.path)), data.mean_bytes, header.chunk_size)
    elif not 1 <= length <= header.chunk_size:
        raise UsageError(f"Stripes(length={length}): a stripe has 1 to {header.chunk_size} samples, a chunk's size")
    n = max(_group_chunks(data, samples), chunks_per_group(header.samples, header.chunk_size, mixing))
    return StripePolicy(n, length)


def _choose_slots(data: StoredDataSet, chosen: Slots, samples: float, nodes: Nodes) -> SlotPolicy:
    """The numbers of `slots`: the nodes share their memories, and plans foresee what nodes send ahead."""
    if nodes.nodes == 1 or nodes.ranks % nodes.nodes:
        return SlotPolicy(_group_chunks(data, samples), chosen.refill)
    remote = remote_bytes(nodes.remote, int(samples * data.mean_bytes)) / data.mean_bytes
    n = _group_chunks(data, (samples - remote) * nodes.nodes)
    share = data.share
    if share is not None:
        if share.group_chunks < n:
            how = f"`brand partition --group-chunks {n}` (or more) keeps enough chunks together"
            raise UsageError(f"protocol 'slots' needs {n} chunks on one node for each abstract chunk: {how}")
        n = share.group_chunks
    ahead = int(remote * AHEAD)
    # Some draws of the window are of the node's own samples and take no room, so the room is hardly ever short.
    return SlotPolicy(n, chosen.refill, nodes.nodes, nodes.ranks, window=ahead, remote=ahead)


def choose_depth(data: StoredDataSet) -> int:
    """Reads in flight: as many as the storage rewards."""
    profile = load_profile(data.path)
    return DEFAULT_DEPTH if profile is None else best_depth(profile)


def choose_vector_reader(
    data: StoredDataSet, arena_bytes: int, *, page_cache: bool | None = None
) -> Callable[[], VectorReader]:
    """A function that makes the reader of one I/O thread. The function raises OSError.

    `page_cache`: whether large reads go through the page cache. None: only where the cache can hold all the data beside
    the arena; a smaller cache only costs time.
    """
    if page_cache is None:
        page_cache = int(data.chunk_rows["file_size"].sum()) + arena_bytes <= available_bytes()
    return partial(vector_reader, data.location, page_cache=page_cache)


def _group_chunks(data: StoredDataSet, memory: float) -> int:
    """The smallest `n` whose abstract memory fits into memory for `memory` samples.

    As in the paper, but one part in eight of the memory stays free for reading ahead. Where groups are few, each gets
    more room, because their peaks do not even out.
    """
    header = data.header
    room = memory * (1 - 1 / AHEAD_SHARE) / header.chunk_size
    groups = max(1.0, room - 0.3 * np.sqrt(room) if room < 64 else room)
    return chunks_per_group(header.samples, header.chunk_size, groups * header.chunk_size)
