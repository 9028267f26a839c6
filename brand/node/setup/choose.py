"""Which order and which way of reading suit a data set, its memory and its storage? Users rarely give these numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from brand.errors import UsageError
from brand.node.decide.gaps import StorageFacts
from brand.node.decide.keeping import AHEAD_SHARE
from brand.node.memory.page_memory import ROW_BYTES
from brand.node.memory.pages import page_bytes
from brand.node.setup.memory import Memory, available_bytes, memory_bytes, remote_bytes
from brand.protocol.coordl import WINDOW, CoordlPolicy
from brand.protocol.joader_policy import JoaderPolicy
from brand.protocol.mapping import chunks_per_group
from brand.protocol.minio import MinioPolicy
from brand.protocol.order import Order
from brand.protocol.policy import BY_ONE_NODE, Policy
from brand.protocol.pool_policy import PoolPolicy
from brand.protocol.shared_policy import SharedPolicy
from brand.protocol.slot_policy import SlotPolicy
from brand.protocol.stripe_policy import StripePolicy
from brand.protocol.uniform import UniformPolicy
from brand.storage.dataset import StoredDataSet
from brand.storage.profile import Profile, best_depth, busy_bytes, gap_bytes, load_profile, stripe_bytes, stripe_length

MIXING_SHARE: Final = 16
"""`1 / MIXING_SHARE` of the samples is in memory for mixing; memory beyond that keeps samples instead."""

OWNED_GROUPS: Final = 256
"""The most groups where groups only have owners: enough for even shares of nodes."""

AHEAD: Final = 0.8
"""Part of the room for samples of other nodes that a plan of `slots` fills; the rest is slack for larger samples."""

WHOLE_WORTH: Final = 1.25
"""Whole units of samples are read where their samples one by one take so many times as long."""

Seconds = Callable[[float, int], float]
"""How long a storage takes for so many bytes, in so many reads of equal size."""

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


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform shuffle: every order of the samples can come, and each is as likely as any other.

    Each sample is a read of its own. Memory mixes nothing: it reads ahead, and keeps single samples for good. The order
    depends on the seed alone.
    """


@dataclass(frozen=True, slots=True)
class Pool:
    """A baseline, to compare with: the chunk-wise shuffle of DIESEL (Wang et al., ICPP 2020; DIESEL+, TPDS 2021).

    An epoch puts the chunks in random order, takes `chunks` of them at a time, and shuffles the samples within these.
    Samples of one chunk meet in a batch far more often than by chance. The order depends on the seed and on `chunks`.

    Args:
        chunks: Chunks of a pool. The memory of a node holds all of them, and keeps further chunks in what is left.
    """

    chunks: int


@dataclass(frozen=True, slots=True)
class MinIO:
    """A baseline, to compare with: a uniform shuffle and the static cache of CoorDL (Mohan et al., PVLDB 14(5), 2021).

    It has the orders and the memory of `Uniform()`, under the name of the paper's cache: memory keeps samples for good,
    chosen by the seed, as many as it holds, and all others are read in every epoch.
    """


@dataclass(frozen=True, slots=True)
class Shared:
    """For jobs that train on one data set at the same time, and draw from one server: one read serves all.

    Args:
        policy: `"follow"`: `Stripes()`, where jobs follow the fastest one, each at its own speed. To compare with:
            `"coordl"`: all jobs go in lock step, at the speed of the slowest (CoorDL); `"joader"`: a uniform shuffle by
            single samples, where jobs draw the same sample at the same time as often as they can (JOADER).
        jobs: With `"coordl"`, how many jobs begin together.
        window: With `"coordl"`, how many samples a job may be ahead of another one.
        rejoin: With `"follow"`, whether a job joins the others anew within an epoch, where it has got faster or slower
            than they are. False: a run that goes on from a state draws to the bit as it would have without the stop.
    """

    policy: Literal["follow", "joader", "coordl"] = "follow"
    _: KW_ONLY
    jobs: int | None = None
    window: int = WINDOW
    rejoin: bool = True


ProtocolChoice = Literal["stripes", "slots", "uniform", "shared"] | Stripes | Slots | Uniform | Pool | MinIO | Shared


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes and ranks that draw together."""

    nodes: int = 1
    ranks: int = 1
    """On all nodes together."""
    remote: Memory = None
    """How much of a node's memory other nodes may fill, as a share of it or in bytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a data set that its order depends on."""

    id: str
    samples: int
    chunk_size: int
    """Samples of a chunk."""
    mean_bytes: float
    """Mean size of a stored sample."""
    read_bytes: int
    """Size of a read that is large enough for the storage (`stripe_bytes`)."""
    share_chunks: int | None = None
    """Chunks that stay together where the data set is partitioned; None: each node has all chunks."""

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)


def facts_of(data: StoredDataSet) -> Facts:
    """The facts about a data set, with the stored profile of its storage."""
    header, share = data.header, data.share
    chunks = None if share is None else share.group_chunks
    read_bytes = stripe_bytes(load_profile(data.name))
    return Facts(data.id, header.samples, header.chunk_size, data.mean_bytes, read_bytes, chunks)


def choose_order(
    facts: Facts,
    seed: int,
    protocol: ProtocolChoice,
    share: float | None,
    memory: Memory,
    nodes: Nodes = Nodes(),
) -> Order:
    """The order of a run. `share`: which part of the data fits into a running server's memory; None: `memory` counts.

    `stripes` have the same order on any number of nodes: the order for the memory of one node. `slots` use the memory
    of all nodes. The orders of `Uniform`, `Pool` and `MinIO` depend neither on nodes nor on memory. Raises
    `UsageError`.
    """
    named = {"stripes": Stripes(), "slots": Slots(), "uniform": Uniform(), "shared": Shared()}
    chosen = named.get(protocol) if isinstance(protocol, str) else protocol
    if not isinstance(chosen, Stripes | Slots | Uniform | Pool | MinIO | Shared):
        allowed = (
            "'stripes', 'slots', 'uniform', 'shared', Stripes(...), Slots(...), Uniform(), Shared(...), Pool(...) or "
            "MinIO()"
        )
        raise UsageError(f"protocol={protocol!r}: give {allowed}")
    sample = _sample_bytes(facts)
    every = int(facts.samples * sample)
    samples = samples_held(facts, share, memory)
    if isinstance(chosen, Shared):
        _check_shared(chosen, nodes)
    policy: Policy
    if isinstance(chosen, Slots):
        policy = _choose_slots(facts, chosen, samples, nodes)
    elif isinstance(chosen, Uniform):
        policy = UniformPolicy(_owned_chunks(facts))
    elif isinstance(chosen, Pool):
        policy = _choose_pool(facts, chosen, samples)
    elif isinstance(chosen, MinIO):
        policy = MinioPolicy(_owned_chunks(facts))
    elif isinstance(chosen, Shared) and chosen.policy == "joader":
        policy = JoaderPolicy(_owned_chunks(facts))
    else:
        own = chosen if isinstance(chosen, Stripes) else Stripes()
        mixing = min(samples, facts.samples / MIXING_SHARE)
        if own.mixing is not None:
            mixing = min(samples, memory_bytes(own.mixing, every) / sample)
        elif memory is None and share is None and mixing < facts.samples / MIXING_SHARE:
            # The available memory differs a little from run to run; the order should not.
            mixing = facts.samples / 2.0 ** np.ceil(np.log2(facts.samples / mixing))
        policy = stripes = _choose_stripes(facts, own, samples, mixing)
        if isinstance(chosen, Shared):
            policy = _choose_shared(stripes, chosen)
    return Order(facts.id, facts.samples, facts.chunk_size, seed, policy)


def _sample_bytes(facts: Facts) -> float:
    """Memory that a sample takes, on average: it ends in the middle of a page."""
    return facts.mean_bytes + ROW_BYTES + page_bytes(facts.mean_bytes) / 2


def samples_held(facts: Facts, share: float | None, memory: Memory) -> float:
    """How many samples memory holds; arguments as for `choose_order`."""
    if share is not None:
        return min(share, 1.0) * facts.samples
    sample = _sample_bytes(facts)
    return memory_bytes(memory, int(facts.samples * sample)) / sample


def _check_shared(chosen: Shared, nodes: Nodes) -> None:
    """Raise `UsageError` where no order is like this."""
    if chosen.policy not in ("follow", "joader", "coordl"):
        raise UsageError(f"Shared({chosen.policy!r}): give 'follow', 'joader' or 'coordl'")
    if chosen.policy == "coordl" and chosen.jobs is None:
        raise UsageError("Shared('coordl', jobs=...): say how many jobs go in lock step")
    if chosen.policy != "coordl" and chosen.jobs is not None:
        raise UsageError("Shared(jobs=...): any number of jobs share; only Shared('coordl', jobs=...) counts them")
    if chosen.policy != "follow" and nodes.nodes > 1:
        raise UsageError(BY_ONE_NODE)


def _choose_shared(stripes: StripePolicy, chosen: Shared) -> Policy:
    """The numbers of `shared`, with laps like these."""
    if chosen.policy == "follow":
        return SharedPolicy(stripes.group_chunks, stripes.stripe, int(chosen.rejoin))
    assert chosen.jobs is not None
    try:
        return CoordlPolicy(stripes.group_chunks, stripes.stripe, chosen.jobs, chosen.window)
    except ValueError as error:
        raise UsageError(f"Shared('coordl', ...): {error}") from None


def _choose_stripes(facts: Facts, chosen: Stripes, samples: float, mixing: float) -> StripePolicy:
    """The numbers of `stripes`, with memory for `samples` samples. `mixing` of these are for mixing."""
    length = chosen.length
    if length is None:
        length = stripe_length(facts.read_bytes, facts.mean_bytes, facts.chunk_size)
    elif not 1 <= length <= facts.chunk_size:
        raise UsageError(f"Stripes(length={length}): a stripe has 1 to {facts.chunk_size} samples, a chunk's size")
    n = max(_group_chunks(facts, samples), chunks_per_group(facts.samples, facts.chunk_size, mixing))
    return StripePolicy(n, length)


def _choose_slots(facts: Facts, chosen: Slots, samples: float, nodes: Nodes) -> SlotPolicy:
    """The numbers of `slots`: the nodes share their memories, and plans foresee what nodes send ahead."""
    if nodes.nodes == 1 or nodes.ranks % nodes.nodes:
        return SlotPolicy(_group_chunks(facts, samples), chosen.refill)
    remote = remote_bytes(nodes.remote, int(samples * facts.mean_bytes)) / facts.mean_bytes
    n = _group_chunks(facts, (samples - remote) * nodes.nodes)
    if facts.share_chunks is not None:
        if facts.share_chunks < n:
            how = f"`brand partition --group-chunks {n}` (or more) keeps enough chunks together"
            raise UsageError(f"protocol 'slots' needs {n} chunks on one node for each abstract chunk: {how}")
        n = facts.share_chunks
    ahead = int(remote * AHEAD)
    # Some draws of the window are of the node's own samples and take no room, so the room is hardly ever short.
    return SlotPolicy(n, chosen.refill, nodes.nodes, nodes.ranks, window=ahead, remote=ahead)


def _choose_pool(facts: Facts, chosen: Pool, samples: float) -> PoolPolicy:
    """The numbers of `pool`, with memory for `samples` samples: the pool fits, and some memory is left to read ahead.

    Where memory is smaller than a pool, draws would be read sample by sample. That would measure the lack of memory.
    """
    given, most = chosen.chunks, facts.chunks
    if not isinstance(given, int) or not 1 <= given <= most:
        raise UsageError(f"Pool(chunks={given!r}): a pool has 1 to {most:,} chunks, as the data set has")
    fit = most if samples >= facts.samples else int(samples * (1 - 1 / AHEAD_SHARE) / facts.chunk_size)
    if given > fit:
        smaller = f"a pool of {fit:,} or fewer, or " if fit else ""
        raise UsageError(f"Pool(chunks={given}): memory holds {fit:,} chunks of a pool: give {smaller}more memory=")
    return PoolPolicy(_owned_chunks(facts), given)


def _owned_chunks(facts: Facts) -> int:
    """Chunks of a group where groups only have owners: two or more, as a damaged chunk is replaced by its group."""
    return min(facts.chunks, max(2, -(-facts.chunks // OWNED_GROUPS)))


def choose_whole_unit(read_bytes: int, mean_bytes: float, chunk_size: int, seconds: Seconds) -> int:
    """Neighbouring samples that a storage reads in less time at once than one by one; 1: there are none.

    `seconds(bytes, operations)` is what reads of equal size take together.
    """
    unit = stripe_length(read_bytes, mean_bytes, chunk_size)
    size = unit * mean_bytes
    return unit if seconds(size, unit) >= WHOLE_WORTH * seconds(size, 1) else 1


def choose_depth(data: StoredDataSet, cache: Path | None) -> tuple[int, StorageFacts]:
    """How many reads are in flight, and what decisions know of the storage.

    As many reads as the storage rewards, or the disk of the folder `cache`, where that rewards more.
    """
    profile = load_profile(data.name)
    both = [profile] if cache is None else [profile, load_profile(cache)]
    return depth_of(both), StorageFacts(busy_bytes(profile), gap_bytes(profile, data.mean_bytes))


def depth_of(storages: Sequence[Profile | None]) -> int:
    """Reads in flight that suit each of these storages; None: nothing is known of it."""
    return max(DEFAULT_DEPTH if profile is None else best_depth(profile) for profile in storages)


def use_page_cache(data: StoredDataSet, arena_bytes: int) -> bool:
    """Whether large reads go through the page cache: only where it can hold all the data beside the arena.

    A smaller one only costs time.
    """
    return int(data.chunk_rows["file_size"].sum()) + arena_bytes <= available_bytes()


def _group_chunks(facts: Facts, memory: float) -> int:
    """The smallest `n` whose abstract memory fits into memory for `memory` samples.

    As in the paper, but one part in eight of the memory stays free for reading ahead. Where groups are few, each gets
    more room, because their peaks do not even out.
    """
    room = memory * (1 - 1 / AHEAD_SHARE) / facts.chunk_size
    groups = max(1.0, room - 0.3 * np.sqrt(room) if room < 64 else room)
    return chunks_per_group(facts.samples, facts.chunk_size, groups * facts.chunk_size)
