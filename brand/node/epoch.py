"""How far is one epoch of one run: what must still come, what lies ready, what was drawn, what was sent?

Each sample of the epoch is in one of three states: `due` (its read has not happened yet, or its owner has not sent it),
`held` (in memory for this epoch), or neither: drawn or sent, given up, of a rank that draws elsewhere, or never to be
held; who asks for it then is sent to storage.

Only the samples that this node owns are read. Those that ranks of other nodes draw are sent to them (`outgoing`); those
that ranks draw here and others own come unasked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.account import Account
from brand.node.members import Owners
from brand.node.outgoing import Outgoing
from brand.node.turns import Turns
from brand.protocol.plan import Plan, Requests, read_of_sample
from brand.protocol.random import blocks

Mask = NDArray[np.bool_]


class Epoch:
    """The progress of one epoch.

    `read_of` is the read that brings each place in (None: found here), `without()` the places that need none,
    `too_large(node)` those whose samples cannot be sent to a node, both of shape (samples,). `ranks` are those known to
    draw, and at which node; see `expect` for `fronts`.
    """

    def __init__(
        self,
        plan: Plan,
        read_of: NDArray[Any] | None,
        without: Callable[[], Mask],
        too_large: Callable[[int], Mask],
        turns: Turns,
        ranks: Mapping[int, int],
        fronts: Mapping[int, int],
        owners: Owners,
        unreachable: Iterable[int] = (),
        *,
        whole: bool = True,
    ) -> None:
        samples = len(plan.sample_of)
        self.plan, self.turns, self._owners = plan, turns, owners
        self.account = Account(turns)
        self.whole = whole
        """Whether all that is drawn of it is drawn here: it was begun as ranks said, and for the first time."""
        self._without, self._too_large = without, too_large
        self._mine = None if owners.of_chunk is None else owners.mine(np.arange(samples))
        self.start = turns.start
        """Positions before it are not asked for."""
        self.begun = 0
        """How often it was begun; 0: nobody has yet, it is read ahead."""
        self.number = 0
        """Tells this epoch from the same one that is begun anew."""
        self.dropped = False
        self.drawn = 0
        self.sent = 0
        self.total = 0
        """How many are to be drawn here or sent from here."""
        self.asked_s = math.inf
        """When it was last drawn from; infinity: not yet."""
        self.ranks: dict[int, int] = {}
        self.requests: Requests | None = None
        """What this node has to ask for, where it has to."""
        self.asked = np.zeros(0 if self._mine is None else samples, np.bool_)
        """Places that other nodes were asked for."""
        self.lost = set(unreachable)
        """Nodes that were lost: what they own is not asked for as foreseen,"""
        self.unreachable = set(unreachable)
        """... and as long as they are, nothing is expected from them."""
        self.outgoing: dict[int, Outgoing] = {}
        """By node."""
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.held = np.zeros(samples, np.bool_)
        self.due = np.zeros(samples, np.bool_)
        self.coming = np.zeros(samples, np.bool_)
        """Those that are due and whose read is on its way."""
        self._todo, self._at = np.arange(0), 0
        self.expect(ranks, fronts, read_of)

    def begun_at(self, start: int) -> None:
        """Ranks begin it at a position; where others began it elsewhere, what was left out cannot be told."""
        self.whole = self.whole and start == self.turns.start

    @property
    def replicas(self) -> int:
        """Ranks among which the positions are divided."""
        return self.turns.replicas

    @property
    def done(self) -> int:
        """Samples that were drawn or sent."""
        return self.drawn + self.sent

    @property
    def next_read(self) -> int | None:
        """Number of the next read; None where all are on their way or done."""
        return int(self._todo[self._at]) if self._at < len(self._todo) else None

    def advance(self, places: NDArray[Any]) -> None:
        """The next read is on its way, for these places; none where it was not needed."""
        self.coming[places] = True
        self._at += 1

    def finish(self, places: NDArray[Any]) -> None:
        """A read of these places has ended."""
        self.coming[places] = False
        self.due[places] = False

    def deadline(self) -> int:
        """Position by which the next read must be done."""
        number = self.next_read
        return len(self.plan.sample_of) if number is None else int(self.plan.reads["deadline"][number])

    def owner_of(self, places: NDArray[Any]) -> NDArray[np.int32]:
        """The node that owns each place."""
        return self._owners.of(places)

    def to_read(self, places: NDArray[Any]) -> NDArray[Any]:
        """Those of a read's places that are due, not on their way, and this node's to read."""
        wanted = self.due[places] & ~self.coming[places]
        if self._mine is not None:
            wanted &= self._mine[places]
        to_read: NDArray[Any] = places[wanted]
        return to_read

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        """Whether any of these positions waits for a read of this node."""
        places = self.plan.sample_of[positions]
        due = self.due[places] if self._mine is None else self.due[places] & self._mine[places]
        return bool(due.any())

    def expect(self, ranks: Mapping[int, int], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None) -> None:
        """These ranks, too, draw, each at its node; what lies before a rank's position in `fronts` it has drawn.

        `read_of` where it is at hand (it takes memory to keep, and little time).
        """
        new = {rank: node for rank, node in ranks.items() if rank not in self.ranks}
        if not new:
            return
        self.ranks |= new
        without = self._without()
        for rank, node in new.items():
            places = self._places(rank, fronts.get(rank, 0))
            if self._mine is not None:
                mine, can = self._mine[places], ~self._too_large(node)[places]
                if node == self._owners.node:
                    places = places[mine | (can & self._can_come(places))]
                else:
                    places = places[mine & can]
            self.due[places] |= ~without[places] & ~self.held[places]
            self.total += len(places)
        self._look_for_reads(read_of_sample(self.plan) if read_of is None else read_of)

    def send_to(self, node: int, front: int, requests: Requests | None) -> None:
        """From now on, what the ranks of a node draw from `front` on can be sent to it."""
        ranks = [rank for rank, at in self.ranks.items() if at == node]
        positions = np.sort(np.concatenate([np.arange(0), *(self.turns.positions(rank) for rank in ranks)]))
        positions = positions[np.searchsorted(positions, front) :]
        places = self.plan.sample_of[positions]
        assert self._mine is not None
        self.outgoing[node] = Outgoing(positions[self._mine[places] & ~self._too_large(node)[places]], requests)

    def forget(self, node: int) -> NDArray[Any]:
        """A node has gone: nothing is sent to it; returns the places that were held for it."""
        ranks = [rank for rank, at in self.ranks.items() if at == node]
        self.outgoing.pop(node, None)
        gone: list[NDArray[Any]] = [np.arange(0)]
        for rank in ranks:
            del self.ranks[rank]
            places = self._places(rank, 0)
            places = places if self._mine is None else places[self._mine[places]]
            self.total -= len(places)
            self.due[places] = False
            gone.append(places[self.held[places]])
        held = np.concatenate(gone)
        self.held[held] = False
        return held

    def lose(self, node: int) -> None:
        """What is still to come from a node will not come."""
        self.lost.add(node)
        self.unreachable.add(node)
        due = np.flatnonzero(self.due)
        self.due[due[self._owners.of(due) == node]] = False

    def expect_again(self, node: int, present: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> None:
        """A node that was lost is there again, and sends what is drawn here from `front` on."""
        self.unreachable.discard(node)
        here = self._owners.node
        can = ~self._too_large(here)
        for rank in [rank for rank, at in self.ranks.items() if at == here]:
            places = self._places(rank, self.front())
            places = places[(self._owners.of(places) == node) & can[places]]
            self.due[places[~present(places) & ~self.held[places]]] = True

    def front(self) -> int:
        """The ranks of this node have asked for all before it, as far as they will."""
        here = [rank for rank, at in self.ranks.items() if at == self._owners.node]
        return min((self._asked.get(rank, self.start - 1) + 1 for rank in here), default=self.start)

    def note_asked(self, positions: NDArray[np.int64], now_s: float) -> None:
        """A rank asked for these."""
        self.asked_s = now_s
        rank = self.turns.rank_of(int(positions[0]))
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))

    def skipped_before(self, waiting: Iterable[NDArray[np.int64]]) -> int:
        """The position before which nobody asks or is sent anything, given those that are asked for just now."""
        samples = len(self.plan.sample_of)
        here = [rank for rank, at in self.ranks.items() if at == self._owners.node]
        fronts = {rank: self._asked.get(rank, self.start) for rank in here}
        lowest: dict[int, int] = {}
        for positions in waiting:
            rank = self.turns.rank_of(int(positions[0]))
            lowest[rank] = min(lowest.get(rank, samples), int(positions.min()))
        elsewhere = set(self.ranks.values()) - {self._owners.node}
        sent = [self.outgoing[node].front(samples) if node in self.outgoing else 0 for node in elsewhere]
        return min((*(fronts | lowest).values(), *sent))

    def give_up_before(self, position: int) -> NDArray[Any]:
        """What lies before `position` is not asked for any more; returns the places that were held for it."""
        before = self.plan.sample_of[:position]
        held: NDArray[Any] = before[self.held[before]]
        self.held[before] = False
        self.due[before] = False
        self.start = max(self.start, position)
        return held

    def _can_come(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Whose owners can be reached."""
        return ~np.isin(self._owners.of(places), list(self.unreachable))

    def _places(self, rank: int, front: int) -> NDArray[Any]:
        """What a rank draws from `front` on."""
        positions = self.turns.positions(rank)
        places: NDArray[Any] = self.plan.sample_of[positions[np.searchsorted(positions, front) :]]
        return places

    def _look_for_reads(self, read_of: NDArray[Any]) -> None:
        """Which reads bring what is due?"""
        wanted = np.zeros(len(self.plan.reads), np.bool_)
        for part in blocks(len(self.due)):
            due = self.due[part] & ~self.coming[part]
            if self._mine is not None:
                due &= self._mine[part]
            wanted[read_of[part][due]] = True
        self._todo, self._at = np.flatnonzero(wanted), 0
