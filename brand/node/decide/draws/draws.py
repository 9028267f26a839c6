"""When is a draw answered, and with which samples?

A draw waits as long as a read or another node will deliver its samples, or a decode worker will decode them. If that
takes too long, the server answers it with the samples in memory, and the client reads the missing samples directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError, UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.counters import DrawCounters
from brand.node.decide.state.epoch import readable
from brand.node.decide.state.epoch_table import ActiveEpoch, Cause, Draw, Key
from brand.node.decide.state.features import NOTHING, Decodes
from brand.node.decide.state.instructions import DrawAnswer
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Leases, Residents
from brand.node.wire.draw_messages import Lease, repeat
from brand.node.wire.drawing import Drawer
from brand.node.wire.messages import PREPARED
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs

Places = NDArray[np.int64]

LONGEST_WAIT_S: Final = 30.0
"""Seconds after which a server answers a draw with the samples in memory. Storage may hang, clients should not."""


class Draws(Reprs, shows="waiting _answers leases"):
    """The draws of the clients of one node. Draws that wait belong to their epochs (`EpochEntry.draws`).

    `decodes` decodes samples for them. None if clients decode.
    """

    def __init__(
        self, residents: Residents, epochs: Epochs, members: Members, counters: DrawCounters, decodes: Decodes | None
    ) -> None:
        self._residents, self._epochs, self._features = residents, epochs, epochs.features
        self._members, self._counters, self._decodes = members, counters, decodes
        self.leases = Leases(residents, None if decodes is None else decodes.memory)
        self._answers: deque[DrawAnswer] = deque()
        self._last = 0

    @property
    def waiting(self) -> list[Draw]:
        """Draws that are not answered yet, in the order of arrival."""
        return self._epochs.lives.draws()

    def ask(self, client: ClientNumber, key: Key, positions: Places, now_s: float, drawer: Drawer | None) -> None:
        """Add a draw: a client asks for positions of an epoch. `answers` returns the answer. Raises `UsageError`.

        `drawer` is the process of the client, if it is known. The epoch's account then records its draws.
        """
        draws = self._epochs.runs[key[0]].order.draws
        if not len(positions) or positions.min() < 0 or positions.max() >= draws:
            raise UsageError(f"positions must be 0 to {draws - 1:,}")
        if any(draw.client == client for draw in self.waiting):
            raise UsageError("this client already waits for an answer")
        self.leases.check(client)
        self._epochs.runs[key[0]].conduct.check()
        self._features.ask(key, positions, now_s)
        entry = self._epochs.expect(key, int(positions.min()))
        self._last += 1
        draw = Draw(self._last, client, key, positions, now_s, drawer)
        self._counters.add_drawn(len(positions))
        if not self._settle(draw, now_s):
            self._counters.add_waiting(len(positions))
            entry.draws.append(draw)

    # -- clients take samples from memory -----------------------------------------------------------------------------
    # A client that finds a cached sample in the directory copies it without a request, and reports it afterwards
    # (`brand.node.client.direct_hits`). It knows the samples at its positions from `places`.

    def places(self, key: Key, first: int, most: int) -> NDArray[np.int32]:
        """Return the samples at positions of an epoch from `first` on, at most `most`, for clients that take samples.

        Returns none if the epoch is not active, or if its job shares reads with other jobs.
        """
        live = self._epochs.get(key)
        if live is None or live.epoch.plan.shares:
            return np.empty(0, np.int32)
        return live.epoch.places_from(first, most).astype(np.int32)

    def places_at(self, key: Key, positions: Places) -> Places:
        """Return the samples at these positions of an epoch; none if it is not active or does not know them.

        Raises `ProtocolError`.
        """
        if positions.min() < 0 or positions.max() >= self._epochs.runs[key[0]].order.draws:
            raise ProtocolError("positions that the epoch does not have")
        live = self._deciding(key, positions)
        return np.empty(0, np.int64) if live is None else live.epoch.plan.sample_of[positions].astype(np.int64)

    def _deciding(self, key: Key, positions: Places) -> ActiveEpoch | None:
        """Return an epoch if it is active and knows the samples at these positions."""
        live = self._epochs.get(key)
        return live if live is not None and live.epoch.decides(positions) else None

    def record_direct(self, key: Key, positions: Places, right: Places, now_s: float, drawer: Drawer | None) -> None:
        """Record the samples that a client has taken directly at these positions. `right`: places with right checksums.

        Raises `UsageError`, `ProtocolError`.
        """
        run, places = self._epochs.runs[key[0]], self.places_at(key, positions)
        live = self._deciding(key, positions)
        if repeat(positions) or (live is not None and live.epoch.plan.shares):
            raise ProtocolError("positions that a client cannot have taken itself")
        run.conduct.check()
        self._residents.mark_checked(right)
        self._counters.add_taken(len(positions))
        if live is None:  # it was dropped, and the client's next draw begins it again; or it is not ready yet
            self._epochs.lives[key].note_unaccounted()
            run.add_drawn(len(positions))
            return
        self._features.ask(key, positions, now_s)
        last = live.last_takes(places, run.copies)
        held = live.epoch.deliver(self._members.node, places[last])
        self._residents.let_go(places[last][held])
        self._note(key, live, positions, last, now_s, drawer, asked=False)

    def _note(
        self,
        key: Key,
        live: ActiveEpoch,
        positions: Places,
        last: NDArray[np.bool_],
        now_s: float,
        drawer: Drawer | None,
        *,
        asked: bool,
    ) -> None:
        """Record in its epoch and its run that a rank has the samples at these positions (`Account.note`).

        `last`: a mask of those that no other rank of its group draws any more.
        """
        (number, epoch_number), epoch = key, live.epoch
        places = epoch.plan.sample_of[positions[last]]
        epoch.progress.add_drawn(epoch.division.rank_of(int(positions[0])), positions, len(places))
        self._epochs.pacing.beat(number, len(places), now_s)
        self._features.on_drawn(key)
        run = self._epochs.runs[number]
        run.add_drawn(len(places))
        run.add_served(len(readable(epoch, places)))
        if run.conduct.note(live.account, drawer, positions, asked=asked):
            live.judge(run.conduct, epoch_number)
        if live.begun and epoch.progress.half_done:
            self._epochs.want((number, epoch_number + 1))  # to be read ahead
            self._epochs.runs.check_buffered(number, epoch_number, epoch.progress)

    # -- draws that wait ---------------------------------------------------------------------------------------------

    def on_client_gone(self, client: ClientNumber) -> None:
        """Drop the draws and leases of a client that has disconnected."""
        for draw in [draw for draw in self.waiting if draw.client == client]:
            self._remove(draw)
            live = self._epochs.get(draw.key)
            if live is not None:
                live.account.give_up()
        self.leases.left(client)

    def answers(self) -> Iterator[DrawAnswer]:
        while self._answers:
            yield self._answers.popleft()

    def settle(self, now_s: float) -> bool:
        """Answer the draws that wait for nothing. Return whether there were any."""
        done = [draw for draw in self.waiting if self._settle(draw, now_s)]
        for draw in done:
            self._remove(draw)
        return bool(done)

    def tend(self, now_s: float) -> bool:
        """Ask other nodes for samples that have not arrived. Return whether a node was asked."""
        asked = False
        for draw in self.waiting:
            live = self._epochs.get(draw.key)
            if live is not None and live.epoch.decides(draw.positions):
                asked |= self._features.chase(live.epoch, draw, now_s)
        return asked

    def end_overdue(self, now_s: float) -> bool:
        """Answer draws that have waited too long with the samples in memory. Return whether there were any."""
        answered = False
        for draw in self.waiting:
            live = self._epochs.get(draw.key)
            if now_s - draw.since_s <= LONGEST_WAIT_S or live is None or not self._features.is_committed(draw.key):
                continue
            if live.epoch.decides(draw.positions) and not self._features.is_held_back(draw, now_s):
                self.answer(draw, now_s)
                answered = True
        return answered

    def first_stuck(self, now_s: float) -> Draw | None:
        """Return the oldest draw that waits for a read of this node, and for no other job."""
        for draw in self.waiting:
            live = self._epochs.get(draw.key)
            if live is None or not live.epoch.waits_for_reads(draw.positions):
                continue
            if self._agreed(draw, live, now_s) and not self._features.is_held_back(draw, now_s):
                return draw
        return None

    def answer(self, draw: Draw, now_s: float) -> None:
        """Answer a draw that waits with the samples in memory."""
        live = self._epochs.get(draw.key)
        assert live is not None  # no draw is answered before its plan is made
        self._remove(draw)
        self._answer(draw, live, now_s)

    def answer_stuck(self, draw: Draw, now_s: float) -> None:
        """Answer a draw that waits for reads for which memory has no space."""
        live = self._epochs.get(draw.key)
        assert live is not None  # as in `answer`
        missing = live.epoch.states.waited_for(live.epoch.plan.sample_of[draw.positions])
        live.epoch.progress.add_unbuffered(int(missing.sum()))
        self.answer(draw, now_s)

    def _remove(self, draw: Draw) -> None:
        self._epochs.lives[draw.key].draws.remove(draw)

    def _settle(self, draw: Draw, now_s: float) -> bool:
        """Answer a draw if it waits for nothing. Return whether it was answered."""
        cause = self._waits_for(draw, now_s)
        if cause is not None:
            draw.wait_for(cause, now_s)
            return False
        live = self._epochs.get(draw.key)
        assert live is not None
        self._answer(draw, live, now_s)
        return True

    def _waits_for(self, draw: Draw, now_s: float) -> Cause | None:
        """Return the cause of a draw's wait. None if it waits for nothing."""
        live = self._epochs.get(draw.key)
        if live is None or not live.epoch.decides(draw.positions):
            return "server"
        epoch = live.epoch
        if draw.claim_requests(epoch, now_s):
            self._features.request(epoch, draw.positions)
        sample_of = epoch.plan.sample_of
        if draw.waits_at >= 0 and epoch.states.waited_for(sample_of[draw.waits_at : draw.waits_at + 1]).all():
            return draw.waits_for  # called in each step for each waiting draw: too often to scan all positions
        places = sample_of[draw.positions]
        to_come = np.flatnonzero(epoch.states.waited_for(places))
        if len(to_come):
            draw.note_missing(int(draw.positions[to_come[-1]]))
            own = self._members.nodes == 1 or epoch.owner_of(places[to_come[-1:]])[0] == self._members.node
            return "storage" if own else "node"
        if not self._agreed(draw, live, now_s) or self._features.is_held_back(draw, now_s):
            return "server"
        if self._decodes is not None and self._decodes.waits(draw.client, draw.key[0], places):
            return "decode"
        return None

    def _agreed(self, draw: Draw, live: ActiveEpoch, now_s: float) -> bool:
        """Return whether all ranks have begun the epoch at the same position, or their time for it is over.

        If ranks begin at different positions, the server refuses the run before that time is over.
        """
        if not live.agreed:
            agreed = self._features.is_agreed(draw, now_s)
            if agreed and self._features.is_committed(draw.key):
                live.mark_agreed()
        return live.agreed

    def _answer(self, draw: Draw, live: ActiveEpoch, now_s: float) -> None:
        epoch = live.epoch
        draw.wait_for(None, now_s)
        places = epoch.plan.sample_of[draw.positions].astype(np.int64)
        present = self._residents.present(places)
        if repeat(draw.positions):  # a repeated position has its sample in memory only once
            first = np.unique(places, return_index=True)[1]
            present &= np.isin(np.arange(len(places)), first)
        here = places[present]
        self._residents.left.miss(places[~present])
        last = live.last_takes(places, self._epochs.runs[draw.key[0]].copies)
        handed_over = np.zeros(len(places), np.bool_)
        handed_over[last] = epoch.deliver(self._members.node, places[last])
        self._residents.refer(here[~handed_over[present]])
        self._note(draw.key, live, draw.positions, last, now_s, draw.drawer, asked=True)
        counts, pages = self._residents.chains(here)
        state = present.astype(np.uint8)
        state[present] += self._residents.checked(here)
        taken = NOTHING if self._decodes is None else self._decodes.take(draw, epoch, here)
        if len(taken.chains):
            state[present] |= np.where(taken.prepared, PREPARED, 0).astype(np.uint8)
        number = self.leases.give(draw.client, here, (counts, pages), now_s, taken.shelved)
        joins = self._features.answer(draw.key)
        answer = Lease(number, places, state, counts, pages, taken.chains, joins, draw.held)
        self._answers.append(DrawAnswer(draw.client, answer))
        self._counters.add_answered(len(here), len(places) - len(here), now_s - draw.since_s, draw.held)
