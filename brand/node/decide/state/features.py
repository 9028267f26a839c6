"""How does a feature take part in the steps of the core? It implements some of these hooks, and inherits the others.

The core consults the features that are on, in the order in which they were turned on, and knows none of them by name.
`brand.node.decide.node_state` turns them on: several nodes, and jobs that share, in lock step or with online orders. A
plain run on one node has none. Server-side decoding has a protocol of its own (`Decodes`), since it owns a memory.
"""

# ruff: noqa: ARG002 - a hook that does nothing needs no argument; `Features` inherits what its methods say

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Division, Epoch, EpochSetting
from brand.node.decide.state.epoch_table import ActiveEpoch, Draw, Key, PlanReady
from brand.node.decide.state.instructions import Read, Refuse
from brand.node.memory.residents import Shelved
from brand.node.wire.messages import NO_CHAINS, Chains
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base.joins import Join
from brand.orders.order import Order
from brand.reprs import Reprs

if TYPE_CHECKING:
    from brand.node.memory.decoded import PreparedMemory

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Combined = TypeVar("_Combined")

NO_JOINS: Final = "joins of an order that has none"
NOT_ONLINE: Final = "the order of a run that does not grow"
"""Why the server refuses a client that sends data of a feature that its order does not use."""


class Feature:
    """A feature that is on. Each hook does nothing unless the feature overrides it."""

    # -- stages of epochs (`epochs`), and the choice of cached samples ------------------------------------------------

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

    def is_resting(self, run: RunNumber, now_s: float) -> bool:
        """Return whether no samples are cached or held for a run until it begins an epoch or draws again."""
        return False

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        """Return the number of samples that memory must hold for those of `runs` that follow the job of this order."""
        return 0.0

    # -- answers to draws (`draws`) -----------------------------------------------------------------------------------

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

    # -- steps of the loop (`node_state`) -----------------------------------------------------------------------------

    @property
    def hurries(self) -> bool:
        """Whether there is more to decide at once."""
        return False

    @property
    def waited_for(self) -> bool:
        """Whether another node waits for samples of this node."""
        return False

    @property
    def waits_for_reads(self) -> bool:
        """Whether another node waits for samples that this node has not read yet."""
        return False

    def step(self, now_s: float, bridge: int) -> None:
        """Make the decisions that are due. `bridge`: estimate of the samples that memory holds for later jobs."""

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield the clients that cannot go on, with the reason."""
        yield from ()


def _combined(
    hook: Callable[Concatenate[Any, _P], _Result], combine: Callable[[Iterator[_Result]], _Combined]
) -> Callable[Concatenate[Any, _P], _Combined]:
    """Return a hook that consults each feature that is on, and combines the results."""
    name = hook.__name__

    def consult(self: Features, /, *args: _P.args, **more: _P.kwargs) -> _Combined:
        return combine(getattr(each, name)(*args, **more) for each in self._on)

    return consult


def _every(results: Iterator[object]) -> None:
    for _ in results:
        pass


class Features(Feature, Reprs, shows="_on"):
    """All features that are on, consulted in the order in which they were turned on. A plain run has none."""

    def __init__(self) -> None:
        self._on: list[Feature] = []

    def turn_on(self, feature: Feature) -> None:
        """Consult a feature from now on, after the others."""
        self._on.append(feature)

    begin = _combined(Feature.begin, _every)
    forget_runs = _combined(Feature.forget_runs, _every)
    is_over = _combined(Feature.is_over, any)
    joined = _combined(Feature.joined, lambda joins: tuple(chain.from_iterable(joins)))
    rejoins = _combined(Feature.rejoins, chain.from_iterable)
    wants = _combined(Feature.wants, any)
    is_committed = _combined(Feature.is_committed, all)
    make = _combined(Feature.make, lambda made: next((epoch for epoch in made if epoch is not None), None))
    is_resting = _combined(Feature.is_resting, any)
    held_for_followers = _combined(Feature.held_for_followers, lambda samples: sum(samples))
    ask = _combined(Feature.ask, _every)
    request = _combined(Feature.request, _every)
    chase = _combined(Feature.chase, lambda asked: any(list(asked)))  # each has to ask
    is_agreed = _combined(Feature.is_agreed, all)
    is_held_back = _combined(Feature.is_held_back, any)
    on_drawn = _combined(Feature.on_drawn, _every)
    answer = _combined(Feature.answer, lambda numbers: sum(numbers))
    facts = _combined(Feature.facts, lambda facts: dict(chain.from_iterable(each.items() for each in facts)))
    step = _combined(Feature.step, _every)
    refusals = _combined(Feature.refusals, chain.from_iterable)

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        found: tuple[Join, ...] = ()
        for each in self._on:
            joins = each.joins(key, now_s)
            if joins is None:
                return None
            found += joins
        return found

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        return any(each.take_plan(key, joins, live=live) for each in self._on if each.wants(key, joins))

    @property
    def hurries(self) -> bool:
        return any(each.hurries for each in self._on)

    @property
    def waited_for(self) -> bool:
        return any(each.waited_for for each in self._on)

    @property
    def waits_for_reads(self) -> bool:
        return any(each.waits_for_reads for each in self._on)


class EarlyReads(Protocol):
    """Lets one read serve several jobs (`reads`)."""

    @property
    def may_give_back(self) -> bool:
        """Whether jobs may hold samples that can be freed, so that a search is worth its time."""

    def awaited(self, places: NDArray[Any], besides: Epoch, now_s: float) -> NDArray[np.bool_]:
        """Return a mask of the places that other epochs will draw, of jobs that share, and no read brings yet."""

    def start(self, places: NDArray[Any], read_for: Epoch) -> list[tuple[Epoch, NDArray[Any]]]:
        """Have other epochs wait for a read, too. Return these epochs, each with the places that it waits for."""

    def on_read(self, read: Read, others: Sequence[tuple[Epoch, NDArray[Any]]], lost: NDArray[Any]) -> None:
        """Give the other epochs the samples of a read, except those at the places `lost`."""

    def lead(self, key: Key, live: ActiveEpoch, deadline: NDArray[Any] | int, now_s: float) -> Any:
        """Return the number of draws before a deadline of an epoch, in draws of the fastest job that shares with it."""

    def give_back(self, pages: int, now_s: float, beyond: float) -> bool:
        """Free at least `pages` of samples that are drawn later than in `beyond` draws. Return whether any were."""


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


LEAST: Final = "least"
"""The allotment of decode workers that is used unless another one is asked for."""


class Decodes(Protocol):
    """Decodes samples in the server, in a memory of its own."""

    @property
    def memory(self) -> PreparedMemory:
        """Memory of the decoded samples."""

    def waits(self, client: ClientNumber, run: RunNumber, places: NDArray[Any]) -> bool:
        """Return whether a draw of these places waits for one of them to be decoded."""

    def facts(self) -> dict[str, Any]:
        """Return counters and memory use, as plain values."""

    def take(self, draw: Draw, epoch: Epoch, here: NDArray[Any]) -> DecodedSamples:
        """Return the decoded samples for a draw that found the samples `here` in memory."""
