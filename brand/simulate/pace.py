"""How long does each epoch of a run take? A clock over the work of its nodes.

Storage, cache folders, network, decoding and training run in parallel, each in the order of iterations (a batch of
each rank):

    read[h]  = read[h-1] + seconds(reads due at h), each as soon as draws have freed its pages; so for either source
    sent[h]  = max(sent[h-1] + seconds(bytes from other nodes at h), read[h] of both sources)
    drawn[h] = max(sent[h], decoded[h-1], trained[h-1-AHEAD]) + seconds(direct reads at h)
    decoded[h] = drawn[h] + seconds(decoding a batch of each rank of a node)
    trained[h] = max(trained[h-1], decoded[h]) + seconds(training a batch)

All nodes share the storage; each has a disk of its own for its cache folder. No rank begins an iteration before all
ranks have ended the previous one (as in distributed training). The moments at which pages are free are exact: they
follow from the pages of the reads and of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.simulate.running import EpochWork, SimulatedRun
from brand.simulate.storages import BUILT_IN, Storage

AHEAD: Final = 4
"""Batches that a loader holds ready: two workers with two batches each, or a `BrandLoader`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of the nodes."""

    storage: Storage
    cache: Storage = BUILT_IN["nvme"]
    """Storage of the cache folder of a node."""
    network_bytes_per_s: float = 1.25e9
    """Bandwidth of each node."""
    train_per_s: float = math.inf
    """Samples that one rank trains per second, if it never waits."""
    decode_s: float = 0.0
    """Seconds of one thread for decoding a sample."""
    threads: int = 1
    """Threads of a node that decode."""


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The times of one epoch in seconds."""

    seconds: float
    """From the end of the previous epoch to the end of this one."""
    storage: float
    """Time that the storage needs for the epoch's reads."""
    cache: float
    """Time that the cache folders need."""
    network: float
    """Time that the slowest link needs."""
    decoding: float
    training: float

    @property
    def waits(self) -> float:
        """Fraction of the time in which training waits; 0 if its speed is not known."""
        return max(0.0, 1 - self.training / self.seconds) if self.training and self.seconds else 0.0

    @property
    def sets_the_pace(self) -> str:
        """The name of the slowest component."""
        parts = "training", "storage", "cache", "network", "decoding"
        return max(parts, key=lambda part: float(getattr(self, part)))


def pace(run: SimulatedRun, epochs: Sequence[Sequence[EpochWork]], machine: Machine) -> list[EpochTimes]:
    """Return the times of each epoch. `epochs`: the work of each node of the run, epoch by epoch, from `work_of`.

    Works of more servers than nodes are those of the members of a mixture, of all nodes for each member.
    """
    nodes, per_epoch = run.nodes, run.iterations
    iterations, servers = per_epoch * len(epochs), range(len(epochs[0]))
    received = [np.concatenate([epoch[server].received_bytes for epoch in epochs]) for server in servers]
    came = np.max([np.sum(received[node::nodes], axis=0) for node in range(nodes)], axis=0)
    from_storage, from_cache = _together([[epoch[server] for epoch in epochs] for server in servers], per_epoch)
    storage_s = machine.storage.seconds(from_storage.size, from_storage.operations)
    cache_s = machine.cache.seconds(from_cache.size / nodes, from_cache.operations / nodes)
    exact = np.concatenate([sum(work.exact_bytes for work in epoch) for epoch in epochs]).astype(np.float64)
    exact_reads = np.concatenate([sum(work.exact_reads for work in epoch) for epoch in epochs]).astype(np.float64)
    exact_s = machine.storage.seconds(exact, exact_reads)
    network_s = came / machine.network_bytes_per_s
    first = np.arange(per_epoch) * run.batch * run.ranks
    batch = np.minimum(run.draws - first, run.batch * run.ranks) / run.ranks  # the last batch may be short
    decode_s = np.tile(batch * run.ranks / nodes * machine.decode_s / machine.threads, len(epochs))
    train_s = np.tile(batch / machine.train_per_s, len(epochs))
    reads = [each.in_turn(seconds) for each, seconds in ((from_storage, storage_s), (from_cache, cache_s))]
    ends = _clock(reads, exact_s, network_s, decode_s, train_s)[per_epoch - 1 :: per_epoch]
    busy_s = exact_s.copy()
    np.add.at(busy_s, from_storage.due, storage_s)
    copying_s = np.zeros(iterations)
    np.add.at(copying_s, from_cache.due, cache_s)
    each_s = np.array([busy_s, copying_s, network_s, decode_s, train_s])
    parts = each_s.reshape(len(each_s), -1, per_epoch).sum(axis=2).tolist()
    return [EpochTimes(*each) for each in zip(np.diff(ends, prepend=0.0).tolist(), *parts, strict=True)]


@dataclass(frozen=True, slots=True)
class _Reads:
    """Reads from one source by all nodes, in the order of the source. Arrays have the shape (reads,).

    Reads that are due at one iteration and wait for the same draws count as one.
    """

    due: NDArray[np.int64]
    """The iteration that needs them."""
    after: NDArray[np.int64]
    """The iteration whose draws free their pages; -1 if they are free."""
    size: NDArray[np.float64]
    """Bytes."""
    operations: NDArray[np.float64]

    def in_turn(self, seconds: NDArray[np.float64]) -> list[tuple[int, int, float]]:
        return list(zip(self.due.tolist(), self.after.tolist(), seconds.tolist(), strict=True))


def _clock(
    sources: list[list[tuple[int, int, float]]],
    exact_s: NDArray[np.float64],
    network_s: NDArray[np.float64],
    decode_s: NDArray[np.float64],
    train_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the time at which each iteration has been trained, shape (iterations,).

    `sources`: the reads of each source in their order: the iteration that needs them, the iteration whose draws free
    their pages (-1: they are free), and seconds.
    """
    drawn, trained = [0.0] * (len(exact_s) + 1), [0.0] * (len(exact_s) + AHEAD + 1)  # entry 0: before the first
    sent = decoded = 0.0
    done, coming = [0.0] * len(sources), [iter([*reads, (len(exact_s), -1, 0.0)]) for reads in sources]
    following = [next(reads) for reads in coming]
    columns = (exact_s, network_s, decode_s, train_s)
    for at, (exact, sending, decoding, training) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        for source, reads in enumerate(coming):
            due, after, reading = following[source]
            while due == at:
                done[source] = max(done[source], drawn[after + 1]) + reading
                due, after, reading = following[source] = next(reads)
        sent = max(sent + sending, *done)
        drawn[at + 1] = max(sent, decoded, trained[at]) + exact
        decoded = drawn[at + 1] + decoding
        trained[at + AHEAD + 1] = max(trained[at + AHEAD], decoded) + training
    return np.array(trained[AHEAD + 1 :])


def _together(nodes: Sequence[Sequence[EpochWork]], per_epoch: int) -> tuple[_Reads, _Reads]:
    """Return the reads of all nodes from the storage, and from the cache folders."""
    dues, afters = [], []
    for works in nodes:
        due = np.concatenate([work.due + number * per_epoch for number, work in enumerate(works)])
        taken = np.cumsum(np.concatenate([work.read_pages for work in works]))
        freed = np.cumsum(np.concatenate([work.freed_pages for work in works]))
        after = np.searchsorted(freed, taken - works[0].room_pages)
        after[taken <= works[0].room_pages] = -1
        dues.append(due)
        # A server never waits for draws that wait for it: it frees memory, or leaves samples to direct reads.
        afters.append(np.minimum(after, due - 1))
    due, after = np.concatenate(dues), np.concatenate(afters)
    size = np.concatenate([work.read_sizes for works in nodes for work in works])
    cached = np.concatenate([work.from_cache for works in nodes for work in works])
    needed = due < per_epoch * len(nodes[0])  # the last epoch may read ahead for one that is not simulated
    due, after, size, cached = due[needed], after[needed], size[needed], cached[needed]
    if not cached.any():
        return _merged(due, after, size), _merged(*np.empty((3, 0), np.int64))
    return _merged(due[~cached], after[~cached], size[~cached]), _merged(due[cached], after[cached], size[cached])


def _merged(due: NDArray[np.int64], after: NDArray[np.int64], size: NDArray[np.int64]) -> _Reads:
    order = np.lexsort((after, due))
    due, after, size = due[order], after[order], size[order]
    first = np.flatnonzero(np.diff(due, prepend=-1) | np.diff(after, prepend=-2))
    if not len(first):
        return _Reads(due, after, size.astype(np.float64), np.zeros(0))
    counts = np.diff(first, append=len(due)).astype(np.float64)
    return _Reads(due[first], after[first], np.add.reduceat(size, first).astype(np.float64), counts)
