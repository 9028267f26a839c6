"""Which ticket does a sampler of a mixture yield? At each position, the next ticket of one of the members.

The sampler's epoch and position are a place in the mixture's endless sequence (`brand.orders.mixtures.mixed_order`). A
ticket is that of the member's own order, so each member's data server prefetches as it does for any training.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import GOES_ON
from brand.orders.base.tickets import tickets_of
from brand.orders.mixtures.mixed_order import MixedOrder, ranks_of_rounds
from brand.torch.job.discovery import check_agreed
from brand.torch.order.mixture_members import MixtureMembers
from brand.torch.order.sequence import AccessSequence

MIXED_VERSION: Final = 3
"""The version of loader states of a mixture."""


class MixedSequence(AccessSequence):
    """The sequence of a `Mixture`."""

    order: MixedOrder
    shuffle = True

    def __init__(self, members: MixtureMembers, order: MixedOrder, origin: str) -> None:
        self._members, self.order, self._origin = members, order, origin
        self.seed = order.seed
        self._tags = [port.tag_of(each) for port, each in zip(members.ports, order.orders, strict=True)]
        members.know(self._tags)
        self._lock = threading.Lock()
        """Held while positions are taken and while weights are set, because a loader takes positions in another
        thread.
        """
        self._taken = 0
        """The absolute position before which this process has taken all positions."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MixedSequence({self._members.name}, seed={self.seed}, weights {self.order.stretches[-1].weights})"

    @property
    def samples(self) -> int:
        """Number of samples of an epoch, of all members together."""
        return self.order.samples

    def ints(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tickets of members at positions of an epoch, same shape. Raises `UsageError`."""
        with self._lock:
            if len(positions):
                self._taken = max(self._taken, epoch * self.samples + int(positions.max()) + 1)
            order = self.order
        try:
            drawn = order.draws(epoch, positions)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return tickets_of(np.array(self._tags)[drawn.member], drawn.epoch, drawn.position)

    def dealt(self, epoch: int, start: int, rounds: range, ranks: tuple[int, int]) -> NDArray[np.int64]:
        """Return the positions of a rank: one of each round, at random."""
        rank, replicas = ranks
        in_round = (rank + ranks_of_rounds(self.seed, epoch, start, rounds, replicas)) % replicas
        return start + np.arange(rounds.start, rounds.stop, dtype=np.int64) * replicas + in_round

    def begin(self, announcement: Announcement, *, goes_on: bool) -> None:
        """Have the servers of members that have a weight begin to read.

        To a server, all processes of all ranks are one rank, because the mixture decides which of them draws a
        position.
        """
        epoch, position = announcement.epoch, announcement.position
        processes = announcement.replicas * announcement.processes
        if announcement.batch:
            raise UsageError("locality= splits the batches of one BrandDataset: leave it out for a Mixture")
        if processes > 1:
            stretches = [[stretch.first, *stretch.weights] for stretch in self.order.stretches]
            facts = f"{stretches} of {self.samples:,} samples from position {position:,} of epoch {epoch} on"
            check_agreed(f"{self._origin}|begin", facts, "the weights of a Mixture are")
        come, weights = self.order.counts(epoch, position), self.order.weights_at(epoch, position)
        for number, order in enumerate(self.order.orders):
            if weights[number]:
                of, at = divmod(come[number], order.draws)
                self._members.begin(
                    self._tags[number],
                    number,
                    order,
                    Announcement(of, at, processes=GOES_ON if goes_on else processes),
                    origin=f"{self._origin}|member {number}",
                )

    def to_json(self) -> dict[str, Any]:
        """Return the orders of the members, and their weights."""
        return self.order.to_json()

    def facts_at(self, epoch: int, position: int) -> dict[str, Any]:  # noqa: ARG002 - the same at all positions
        """Return the version."""
        return {"version": MIXED_VERSION}

    def loaded(self, state: Mapping[str, Any]) -> MixedSequence:
        """Return a sequence of the same members, with the samples of an epoch, the seed and the weights of the state.

        Raises `UsageError` if the state is not one of this mixture.
        """
        if state["version"] != MIXED_VERSION or not state["shuffle"]:
            raise UsageError("the state is of a BrandDataset, and this sampler fetches from a Mixture")
        try:
            order = MixedOrder.from_json(state["order"])
        except (ValueError, TypeError) as error:
            raise UsageError(f"this is no state of a Mixture: {error}") from None
        there, here = ([each.data_set for each in orders] for orders in (order.orders, self.order.orders))
        if there != here:
            raise UsageError(
                f"the state is of a mixture of data sets {', '.join(there)}, this one is of {', '.join(here)}: give "
                "the same members in the same order"
            )
        for one, other in zip(order.orders, self.order.orders, strict=True):
            if (one.samples, one.chunk_size) != (other.samples, other.chunk_size):
                raise UsageError("this is no state of a Mixture: sizes are not those of its members")
        if state["position"] > order.samples:
            raise UsageError(f"this is no state of a Mixture: position {state['position']:,} of {order.samples:,}")
        return MixedSequence(self._members, order, self._origin)

    def set_weights(self, weights: Mapping[Any, float], epoch: int, position: int) -> None:
        """See `BrandSampler.set_weights`."""
        numbers = self._members.weights_of(weights)
        facts = f"{list(numbers)} from position {position:,} of epoch {epoch} on"
        check_agreed(f"{self._origin}|set_weights", facts, "the weights of a Mixture are")
        with self._lock:
            try:
                order = self.order.with_weights(numbers, epoch, position)
            except ValueError as error:
                raise UsageError(str(error)) from None
            if order != self.order and epoch * self.samples + position < self._taken:
                at = "epoch {}, position {:,}".format(*divmod(self._taken, self.samples))
                raise UsageError(
                    f"weights from epoch {epoch}, position {position:,} on, and samples up to {at} are on their way: "
                    "say a later position, the same one on all ranks"
                )
            self.order = order
