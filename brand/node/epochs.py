"""Which epochs are under way, and who draws from them?

A *run* is one training: an order and a name that all its ranks and workers share. Its readers, one for each rank, say
when they begin an epoch; the epoch after it is planned when half of it is drawn, so that it can be read ahead. Epochs
that all readers have left behind are dropped, and with the last client of a run all of its epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.epoch import Epoch
from brand.node.residents import Residents
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.plan import Plan

MAX_RUNS: Final = 1024

Key = tuple[int, int]
"""Number of a run, and an epoch."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A rank's training process, as far as it said what it is about to draw."""

    epoch: int
    start: int
    times: int
    """How often in a row it has begun this epoch."""
    rank: int
    replicas: int


@dataclass(slots=True)
class _Run:
    """One training."""

    order: Order
    name: str
    tag: int | None
    clients: set[int] = field(default_factory=set)
    readers: dict[int, _Reader] = field(default_factory=dict)
    """By client."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """How an epoch is begun."""

    start: int
    replicas: int
    ranks: set[int]
    times: int


class Epochs:
    """Runs and their epochs; samples of more than `largest` pages are never held."""

    def __init__(self, residents: Residents, largest: int, chunk_size: int) -> None:
        self._residents, self._largest = residents, largest
        self._samples, self._chunk_size = len(residents.pages_of), chunk_size
        self._runs: dict[int, _Run] = {}
        self._last_run = 0
        self._epochs: dict[Key, Epoch] = {}
        self._planned: set[Key] = set()
        self._begun: dict[Key, _Beginning] = {}
        self._wanted: deque[Key] = deque()

    def __iter__(self) -> Iterator[tuple[Key, Epoch]]:
        return iter(self._epochs.items())

    def get(self, key: Key) -> Epoch | None:
        """An epoch, where its plan is made."""
        return self._epochs.get(key)

    def planned(self, key: Key) -> bool:
        """Whether its plan is being made."""
        return key in self._planned

    def order(self, run: int) -> Order:
        """The order of a run."""
        return self._runs[run].order

    def orders(self) -> set[Order]:
        """Orders of the runs that have epochs."""
        return {self._runs[number].order for number, _ in self._epochs}

    def knows(self, client: int, run: int) -> bool:
        """Whether a client has registered the run of this number."""
        return run in self._runs and client in self._runs[run].clients

    def order_by_tag(self, name: str, tag: int | None) -> Order:
        """The order that a run's processes call by a tag. Raises `UsageError` where there is none."""
        for run in self._runs.values():
            if tag is not None and (run.name, run.tag) == (name, tag):
                return run.order
        raise UsageError(f"no order of run {name} has tag {tag}")

    def register(self, client: int, order: Order, name: str, tag: int | None) -> int:
        """Number of a run. Raises `UsageError` where its order does not fit the data set."""
        if (order.samples, order.chunk_size) != (self._samples, self._chunk_size):
            raise UsageError("the order is of another data set: its sizes differ")
        for number, run in self._runs.items():
            if (run.order, run.name) == (order, name):
                run.clients.add(client)
                run.tag = run.tag if tag is None else tag
                return number
        if len(self._runs) == MAX_RUNS:
            raise UsageError(f"this server already serves {MAX_RUNS} runs; start another one")
        self._last_run += 1
        self._runs[self._last_run] = _Run(order, name, tag, {client})
        return self._last_run

    def begin(self, client: int, key: Key, start: int, rank: int, replicas: int, busy: set[Key]) -> None:
        """A rank is about to draw from position `start` on; `busy` epochs have draws that wait."""
        run, epoch = self._runs[key[0]], key[1]
        before = run.readers.get(client)
        times = before.times + 1 if before is not None and before.epoch == epoch else 1
        run.readers[client] = _Reader(epoch, start, times, rank, replicas)
        ranks = self._ranks(run, replicas)
        state = self._epochs.get(key)
        if state is None:
            earlier = self._begun.get(key)
            self._begun[key] = _Beginning(start, replicas, ranks, max(times, earlier.times if earlier else 0))
            self.want(key)
        elif times > state.begun or replicas != state.replicas:
            self._start(key, state, _Beginning(start, replicas, ranks, times))
        else:
            state.expect(ranks)
        self._retire(key[0], busy)

    def expect(self, key: Key, first: int, busy: set[Key]) -> None:
        """A draw from position `first` on has come; where its epoch is not there, it is begun anew.

        It has made room for another run, or the server was replaced, or a straggler is in an epoch that is over: for
        that, nothing is read ahead.
        """
        if key in self._epochs or key in self._planned:
            return
        run, epoch = self._runs[key[0]], key[1]
        reader = next((reader for reader in run.readers.values() if reader.epoch == epoch), None)
        if reader is not None:
            start = first - (first - reader.start) % reader.replicas
            ranks = self._ranks(run, reader.replicas)
            self._begun[key] = _Beginning(start, reader.replicas, ranks, reader.times)
        else:
            self._begun[key] = _Beginning(self._samples if run.readers else first, 1, {0}, 0)
        self.want(key)
        self._retire(key[0], busy | {(key[0], epoch + more) for more in (-1, 0, 1)})

    def want(self, key: Key) -> None:
        """Have a plan made, where there is none yet."""
        if key not in self._epochs and key not in self._planned and key[1] <= MAX_EPOCH:
            self._planned.add(key)
            self._wanted.append(key)

    def plans_wanted(self) -> Iterator[tuple[Key, Order]]:
        """Plans to make."""
        while self._wanted:
            key = self._wanted.popleft()
            if key in self._planned:
                yield key, self._runs[key[0]].order

    def plan_ready(self, key: Key, plan: Plan, read_of: NDArray[Any]) -> None:
        """A plan is made; nothing happens where it is not wanted any more."""
        if key not in self._planned:
            return
        self._planned.discard(key)
        begin = self._begun.pop(key, None)
        if begin is None:  # read ahead, for the ranks that draw now
            readers = self._runs[key[0]].readers.values()
            replicas = max((reader.replicas for reader in readers), default=1)
            begin = _Beginning(0, replicas, self._ranks(self._runs[key[0]], replicas) or {0}, 0)
        self._epochs[key] = self._made(plan, read_of, begin)

    def left(self, client: int, busy: set[Key]) -> None:
        """A client is gone."""
        for number, run in list(self._runs.items()):
            run.clients.discard(client)
            was_reader = run.readers.pop(client, None) is not None
            if not run.clients:
                self._retire(number, set())
                del self._runs[number]
            elif was_reader:
                self._retire(number, busy)

    def drop_idle(self, since_s: float, busy: set[Key]) -> bool:
        """Free what is held for runs without draws since then; whether there was any. Their next draws read exactly."""
        runs = {run for run, _ in busy}
        runs |= {run for (run, _), state in self._epochs.items() if state.begun and not state.asked_s <= since_s}
        idle = [key for key, state in self._epochs.items() if key[0] not in runs and state.held.any()]
        for key in idle:
            self._drop(self._epochs.pop(key))
        return bool(idle)

    def _need_none(self) -> NDArray[np.bool_]:
        """Places that need no read: those that are here for good, and those that are never held."""
        return (self._residents.pages_of > self._largest) | self._residents.kept()

    @staticmethod
    def _ranks(run: _Run, replicas: int) -> set[int]:
        """Ranks that draw here, as far as they have said so."""
        return {reader.rank for reader in run.readers.values() if reader.replicas == replicas}

    def _made(self, plan: Plan, read_of: NDArray[Any] | None, begin: _Beginning) -> Epoch:
        epoch = Epoch(plan, read_of, self._need_none, begin.start, begin.replicas, begin.ranks)
        epoch.begun = begin.times
        return epoch

    def _start(self, key: Key, state: Epoch, begin: _Beginning) -> None:
        """An epoch that is planned is begun: as it was read ahead, or anew."""
        if not state.begun and (begin.start, begin.replicas) == (state.start, state.replicas):
            state.expect(begin.ranks)
            state.begun = begin.times
        else:
            self._drop(state)
            self._epochs[key] = self._made(state.plan, None, begin)

    def _retire(self, number: int, busy: set[Key]) -> None:
        """Drop the epochs of a run that no reader is at, or will be at next."""
        at = {reader.epoch for reader in self._runs[number].readers.values()}
        wanted = {(number, epoch + more) for epoch in at for more in (0, 1)} | busy
        for key in [key for key in self._epochs if key[0] == number and key not in wanted]:
            self._drop(self._epochs.pop(key))
        for key in [key for key in self._planned if key[0] == number and key not in wanted]:
            self._planned.discard(key)
            self._begun.pop(key, None)

    def _drop(self, state: Epoch) -> None:
        self._residents.let_go(np.flatnonzero(state.held))
        state.held[:] = False
        state.dropped = True
