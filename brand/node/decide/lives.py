"""Where in its life is each epoch of each run?

    Wanted    its plan is to be made               `wants`
    Planning  its plan is being made               `hand_out`
    Ready     ranks that are to begin are awaited  `is_planned`
    Live      it is drawn from, or read ahead      `starts`
    Dropped   it made room for other runs          `drops`; the next draw begins it anew

What waits for an epoch belongs to its life and outlasts the stages: the draws that clients wait for, and the nodes
that can take its samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.account import Account, Conduct
from brand.node.decide.epoch import Epoch
from brand.node.decide.runs import Beginning
from brand.node.decide.tasks import Draw
from brand.protocol.plan import Plan

Key = tuple[int, int]
"""Number of a run, and an epoch."""

MAX_EARLY: Final = 1 << 20
"""Positions that a node may have asked for before there is a plan."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Its plan is to be made."""

    begin: Beginning | None
    """How ranks have begun it; None where none has."""


@dataclass(frozen=True, slots=True)
class Planning:
    """Its plan is being made."""

    begin: Beginning | None
    """As for `Wanted`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Its plan is made, and ranks that are still to begin are waited for."""

    plan: Plan
    read_of: NDArray[Any] | None
    begin: Beginning
    since_s: float | None = None
    """None until the clock has been read."""


@dataclass(slots=True)
class Live:
    """It is drawn from, or read ahead."""

    epoch: Epoch
    account: Account
    begin: Beginning
    agreed: bool = False
    """Whether all ranks are known to have begun it in the same way, or were waited for long enough."""

    @property
    def begun(self) -> int:
        """How often ranks have begun it; 0: it is read ahead."""
        return self.begin.times

    def begins(self, times: int) -> None:
        """Ranks begin it as it was read ahead."""
        self.begin = replace(self.begin, times=times)

    def begins_at(self, start: int) -> None:
        """Ranks begin it at a position; where others began elsewhere, what was left out cannot be told."""
        self.begin = replace(self.begin, whole=self.begin.whole and start == self.epoch.turns.start)

    def judge(self, conduct: Conduct, epoch: int) -> None:
        """Where training processes left out some of the epoch, what they draw next is refused."""
        if self.begun and self.begin.whole:
            conduct.judge(self.account, epoch)

    def agrees(self) -> None:
        """All ranks have begun it in the same way, or are not waited for any more."""
        self.agreed = True


@dataclass(frozen=True, slots=True)
class Dropped:
    """It made room for other runs."""


Stage = Wanted | Planning | Ready | Live | Dropped


@dataclass(frozen=True, slots=True)
class Taker:
    """A node that can take samples of an epoch."""

    front: int
    """From this position on."""
    asks: bool
    """Whether it asks for them."""
    asked: list[NDArray[np.int64]] = field(default_factory=list)
    """What it asked for before there was a plan."""

    def ask_later(self, positions: NDArray[np.int64]) -> None:
        """It asks, and there is no plan yet; more than `MAX_EARLY` positions are not kept."""
        if sum(map(len, self.asked)) + len(positions) <= MAX_EARLY:
            self.asked.append(positions)


class Life:
    """One epoch of one run, from the first word about it to the last."""

    def __init__(self) -> None:
        self.stage: Stage = Dropped()
        self.draws: list[Draw] = []
        """Draws that wait, in the order in which they came."""
        self._takers: dict[int, Taker] = {}
        """By node."""

    def __repr__(self) -> str:
        return f"Life({self.stage}, {len(self.draws)} draws wait, nodes {sorted(self._takers)} take)"

    @property
    def live(self) -> Live | None:
        """The live stage, where it is reached."""
        return self.stage if isinstance(self.stage, Live) else None

    @property
    def planned(self) -> bool:
        """Whether its plan is wanted, being made, or waits for ranks."""
        return isinstance(self.stage, Wanted | Planning | Ready)

    @property
    def begin(self) -> Beginning | None:
        """How ranks have begun it, while it is planned; None where none has."""
        begin = self.stage.begin if isinstance(self.stage, Wanted | Planning | Ready) else None
        return begin if begin is not None and begin.times else None

    @property
    def wanted_begin(self) -> Beginning | None:
        """How its plan is to be begun; None where it is only read ahead."""
        return self.stage.begin if isinstance(self.stage, Wanted | Planning) else None

    def wants(self, begin: Beginning | None = None) -> None:
        """A plan is wanted, where there is none; `begin`: ranks have begun it so."""
        match self.stage:
            case Dropped():
                self.stage = Wanted(begin)
            case Wanted() | Planning() | Ready() if begin is not None:
                self.stage = replace(self.stage, begin=begin)

    def hand_out(self) -> None:
        """The planner has its order."""
        assert isinstance(self.stage, Wanted)
        self.stage = Planning(self.stage.begin)

    def is_planned(self, plan: Plan, read_of: NDArray[Any] | None, begin: Beginning) -> None:
        """Its plan is made."""
        self.stage = Ready(plan, read_of, begin)

    def waits_since(self, now_s: float) -> float:
        """Since when a planned epoch waits for ranks; from now on, where it has just begun to."""
        assert isinstance(self.stage, Ready)
        if self.stage.since_s is None:
            self.stage = replace(self.stage, since_s=now_s)
            return now_s
        return self.stage.since_s

    def starts(self, live: Live) -> None:
        """It is live: nodes that can take its samples are sent them."""
        self.stage = live
        for node in self._takers:
            self._send(node)

    def drops(self) -> NDArray[Any]:
        """It makes room; returns the places that were held for it."""
        held: NDArray[Any] = self.stage.epoch.drop() if isinstance(self.stage, Live) else np.arange(0)
        self.stage = Dropped()
        return held

    # -- other nodes -------------------------------------------------------------------------------------------------

    def take(self, node: int, front: int, *, asks: bool) -> None:
        """A node can take samples from position `front` on; `asks`: it asks for them."""
        self._takers[node] = Taker(front, asks)
        self._send(node)

    def ask(self, node: int, positions: NDArray[np.int64]) -> None:
        """A node asks for positions; where there is no plan yet, its request is kept until there is one."""
        live, taker = self.live, self._takers.get(node)
        if live is not None and node in live.epoch.outgoing:
            live.epoch.outgoing[node].ask(positions)
        elif taker is not None:
            taker.ask_later(positions)

    def forget(self, node: int) -> NDArray[Any]:
        """A node has no use for the epoch any more; returns the places that were held for it."""
        self._takers.pop(node, None)
        held: NDArray[Any] = np.arange(0) if self.live is None else self.live.epoch.forget(node)
        return held

    def _send(self, node: int) -> None:
        if self.live is None:
            return
        epoch, taker = self.live.epoch, self._takers[node]
        epoch.send_to(node, taker.front, epoch.plan.requests if taker.asks else None)
        for positions in taker.asked:
            epoch.outgoing[node].ask(positions)
        taker.asked.clear()


class Lives:
    """The lives of all epochs, by run and epoch."""

    def __init__(self) -> None:
        self._lives: dict[Key, Life] = {}
        """Sorted by run and epoch."""

    def __repr__(self) -> str:
        return f"Lives({self._lives})"

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._lives))

    def __getitem__(self, key: Key) -> Life:
        """The life of an epoch; a new one where nothing was said of it yet."""
        life = self._lives.get(key)
        if life is None:
            life = Life()
            self._lives = dict(sorted([*self._lives.items(), (key, life)], key=lambda item: item[0]))
        return life

    def get(self, key: Key) -> Life | None:
        """The life of an epoch, where something was said of it."""
        return self._lives.get(key)

    def items(self) -> list[tuple[Key, Life]]:
        """All lives, by run and epoch."""
        return list(self._lives.items())

    def live(self) -> list[tuple[Key, Live]]:
        """All live epochs, by run and epoch."""
        return [(key, life.stage) for key, life in self._lives.items() if isinstance(life.stage, Live)]

    def draws(self) -> list[Draw]:
        """All draws that wait, in the order in which they came."""
        waiting = [draw for life in self._lives.values() for draw in life.draws]
        return sorted(waiting, key=lambda draw: draw.number) if len(waiting) > 1 else waiting

    def remove(self, key: Key) -> NDArray[Any]:
        """Forget all about an epoch; returns the places that were held for it."""
        return self._lives.pop(key).drops()
