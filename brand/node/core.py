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
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.account import Drawer
from brand.node.allocator import Allocator
from brand.node.counters import Counters
from brand.node.epoch import Epoch
from brand.node.epochs import Epochs, Key
from brand.node.keeping import AHEAD_SHARE, Keeping
from brand.node.leases import Leases
from brand.node.members import ALONE, Members
from brand.node.page_memory import PageMemory
from brand.node.remote import SILENCE_S, Remote
from brand.node.residents import Residents
from brand.node.runs import Begin
from brand.node.tasks import Answer, Choice, Draw, Read, Rows, rows_of
from brand.protocol.plan import Plan

LARGEST_SHARE: Final = 4
"""A sample larger than one part in so many of the arena is never held."""
IDLE_S: Final = 2.0
"""A run that nobody has drawn from for so long makes room for others."""
SKIP_SLACK: Final = 8192
"""Positions so far behind those that are asked for were skipped, or half of what memory holds; nearer ones may be with
a slow worker."""
LONGEST_WAIT_S: Final = 30.0
"""After so long a draw is answered as it stands."""


class Core:
    """The state of a node server."""

    def __init__(
        self,
        index: Rows,
        allocator: Allocator,
        memory: PageMemory,
        pages_of: NDArray[np.uint32],
        chunk_size: int,
        members: Members = ALONE,
        remote_pages: int = 0,
    ) -> None:
        self._index, self._allocator, self._memory = index, allocator, memory
        self._samples, self._chunk_size = len(pages_of), chunk_size
        self._members, self.remote_pages = members, remote_pages
        self._residents = Residents(allocator, pages_of, members.nodes)
        largest = max(1, (allocator.count - 1) // LARGEST_SHARE)
        sent = Remote.largest_sent(remote_pages, members, allocator.page)
        self.counters = Counters()
        self.epochs = Epochs(self._residents, largest, chunk_size, members, sent)
        self.remote = Remote(
            index, allocator, memory, self._residents, self.epochs, members, remote_pages, self.counters
        )
        """What this node sends to others, and gets from them."""
        self._draws: list[Draw] = []
        self._leases = Leases(self._residents)
        self._answers: deque[Answer] = deque()
        self._keeping = Keeping(allocator, self._residents, self.epochs, chunk_size, remote_pages)
        self.reading = 0
        """Reads on their way."""
        self._no_room = False

    # -- what clients want -------------------------------------------------------------------------------------------

    def begin(
        self,
        client: int,
        key: Key,
        position: int,
        rank: int,
        replicas: int,
        batch: int = 0,
        processes: int = 1,
        drawer: Drawer | None = None,
    ) -> None:
        """A rank, for which so many `processes` draw (`drawer` is this one), is about to draw from `position` on."""
        self.epochs.begin_here(client, key, position, (rank, replicas), batch, self._busy(), processes, drawer)

    def begin_elsewhere(self, client: int, key: Key, begin: Begin) -> None:
        """Another node says what its ranks are about to draw."""
        self.epochs.begin(client, key, begin, self._busy())

    def draw(
        self, client: int, key: Key, positions: NDArray[np.int64], now_s: float, drawer: Drawer | None = None
    ) -> None:
        """A client asks for positions of an epoch; the answer comes by `answers`. Raises `UsageError`.

        `drawer` is the process behind the client, where that is known: what it draws is accounted for.
        """
        if not len(positions) or positions.min() < 0 or positions.max() >= self._samples:
            raise UsageError(f"positions are 0 to {self._samples - 1:,}")
        if any(draw.client == client for draw in self._draws):
            raise UsageError("a second draw before the first is answered")
        self._leases.check(client)
        self.epochs.runs[key[0]].conduct.check()
        self.epochs.expect(key, int(positions.min()), self._busy())
        draw = Draw(client, key, positions, now_s, drawer)
        self.counters.draws += len(positions)
        if not self._settle(draw, now_s):
            self.counters.waited += len(positions)
            self._draws.append(draw)

    def release(self, client: int, lease: int, *, checked: bool) -> None:
        """A client has copied what it was given. Raises `UsageError` for a lease that it does not have."""
        self._leases.release(client, lease, checked=checked)

    def left(self, client: int) -> None:
        """A client is gone, in whatever way."""
        for draw in [draw for draw in self._draws if draw.client == client]:
            self._draws.remove(draw)
            self.epochs.give_up_account(draw.key)
        self._leases.left(client)
        self.epochs.left(client, self._busy())

    def forget(self, client: int, key: Key, node: int) -> None:
        """Another node has no use for an epoch any more."""
        self.epochs.forget(client, key, node, self._busy())

    def left_run(self, client: int, run: int) -> None:
        """A client has no use for a run any more."""
        self.epochs.left(client, self._busy(), run)

    # -- what has been finished --------------------------------------------------------------------------------------

    def plan_ready(self, key: Key, plan: Plan, read_of: NDArray[Any], now_s: float) -> None:
        """A plan is made."""
        self.epochs.plan_ready(key, plan, read_of)
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
            self._allocator.give_back(self._allocator.chains(read.heads[drop], residents.pages_of[places[drop]]))
        if not failed:
            residents.put(places[~twice], read.heads[~twice])
            residents.refer(places[twice])
            wanted = epoch.due[places] & (not epoch.dropped)  # or given up while the read was on its way
            epoch.held[places[wanted]] = True
            residents.let_go(places[~wanted])
        epoch.finish(places)
        self._settle_all(now_s)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def choice_wanted(self) -> Choice | None:
        """What is to be kept must be chosen anew; None where it need not."""
        return self._keeping.choice_wanted()

    def answers(self) -> Iterator[Answer]:
        """Answers to draws."""
        while self._answers:
            yield self._answers.popleft()

    def next_read(self) -> Read | None:
        """The read to start now; None where there is none or memory has no room for it."""
        self._no_room = False
        while (epoch := self._most_urgent()) is not None:
            number = epoch.next_read
            if number is None:
                return None
            held = epoch.plan.places_held(number)
            due = epoch.to_read(held)
            present = self._residents.present(due)
            ready, absent = due[present], due[~present]
            if len(ready):
                self._residents.refer(ready)
                epoch.due[ready], epoch.held[ready] = False, True
            if len(absent):
                needed = int(self._residents.pages_of[absent].sum())
                if needed <= self._allocator.free - self.remote.reserve():
                    span = epoch.plan.places_read(number)
                    rows = rows_of(self._index, *span, self._residents.pages_of, self._allocator.page)
                    if rows is not None:
                        epoch.advance(absent)
                        return self._read(epoch, number, absent, rows)
                    self.counters.failed_reads += 1
                elif needed < self._allocator.count - self.remote_pages:
                    self._no_room = True
                    return None
                epoch.due[absent] = False  # it will never fit, or the index cannot be read: exact reads will tell
            epoch.advance(held[:0])
        return None

    @property
    def stuck(self) -> bool:
        """Whether memory is full, and nothing is being read."""
        return self._no_room and not self.reading

    def unblock(self, now_s: float) -> bool:
        """Nothing more can be read and draws wait: make room, or answer the oldest as it stands; whether that was done.

        Room comes from runs that nobody draws from any more, from positions that were skipped, then from kept samples:
        more is asked for at a time than was foreseen.
        """
        if self._settle_all(now_s):
            return True
        stuck = next((draw for draw in self._draws if self._waits_for_reads(draw, now_s)), None)
        elsewhere = self._no_room and self.remote.waited_for
        if (stuck is None and not elsewhere) or self.reading or self._leases.fresh(now_s):
            return False
        share = self._allocator.count // AHEAD_SHARE
        made_room = (
            self.epochs.drop_idle(now_s - IDLE_S, self._busy())
            or self._give_up_skipped()
            or self._residents.keep_less(self._chunk_size, share)
        )
        if not made_room and stuck is not None:
            self._draws.remove(stuck)
            self._answer(stuck, now_s)
        return made_room or stuck is not None

    def answer_ready(self, now_s: float) -> None:
        """Answer draws that wait for nothing any more, and those that have waited too long as they stand.

        Storage may hang, clients should not.
        """
        self.epochs.tick(now_s)
        self._settle_all(now_s)
        for draw in self._draws:
            epoch = self.epochs.get(draw.key)
            if epoch is not None and self._members.nodes > 1:
                waited_s = now_s - draw.asked_s
                if self.remote.tend(epoch, draw.positions, waited_s, now_s):
                    self.epochs.drop_idle(now_s - IDLE_S, self._busy())  # theirs may fill what others have room for
        self._settle_all(now_s)
        overdue = [d for d in self._draws if now_s - d.since_s > LONGEST_WAIT_S and not self.epochs.planned(d.key)]
        self._draws = [draw for draw in self._draws if draw not in overdue]
        for draw in overdue:
            self._answer(draw, now_s)

    @property
    def waiting(self) -> Sequence[Draw]:
        """Draws that are not answered yet."""
        return self._draws

    def idle(self) -> bool:
        """Whether nobody waits, here or at another node."""
        return not self._draws and not self.remote.waited_for

    def facts(self, mean_bytes: float) -> dict[str, Any]:
        """Counters, memory by kind in bytes, and progress, as plain values."""
        page, leased = self._allocator.page, self._leases.places()
        used = self._allocator.count - 1 - self._allocator.free
        return {
            **self.counters.to_json(mean_bytes),
            "memory": {
                "limit": self._allocator.bytes,
                "used": used * page,
                "kept": self._residents.kept_pages * page,
                "leased": sum(int(self._residents.pages_of[p].sum()) for p in leased) * page,
                "free": self._allocator.free * page,
            },
            "reading": self.reading,
            "waiting": len(self._draws),
            "epochs": [
                {"run": run, "epoch": epoch, "drawn": state.drawn, "samples": self._samples, "start": state.start}
                for (run, epoch), state in sorted(self.epochs, key=lambda item: item[0])
                if state.begun
            ],
        }

    # -- steps -------------------------------------------------------------------------------------------------------

    def _busy(self) -> set[Key]:
        """Epochs with draws that wait."""
        return {draw.key for draw in self._draws}

    def _waits_for_reads(self, draw: Draw, now_s: float) -> bool:
        epoch = self.epochs.get(draw.key)
        return epoch is not None and self._agreed(draw, epoch, now_s) and epoch.waits_for_reads(draw.positions)

    def _most_urgent(self) -> Epoch | None:
        """The epoch whose next read is needed in the fewest draws."""
        best, least = None, None
        for (run, number), state in self.epochs:
            if state.next_read is None:
                continue
            behind = self.epochs.get((run, number - 1))
            before = self._samples - behind.start - behind.done if behind is not None and not state.begun else 0
            lead = before + state.deadline() - state.start - state.drawn - state.sent
            if least is None or lead < least:
                best, least = state, lead
        return best

    def _read(self, epoch: Epoch, number: int, absent: NDArray[Any], rows: NDArray[np.void]) -> Read:
        first, end = epoch.plan.places_read(number)
        held = np.zeros(end - first, np.bool_)
        held[absent - first] = True
        counts = self._residents.pages_of[absent]
        heads, pages = self._allocator.take(counts)
        self._memory.write_rows(heads, rows[held])
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
            vector=self._memory.vector(sizes, held, pages),
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

    def _settle(self, draw: Draw, now_s: float) -> bool:
        """Answer a draw if nothing that it waits for is still to come."""
        epoch = self.epochs.get(draw.key)
        if epoch is not None and draw.asked_of is not epoch:
            draw.asked_of, draw.asked_s = epoch, now_s
            self.remote.ask(epoch, draw.positions)
        if epoch is None or epoch.due[epoch.plan.sample_of[draw.positions]].any():
            return False
        if not self._agreed(draw, epoch, now_s):
            return False
        self._answer(draw, now_s)
        return True

    def _agreed(self, draw: Draw, epoch: Epoch, now_s: float) -> bool:
        """Whether all have begun the epoch at one position, or are not waited for. Else the run is refused by then."""
        if not epoch.agreed:
            limit_s = SILENCE_S if self.remote.gone else LONGEST_WAIT_S
            alone = self._members.nodes == 1 or now_s - draw.since_s > limit_s
            epoch.agreed = alone or self.epochs.agreed(draw.key)
        return epoch.agreed

    def _answer(self, draw: Draw, now_s: float) -> None:
        epoch = self.epochs.get(draw.key)
        assert epoch is not None  # nobody is answered before its plan is made
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        epoch.due[places] = False
        epoch.note_asked(draw.positions, now_s)
        self.epochs.note(draw.key, draw.drawer, draw.positions)
        epoch.drawn += len(places)
        if epoch.begun and 2 * epoch.done >= epoch.total:
            self.epochs.want((draw.key[0], draw.key[1] + 1))
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
        lease = self._leases.give(draw.client, here, now_s)
        self._answers.append(Answer(draw.client, lease, places, state, counts, pages))
        self.counters.from_memory += len(here)
        self.counters.exact += len(places) - len(here)
        self.counters.wait_s += now_s - draw.since_s

    def _give_up_skipped(self) -> bool:
        """Free what lies before the positions that are asked for; whether there was any."""
        found, mean = False, float(self._residents.pages_of.mean())
        slack = min(SKIP_SLACK, int(self._allocator.count / mean / 2))
        for key, epoch in self.epochs:
            waiting = [draw.positions for draw in self._draws if draw.key == key]
            if waiting:
                before = epoch.skipped_before(waiting) - slack * epoch.replicas
                held = epoch.give_up_before(max(before, epoch.start))
                self._residents.let_go(held)
                found = found or bool(len(held))
        return found
