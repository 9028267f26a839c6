"""What does this node send to others, and what becomes of what they send? Decisions, without network or clock.

As the owner of samples: `next_push` is what another node gets next, as far as its room goes. What is sent is consumed.
As one who draws: `came` puts what owners send into memory, where a part is left free for each of them (`reserve`); as
it is drawn, they may send more (`room_for`). What an owner does not send in time is not waited for (`tend`): it is
read from storage, or asked for by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.arena import Arena
from brand.node.counters import Counters
from brand.node.epoch import Epoch
from brand.node.epochs import Epochs, Key
from brand.node.members import Members
from brand.node.residents import Residents
from brand.node.tasks import Request, Rows

MESSAGE_BYTES: Final = 1 << 20
"""Samples sent together."""
LARGEST_SENT: Final = 4
"""A sample larger than one part in so many of a message, or of the room for a node, is never sent unasked."""
HURRY_S: Final = 0.2
"""Owners are asked for what a draw has waited for so long."""
SILENCE_S: Final = 2.0
"""What owners should have sent is not waited for if they have sent nothing for so long."""
TELL_SHARE: Final = 16
"""An owner is told of new room when it is one part in so many of all that it has."""


@dataclass(frozen=True, slots=True)
class Push:
    """Samples for another node."""

    key: Key
    places: NDArray[np.int64]
    missed: NDArray[np.int64]
    """Places that should have been among them and are not in memory: they will not be sent."""
    data: NDArray[np.uint8]
    """Their pages, one sample after the other, shape (pages, page size)."""


class Remote:
    """The share of other nodes in this one's memory; `room` is what they all may fill of it, in pages."""

    def __init__(
        self,
        index: Rows,
        arena: Arena,
        residents: Residents,
        epochs: Epochs,
        members: Members,
        room: int,
        counters: Counters,
    ) -> None:
        self._index, self._arena, self._residents, self._epochs = index, arena, residents, epochs
        self._members, self._counters = members, counters
        self._room = room
        """Pages that other nodes may fill."""
        self._outstanding = np.zeros(members.nodes, np.int64)
        """Pages of what each node was asked for and has not sent."""
        self._received = np.zeros(members.nodes, np.int64)
        """Pages that each node has sent since its stream was opened."""
        self._told = np.zeros(members.nodes, np.int64)
        """Pages that each node was told it may send since then."""
        self._allowed = np.zeros(members.nodes, np.int64)
        """Pages that may be sent to each node since its stream was opened,"""
        self._sent = np.zeros(members.nodes, np.int64)
        """and those that were."""
        self._open: set[int] = set()
        """Nodes that can be reached."""
        self._met: set[int] = set()
        """Nodes that could be reached at some time."""
        self._heard_s = np.zeros(members.nodes)
        self._requests: deque[Request] = deque()

    @staticmethod
    def largest_sent(room: int, members: Members, page: int) -> int:
        """Pages of the largest sample that other nodes send to this one unasked."""
        return min(room // max(1, members.nodes - 1), MESSAGE_BYTES // page) // LARGEST_SENT

    # -- as the owner ------------------------------------------------------------------------------------------------

    def allow(self, node: int, pages: int) -> None:
        """A node has room for so many pages in all, since its stream was opened."""
        self._allowed[node] = max(int(self._allowed[node]), pages)

    def greeted(self, node: int) -> None:
        """A node has opened a stream, to ask on: its room is not known yet."""
        self._allowed[node] = self._sent[node] = 0

    @property
    def waited_for(self) -> bool:
        """Whether another node waits for what it has asked for."""
        return any(outgoing.urgent for _, epoch in self._epochs for outgoing in epoch.outgoing.values())

    def next_push(self, node: int, *, stuck: bool) -> Push | None:
        """What a node is to be sent now; None where there is nothing, or no room for it.

        `stuck`: nothing can be read just now. Then a node that waits for what is still to be read is told to see to it.
        """
        queues = [(key, epoch) for key, epoch in self._epochs if node in epoch.outgoing]
        urgent = [(key, epoch) for key, epoch in queues if epoch.outgoing[node].urgent]
        blocked: set[int] = set()
        for key, epoch in sorted(urgent or queues, key=lambda item: item[0]):  # what is waited for, and nothing else
            outgoing = epoch.outgoing[node]
            positions = outgoing.next()
            if not len(positions) or key[0] in blocked:
                continue
            if stuck and outgoing.urgent:
                waits = epoch.plan.sample_of[positions[: outgoing.urgent]]
                epoch.due[waits[~epoch.coming[waits]]] = False
            push = self._push(node, key, epoch, positions)
            if push is not None:
                return push
            blocked.add(key[0])  # the next epoch's must not take its room
        return None

    def _push(self, node: int, key: Key, epoch: Epoch, positions: NDArray[np.int64]) -> Push | None:
        places = epoch.plan.sample_of[positions].astype(np.int64)
        due = epoch.due[places]
        if due.any():
            places = places[: int(due.argmax())]
        present = self._residents.present(places)
        pages = np.cumsum(np.where(present, self._residents.pages_of[places], 0), dtype=np.int64)
        limit = min(int(self._allowed[node] - self._sent[node]), MESSAGE_BYTES // self._arena.page)
        fit = int(np.searchsorted(pages, limit, side="right"))
        if not fit:
            return None
        places, present = places[:fit], present[:fit]
        here = places[present]
        data = self._arena.pages[self._residents.chains(here)[1]]
        held = epoch.held[here]
        epoch.held[here] = False
        self._residents.let_go(here[held])
        epoch.outgoing[node].advance(fit)
        epoch.sent += fit
        self._sent[node] += len(data)
        self._counters.sent += len(here)
        self._counters.sent_bytes += data.nbytes
        return Push(key, here, places[~present], data)

    # -- as one who draws --------------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """Pages to leave free for what others may send."""
        return max(0, self._room - int(self._residents.sent_pages.sum()))

    def opened(self, node: int, now_s: float) -> None:
        """An owner can be reached, or can be reached again: what is still to come from it is expected."""
        self._received[node] = self._told[node] = self._outstanding[node] = 0
        self._heard_s[node] = now_s
        self._open.add(node)
        self._met.add(node)
        self._epochs.unreachable.discard(node)
        for _, epoch in self._epochs:
            epoch.expect_again(node, self._residents.present)

    def lost(self, node: int) -> None:
        """An owner cannot be reached: nothing is expected from it, until it can, and it knows of no request."""
        self._open.discard(node)
        self._requests = deque(request for request in self._requests if request.node != node)
        self._epochs.unreachable.add(node)
        for _, epoch in self._epochs:
            epoch.lose(node)

    @property
    def gone(self) -> set[int]:
        """Nodes that could be reached and cannot any more; one that is still to come is not gone."""
        return self._met - self._open

    def room_for(self, node: int, *, now: bool = False) -> int | None:
        """Pages that a node may send in all since its stream was opened; None: too little more to tell, but `now`."""
        # A plan with requests foresees what comes from all nodes together; else each has its part.
        foreseen = any(epoch.requests is not None for _, epoch in self._epochs)
        window = self._room if foreseen else self._room // max(1, self._members.nodes - 1)
        room = int(window + self._outstanding[node] + self._received[node] - self._residents.sent_pages[node])
        room = max(room, int(self._told[node]))
        if not now and room < self._told[node] + max(1, window // TELL_SHARE):
            return None
        self._told[node] = room
        return room

    def came(self, node: int, epoch: Epoch | None, push: Push, now_s: float) -> None:
        """An owner has sent samples of an epoch (None: one that is not there any more). Raises `ProtocolError`."""
        both = np.concatenate((push.places, push.missed))
        samples = len(self._residents.pages_of)
        if len(both) and (both.min() < 0 or both.max() >= samples):
            raise ProtocolError("places that the data set does not have")
        counts = self._residents.pages_of[push.places].astype(np.int64)
        if int(counts.sum()) != len(push.data) or len(np.unique(both)) != len(both):
            raise ProtocolError("samples that do not fill their pages")
        self._received[node] += len(push.data)
        if self._received[node] > self._told[node]:
            raise ProtocolError("more than there is room for")
        self._heard_s[node] = now_s
        self._counters.received += len(push.places)
        self._counters.received_bytes += push.data.nbytes
        if epoch is None or epoch.dropped:
            return
        if (epoch.owner_of(both) != node).any():
            raise ProtocolError("samples that it does not own")
        answers = push.places[epoch.asked[push.places]]
        left = int(self._outstanding[node]) - int(self._residents.pages_of[answers].sum())
        self._outstanding[node] = max(0, left)
        wanted, there = epoch.due[push.places], self._residents.present(push.places)
        new = wanted & ~there
        self._put(node, push.places[new], push.data[np.repeat(new, counts)])
        self._residents.refer(push.places[wanted & there])
        here = push.places[wanted]
        epoch.due[here] = epoch.due[push.missed] = False
        epoch.held[here[self._residents.present(here)]] = True

    def _put(self, node: int, places: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Take samples into memory; nothing happens where there is no room after all."""
        if not len(places) or len(data) > self._arena.free:
            return
        rows = self._index.rows_at(places)  # ours: a sender's could be a lie
        heads, pages = self._arena.take(self._residents.pages_of[places])
        self._arena.pages[pages] = data
        self._arena.write_rows(heads, rows)
        self._residents.put(places, heads, node)

    def ask(self, epoch: Epoch, positions: NDArray[np.int64]) -> None:
        """These are drawn: those that the plan foresees as asked for are asked for."""
        table = epoch.requests
        if table is None:
            return
        asked = np.unique(positions[np.isin(positions, table.positions)])
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[asked])
        for node in [node for node in self._members.others if node not in epoch.lost]:
            self._counters.requests += self._ask(node, epoch, asked[owner == node])

    def requests(self, reachable: Callable[[int], bool]) -> Iterator[Request]:
        """What is to be asked for now; what concerns nodes that were never reached waits until they are."""
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            if reachable(request.node):
                self._outstanding[request.node] += request.pages
                yield request
            elif request.node not in self._epochs.unreachable:
                self._requests.append(request)

    def tend(self, epoch: Epoch, positions: NDArray[np.int64], waited_s: float, now_s: float) -> bool:
        """A draw waits: ask for what has not come, then do not wait for owners that say nothing.

        Returns whether something was asked for.
        """
        if waited_s > SILENCE_S:
            self._give_up(epoch, positions, now_s - SILENCE_S)
        return waited_s > HURRY_S and self._hurry(epoch, positions)

    def _hurry(self, epoch: Epoch, positions: NDArray[np.int64]) -> bool:
        positions = np.unique(positions)
        owner = self._owner_to_ask(epoch, epoch.plan.sample_of[positions])
        late = [node for node in self._open - epoch.unreachable if (owner == node).any()]
        for node in late:
            self._counters.hurried += self._ask(node, epoch, positions[owner == node])
        return bool(late)

    def _owner_to_ask(self, epoch: Epoch, places: NDArray[Any]) -> NDArray[np.int32]:
        """Who is to be asked for each place; this node itself where nobody is.

        That which has come, or was asked for before, is not asked for: an owner hears of each position once.
        """
        waits = epoch.due[places] & ~epoch.asked[places]
        return np.where(waits, epoch.owner_of(places), np.int32(self._members.node))

    def _ask(self, node: int, epoch: Epoch, positions: NDArray[np.int64]) -> int:
        """Have an owner asked for these, all different; how many they are."""
        places = epoch.plan.sample_of[positions]
        epoch.asked[places] = True
        if len(positions):
            pages = int(self._residents.pages_of[places].sum())
            self._requests.append(Request(node, epoch.number, positions, pages))
        return len(positions)

    def _give_up(self, epoch: Epoch, positions: NDArray[np.int64], silent_since_s: float) -> None:
        places: NDArray[Any] = epoch.plan.sample_of[positions]
        places = places[epoch.due[places]]
        owner = epoch.owner_of(places)
        late = (owner != self._members.node) & (self._heard_s[owner] < silent_since_s)
        epoch.due[places[late]] = False
        self._counters.late += int(late.sum())
        for node in set(owner[late].tolist()) - self._open:  # one that was never there
            self.lost(node)
