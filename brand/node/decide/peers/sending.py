"""Which samples does this node, as their owner, send to other nodes next? A sent sample is removed from its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.peers.outgoing import queue_to
from brand.node.decide.peers.peers import Peer
from brand.node.decide.state.counters import NodeCounters
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.members import MESSAGE_BYTES
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber, RunNumber


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one epoch for one node."""

    key: Key
    places: NDArray[np.int64]
    missed: NDArray[np.int64]
    """Places in between whose samples are not in memory: they will not be sent."""
    data: NDArray[np.uint8]
    """Pages of the samples, sample by sample, shape (pages, page size)."""


class Sending:
    """Chooses the samples to send to other nodes."""

    def __init__(self, residents: Residents, epochs: Epochs, counters: NodeCounters) -> None:
        self._residents, self._epochs, self._counters = residents, epochs, counters

    @property
    def waited_for(self) -> bool:
        """Whether another node waits for samples that it has requested."""
        live_epochs = [live.epoch for _, live in self._epochs.lives.live()]
        return any(queue_to(epoch, node).urgent for epoch in live_epochs for node in epoch.outgoing)

    def next(self, peer: Peer, *, stuck: bool) -> Batch | None:
        """Return the batch to send to a node now, or None if there is none or the node has no capacity for it.

        `stuck`: this node cannot read anything at present. If a node then waits for a sample whose read has not
        started, this node reports that the sample will not be sent.
        """
        queues = [(key, live.epoch) for key, live in self._epochs.lives.live() if peer.node in live.epoch.outgoing]
        if len(queues) > 1:
            queues = self._by_lead(peer.node, queues)
        urgent = [(key, epoch) for key, epoch in queues if queue_to(epoch, peer.node).urgent]
        blocked: set[RunNumber] = set()
        for key, epoch in urgent or queues:  # if the node waits for samples, only these are sent
            outgoing = queue_to(epoch, peer.node)
            positions = outgoing.next()
            if not len(positions) or key[0] in blocked:
                continue
            if stuck and outgoing.urgent:
                waits = epoch.plan.sample_of[positions[: outgoing.urgent]]
                epoch.states.release(waits[epoch.states.due(waits)])
            batch = self._take(peer, key, epoch, positions)
            if batch is not None:
                return batch
            blocked.add(key[0])  # samples of the run's next epoch must not take its capacity
        return None

    def _by_lead(self, node: NodeNumber, queues: list[tuple[Key, Epoch]]) -> list[tuple[Key, Epoch]]:
        """Return these epochs, first those of the run whose next samples the node's ranks draw soonest.

        Runs that share are sent the same samples at the same time. Otherwise one of them would fill the capacity of
        both.
        """
        leads: dict[RunNumber, int] = {}
        for key, epoch in queues:
            front = epoch.progress.elsewhere.get(node)
            if front is not None:
                leads.setdefault(key[0], epoch.outgoing[node].front(len(epoch.plan.sample_of)) - front)
        return sorted(queues, key=lambda queue: (leads.get(queue[0][0], 0), queue[0]))

    def _take(self, peer: Peer, key: Key, epoch: Epoch, positions: NDArray[np.int64]) -> Batch | None:
        """Return a batch of as many of these positions as fit, up to the first whose sample is still missing."""
        places = epoch.plan.sample_of[positions].astype(np.int64)
        waited_for = epoch.states.waited_for(places)
        if waited_for.any():
            places = places[: int(waited_for.argmax())]
        present = self._residents.present(places)
        pages = np.cumsum(np.where(present, self._residents.pages_of[places], 0), dtype=np.int64)
        limit = min(peer.may_send, MESSAGE_BYTES // self._residents.pool.allocator.page)
        fit = int(np.searchsorted(pages, limit, side="right"))
        if not fit:
            return None
        places, present = places[:fit], present[:fit]
        here = places[present]
        data = self._residents.contents(here)
        self._residents.let_go(here[epoch.states.release(here)])
        queue_to(epoch, peer.node).advance(fit)
        epoch.progress.add_sent(fit)
        self._epochs.runs[key[0]].add_served(fit)
        peer.add_sent(len(data))
        self._counters.add_sent(len(here), data.nbytes)
        return Batch(key, here, places[~present], data)
