"""What becomes of the samples that other nodes send, and what are their owners asked for?

Owners send what ranks here are going to draw, as far as they are told of room. A part of memory is left free for that
(`reserve`). A draw that waits asks the owner after a moment; what an owner does not send in time is not waited for, and
is read from storage, or fetched by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.decide.counters import NodeCounters
from brand.node.decide.epoch import Epoch
from brand.node.decide.epochs import Epochs
from brand.node.decide.members import Members
from brand.node.decide.peers import Peers, Reach
from brand.node.decide.tasks import Asking, Rows
from brand.node.memory.residents import Residents

HURRY_S: Final = 0.2
"""Owners are asked for what a draw has waited for so long."""
SILENCE_S: Final = 2.0
"""What owners should have sent is not waited for if they have sent nothing for so long."""


class Receiving:
    """What other nodes send to this one. They may fill `room` pages of its memory."""

    def __init__(
        self,
        index: Rows,
        residents: Residents,
        epochs: Epochs,
        members: Members,
        peers: Peers,
        room: int,
        counters: NodeCounters,
    ) -> None:
        self._index, self._residents, self._epochs = index, residents, epochs
        self._members, self._peers, self._counters = members, peers, counters
        self._room = room
        self._requests: deque[Asking] = deque()

    def __repr__(self) -> str:
        return f"Receiving({self._room} pages, {len(self._requests)} requests to send)"

    # -- samples come ------------------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """Pages to leave free for what others may send."""
        return max(0, self._room - int(self._residents.sent_pages.sum()))

    def room_for(self, node: int, *, now: bool = False) -> int | None:
        """Pages that a node may send in all since its stream was opened; see `Peer.room`."""
        # A plan with requests foresees what comes from all nodes together; else each has its part.
        foreseen = any(live.epoch.requests is not None for _, live in self._epochs.lives.live())
        window = self._room if foreseen else self._room // max(1, self._members.nodes - 1)
        return self._peers[node].room(window, int(self._residents.sent_pages[node]), now=now)

    def opened(self, node: int, now_s: float) -> None:
        """An owner can be asked, or can be asked again: what is still to come from it is expected."""
        self._peers[node].opens(now_s)
        for _, live in self._epochs.lives.live():
            live.epoch.expect_again(node, self._residents.present)

    def lost(self, node: int) -> None:
        """An owner cannot be asked: nothing is expected from it until it can, and it knows of no request."""
        self._requests = deque(request for request in self._requests if request.node != node)
        self._peers[node].loses()
        for _, live in self._epochs.lives.live():
            live.epoch.lose(node)

    def came(
        self,
        node: int,
        epoch: Epoch | None,
        places: NDArray[np.int64],
        missed: NDArray[np.int64],
        data: NDArray[np.uint8],
        now_s: float,
    ) -> None:
        """An owner has sent samples, as `Batch` has them. Raises `ProtocolError`.

        `epoch` is None where they are of an epoch that is not live any more.
        """
        both = np.concatenate((places, missed))
        samples = len(self._residents.pages_of)
        if len(both) and (both.min() < 0 or both.max() >= samples):
            raise ProtocolError("places that the data set does not have")
        counts = self._residents.pages_of[places].astype(np.int64)
        if int(counts.sum()) != len(data) or len(np.unique(both)) != len(both):
            raise ProtocolError("samples that do not fill their pages")
        peer = self._peers[node]
        peer.receives(len(data), now_s)
        self._counters.receives(len(places), data.nbytes)
        if epoch is None:
            return
        if (epoch.owner_of(both) != node).any():
            raise ProtocolError("samples that it does not own")
        asked = epoch.states.on_the_way(places)
        peer.answers(int(self._residents.pages_of[places[asked]].sum()))
        wanted, there = epoch.states.waited_for(places), self._residents.present(places)
        new = wanted & ~there
        self._put(node, places[new], data[np.repeat(new, counts)])
        self._residents.refer(places[wanted & there])
        here = places[wanted]
        arrived = self._residents.present(here)
        epoch.states.arrives(here[arrived])
        epoch.states.forgets(np.concatenate((here[~arrived], places[~wanted], missed)))

    def _put(self, node: int, places: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Take samples into memory; nothing happens where there is no room after all."""
        if len(places) and len(data) <= self._residents.pool.allocator.free:
            rows = self._index.rows_at(places)  # ours: a sender's could be a lie
            self._residents.put(places, self._residents.pool.put_in(places, rows, data), node)

    # -- owners are asked --------------------------------------------------------------------------------------------

    def ask(self, epoch: Epoch, positions: NDArray[np.int64]) -> None:
        """These are drawn: the owners of those that the plan foresees as asked for are asked."""
        if epoch.requests is None:
            return
        asked = np.unique(positions[np.isin(positions, epoch.requests.positions)])
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[asked])
        for node in [node for node in self._members.others if node not in epoch.lost]:
            self._counters.asks(self._ask(node, epoch, asked[owner == node]), hurried=False)

    def requests(self) -> Iterator[Asking]:
        """What owners are to be asked for now; what a node is to be asked that is still to come waits for it."""
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            peer = self._peers[request.node]
            if peer.reach is Reach.OPEN:
                peer.owes(request.pages)
                yield request
            elif peer.reach is Reach.EXPECTED:
                self._requests.append(request)

    def tend(self, epoch: Epoch, positions: NDArray[np.int64], waited_s: float, now_s: float) -> bool:
        """A draw waits: ask for what has not come, then do not wait for owners that say nothing.

        Returns whether an owner could be asked for something.
        """
        if waited_s > SILENCE_S:
            self._give_up(epoch, positions, now_s - SILENCE_S)
        return waited_s > HURRY_S and self._hurry(epoch, positions)

    def _hurry(self, epoch: Epoch, positions: NDArray[np.int64]) -> bool:
        positions = np.unique(positions)
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[positions])
        late = [peer.node for peer in self._peers if peer.reach is Reach.OPEN and (owner == peer.node).any()]
        for node in late:
            self._counters.asks(self._ask(node, epoch, positions[owner == node]), hurried=True)
        return bool(late)

    def _owner_to_ask(self, epoch: Epoch, places: NDArray[Any]) -> NDArray[np.int32]:
        """Who is to be asked for each place; this node itself where nobody is.

        An owner hears of each position once: it is not asked for what has come, nor for what it was asked for before.
        """
        return np.where(epoch.states.due(places), epoch.owner_of(places), np.int32(self._members.node))

    def _ask(self, node: int, epoch: Epoch, positions: NDArray[np.int64]) -> int:
        """Have an owner asked for these, all different; how many they are."""
        if len(positions):
            places = epoch.plan.sample_of[positions]
            epoch.states.starts(places)
            pages = int(self._residents.pages_of[places].sum())
            self._requests.append(Asking(node, epoch.number, positions, pages))
        return len(positions)

    def _give_up(self, epoch: Epoch, positions: NDArray[np.int64], silent_since_s: float) -> None:
        places: NDArray[Any] = np.unique(epoch.plan.sample_of[positions])
        places = places[epoch.states.waited_for(places)]
        owner = epoch.owner_of(places)
        for peer in self._peers:
            late = places[owner == peer.node]
            if not len(late) or peer.heard_s >= silent_since_s:
                continue
            epoch.states.leaves(late)
            self._counters.gives_up(len(late))
            if peer.reach is not Reach.OPEN:  # it was never there, or has gone
                self.lost(peer.node)
