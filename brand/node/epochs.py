"""Which epochs are under way, and who draws from them?

A *run* is one training: an order and a name that all its ranks and workers share, on all nodes. Its readers, one for
each rank here and one for each other node, say when they begin an epoch; the epoch after it is planned when half of it
is drawn, so that it can be read ahead. Epochs that all readers have left behind are dropped, and with the last client
of a run all of its epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.account import Drawer
from brand.node.epoch import Epoch
from brand.node.members import ALONE, Members, Owners
from brand.node.outgoing import follows
from brand.node.residents import Residents
from brand.node.runs import Begin, Beginning, Drawing, Reader, Run, Runs, Taker, Waiting
from brand.node.turns import Turns
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.plan import Plan
from brand.protocol.split import split_near

RANKS_S: Final = 1.0
"""How long an epoch that is planned waits for ranks of other nodes to begin it."""

Key = tuple[int, int]
"""Number of a run, and an epoch."""


class Epochs:
    """Runs and their epochs.

    Samples of more than `largest` pages are never held, those of more than `largest_sent` never sent to this node.
    """

    def __init__(
        self, residents: Residents, largest: int, chunk_size: int, members: Members = ALONE, largest_sent: int = 0
    ) -> None:
        self._residents, self._largest = residents, largest
        self._largest_sent = {members.node: largest_sent}
        """By node."""
        self._samples, self._chunk_size = len(residents.pages_of), chunk_size
        self._members = members
        self.runs = Runs(self._samples, chunk_size)
        self._last_number = 0
        self._epochs: dict[Key, Epoch] = {}
        self._planned: set[Key] = set()
        self._begun: dict[Key, Beginning] = {}
        self._waiting: dict[Key, Waiting] = {}
        """Epochs whose plans are made, and of which not all ranks are known yet."""
        self._takers: dict[tuple[Key, int], Taker] = {}
        """Nodes that can take samples of an epoch."""
        self._wanted: deque[Key] = deque()
        self.unreachable: set[int] = set()
        """Nodes from which nothing is expected just now."""
        self.changes = 0
        """Changes with whatever `drawings` would tell."""

    def __iter__(self) -> Iterator[tuple[Key, Epoch]]:
        return iter(self._epochs.items())

    def get(self, key: Key) -> Epoch | None:
        """An epoch, where its plan is made."""
        return self._epochs.get(key)

    def planned(self, key: Key) -> bool:
        """Whether its plan is being made."""
        return key in self._planned

    def under_way(self, before: set[int]) -> set[int]:
        """Runs that have epochs, and those of `before` that have left one and wait for the plan of the next."""
        return {run for run, _ in self._epochs} | (before & {run for run, _ in self._planned})

    def order(self, run: int) -> Order:
        """The order of a run."""
        return self.runs[run].order

    def owners(self, order: Order) -> Owners:
        """Who owns what in a run of this order."""
        return self._members.owners(order.mapping)

    def orders(self) -> set[Order]:
        """Orders of the runs that have epochs."""
        return {self.runs[number].order for number, _ in self._epochs}

    def missing_ranks(self, key: Key) -> list[int]:
        """Ranks of an epoch that have not begun, as far as one has."""
        begin = self._begun.get(key)
        replicas = 1 if begin is None else begin.turns.replicas
        return sorted(set(range(replicas)) - self.runs[key[0]].ranks(replicas).keys())

    def begin_here(
        self,
        client: int,
        key: Key,
        start: int,
        ranks: tuple[int, int],
        batch: int,
        busy: set[Key],
        processes: int = 1,
        drawer: Drawer | None = None,
    ) -> None:
        """A rank of this node, number so many of so many, is about to draw; `busy` epochs have draws that wait.

        So many `processes` draw what it has to draw; `drawer` is the one that says so.
        """
        run = self.runs[key[0]]
        before = run.readers.get((client, None))
        run.conduct.begins(drawer, processes, again=before is None or key[1] <= before.epoch)
        times = before.begin.times + 1 if before is not None and before.epoch == key[1] else 1
        self.begin(client, key, Begin(start, ranks[1], (ranks[0],), batch, self._members.node, times), busy)

    def begin(self, client: int, key: Key, begin: Begin, busy: set[Key]) -> None:
        """Ranks are about to draw, here or at another node."""
        run, epoch = self.runs[key[0]], key[1]
        if begin.node != self._members.node:
            self._largest_sent[begin.node] = begin.largest
        if begin.times:
            run.begin(client, Reader(epoch, begin), self._members.node)
        turns = Turns(self._samples, begin.start, begin.replicas, begin.batch)
        state = self._epochs.get(key)
        if state is None:
            if begin.times:
                earlier = self._begun.get(key)
                self._begun[key] = Beginning(turns, max(begin.times, earlier.times if earlier else 0))
                if key in self._waiting:
                    self._waiting[key].begin = self._begun[key]
            self.want(key)
            if key in self._waiting:
                self._make_if_known(key)
        elif begin.times > state.begun or (begin.times and not turns.same_division(state.turns)):
            self._start(key, state, Beginning(turns, begin.times))
        else:
            state.begun_at(begin.start)
            state.expect(run.ranks(state.replicas), run.fronts(epoch))
        self._retire(key[0], busy)

    def agreed(self, key: Key) -> bool:
        """Whether all ranks have begun an epoch as this node's have, if any of them is in it."""
        return self.runs[key[0]].agreed_on(key[1], self._members.node)

    def conflicts(self) -> Iterator[tuple[int, str]]:
        """Runs that cannot go on, as ranks have begun an epoch in different ways, and why."""
        for number, run in self.runs.items():
            reason = run.conflict(self._members.node)
            if reason is not None:
                yield number, reason

    def take(self, key: Key, node: int, front: int, *, asks: bool) -> None:
        """A node can take samples of an epoch from now on, from position `front` on; `asks`: those that it asks for."""
        self._takers[key, node] = Taker(front, asks)
        self._send(key, node)

    def ask(self, key: Key, node: int, positions: NDArray[np.int64]) -> None:
        """A node that can take samples of an epoch asks for these; where no plan is made yet, it is told later."""
        taker, state = self._takers.get((key, node)), self._epochs.get(key)
        if state is not None and node in state.outgoing:
            state.outgoing[node].ask(positions)
        elif taker is not None:
            taker.ask_later(positions)

    def forget(self, client: int, key: Key, node: int, busy: set[Key]) -> None:
        """Another node, which is this client, has no use for an epoch any more."""
        self._takers.pop((key, node), None)
        state, run = self._epochs.get(key), self.runs.get(key[0])
        if state is not None:
            self._residents.let_go(state.forget(node))
        if run is not None and run.readers.pop((client, key[1]), None) is not None:
            self._retire(key[0], busy)

    def expect(self, key: Key, first: int, busy: set[Key]) -> None:
        """A draw from position `first` on has come; where its epoch is not there, it is begun anew.

        It has made room for another run, or the server was replaced, or a straggler is in an epoch that is over: for
        that, nothing is read ahead.
        """
        if key in self._epochs or key in self._planned:
            return
        run, epoch = self.runs[key[0]], key[1]
        begins = run.begins(epoch)
        if begins:
            begin = begins[0]
            start = first - (first - begin.start) % (begin.replicas * max(1, begin.batch))
            turns = Turns(self._samples, max(start, begin.start), begin.replicas, begin.batch)
            self._begun[key] = Beginning(turns, begin.times, whole=False)
        else:
            turns = Turns(self._samples, self._samples if run.readers else first)
            self._begun[key] = Beginning(turns, 0, whole=False)
        self.want(key)
        self._retire(key[0], busy | {(key[0], epoch + more) for more in (-1, 0, 1)})

    def note(self, key: Key, drawer: Drawer | None, positions: NDArray[np.int64]) -> None:
        """These were drawn; where ranks left out others, what they draw next is refused."""
        if self.runs[key[0]].conduct.note(self._epochs[key].account, drawer, positions):
            self._judge(key)

    def give_up_account(self, key: Key) -> None:
        """A draw was interrupted: what it asked for is not left out."""
        if key in self._epochs:
            self._epochs[key].account.give_up()

    def want(self, key: Key) -> None:
        """Have a plan made, where there is none yet."""
        self.changes += 1
        if key not in self._epochs and key not in self._planned and key[1] <= MAX_EPOCH:
            self._planned.add(key)
            self._wanted.append(key)

    def plans_wanted(self) -> Iterator[tuple[Key, Order]]:
        """Plans to make."""
        while self._wanted:
            key = self._wanted.popleft()
            if key in self._planned:
                yield key, self.runs[key[0]].order

    def plan_ready(self, key: Key, plan: Plan, read_of: NDArray[Any] | None) -> None:
        """A plan is made; nothing happens where it is not wanted any more."""
        if key not in self._planned:
            return
        run = self.runs[key[0]]
        begin = self._begun.get(key)
        if begin is None:  # read ahead, for the ranks that draw now
            begins = [reader.begin for reader in run.readers.values()]
            most = max(begins, key=lambda begin: begin.replicas, default=Begin(0, 1, ()))
            begin = Beginning(Turns(self._samples, 0, most.replicas, most.batch), 0)
        self._waiting[key] = Waiting(plan, read_of, begin)
        self._make_if_known(key)

    def tick(self, now_s: float) -> None:
        """Ranks of other nodes that have not begun by now are not waited for, where the others can do without."""
        for key, waiting in list(self._waiting.items()):
            if waiting.since_s is None:
                waiting.since_s = now_s
            elif now_s - waiting.since_s > RANKS_S and not waiting.begin.turns.batch:
                self._make(key)

    def _make_if_known(self, key: Key) -> None:
        """An epoch begins when all its ranks have: what is read for one is not read again for the next."""
        turns = self._waiting[key].begin.turns
        waits = self._members.nodes > 1 or turns.batch
        if not waits or len(self.runs[key[0]].ranks(turns.replicas)) >= turns.replicas:
            self._make(key)

    def left(self, client: int, busy: set[Key], only: int | None = None) -> None:
        """A client is gone, or has left one run only."""
        for number, run in [(n, run) for n, run in self.runs.items() if only in (None, n)]:
            run.clients.discard(client)
            readers = [reader for reader in run.readers if reader[0] == client]
            for reader in readers:
                del run.readers[reader]
            if not run.clients:
                self._retire(number, set())
                del self.runs[number]
            elif readers:
                self._retire(number, busy)

    def drop_idle(self, since_s: float, busy: set[Key]) -> bool:
        """Free what is held for runs without draws since then; whether there was any. Their next draws read exactly."""
        runs = {run for run, _ in busy}
        runs |= {run for (run, _), state in self._epochs.items() if state.begun and not state.asked_s <= since_s}
        idle = [key for key, state in self._epochs.items() if key[0] not in runs and state.held.any()]
        for key in idle:
            self._drop(self._epochs.pop(key))
        return bool(idle)

    def drawings(self) -> dict[Key, Drawing]:
        """What other nodes should know: which epochs the ranks of this node draw, or will draw next."""
        node, told = self._members.node, {}
        for number, run in self.runs.items():
            begun: dict[int, int] = {}
            for reader in run.readers.values():
                if reader.begin.node == node:
                    begun[reader.epoch] = max(reader.begin.times, begun.get(reader.epoch, 0))
                    begun.setdefault(reader.epoch + 1, 0)
            for epoch, times in begun.items():
                drawing = self._drawing(run, (number, epoch), times)
                if drawing is not None:
                    told[number, epoch] = drawing
        return told

    def _drawing(self, run: Run, key: Key, times: int) -> Drawing | None:
        """What ranks of this node draw of an epoch; None where they draw nothing."""
        node, state, begun = self._members.node, self._epochs.get(key), self._begun.get(key)
        if state is not None:
            turns = state.turns
        elif begun is not None:
            turns = begun.turns
        else:
            return None
        here = tuple(sorted(rank for rank, at in run.ranks(turns.replicas).items() if at == node))
        if not here or turns.start >= self._samples:
            return None
        # An epoch that made room for others goes on later (`expect`); where it began is what the ranks have said.
        said = [begin.start for begin in run.begins(key[1]) if begin.node == node and begin.times == times]
        start = min(said, default=turns.start)
        begin = Begin(start, turns.replicas, here, turns.batch, node, times, largest=self._largest_sent[node])
        return Drawing(run.name, run.turn, run.order, key[1], begin, 0 if state is None else state.number)

    def _need_none(self) -> NDArray[np.bool_]:
        """Places that need no read: those that are here for good, and those that are never held."""
        return (self._residents.pages_of > self._largest) | self._residents.kept()

    def _too_large(self, node: int) -> NDArray[np.bool_]:
        """Places whose samples are never sent to a node."""
        return self._residents.pages_of > self._largest_sent.get(node, 0)

    def _make(self, key: Key) -> None:
        """An epoch begins, here and for the nodes that can take its samples."""
        waiting = self._waiting.pop(key)
        plan, begin = waiting.plan, waiting.begin
        self._planned.discard(key)
        self._begun.pop(key, None)
        run, owners = self.runs[key[0]], self.owners(self.order(key[0]))
        ranks = run.ranks(begin.turns.replicas) or {0: self._members.node}
        turns = begin.turns
        if turns.batch:
            node_of_rank = np.array([ranks[rank] for rank in range(turns.replicas)])
            rank_at = split_near(owners.of(plan.sample_of[turns.start :]), node_of_rank, turns.batch)
            turns = replace(turns, rank_at=rank_at)
        epoch = Epoch(
            plan,
            waiting.read_of,
            self._need_none,
            self._too_large,
            turns,
            ranks,
            run.fronts(key[1]),
            owners,
            self.unreachable,
            whole=begin.whole and begin.times <= 1,
        )
        epoch.begun = begin.times
        self._last_number += 1
        epoch.number = self._last_number
        foreseen = self._members.foreseen_by(run.order)
        if foreseen is not None and turns == Turns(self._samples, 0, foreseen.ranks):
            epoch.requests = follows(plan.requests, ranks, foreseen.nodes, turns.replicas)
        self._epochs[key] = epoch
        self.changes += 1
        for taken, node in self._takers:
            if taken == key:
                self._send(key, node)

    def _send(self, key: Key, node: int) -> None:
        """A node can be sent samples of an epoch, if its plan is made."""
        state, taker = self._epochs.get(key), self._takers[key, node]
        if state is None:
            return
        state.send_to(node, taker.front, state.plan.requests if taker.asks else None)
        for positions in taker.asked:
            state.outgoing[node].ask(positions)
        taker.asked.clear()

    def _start(self, key: Key, state: Epoch, begin: Beginning) -> None:
        """An epoch that is planned is begun: as it was read ahead, or anew."""
        self.changes += 1
        if not state.begun and begin.turns.same_as(state.turns):
            run = self.runs[key[0]]
            state.expect(run.ranks(state.replicas), run.fronts(key[1]))
            state.begun = begin.times
            return
        self._drop(self._epochs.pop(key))
        self._planned.add(key)
        self._begun[key] = replace(begin, whole=begin.whole and not state.drawn)  # a draw may overtake its BEGIN
        self.plan_ready(key, state.plan, None)

    def _retire(self, number: int, busy: set[Key]) -> None:
        """Drop the epochs of a run that no reader is at, or will be at next."""
        run = self.runs[number]
        at = {reader.epoch for reader in run.readers.values()}
        run.agreed &= at
        wanted = {(number, epoch + more) for epoch in at for more in (0, 1)} | busy
        for key in [key for key in self._epochs if key[0] == number and key not in wanted]:
            self._judge(key)
            self._drop(self._epochs.pop(key))
        for key in [key for key in self._planned if key[0] == number and key not in wanted]:
            self._planned.discard(key)
            self._begun.pop(key, None)
            self._waiting.pop(key, None)
        for taken in [taken for taken in self._takers if taken[0][0] == number and taken[0] not in wanted]:
            del self._takers[taken]
        self.changes += 1

    def _judge(self, key: Key) -> None:
        state = self._epochs[key]
        if state.begun and state.whole:
            self.runs[key[0]].conduct.judge(state.account, key[1])

    def _drop(self, state: Epoch) -> None:
        self._residents.let_go(np.flatnonzero(state.held))
        state.held[:] = False
        state.dropped = True
