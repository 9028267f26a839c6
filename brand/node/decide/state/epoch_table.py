"""The life of each epoch of each run: its stages, and the transitions between them.

                  EpochDropped  PlanWanted    PlanUnderWay  PlanReady     ActiveEpoch
    want_plan     PlanWanted    begin         begin         begin                       it is to be drawn or read ahead
    hand_out                    PlanUnderWay                                            the planner makes its plan
    set_plan      PlanReady     PlanReady     PlanReady                                 it waits for ranks to begin
    build                                                   building                    its samples and reads are found
    activate                                                ActiveEpoch                 its samples are read and drawn
    discard_plan                              PlanWanted    PlanWanted    PlanWanted    its joins have changed
    drop          EpochDropped  EpochDropped  EpochDropped  EpochDropped  EpochDropped  its memory is freed

`begin`: only the way in which ranks begin the epoch changes. `building`: only the epoch under construction changes. In
an empty cell, nothing happens. The next draw of a dropped epoch begins it again. An epoch's entry also has two lists
that outlast its stages: the draws that clients wait for, and the nodes that can take its samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.account import Account, Conduct
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.runs import EpochStart
from brand.node.decide.state.takes import Takes
from brand.node.wire.draw_messages import NOT_HELD, Held
from brand.node.wire.drawing import Drawer
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.node.wire.numbers import Key as Key
from brand.orders.base.plan import EpochPlan, PlanWindows
from brand.reprs import Reprs

PART: Final = 1 << 18
"""About the number of samples of one step of building an epoch, which takes a few milliseconds."""
Cause = Literal["storage", "node", "decode", "server"]
"""Cause of a draw's wait: a field of `Held`."""


@dataclass(eq=False, slots=True)
class Draw:
    """Positions of an epoch that a client waits for."""

    number: int
    """Number of the draw, counted in the order of arrival."""
    client: ClientNumber
    key: Key
    positions: NDArray[np.int64]
    since_s: float
    drawer: Drawer | None = None
    """The process of the client, if it is known."""
    asked_of: int = 0
    """Number of the epoch whose planned requests for this draw have been sent. 0 if none have."""
    asked_s: float = 0.0
    """Time at which these requests were sent. From then on, other nodes can know that the draw waits."""
    waits_at: int = -1
    """The last of its positions whose sample was missing at the last check. -1 if the server has not checked yet."""
    waits_for: Cause | None = None
    """Current cause of the wait. None if the draw has not waited yet."""
    held: Held = NOT_HELD
    """Earlier waiting times by cause, up to `held_s`."""
    held_s: float = 0.0

    def note_missing(self, waits_at: int) -> None:
        self.waits_at = waits_at

    def wait_for(self, cause: Cause | None, now_s: float) -> None:
        """Record the cause of the wait from now on. None if the draw waits no longer."""
        if cause == self.waits_for:
            return
        if self.waits_for is not None:
            so_far = getattr(self.held, self.waits_for)
            self.held = self.held._replace(**{self.waits_for: so_far + now_s - self.held_s})
        self.waits_for, self.held_s = cause, now_s

    def claim_requests(self, epoch: Epoch, now_s: float) -> bool:
        """Return whether to send the planned requests of an epoch for this draw. They are sent once."""
        if self.asked_of == epoch.number:
            return False
        self.asked_of, self.asked_s = epoch.number, now_s
        return True


@dataclass(frozen=True, slots=True)
class EpochDropped:
    """The epoch has no samples here: it is new, or it was dropped to free memory for other runs."""


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """The plan of the epoch has to be made."""

    begin: EpochStart | None
    """How ranks have begun the epoch. None if no rank has."""


@dataclass(frozen=True, slots=True)
class PlanUnderWay:
    """The planner makes the plan of the epoch."""

    begin: EpochStart | None
    """How ranks have begun the epoch. None if no rank has."""


@dataclass(frozen=True, slots=True)
class PlanReady:
    """The plan is made, and the epoch waits for ranks that have not begun it."""

    plan: EpochPlan | PlanWindows
    read_of: NDArray[Any] | None
    begin: EpochStart
    since_s: float | None = None
    """Start of the wait. None until the first look at the clock."""
    building: tuple[Epoch, Iterator[int]] | None = None
    """The epoch under construction, and the remaining work, which yields numbers of samples."""


@dataclass(slots=True)
class ActiveEpoch:
    """Ranks draw the epoch, or the node reads it ahead."""

    epoch: Epoch
    account: Account
    begin: EpochStart
    agreed: bool = False
    """Whether all ranks have begun the epoch in the same way, or their time for it is over."""
    takes: Takes | None = None
    """Counts how many ranks of a group have drawn each sample. None if each rank has positions of its own."""

    @property
    def begun(self) -> int:
        """Number of times that ranks have begun the epoch. 0 if it is read ahead."""
        return self.begin.times

    def mark_begun(self, times: int) -> None:
        """Note that ranks begin the epoch as it was read ahead."""
        self.begin = replace(self.begin, times=times)

    def note_start(self, start: int) -> None:
        """Note the position at which ranks begin. If it differs between ranks, the account cannot be judged."""
        self.begin = replace(self.begin, whole=self.begin.whole and start == self.epoch.division.start)

    def judge(self, conduct: Conduct, epoch: int) -> None:
        """Refuse the next draws of the training processes if they left out positions of the epoch."""
        if self.begun and self.begin.whole:
            conduct.judge(self.account, epoch)

    def last_takes(self, places: NDArray[np.int64], copies: int) -> NDArray[np.bool_]:
        """Record a draw of these samples. Return a mask of those that no rank of the group draws after it."""
        if copies == 1:
            return np.ones(len(places), np.bool_)
        if self.takes is None:
            self.takes = Takes(self.epoch.plan.mapping.samples, copies)
        return self.takes.note(places)

    def mark_agreed(self) -> None:
        self.agreed = True


Stage = EpochDropped | PlanWanted | PlanUnderWay | PlanReady | ActiveEpoch


class SampleTaker(Protocol):
    """A node that can take samples of an epoch."""

    def start(self, epoch: Epoch) -> None:
        """Send samples of an active epoch."""

    def ask(self, epoch: Epoch | None, positions: NDArray[np.int64]) -> None:
        """Note that the node asks for positions of an epoch. `epoch` is None if its plan is not made yet."""


class EpochEntry(Reprs, shows="stage draws _takers"):
    """One epoch of one run, from its first mention to its last."""

    def __init__(self) -> None:
        self.stage: Stage = EpochDropped()
        self.draws: list[Draw] = []
        """Draws that wait, in the order of arrival."""
        self._takers: dict[NodeNumber, SampleTaker] = {}
        """Nodes that can take samples of the epoch."""
        self.unaccounted = False
        """Whether the account lacks samples that were fetched: while the epoch was not active, or before a drop."""

    @property
    def live(self) -> ActiveEpoch | None:
        return self.stage if isinstance(self.stage, ActiveEpoch) else None

    @property
    def planned(self) -> bool:
        """Whether the plan is wanted or being made, or the epoch waits for ranks."""
        return isinstance(self.stage, PlanWanted | PlanUnderWay | PlanReady)

    @property
    def is_building(self) -> bool:
        """Whether the epoch is under construction for exactly the ranks that have begun it."""
        return isinstance(self.stage, PlanReady) and self.stage.building is not None

    @property
    def begin(self) -> EpochStart | None:
        """How ranks have begun the epoch before it is active. None if no rank has."""
        begin = self.stage.begin if isinstance(self.stage, PlanWanted | PlanUnderWay | PlanReady) else None
        return begin if begin is not None and begin.times else None

    @property
    def last_begin(self) -> EpochStart | None:
        """How ranks have begun the epoch last, whether it is active or not. None if none has, or if it was dropped."""
        return self.begin if self.live is None else self.live.begin

    @property
    def wanted_begin(self) -> EpochStart | None:
        """How the epoch will begin once its plan is made. None if it is only read ahead."""
        return self.stage.begin if isinstance(self.stage, PlanWanted | PlanUnderWay) else None

    def want_plan(self, begin: EpochStart | None = None) -> None:
        """Want a plan if there is none. `begin`: how ranks have begun the epoch."""
        match self.stage:
            case EpochDropped():
                self.stage = PlanWanted(begin)
            case PlanReady() if begin is not None:
                self.stage = replace(self.stage, begin=begin, building=None)
            case PlanWanted() | PlanUnderWay() if begin is not None:
                self.stage = replace(self.stage, begin=begin)

    def hand_out(self) -> None:
        assert isinstance(self.stage, PlanWanted)
        self.stage = PlanUnderWay(self.stage.begin)

    def set_plan(self, plan: EpochPlan | PlanWindows, read_of: NDArray[Any] | None, begin: EpochStart) -> None:
        self.stage = PlanReady(plan, read_of, begin)

    def waiting_since(self, now_s: float) -> float:
        """Return the time since which a planned epoch waits for ranks: the time of the first call."""
        assert isinstance(self.stage, PlanReady)
        if self.stage.since_s is None:
            self.stage = replace(self.stage, since_s=now_s)
            return now_s
        return self.stage.since_s

    def build(self, epoch: Epoch, work: Iterator[int]) -> None:
        """Begin to build an epoch from the plan. `work` finds its samples and reads."""
        assert isinstance(self.stage, PlanReady)
        self.stage = replace(self.stage, building=(epoch, work))

    def build_more(self) -> tuple[Epoch, EpochStart] | None:
        """Do one step of the work. Return the epoch and how it begins if that was all."""
        assert isinstance(self.stage, PlanReady)
        assert self.stage.building is not None
        (epoch, work), done = self.stage.building, 0
        for samples in work:
            done += samples
            if done >= PART:
                return None
        return epoch, self.stage.begin

    def activate(self, live: ActiveEpoch) -> None:
        """Make the epoch active. The nodes that can take its samples get them from now on."""
        self.stage = live
        for taker in self._takers.values():
            taker.start(live.epoch)

    def discard_plan(self) -> NDArray[Any]:
        """Discard the plan, and request another. Return the places that were held for it."""
        held = self._release()
        if isinstance(self.stage, PlanUnderWay | PlanReady | ActiveEpoch):
            self.stage = PlanWanted(self.stage.begin)
        return held

    def drop(self, *, again: bool = False) -> NDArray[Any]:
        """Drop the epoch to free its memory. Return the places that were held for it.

        `again`: its ranks will fetch all its samples once more, so that the next account lacks none.
        """
        drawn = self.live is not None and self.live.epoch.progress.drawn > 0
        self.unaccounted = not again and (self.unaccounted or drawn)
        held, self.stage = self._release(), EpochDropped()
        return held

    def _release(self) -> NDArray[Any]:
        return np.arange(0) if self.live is None else self.live.epoch.drop()

    def note_unaccounted(self) -> None:
        self.unaccounted = True

    def leave_unjudged(self) -> None:
        """Judge no account of the epoch, because draws of it were answered before, by this server or another one."""
        self.unaccounted = True
        if self.live is not None:
            self.live.account.give_up()

    def take(self, node: NodeNumber, taker: SampleTaker) -> None:
        """Add a node that can take samples."""
        self._takers[node] = taker
        if self.live is not None:
            taker.start(self.live.epoch)

    def ask(self, node: NodeNumber, positions: NDArray[np.int64]) -> None:
        """Note that a node asks for positions. Does nothing if the node cannot take samples."""
        taker = self._takers.get(node)
        if taker is not None:
            taker.ask(None if self.live is None else self.live.epoch, positions)

    def forget(self, node: NodeNumber) -> NDArray[Any]:
        """Remove a node that no longer needs the epoch. Return the places that were held for its ranks."""
        self._takers.pop(node, None)
        held: NDArray[Any] = np.arange(0) if self.live is None else self.live.epoch.forget(node)
        return held


class EpochTable(Reprs, shows="_entries"):
    """The entries of all epochs, by run and epoch."""

    def __init__(self) -> None:
        self._entries: dict[Key, EpochEntry] = {}
        """Sorted by run and epoch."""

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._entries))

    def __getitem__(self, key: Key) -> EpochEntry:
        """Return the entry of an epoch. Creates it if it is missing."""
        entry = self._entries.get(key)
        if entry is None:
            entry = EpochEntry()
            self._entries = dict(sorted([*self._entries.items(), (key, entry)], key=lambda item: item[0]))
        return entry

    def get(self, key: Key) -> EpochEntry | None:
        return self._entries.get(key)

    def items(self) -> list[tuple[Key, EpochEntry]]:
        return list(self._entries.items())

    def live(self) -> list[tuple[Key, ActiveEpoch]]:
        return [(key, entry.stage) for key, entry in self._entries.items() if isinstance(entry.stage, ActiveEpoch)]

    def waited_for(self, samples: int) -> NDArray[np.bool_]:
        """Return a mask of the `samples` samples that active epochs still wait for, shape (samples,)."""
        found = np.zeros(samples, np.bool_)
        for _, live in self.live():
            found |= live.epoch.states.waited_for(slice(None))
        return found

    def draws(self) -> list[Draw]:
        """Return all draws that wait, in the order of arrival."""
        waiting = [draw for entry in self._entries.values() for draw in entry.draws]
        return sorted(waiting, key=lambda draw: draw.number) if len(waiting) > 1 else waiting

    def remove(self, key: Key) -> NDArray[Any]:
        """Remove an epoch. Return the places that were held for it."""
        return self._entries.pop(key).drop()
