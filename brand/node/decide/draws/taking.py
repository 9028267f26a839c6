"""How do epochs and runs change when ranks take samples: by an answered draw, or directly from the memory cache?

A client that finds a cached sample in the directory copies it without a request (`brand.node.client.direct_hits`), and
reports it to the server afterwards. It needs to know the samples at its positions. The server sends them as soon as the
epoch is active.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.counters import DrawCounters
from brand.node.decide.state.epoch import readable
from brand.node.decide.state.lives import ActiveEpoch, Key
from brand.node.memory.residents import Residents
from brand.node.wire.draw_messages import repeat
from brand.node.wire.drawing import Drawer


class DirectHitLog:
    """Records taken samples in their epochs and runs."""

    def __init__(self, residents: Residents, epochs: Epochs, counters: DrawCounters) -> None:
        self._residents, self._epochs, self._counters = residents, epochs, counters

    def __repr__(self) -> str:
        return f"DirectHitLog({self._counters.direct_hits:,} samples were taken without being asked for)"

    def places(self, key: Key, first: int, most: int) -> NDArray[np.int32]:
        """Return the samples at positions of an epoch, from `first` on, at most `most`, for clients that take
        samples directly.

        Returns none if the epoch is not active, or if its job shares reads with other jobs.
        """
        live = self._epochs.get(key)
        if live is None or live.epoch.plan.shares:
            return np.empty(0, np.int32)
        return live.epoch.plan.sample_of[first : first + most].astype(np.int32)

    def places_at(self, key: Key, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at these positions of an epoch. None of them if it is not active. Raises
        `ProtocolError`.
        """
        if positions.min() < 0 or positions.max() >= self._epochs.runs[key[0]].order.draws:
            raise ProtocolError("positions that the epoch does not have")
        live = self._epochs.get(key)
        return np.empty(0, np.int64) if live is None else live.epoch.plan.sample_of[positions].astype(np.int64)

    def record_direct(
        self, key: Key, positions: NDArray[np.int64], right: NDArray[np.int64], now_s: float, drawer: Drawer | None
    ) -> None:
        """Record the samples that a client has taken directly at these positions. `right`: places with right checksums.

        Raises `UsageError`, `ProtocolError`.
        """
        run, live, places = self._epochs.runs[key[0]], self._epochs.get(key), self.places_at(key, positions)
        if repeat(positions) or (live is not None and live.epoch.plan.shares):
            raise ProtocolError("positions that a client cannot have taken itself")
        run.conduct.check()
        self._residents.mark_checked(right)
        self._counters.add_taken(len(positions))
        if live is None:  # it was dropped meanwhile; the client's next draw begins it again
            run.add_drawn(len(positions))
            return
        self._epochs.features.ask(key, positions, now_s)
        held = live.epoch.states.release(places)
        self._residents.let_go(places[held])
        self.note(key, live, positions, places, now_s, drawer)

    def note(
        self,
        key: Key,
        live: ActiveEpoch,
        positions: NDArray[np.int64],
        places: NDArray[np.int64],
        now_s: float,
        drawer: Drawer | None,
    ) -> None:
        """Record in its epoch and its run that a rank has the samples at these positions."""
        (number, epoch_number), epoch = key, live.epoch
        epoch.progress.add_drawn(epoch.division.rank_of(int(positions[0])), positions)
        self._epochs.pacing.pulse(number).beat(len(places), now_s)
        self._epochs.features.on_drawn(key)
        run = self._epochs.runs[number]
        run.add_drawn(len(places))
        run.add_served(len(readable(epoch, places)))
        if run.conduct.note(live.account, drawer, positions):
            live.judge(run.conduct, epoch_number)
        if live.begun and epoch.progress.half_done:
            self._epochs.want((number, epoch_number + 1))  # to be read ahead
