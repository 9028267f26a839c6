"""How does a feature take part in the steps of the core? It implements some of these hooks, and inherits the others.

The core consults the features that are on, in the order in which they were turned on, and knows none of them by name.
`brand.node.decide.node_state` turns them on: several nodes, and jobs that share, in lock step or with online orders. A
plain run on one node has none. Server-side decoding has a protocol of its own (`Decodes`), since it owns a memory.
"""

# ruff: noqa: ARG002 - a hook that does nothing needs no argument; `Features` inherits what its methods say

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Division, Epoch, EpochSetting
from brand.node.decide.state.epoch_table import ActiveEpoch, Draw, Key, PlanReady
from brand.node.decide.state.tasks import Read, Refuse
from brand.node.memory.leases import Shelved
from brand.node.wire.messages import NO_CHAINS, Chains
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base.joins import Join
from brand.orders.order import Order

if TYPE_CHECKING:
    from brand.node.memory.prepared import PreparedMemory

NO_JOINS: Final = "joins of an order that has none"
NOT_ONLINE: Final = "the order of a run that does not grow"
"""Why the server refuses a client that sends data of a feature that its order does not use."""


class EpochFeature:
    """Takes part in the stages of epochs (`epochs`), and in the choice of cached samples."""

    def begin(self, key: Key) -> None:
        """Note that a rank begins an epoch."""

    def forget_runs(self) -> None:
        """Forget runs that have ended."""

    def is_over(self, key: Key) -> bool:
        """Return whether an epoch has no order any more, so that nothing of it is read ahead."""
        return False

    def joined(self, key: Key) -> tuple[Join, ...]:
        """Return the joins of an epoch, as far as they are decided."""
        return ()

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        """Decide and return the joins for the plan of an epoch that has none. None if they cannot be decided yet."""
        return ()

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Yield epochs under way that need another plan, each with all its joins."""
        yield from ()

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        """Return whether a plan with these joins is of use for an epoch that is under way."""
        return False

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        """Take the plan of an epoch under way that was wanted. Return whether it replaces the old one."""
        return False

    def is_committed(self, key: Key) -> bool:
        """Return whether draws of an epoch may be answered with the plan that this node has."""
        return True

    def make(self, key: Key, ready: PlanReady, division: Division, number: int, setting: EpochSetting) -> Epoch | None:
        """Return the epoch of a finished plan if it is of this feature's kind, otherwise None."""
        return None

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        """Return the number of samples that memory must hold for jobs that follow the job of this order."""
        return 0.0


class DrawFeature:
    """Takes part in answering draws (`draws`)."""

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        """Note that a client asks for positions of an epoch, or has copied them itself. Raises `UsageError`."""

    def request(self, epoch: Epoch, positions: NDArray[np.int64]) -> None:
        """Request the samples that a draw needs from other nodes. Called once for each draw of an epoch."""

    def chase(self, epoch: Epoch, draw: Draw, now_s: float) -> bool:
        """Repeat requests for samples that a draw waits for. Return whether there was a node to ask."""
        return False

    def is_agreed(self, draw: Draw, now_s: float) -> bool:
        """Return whether the epoch of a draw has begun in the same way on all nodes, or the wait for that is over."""
        return True

    def is_held_back(self, draw: Draw, now_s: float) -> bool:
        """Return whether a draw has to wait for other jobs."""
        return False

    def on_drawn(self, key: Key) -> None:
        """Note that ranks of this node have drawn samples of an epoch."""

    def answer(self, key: Key) -> int:
        """Note that a client gets an answer. Return the number for the field `joins` of the answer."""
        return 0

    def facts(self, key: Key, now_s: float) -> dict[str, Any]:
        """Return facts about the job that draws an epoch, for statistics."""
        return {}


class LoopFeature:
    """Takes part in the steps of the loop (`node_state`)."""

    @property
    def hurries(self) -> bool:
        """Whether there is more to decide at once."""
        return False

    @property
    def waited_for(self) -> bool:
        """Whether another node waits for samples of this node."""
        return False

    def step(self, now_s: float, bridge: int) -> None:
        """Make the decisions that are due. `bridge`: estimate of the samples that memory holds for later jobs."""

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield the clients that cannot go on, with the reason."""
        yield from ()


class Feature(EpochFeature, DrawFeature, LoopFeature):
    """A feature that is on."""


class _All(Feature):
    """All features that are on, consulted in the order in which they were turned on."""

    def __init__(self) -> None:
        self._on: list[Feature] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._on})"

    def turn_on(self, feature: Feature) -> None:
        """Consult a feature from now on, after the others."""
        self._on.append(feature)


class _OfEpochs(_All):
    def begin(self, key: Key) -> None:
        for each in self._on:
            each.begin(key)

    def forget_runs(self) -> None:
        for each in self._on:
            each.forget_runs()

    def is_over(self, key: Key) -> bool:
        return any(each.is_over(key) for each in self._on)

    def joined(self, key: Key) -> tuple[Join, ...]:
        return tuple(join for each in self._on for join in each.joined(key))

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        found: tuple[Join, ...] = ()
        for each in self._on:
            joins = each.joins(key, now_s)
            if joins is None:
                return None
            found += joins
        return found

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        return chain.from_iterable(each.rejoins(now_s, bridge) for each in self._on)

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        return any(each.wants(key, joins) for each in self._on)

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        return any(each.take_plan(key, joins, live=live) for each in self._on if each.wants(key, joins))

    def is_committed(self, key: Key) -> bool:
        return all(each.is_committed(key) for each in self._on)

    def make(self, key: Key, ready: PlanReady, division: Division, number: int, setting: EpochSetting) -> Epoch | None:
        made = (each.make(key, ready, division, number, setting) for each in self._on)
        return next((epoch for epoch in made if epoch is not None), None)

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        return sum(each.held_for_followers(order, runs) for each in self._on)


class Features(_OfEpochs):
    """All features that are on, consulted in the order in which they were turned on. A plain run has none."""

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        for each in self._on:
            each.ask(key, positions, now_s)

    def request(self, epoch: Epoch, positions: NDArray[np.int64]) -> None:
        for each in self._on:
            each.request(epoch, positions)

    def chase(self, epoch: Epoch, draw: Draw, now_s: float) -> bool:
        asked = False
        for each in self._on:
            asked |= each.chase(epoch, draw, now_s)
        return asked

    def is_agreed(self, draw: Draw, now_s: float) -> bool:
        return all(each.is_agreed(draw, now_s) for each in self._on)

    def is_held_back(self, draw: Draw, now_s: float) -> bool:
        return any(each.is_held_back(draw, now_s) for each in self._on)

    def on_drawn(self, key: Key) -> None:
        for each in self._on:
            each.on_drawn(key)

    def answer(self, key: Key) -> int:
        return sum(each.answer(key) for each in self._on)

    def facts(self, key: Key, now_s: float) -> dict[str, Any]:
        return {name: value for each in self._on for name, value in each.facts(key, now_s).items()}

    @property
    def hurries(self) -> bool:
        return any(each.hurries for each in self._on)

    @property
    def waited_for(self) -> bool:
        return any(each.waited_for for each in self._on)

    def step(self, now_s: float, bridge: int) -> None:
        for each in self._on:
            each.step(now_s, bridge)

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        return chain.from_iterable(each.refusals(now_s) for each in self._on)


class EarlyReads(Protocol):
    """Lets one read serve several jobs (`reads`)."""

    @property
    def may_give_back(self) -> bool:
        """Whether jobs may hold samples that can be freed, so that a search is worth its time."""
        ...

    def start(self, places: NDArray[Any], read_for: Epoch) -> list[tuple[Epoch, NDArray[Any]]]:
        """Have other epochs wait for a read, too. Return these epochs, each with the places that it waits for."""
        ...

    def on_read(self, read: Read, others: Sequence[tuple[Epoch, NDArray[Any]]], lost: NDArray[Any]) -> None:
        """Give the other epochs the samples of a read, except those at the places `lost`."""
        ...

    def lead(self, key: Key, live: ActiveEpoch, deadline: NDArray[Any] | int, now_s: float) -> Any:
        """Return the number of draws before a deadline of an epoch, in draws of the fastest job that shares with it."""
        ...

    def give_back(self, pages: int, now_s: float, beyond: float) -> bool:
        """Free at least `pages` of samples that are drawn later than in `beyond` draws. Return whether any were."""
        ...


@dataclass(frozen=True, slots=True)
class DecodedSamples:
    """Decoded samples that a draw gets from the decoded memory."""

    prepared: NDArray[np.bool_]
    """Whether each sample that the draw found in memory is decoded, for each decode spec of the client."""
    chains: Chains
    """Pages of the decoded samples, one decode spec after the other."""
    shelved: Shelved


NOTHING: Final = DecodedSamples(np.empty(0, np.bool_), NO_CHAINS, ())
"""The value if no sample is decoded."""


class Decodes(Protocol):
    """Decodes samples in the server, in a memory of its own."""

    @property
    def memory(self) -> PreparedMemory:
        """Memory of the decoded samples."""
        ...

    def waits(self, client: ClientNumber, run: RunNumber, places: NDArray[Any]) -> bool:
        """Return whether a draw of these places waits for one of them to be decoded."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return counters and memory use, as plain values."""
        ...

    def take(self, draw: Draw, epoch: Epoch, here: NDArray[Any]) -> DecodedSamples:
        """Return the decoded samples for a draw that found the samples `here` in memory."""
        ...
