"""Where are samples stored that other nodes send, and which samples does this node request from their owners?

Owners send the samples that ranks of this node will draw, up to the capacity that this node reports. A part of memory
is reserved for these samples (`Reads`). If a draw waits longer than `HURRY_S`, this node asks the owner. If the owner
sends nothing for `SILENCE_S`, this node stops waiting, and the client reads the sample or fetches it by index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.peers.parts import ArrivingSamples
from brand.node.decide.peers.peers import PeerTable, Reach
from brand.node.decide.state.counters import NodeCounters
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import Draw
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import PeerRequest, Rows
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import Push, PushPart
from brand.reprs import Reprs

HURRY_S: Final = 0.2
"""If a draw has waited for this long, this node asks the owners of the missing samples."""
SILENCE_S: Final = 2.0
"""This node does not wait for samples of an owner that has sent nothing for this long."""


@dataclass(frozen=True, slots=True)
class NodeAmongOthers:
    """The parts of a node with which it exchanges samples with other nodes."""

    index: Rows
    residents: Residents
    epochs: Epochs
    members: Members
    room: int
    """Pages of the memory that other nodes may fill."""
    counters: NodeCounters


class Receiving(Feature, Reprs, shows="room _requests"):
    """Samples that other nodes send to this node."""

    def __init__(self, node: NodeAmongOthers, peers: PeerTable) -> None:
        self._index, self._residents, self._epochs = node.index, node.residents, node.epochs
        self._members, self._counters, self._peers = node.members, node.counters, peers
        self.room = node.room
        self.arriving = ArrivingSamples(node.residents)
        self._requests: deque[PeerRequest] = deque()

    @property
    def samples(self) -> int:
        return len(self._residents.pages_of)

    # -- received samples --------------------------------------------------------------------------------------------

    def grant(self, node: NodeNumber, *, now: bool = False) -> int | None:
        """Return the pages that a node may send in all since its stream was opened; see `Peer.grant`."""
        # A plan with requests accounts for the samples of all nodes together. Without one, nodes get equal shares, and
        # also if one of them was lost: it sends without requests.
        epochs = [live.epoch for _, live in self._epochs.lives.live()]
        foreseen = bool(epochs) and all(epoch.requests is not None and not epoch.lost for epoch in epochs)
        window = self.room if foreseen else self.room // max(1, self._members.nodes - 1)
        return self._peers[node].grant(window, int(self._residents.sent_pages[node]), now=now)

    def on_stream_open(self, node: NodeNumber, now_s: float) -> None:
        """Expect samples from an owner that this node can ask, for the first time or again."""
        self._peers[node].mark_open(now_s)
        self.arriving.drop(node)
        for _, live in self._epochs.lives.live():
            live.epoch.expect_again(node, self._residents.present)

    def on_node_lost(self, node: NodeNumber) -> None:
        """Expect nothing from an owner that this node cannot ask, until it can again. Drop the requests to it."""
        self._requests = deque(request for request in self._requests if request.node != node)
        self._peers[node].mark_lost()
        self.arriving.drop(node)
        for _, live in self._epochs.lives.live():
            live.epoch.lose(node)

    def on_samples(self, node: NodeNumber, epoch: Epoch | None, push: Push, now_s: float) -> None:
        """Take samples that an owner has sent. Raises `ProtocolError`.

        `epoch` is None if the epoch of the samples is not active any more.
        """
        places, missed, data = push.places, push.missed, push.data
        both = np.concatenate((places, missed))
        if len(both) and (both.min() < 0 or both.max() >= self.samples):
            raise ProtocolError("places that the data set does not have")
        counts = self._residents.pages_of[places].astype(np.int64)
        if int(counts.sum()) != len(data) or len(np.unique(both)) != len(both):
            raise ProtocolError("samples that do not fill their pages, or the same sample twice")
        self.arriving.check_none(node)
        peer = self._peers[node]
        peer.add_received(len(data), now_s)
        self._counters.add_received(len(places), data.nbytes)
        if epoch is None:
            return
        if (epoch.owner_of(both) != node).any():
            raise ProtocolError("samples that the sending node does not own")
        new = self._needs(epoch, places)
        self._put(node, places[new], data[np.repeat(new, counts)])
        self._note_arrived(node, epoch, places, new)
        epoch.states.forget(missed)

    def on_part(self, node: NodeNumber, epoch: Epoch | None, part: PushPart, now_s: float) -> None:
        """Take a part of a sample that an owner sends. Raises `ProtocolError`.

        `epoch` is None if the epoch of the sample is not active any more.
        """
        if part.place >= self.samples:
            raise ProtocolError("a place that the data set does not have")
        self.arriving.check(node, part, self._epochs.limits.largest_sent(self._members.node))
        places, peer = np.array([part.place], np.int64), self._peers[node]
        if epoch is not None and (epoch.owner_of(places) != node).any():
            raise ProtocolError("samples that the sending node does not own")
        pages = int(self._residents.pages_of[part.place])
        if not part.first:
            peer.add_received(pages, now_s)  # all of the sample, which the owner has counted, too
            if epoch is not None and self._residents.present(places)[0]:
                # Held from now on: the epoch for which it is in memory may release it before the last part arrives.
                self._note_arrived(node, epoch, places, np.zeros(1, np.bool_))
            self.arriving.begin(node, part, now_s, holds=epoch is not None and bool(self._needs(epoch, places)[0]))
        peer.hear(now_s)
        if not self.arriving.add(node, part, now_s):
            return
        self._counters.add_received(1, pages * part.data.shape[1])
        rows = self._index.rows_at(places)
        heads = self.arriving.finish(node)
        new = np.zeros(1, np.bool_) if epoch is None or not len(heads) else self._needs(epoch, places)
        if new.any():
            self._residents.pool.came(places, heads, rows)
            self._residents.put(places, heads, node)
        elif len(heads):
            self._residents.pool.give_back(places, heads)
        if epoch is not None:
            self._note_arrived(node, epoch, places, new)

    def _needs(self, epoch: Epoch, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the samples that an epoch waits for and that are not in memory."""
        return epoch.states.waited_for(places) & ~self._residents.present(places)

    def _note_arrived(self, node: NodeNumber, epoch: Epoch, places: NDArray[np.int64], new: NDArray[np.bool_]) -> None:
        """Record in an epoch the samples that an owner has sent. `new`: those that were not in memory before."""
        asked, wanted = epoch.states.on_the_way(places), epoch.states.waited_for(places)
        self._peers[node].add_answered(int(self._residents.pages_of[places[asked]].sum()))
        arrived = wanted & self._residents.present(places)
        self._residents.refer(places[arrived & ~new])
        epoch.states.mark_arrived(places[arrived])
        epoch.states.forget(places[~arrived])

    def _put(self, node: NodeNumber, places: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Store samples in memory. Do nothing if memory has no space after all."""
        if len(places) and len(data) <= self._residents.pool.allocator.free:
            rows = self._index.rows_at(places)  # from this node's index, because rows from a sender could be wrong
            self._residents.put(places, self._residents.pool.put_in(places, rows, data), node)

    # -- requests to owners ------------------------------------------------------------------------------------------

    def request(self, epoch: Epoch, positions: NDArray[np.int64]) -> None:
        """Ask the owners for those of the positions of a draw that the plan foresees as requests."""
        if epoch.requests is None:
            return
        asked = np.unique(positions[np.isin(positions, epoch.requests.positions)])
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[asked])
        for node in [node for node in self._members.others if node not in epoch.lost]:
            self._counters.add_requested(self._ask(node, epoch, asked[owner == node]), on_demand=False)

    def requests(self) -> Iterator[PeerRequest]:
        """Yield the requests to send to owners now. Requests to a node that was not reached yet wait for it."""
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            peer = self._peers[request.node]
            if peer.reach is Reach.OPEN:
                peer.add_requested(request.pages)
                yield request
            elif peer.reach is Reach.EXPECTED:
                self._requests.append(request)

    def chase(self, epoch: Epoch, draw: Draw, now_s: float) -> bool:
        """Ask for the missing samples of a waiting draw, and later stop waiting for owners that send nothing."""
        waited_s = now_s - draw.asked_s
        if waited_s > SILENCE_S:
            self._give_up(epoch, draw.positions, now_s - SILENCE_S)
        return waited_s > HURRY_S and self._hurry(epoch, draw.positions)

    def _hurry(self, epoch: Epoch, positions: NDArray[np.int64]) -> bool:
        positions = np.unique(positions)
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[positions])
        late = [peer.node for peer in self._peers if peer.reach is Reach.OPEN and (owner == peer.node).any()]
        for node in late:
            self._counters.add_requested(self._ask(node, epoch, positions[owner == node]), on_demand=True)
        return bool(late)

    def _owner_to_ask(self, epoch: Epoch, places: NDArray[Any]) -> NDArray[np.int32]:
        """Return the owner to ask for each place, or this node itself if there is none to ask.

        This node asks for each position once: not if the sample has arrived, and not if it has asked before.
        """
        return np.where(epoch.states.due(places), epoch.owner_of(places), np.int32(self._members.node))

    def _ask(self, node: NodeNumber, epoch: Epoch, positions: NDArray[np.int64]) -> int:
        """Queue a request to an owner for positions, all different. Return their number."""
        if len(positions):
            places = epoch.plan.sample_of[positions]
            epoch.states.start(places)
            pages = int(self._residents.pages_of[places].sum())
            self._requests.append(PeerRequest(node, epoch.number, positions, pages))
        return len(positions)

    def _give_up(self, epoch: Epoch, positions: NDArray[np.int64], silent_since_s: float) -> None:
        places: NDArray[Any] = np.unique(epoch.plan.sample_of[positions])
        places = places[epoch.states.waited_for(places)]
        owner = epoch.owner_of(places)
        for peer in self._peers:
            late = places[owner == peer.node]
            if not len(late) or peer.heard_s >= silent_since_s:
                continue
            epoch.states.release(late)
            self._counters.add_late(len(late))
            if peer.reach is not Reach.OPEN:  # it was never reached, or is gone
                self.on_node_lost(peer.node)
