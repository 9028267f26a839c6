"""What does the node server do next? All its decisions, without sockets, threads, clocks or bytes.

    begin, draw, release, left          what clients want
    plan_ready, kept_ready, read_done   what the planner and the I/O threads have finished
    plans_wanted, next_read, answers    what is to be done now

A draw waits as long as a read that will bring its samples is still to come. Reads are started in the plan's order as
far ahead as memory allows; at the end of an epoch into what the drain frees, for the next one. Where that cannot go on
(`unblock`), skipped positions are given up, then kept samples, and after that the draw is answered as it stands: what
is not in memory, its client reads exactly from storage. Memory is only a cache: slower is allowed, wrong is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.arena import Arena
from brand.node.counters import Counters
from brand.node.epoch import Epoch
from brand.node.residents import Residents
from brand.protocol.order import Order
from brand.protocol.plan import Plan

AHEAD_SHARE: Final = 8
"""One part in so many of the arena is left free of kept samples, to read ahead into."""
AHEAD_MOST: Final = 256 << 20
LARGEST_SHARE: Final = 4
"""A sample larger than one part in so many of the arena is never held."""
MAX_ORDERS: Final = 64
STALE_LEASE_S: Final = 1.0
"""A client that copies for longer than this is not waited for."""
SKIP_SLACK: Final = 8192
"""Positions so far behind those that are asked for were skipped; nearer ones may be with a slow worker."""
LONGEST_WAIT_S: Final = 30.0
"""After so long a draw is answered as it stands."""


class Rows(Protocol):
    """Where the rows of the index come from."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the places `first` to `end` - 1."""
        ...


@dataclass(eq=False, slots=True)
class Read:
    """One read to do: `size` bytes at `offset` of a chunk, into the pieces of `vector`."""

    chunk: int
    offset: int
    size: int
    vector: NDArray[np.void]
    forget: bool
    places: NDArray[Any]
    heads: NDArray[np.int32]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Answer:
    """What a draw gets: for each position its place, whether it is in memory and checked, and its pages."""

    client: int
    lease: int
    places: NDArray[np.int64]
    state: NDArray[np.uint8]
    """As in `messages`: 0 absent, 1 present, 2 present and checked."""
    counts: NDArray[np.uint32]
    """Pages of each sample that is present."""
    pages: NDArray[np.int32]


@dataclass(slots=True)
class _Draw:
    client: int
    key: tuple[int, int]
    positions: NDArray[np.int64]
    since_s: float


@dataclass(slots=True)
class _Reader:
    """A rank's training process, as far as it said what it is about to draw."""

    order: int
    epoch: int
    begun: int


@dataclass(slots=True)
class _Lease:
    client: int
    places: NDArray[Any]
    since_s: float


@dataclass(slots=True)
class _Waiting:
    """Begun before its plan was ready."""

    start: int
    replicas: int
    begun: int = 0


class Core:
    """The state of a node server."""

    def __init__(self, index: Rows, arena: Arena, pages_of: NDArray[np.uint32], chunk_size: int) -> None:
        self._index, self._arena = index, arena
        self._samples, self._chunk_size = len(pages_of), chunk_size
        self._residents = Residents(arena, pages_of)
        self._giants = pages_of > max(1, (arena.count - 1) // LARGEST_SHARE)
        self._orders: list[Order] = []
        self._epochs: dict[tuple[int, int], Epoch] = {}
        self._planned: set[tuple[int, int]] = set()
        self._begun: dict[tuple[int, int], _Waiting] = {}
        self._readers: dict[int, _Reader] = {}
        self._draws: list[_Draw] = []
        self._leases: dict[int, _Lease] = {}
        self._answers: deque[Answer] = deque()
        self._plans_wanted: deque[tuple[int, int]] = deque()
        self._last_lease = 0
        self.reading = 0
        """Reads on their way."""
        self.counters = Counters()

    # -- what clients want -------------------------------------------------------------------------------------------

    def register(self, order: Order) -> int:
        """Number of an order. Raises `UsageError` where it does not fit this data set."""
        if (order.samples, order.chunk_size) != (self._samples, self._chunk_size):
            raise UsageError("the order is of another data set: its sizes differ")
        if order not in self._orders:
            if len(self._orders) == MAX_ORDERS:
                raise UsageError(f"this server already serves {MAX_ORDERS} orders; start another one")
            self._orders.append(order)
        return self._orders.index(order)

    def knows(self, order: int) -> bool:
        """Whether an order was registered under this number."""
        return 0 <= order < len(self._orders)

    def begin(self, client: int, order: int, epoch: int, position: int, replicas: int) -> None:
        """A rank is about to draw from `position` on; what the order's ranks have all left behind is given up."""
        reader = self._readers.get(client)
        again = reader is not None and (reader.order, reader.epoch) == (order, epoch)
        begun = reader.begun + 1 if reader is not None and again else 1
        self._readers[client] = _Reader(order, epoch, begun)
        key = (order, epoch)
        state = self._epochs.get(key)
        if state is None:
            self._begun[key] = _Waiting(position, replicas, begun)
            self._want_plan(key)
        elif begun > state.begun:
            self._start(key, state, _Waiting(position, replicas, begun))
        self._retire(order)

    def draw(self, client: int, order: int, epoch: int, positions: NDArray[np.int64], now_s: float) -> None:
        """A client asks for positions of an epoch; the answer comes by `answers`. Raises `UsageError`."""
        if not len(positions) or positions.min() < 0 or positions.max() >= self._samples:
            raise UsageError(f"positions are 0 to {self._samples - 1:,}")
        key = (order, epoch)
        if key not in self._epochs and key not in self._planned:
            # Nobody said that it begins: a server that was replaced, or a straggler of an epoch that is over.
            over = any(reader.order == order for reader in self._readers.values())
            self._begun[key] = _Waiting(self._samples if over else int(positions.min()), 1, 1)
            self._want_plan(key)
        draw = _Draw(client, key, positions, now_s)
        self.counters.draws += len(positions)
        if not self._settle(draw, now_s):
            self.counters.waited += len(positions)
            self._draws.append(draw)

    def release(self, client: int, lease: int, *, checked: bool) -> None:
        """A client has copied what it was given. Raises `UsageError` for a lease that it does not have."""
        held = self._leases.get(lease)
        if held is None or held.client != client:
            raise UsageError(f"lease {lease} is not this client's")
        del self._leases[lease]
        if checked:
            self._residents.mark_checked(held.places)
        self._residents.let_go(held.places)

    def left(self, client: int) -> None:
        """A client is gone, in whatever way."""
        self._draws = [draw for draw in self._draws if draw.client != client]
        for lease in [number for number, held in self._leases.items() if held.client == client]:
            self._residents.let_go(self._leases.pop(lease).places)
        reader = self._readers.pop(client, None)
        if reader is not None:
            self._retire(reader.order)

    # -- what has been finished --------------------------------------------------------------------------------------

    def plan_ready(self, key: tuple[int, int], plan: Plan, read_of: NDArray[Any], now_s: float) -> None:
        """The plan of (order, epoch) is made."""
        if key not in self._planned:  # given up meanwhile
            return
        waiting = self._begun.pop(key, None)
        self._planned.discard(key)
        without = self._giants | self._residents.kept()
        self._epochs[key] = Epoch(plan, read_of, without, waiting.start if waiting else 0)
        if waiting:
            self._start(key, self._epochs[key], waiting)
        self._settle_all(now_s)

    def kept_ready(self, mask: NDArray[np.bool_]) -> None:
        """It is decided which samples are kept."""
        self._residents.keep(mask)

    def read_done(self, read: Read, now_s: float, *, failed: bool) -> None:
        """A read has ended; one that failed leaves its samples to exact reads."""
        self.reading -= 1
        self.counters.failed_reads += failed
        epoch, residents, places = read.epoch, self._residents, read.places
        twice = residents.present(places)  # another epoch's read was faster
        drop = twice | failed
        if drop.any():
            self._arena.give_back(self._arena.chains(read.heads[drop], residents.pages_of[places[drop]]))
        if not failed:
            residents.put(places[~twice], read.heads[~twice])
            residents.refer(places[twice])
            wanted = epoch.due[places] & (not epoch.dropped)  # or given up while the read was on its way
            epoch.held[places[wanted]] = True
            residents.let_go(places[~wanted])
        epoch.due[places] = False
        self._settle_all(now_s)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def plans_wanted(self) -> Iterator[tuple[tuple[int, int], Order, bool]]:
        """Plans to make: (order, epoch), the order, and whether to decide what is kept from it, too."""
        while self._plans_wanted:
            key = self._plans_wanted.popleft()
            first = not any(number == key[0] for number, _ in self._epochs)
            yield key, self._orders[key[0]], first and self._orders[key[0]].protocol == "stripes"

    def room_to_keep(self, order: Order) -> int:
        """Pages that kept samples and an epoch's samples of this order may take together."""
        pages = self._arena.count - 1
        if int(self._residents.pages_of.sum(dtype=np.int64)) <= pages:
            return pages  # all fits, and nothing will ever have to be read ahead
        pages -= min(pages // AHEAD_SHARE, AHEAD_MOST // self._arena.page)
        others = {self._orders[number] for number, _ in self._epochs} - {order}
        mean = float(self._residents.pages_of.mean())
        return pages - round(sum(other.mapping.groups * self._chunk_size * mean for other in others))

    def answers(self) -> Iterator[Answer]:
        """Answers to draws."""
        while self._answers:
            yield self._answers.popleft()

    def next_read(self) -> Read | None:
        """The read to start now; None where there is none or memory has no room for it."""
        while (epoch := self._most_urgent()) is not None:
            number = epoch.next_read
            if number is None:
                return None
            held = epoch.plan.places_held(number)
            due = held[epoch.due[held]]
            present = self._residents.present(due)
            ready, absent = due[present], due[~present]
            if len(ready):
                self._residents.refer(ready)
                epoch.due[ready], epoch.held[ready] = False, True
            if len(absent):
                needed = int(self._residents.pages_of[absent].sum())
                if needed > self._arena.free:
                    if needed < self._arena.count:
                        return None
                    epoch.due[absent] = False  # it will never fit
                else:
                    epoch.advance()
                    return self._read(epoch, number, absent)
            epoch.advance()
        return None

    def unblock(self, now_s: float) -> bool:
        """Nothing more can be read and draws wait: make room, or answer the oldest as it stands; whether that was done.

        Room comes from positions that were skipped, then from kept samples: more is asked for at a time than was
        foreseen.
        """
        oldest = self._draws[0]
        if oldest.key in self._planned:  # nobody knows yet which samples these are
            return False
        if now_s - oldest.since_s < LONGEST_WAIT_S:
            copying = any(now_s - lease.since_s < STALE_LEASE_S for lease in self._leases.values())
            if self.reading or copying:
                return False
            share = self._arena.count // AHEAD_SHARE
            if self._give_up_skipped() or self._residents.keep_less(self._chunk_size, share):
                return True
        self._draws.pop(0)
        self._answer(oldest, now_s)
        return True

    def idle(self) -> bool:
        """Whether no draw waits."""
        return not self._draws

    def facts(self, mean_bytes: float) -> dict[str, Any]:
        """Counters, memory by kind in bytes, and progress, as plain values."""
        page, leased = self._arena.page, [lease.places for lease in self._leases.values()]
        used = self._arena.count - 1 - self._arena.free
        return {
            **self.counters.to_json(mean_bytes),
            "memory": {
                "limit": self._arena.bytes,
                "used": used * page,
                "kept": self._residents.kept_pages * page,
                "leased": sum(int(self._residents.pages_of[p].sum()) for p in leased) * page,
                "free": self._arena.free * page,
            },
            "reading": self.reading,
            "waiting": len(self._draws),
            "epochs": [
                {"order": order, "epoch": epoch, "drawn": state.drawn, "samples": self._samples, "start": state.start}
                for (order, epoch), state in sorted(self._epochs.items())
                if state.begun
            ],
        }

    # -- steps -------------------------------------------------------------------------------------------------------

    def _want_plan(self, key: tuple[int, int]) -> None:
        if key not in self._epochs and key not in self._planned:
            self._planned.add(key)
            self._plans_wanted.append(key)

    def _start(self, key: tuple[int, int], state: Epoch, begin: _Waiting) -> None:
        """An epoch is begun: for the first time, or anew."""
        if state.begun or begin.start < state.start:
            self._drop(state)
            state = Epoch(state.plan, state.read_of, self._giants | self._residents.kept(), begin.start)
            self._epochs[key] = state
        elif begin.start > state.start:
            self._residents.let_go(state.give_up_before(begin.start))
        state.begun, state.replicas = begin.begun, begin.replicas

    def _retire(self, order: int) -> None:
        """Drop the epochs that no reader of the order is at, or will be at next."""
        at = [reader.epoch for reader in self._readers.values() if reader.order == order]
        wanted = {(order, epoch + more) for epoch in at for more in (0, 1)} | {draw.key for draw in self._draws}
        for key in [key for key in self._epochs if key[0] == order and key not in wanted]:
            self._drop(self._epochs.pop(key))
        for key in [key for key in self._planned if key[0] == order and key not in wanted]:
            self._planned.discard(key)
            self._begun.pop(key, None)

    def _drop(self, state: Epoch) -> None:
        self._residents.let_go(np.flatnonzero(state.held))
        state.held[:] = False
        state.dropped = True

    def _most_urgent(self) -> Epoch | None:
        """The epoch whose next read is needed in the fewest draws."""
        best, least = None, None
        for (order, number), state in self._epochs.items():
            if state.next_read is None:
                continue
            behind = self._epochs.get((order, number - 1))
            before = self._samples - behind.drawn if behind is not None and not state.begun else 0
            lead = before + state.deadline() - state.drawn
            if least is None or lead < least:
                best, least = state, lead
        return best

    def _read(self, epoch: Epoch, number: int, absent: NDArray[Any]) -> Read:
        first, end = epoch.plan.places_read(number)
        rows = self._index.rows(first, end)
        held = np.zeros(end - first, np.bool_)
        held[absent - first] = True
        counts = self._residents.pages_of[absent]
        heads, pages = self._arena.take(counts)
        self._arena.write_rows(heads, rows[held])
        sizes = rows["size"].astype(np.int64)
        size = int(sizes.sum())
        self.reading += 1
        self.counters.reads += 1
        self.counters.read_bytes += size
        self.counters.read_samples += end - first
        self.counters.held_samples += len(absent)
        return Read(
            chunk=first // self._chunk_size,
            offset=int(rows["offset"][0]),
            size=size,
            vector=self._arena.vector(sizes, held, pages),
            forget=bool(self._residents.to_keep(absent).all()),  # it will not be read again
            places=absent,
            heads=heads,
            epoch=epoch,
        )

    def _settle_all(self, now_s: float) -> None:
        self._draws = [draw for draw in self._draws if not self._settle(draw, now_s)]

    def _settle(self, draw: _Draw, now_s: float) -> bool:
        """Answer a draw if nothing that it waits for is still to come."""
        epoch = self._epochs.get(draw.key)
        if epoch is None or epoch.due[epoch.plan.sample_of[draw.positions]].any():
            return False
        self._answer(draw, now_s)
        return True

    def _answer(self, draw: _Draw, now_s: float) -> None:
        epoch = self._epochs[draw.key]
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        epoch.due[places] = False
        epoch.note_asked(draw.positions)
        epoch.drawn += len(places)
        if epoch.begun and 2 * epoch.drawn >= self._samples - epoch.start:
            self._want_plan((draw.key[0], draw.key[1] + 1))
        present = self._residents.present(places)
        here = places[present]
        distinct = here if (np.diff(draw.positions) > 0).all() else np.unique(here)
        self._residents.refer(distinct[~epoch.held[distinct]])
        epoch.held[distinct] = False
        counts, pages = self._residents.chains(here)
        state = present.astype(np.uint8)
        state[present] += self._residents.checked(here)
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(draw.client, distinct, now_s)
        self._answers.append(Answer(draw.client, self._last_lease, places, state, counts, pages))
        self.counters.from_memory += len(here)
        self.counters.exact += len(places) - len(here)
        self.counters.wait_s += now_s - draw.since_s

    def _give_up_skipped(self) -> bool:
        """Free what lies before the positions that are asked for; whether there was any."""
        found = False
        for key, epoch in self._epochs.items():
            waiting = [draw.positions for draw in self._draws if draw.key == key]
            if waiting:
                before = epoch.skipped_before(iter(waiting)) - SKIP_SLACK * epoch.replicas
                held = epoch.give_up_before(max(before, epoch.start))
                self._residents.let_go(held)
                found = found or bool(len(held))
        return found
