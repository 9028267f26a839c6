"""Which int does a sampler yield at each position of each epoch, and which of its facts does a loader state store?

`OfOneSet` is the sequence of a `BrandDataset`: tickets in its random order, or plain indices. A mixture of data sets
has its own. A `BrandSampler` owns epoch, position and ranks, and asks its sequence for the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import UsageError
from brand.formats.version import number_within
from brand.node.wire.drawing import Announcement
from brand.orders.base.joins import Joins
from brand.orders.base.part import named
from brand.orders.base.rank_rule import RankRule
from brand.orders.base.tickets import tickets
from brand.orders.order import MAX_SEED, Order, renewed
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.present import numbers
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.index_order import say_cost

MIGRATE: Final = "load_state_dict(brand.migrate_state(state, sampler))"
"""Code that begins the epoch of a state again on another version of a collection."""
JOINED_VERSION: Final = 2
"""The version of states that store the joins of a job, or the samples that it has drawn."""


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """The arguments of a `BrandSampler` that decide its sequence."""

    seed: int
    origin: str
    """The place of the program that makes the sampler (`origin_here`)."""
    replicas: int | None
    """The number of ranks that the user gives; None: the launcher's."""
    subset: ArrayLike | None
    shuffle: bool
    weights: Any = None
    num_samples: int | None = None


class AccessSequence(ABC):
    """The sequence of one sampler: ints for the positions of all epochs."""

    order: Any
    """The order, which determines the sequence."""
    seed: int
    shuffle: bool
    """Whether the sequence is random; otherwise it is the plain indices, which are read directly."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Number of positions of an epoch, for all ranks."""

    @property
    def nodes(self) -> int:
        """Number of nodes whose data servers serve the sequence together; 1 if it needs none. Raises `ServerError`."""
        return 1

    @abstractmethod
    def ints(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tickets or indices at positions of an epoch, same shape. Raises `UsageError`."""

    def dealt(self, epoch: int, start: int, rounds: range, ranks: tuple[int, int]) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the positions of a rank, (rank, number of ranks), in some of the rounds from position `start` on.

        A round is one position for each rank. A mixture divides the rounds of each epoch in another way.
        """
        rank, replicas = ranks
        return start + rank + np.arange(rounds.start, rounds.stop, dtype=np.int64) * replicas

    @abstractmethod
    def begin(self, announcement: Announcement, *, goes_on: bool) -> NDArray[np.int64] | None:
        """Announce that ranks are about to draw; see `DrawPort.announce`. Raises `ServerError`, `UsageError`.

        `goes_on`: whether they have drawn all positions before this one, and nothing after it.
        """

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state of a run that continues at a position of an epoch, with its order."""
        state = {"version": 1, "epoch": epoch, "position": position, "shuffle": self.shuffle}
        return state | {"order": self.to_json()} | self.facts_at(epoch, position)

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the values that determine the sequence, as plain values, for a state."""

    @abstractmethod
    def facts_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return further facts for a state at a position of an epoch, as plain values; `version`, if it is not 1."""

    def end(self) -> None:  # noqa: B027 - only that of a mixture follows others
        """Note that the sampler has loaded a state, and continues with another sequence."""

    @abstractmethod
    def loaded(self, state: Mapping[str, Any]) -> AccessSequence:
        """Return the sequence of a state with valid numbers. Raises `UsageError` if it is not one of this data set."""


class OfOneSet(Reprs, AccessSequence, shows="_port.name seed samples shuffle"):
    """The sequence of a `BrandDataset`. `seed` is the order's, unless a state without an order has another."""

    order: Order

    def __init__(self, port: DrawPort, order: Order, seed: int, origin: str, *, shuffle: bool) -> None:
        self._port, self.order, self.seed, self._origin, self.shuffle = port, order, seed, origin, shuffle
        self.tag = port.tag_of(order)
        self._indices: NDArray[np.int64] | None = None
        """Indices of the subset, once an epoch that is not shuffled has asked for them."""

    def replaced(self, order: Order) -> OfOneSet:
        """Return the sequence with another order of the same samples."""
        return OfOneSet(self._port, order, order.seed, self._origin, shuffle=self.shuffle)

    @property
    def samples(self) -> int:
        return self.order.draws

    @property
    def nodes(self) -> int:
        return self._port.resolver.nodes if self.shuffle else 1

    def ints(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return tickets, or indices if the sequence is not random."""
        if self.shuffle:
            return tickets(self.tag, epoch, positions)
        if self.order.ever is None:
            return positions
        if self._indices is None:
            self._indices = np.sort(self._port.data.indices(np.flatnonzero(self.order.ever.mask)))
        return self._indices[positions]

    def begin(
        self,
        announcement: Announcement,
        *,
        goes_on: bool,  # noqa: ARG002
        rule: RankRule | None = None,
    ) -> NDArray[np.int64] | None:
        """See `AccessSequence`. `rule`: how ranks of several nodes divide the positions, if not in turn."""
        if not self.shuffle:  # direct reads need no server
            if announcement.rank == 0:
                say_cost(self._port.data, self._port.name, self.samples)
            return None
        return self._port.announce(self.order, announcement, origin=self._origin, rule=rule)

    def to_json(self) -> dict[str, Any]:
        """Return the order; if the sequence is not random, the data set, seed and subset."""
        if self.shuffle:
            return self.order.to_json()
        part = {} if self._digest is None else {"part": self._digest}
        return {"data_set": self._port.data.id, "seed": self.seed} | part

    def facts_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the joins of the run, or the samples that it has drawn, if jobs share reads."""
        if not self.shuffle or not self.order.shares:
            return {}
        if self.order.grows:
            from brand.orders.joader.growing import pack_drawn  # a job of another order does without

            drawn = np.empty(0, np.int32)
            if position:
                drawn = self._port.client.orders.drawn(self.order, epoch, position)
            return {"version": JOINED_VERSION, "drawn": pack_drawn(drawn, self.order.samples)}
        joins = self._port.joins(self.order, epoch)
        return {"version": JOINED_VERSION, "joins": joins.to_json(), "lap": joins.lap}

    def loaded(self, state: Mapping[str, Any]) -> OfOneSet:
        """Return a sequence of the same data set and subset. Raises `UsageError` if the state is of others."""
        if state["version"] not in (1, JOINED_VERSION):
            if isinstance(state["order"], Mapping) and "weights_of" in state["order"]:
                raise UsageError("the state is of a sampler with weights=: give the same weights= as before")
            raise UsageError("the state is of a Mixture, and this sampler fetches from a BrandDataset")
        try:
            facts = dict(state["order"])
            seed, data_set = whole("seed", facts["seed"], MAX_SEED), facts["data_set"]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
        if data_set != self._port.data.id:
            raise UsageError(other_data_set(str(data_set), self._port.data, self._port.name))
        if facts.get("part") != self._digest:
            there, here = named(facts.get("part")), named(self._digest)
            raise UsageError(f"the state is of {there}, this sampler fetches {here}: give the same subset= as before")
        if state["position"] > self.samples:
            raise UsageError(f"this is no state of a BrandSampler: position {state['position']:,} of {self.samples:,}")
        order = self.order
        if state["shuffle"]:
            try:
                facts = renewed(facts, epoch=state["epoch"], begun=0 < state["position"] < self.samples)
                order = Order.from_json(facts, self.order.subset)
            except UsageError:
                raise
            except (ValueError, TypeError) as error:
                raise UsageError(f"this is no state of a BrandSampler: {error}") from None
            if (order.samples, order.chunk_size) != (self.order.samples, self.order.chunk_size):
                raise UsageError("this is no state of a BrandSampler: its sizes are not those of the data set")
            _learn_facts(self._port, order, state)
        return OfOneSet(self._port, order, seed, self._origin, shuffle=state["shuffle"])

    @property
    def _digest(self) -> str | None:
        """The name of the subset in a state; None if all samples are drawn."""
        return None if self.order.subset is None else self.order.subset.digest


def whole(name: str, value: Any, most: int) -> int:
    """Return `value` as a whole number from 0 to `most`. Raises `UsageError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) <= most:
        raise UsageError(f"{name}={value!r}: a whole number from 0 to {most:,} is needed")
    return int(value)


def other_data_set(found: str, data: StoredDataSet, name: str, begin: str = MIGRATE) -> str:
    """Return why a state of the data set `found` is refused, and a remedy.

    `name` is that of `data` to users. `begin` is the code that begins the epoch of the state again.
    """
    version = data.version
    number = None if version is None else number_within(version.collection, found)
    if version is None or number is None:
        return f"the state is of data set {found}, this one is {data.id}"
    if number == version.number:
        return f"the state is of another collection, which has grown from the same beginning as {name}"
    why = f"the state is of version {number} of the collection, and this is {name}: "
    known = numbers(Path(data.path))
    if number in known:
        return (
            f"{why}open '{data.path}@{number}' to continue exactly where it stopped, or begin its epoch again on this "
            f"version, `{begin}`"
        )
    removed = " any more, since `brand compact --forget` or `brand redact` removed it" if number < known[-1] else ""
    return f"{why}there is no version {number}{removed}, so begin its epoch again on this version, `{begin}`"


def _learn_facts(port: DrawPort, order: Order, state: Mapping[str, Any]) -> None:
    """Send the data server the facts of a valid state about a job that shares reads. Raises `UsageError`."""
    epoch, position = int(state["epoch"]), int(state["position"])
    try:
        if order.joins:
            joins = Joins.from_json(state["joins"], state["lap"])
            joins.check_fits(order.samples, order.draws)
            port.client.learn_joins(order, epoch, joins)
        elif order.grows and position < order.draws:
            from brand.orders.joader.growing import unpack_drawn

            places = unpack_drawn(state["drawn"], order.samples)
            if len(places) != position:
                raise ValueError(f"{len(places):,} samples were fetched before position {position:,}")
            if order.ever is not None and not order.ever.at(places).all():
                raise ValueError("samples were fetched that are not in the subset")
            port.client.orders.load(order, epoch, places)
    except (KeyError, ValueError) as error:
        raise UsageError(f"this is no state of a BrandSampler: {error}") from None
