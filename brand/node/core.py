"""What does the node server do next? All its decisions, without sockets, threads, clocks or bytes.

    begin, draw, release, left          what clients want
    plan_ready, kept_ready, read_done   what the planner and the I/O threads have finished
    plans_wanted, choice_wanted, next_read, answers    what is to be done now

A draw waits as long as a read that will bring its samples is still to come. Reads are started in the plan's order as
far ahead as memory allows; at the end of an epoch into what the drain frees, for the next one. Where that cannot go on
(`unblock`), skipped positions are given up, then kept samples, and after that the draw is answered as it stands: what
is not in memory, its client reads exactly from storage. Memory is only a cache: slower is allowed, wrong is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.arena import Arena
from brand.node.counters import Counters
from brand.node.epoch import Epoch
from brand.node.epochs import Epochs, Key
from brand.node.residents import Residents
from brand.node.tasks import Answer, Choice, Read, Rows
from brand.protocol.order import Order
from brand.protocol.plan import Plan

AHEAD_SHARE: Final = 8
"""One part in so many of the arena is left free of kept samples, to read ahead into."""
AHEAD_MOST: Final = 256 << 20
LARGEST_SHARE: Final = 4
"""A sample larger than one part in so many of the arena is never held."""
STALE_LEASE_S: Final = 1.0
"""A client that copies for longer than this is not waited for."""
IDLE_S: Final = 2.0
"""A run that nobody has drawn from for so long makes room for others."""
RELEASE_EVERY: Final = 64
"""Reads after which the pages of the index that they touched are released."""
MAX_LEASES: Final = 64
SKIP_SLACK: Final = 8192
"""Positions so far behind those that are asked for were skipped, or half of what memory holds; nearer ones may be with
a slow worker."""
LONGEST_WAIT_S: Final = 30.0
"""After so long a draw is answered as it stands."""


@dataclass(eq=False, slots=True)
class _Draw:
    client: int
    key: Key
    positions: NDArray[np.int64]
    since_s: float


@dataclass(slots=True)
class _Lease:
    client: int
    places: NDArray[Any]
    since_s: float


class Core:
    """The state of a node server."""

    def __init__(self, index: Rows, arena: Arena, pages_of: NDArray[np.uint32], chunk_size: int) -> None:
        self._index, self._arena = index, arena
        self._samples, self._chunk_size = len(pages_of), chunk_size
        self._residents = Residents(arena, pages_of)
        self._epochs = Epochs(self._residents, max(1, (arena.count - 1) // LARGEST_SHARE), chunk_size)
        self._draws: list[_Draw] = []
        self._leases: dict[int, _Lease] = {}
        self._answers: deque[Answer] = deque()
        self._last_lease = 0
        self._kept_for: set[int] = set()
        """Runs that were under way when it was decided what is kept."""
        self.reading = 0
        """Reads on their way."""
        self.counters = Counters()

    # -- what clients want -------------------------------------------------------------------------------------------

    def register(self, client: int, order: Order, name: str, tag: int | None) -> int:
        """Number of a run: an order, and a name that its processes share. Raises `UsageError`."""
        return self._epochs.register(client, order, name, tag)

    def order_by_tag(self, name: str, tag: int | None) -> Order:
        """The order that a run's processes call by a tag. Raises `UsageError` where there is none."""
        return self._epochs.order_by_tag(name, tag)

    def knows(self, client: int, run: int) -> bool:
        """Whether a client has registered the run of this number."""
        return self._epochs.knows(client, run)

    def begin(self, client: int, key: Key, position: int, rank: int, replicas: int) -> None:
        """A rank is about to draw from `position` on; what all ranks of the run have left behind is given up."""
        self._epochs.begin(client, key, position, rank, replicas, self._busy())

    def draw(self, client: int, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        """A client asks for positions of an epoch; the answer comes by `answers`. Raises `UsageError`."""
        if not len(positions) or positions.min() < 0 or positions.max() >= self._samples:
            raise UsageError(f"positions are 0 to {self._samples - 1:,}")
        if any(draw.client == client for draw in self._draws):
            raise UsageError("a second draw before the first is answered")
        if sum(lease.client == client for lease in self._leases.values()) >= MAX_LEASES:
            raise UsageError(f"more than {MAX_LEASES} leases that were not released")
        self._epochs.expect(key, int(positions.min()), self._busy())
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
        self._epochs.left(client, self._busy())

    # -- what has been finished --------------------------------------------------------------------------------------

    def plan_ready(self, key: Key, plan: Plan, read_of: NDArray[Any], now_s: float) -> None:
        """A plan is made."""
        self._epochs.plan_ready(key, plan, read_of)
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
        epoch.finish(places)
        self._settle_all(now_s)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def plans_wanted(self) -> Iterator[tuple[Key, Order]]:
        """Plans to make: the epoch and its order."""
        return self._epochs.plans_wanted()

    def choice_wanted(self) -> Choice | None:
        """What is to be kept must be chosen anew: a run has begun, or has ended and left its memory."""
        runs = {run for (run, _), _ in self._epochs}
        if runs == self._kept_for:
            return None
        self._kept_for = runs
        for (run, _), epoch in self._epochs:
            order = self._epochs.order(run)
            if order.protocol == "stripes":
                return Choice(epoch.plan, order.stripe, self._room_to_keep(order))
        return None

    def plan_wanted(self, key: Key) -> bool:
        """Whether a plan that was to be made is still wanted."""
        return self._epochs.planned(key)

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
            due = held[epoch.due[held] & ~epoch.coming[held]]
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
                    epoch.advance(absent)
                    return self._read(epoch, number, absent)
            epoch.advance(held[:0])
        return None

    def unblock(self, now_s: float) -> bool:
        """Nothing more can be read and draws wait: make room, or answer the oldest as it stands; whether that was done.

        Room comes from runs that nobody draws from any more, from positions that were skipped, then from kept samples:
        more is asked for at a time than was foreseen.
        """
        if self._settle_all(now_s):
            return True
        copying = any(now_s - lease.since_s < STALE_LEASE_S for lease in self._leases.values())
        if self.reading or copying or self._epochs.planned(self._draws[0].key):
            return False
        share = self._arena.count // AHEAD_SHARE
        made_room = (
            self._epochs.drop_idle(now_s - IDLE_S, self._busy())
            or self._give_up_skipped()
            or self._residents.keep_less(self._chunk_size, share)
        )
        if not made_room:
            self._answer(self._draws.pop(0), now_s)
        return True

    def answer_ready(self, now_s: float) -> None:
        """Answer draws that wait for nothing any more, and those that have waited too long as they stand.

        Storage may hang, clients should not.
        """
        self._settle_all(now_s)
        overdue = [d for d in self._draws if now_s - d.since_s > LONGEST_WAIT_S and not self._epochs.planned(d.key)]
        self._draws = [draw for draw in self._draws if draw not in overdue]
        for draw in overdue:
            self._answer(draw, now_s)

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
                {"run": run, "epoch": epoch, "drawn": state.drawn, "samples": self._samples, "start": state.start}
                for (run, epoch), state in sorted(self._epochs, key=lambda item: item[0])
                if state.begun
            ],
        }

    # -- steps -------------------------------------------------------------------------------------------------------

    def _room_to_keep(self, order: Order) -> int:
        """Pages that kept samples and an epoch's samples of this order may take together."""
        pages = self._arena.count - 1
        if int(self._residents.pages_of.sum(dtype=np.int64)) <= pages:
            return pages  # all fits, and nothing will ever have to be read ahead
        pages -= min(pages // AHEAD_SHARE, AHEAD_MOST // self._arena.page)
        mean = float(self._residents.pages_of.mean())
        others = self._epochs.orders() - {order}
        return pages - round(sum(other.mapping.groups * self._chunk_size * mean for other in others))

    def _busy(self) -> set[Key]:
        """Epochs with draws that wait."""
        return {draw.key for draw in self._draws}

    def _most_urgent(self) -> Epoch | None:
        """The epoch whose next read is needed in the fewest draws."""
        best, least = None, None
        for (run, number), state in self._epochs:
            if state.next_read is None:
                continue
            behind = self._epochs.get((run, number - 1))
            before = self._samples - behind.start - behind.drawn if behind is not None and not state.begun else 0
            lead = before + state.deadline() - state.start - state.drawn
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
        if not self.counters.reads % RELEASE_EVERY:
            self._index.release_rows()
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

    def _settle_all(self, now_s: float) -> bool:
        """Answer the draws that wait for nothing; whether there were any."""
        before = len(self._draws)
        self._draws = [draw for draw in self._draws if not self._settle(draw, now_s)]
        return len(self._draws) < before

    def _settle(self, draw: _Draw, now_s: float) -> bool:
        """Answer a draw if nothing that it waits for is still to come."""
        epoch = self._epochs.get(draw.key)
        if epoch is None or epoch.due[epoch.plan.sample_of[draw.positions]].any():
            return False
        self._answer(draw, now_s)
        return True

    def _answer(self, draw: _Draw, now_s: float) -> None:
        epoch = self._epochs.get(draw.key)
        assert epoch is not None  # nobody is answered before its plan is made
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        epoch.due[places] = False
        epoch.note_asked(draw.positions, now_s)
        epoch.drawn += len(places)
        drawn_here = (self._samples - epoch.start) * len(epoch.ranks) / epoch.replicas
        if epoch.begun and 2 * epoch.drawn >= drawn_here:
            self._epochs.want((draw.key[0], draw.key[1] + 1))
        present = self._residents.present(places)
        if (np.diff(draw.positions) <= 0).any():  # what is asked for twice is in memory once
            first = np.unique(places, return_index=True)[1]
            present &= np.isin(np.arange(len(places)), first)
        here = places[present]
        self._residents.refer(here[~epoch.held[here]])
        epoch.held[here] = False
        counts, pages = self._residents.chains(here)
        state = present.astype(np.uint8)
        state[present] += self._residents.checked(here)
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(draw.client, here, now_s)
        self._answers.append(Answer(draw.client, self._last_lease, places, state, counts, pages))
        self.counters.from_memory += len(here)
        self.counters.exact += len(places) - len(here)
        self.counters.wait_s += now_s - draw.since_s

    def _give_up_skipped(self) -> bool:
        """Free what lies before the positions that are asked for; whether there was any."""
        found, mean = False, float(self._residents.pages_of.mean())
        slack = min(SKIP_SLACK, int(self._arena.count / mean / 2))
        for key, epoch in self._epochs:
            waiting = [draw.positions for draw in self._draws if draw.key == key]
            if waiting:
                before = epoch.skipped_before(waiting) - slack * epoch.replicas
                held = epoch.give_up_before(max(before, epoch.start))
                self._residents.let_go(held)
                found = found or bool(len(held))
        return found
