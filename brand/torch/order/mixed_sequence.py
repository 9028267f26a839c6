"""Which ticket does a sampler of a mixture yield? At each position, the next ticket of one of the members.

The sampler's epoch and position are a place in the mixture's endless sequence (`brand.orders.mixtures.mixed_order`). A
ticket is that of the member's own order, so each member's data server prefetches as it does for any training.
`MixtureMembers` finds the member of a ticket, and begins the epochs of members.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import GOES_ON, UNTOLD
from brand.orders.base.rank_rule import RankRule
from brand.orders.base.tickets import tag_and_epoch, tickets_of
from brand.orders.mixtures.member_ranks import MemberRanks
from brand.orders.mixtures.mixed_order import MixedOrder, member_of_seed, positions_of_rank
from brand.orders.mixtures.shares import check_weights
from brand.orders.order import MAX_SEED, Order, renewed
from brand.reprs import Reprs
from brand.torch.fetch.fetched import FetchedSamples, Portion
from brand.torch.job.discovery import check_agreed
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.sequence import AccessSequence, whole

MIXED_VERSION: Final = 3
"""The version of loader states of a mixture."""


class MixtureMembers(Reprs, shows="name _begun"):
    """The members of one mixture, by number. `keys` are the data sets by which users name them. Can be pickled.

    `mixed` are the numbers of members that are mixtures themselves.
    """

    what = "a Mixture"
    """Its name in messages."""

    def __init__(self, keys: Sequence[Hashable], ports: Sequence[DrawPort], mixed: Iterable[int] = ()) -> None:
        self._keys, self.ports, self.mixed = tuple(keys), tuple(ports), frozenset(mixed)
        self.name = f"a mixture of {', '.join(port.name for port in self.ports)}"
        self._member_of: dict[int, int] = {}
        """Number of the member by tag."""
        self._begun: dict[int, int] = {}
        """The last epoch that this process has begun, by tag."""
        self._changes: list[tuple[tuple[float, ...], int | None, int]] = []
        """The weights that were set, each with its epoch and position."""
        self._sequences: weakref.WeakSet[MixedSequence] = weakref.WeakSet()
        """The sequences of all samplers in this process."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_sequences"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._sequences = weakref.WeakSet()

    def add_sequence(self, sequence: MixedSequence) -> None:
        """Have a sequence follow the weights that are set from now on."""
        self._sequences.add(sequence)

    def remove_sequence(self, sequence: MixedSequence) -> None:
        """Forget a sequence that its sampler no longer has."""
        self._sequences.discard(sequence)

    def with_changes(self, order: MixedOrder) -> MixedOrder:
        """Return the order of a new sampler, with all weights that were set."""
        for weights, epoch, position in self._changes:
            order = order.with_weights(weights, epoch or 0, position)
        return order

    def set_weights(self, weights: Mapping[Any, float], epoch: int | None, position: int, origin: str) -> None:
        """See `Mixture.set_weights`."""
        numbers = self.weights_of(weights)
        if position and self.nodes > 1:
            raise UsageError(
                f"weights from position {position:,} of an epoch on: on several nodes, weights change at the beginning "
                "of an epoch. Say position=0, and an epoch that has not begun"
            )
        when = "the next epoch" if epoch is None else f"position {position:,} of epoch {epoch}"
        check_agreed(f"{origin}|set_weights", f"{list(numbers)} from {when} on", "the weights of a Mixture are")
        try:
            self._change(numbers, epoch, position)
        except UsageError:
            gc.collect()  # a sampler that the program has dropped refers to itself, and may be the one that refuses
            self._change(numbers, epoch, position)
        self._changes.append((numbers, epoch, position))

    def _change(self, weights: tuple[float, ...], epoch: int | None, position: int) -> None:
        """Have all sequences follow other weights, or none if one of them refuses. Raises `UsageError`."""
        with ExitStack() as locked:
            sequences = sorted(self._sequences, key=id)  # two threads lock them in one order
            for sequence in sequences:
                locked.enter_context(sequence.lock)
            orders = [sequence.weighted(weights, epoch, position) for sequence in sequences]
            for sequence, order in zip(sequences, orders, strict=True):
                sequence.follow(order)

    def weights_of(self, weights: Mapping[Any, float]) -> tuple[float, ...]:
        """Return the weights by number of the member. Raises `UsageError`."""
        if not isinstance(weights, Mapping) or set(weights) != set(self._keys):
            raise UsageError("weights are a dict with a number for each member of the Mixture, and for nothing else")
        numbers = [weights[key] for key in self._keys]
        try:
            check_weights(numbers)
        except ValueError as error:
            raise UsageError(f"this is no Mixture: {error}") from None
        return tuple(map(float, numbers))

    def add_tags(self, tags: Mapping[int, int]) -> None:
        """Store the tags by which a sampler draws from the members: tag -> number of the member."""
        self._member_of |= tags

    def member_of(self, tag: int) -> int:
        """Return the member that a ticket with this tag draws from. Raises `UsageError`."""
        if tag not in self._member_of:  # the sampler was made, or loaded its state, after this worker started
            found = [number for number, port in enumerate(self.ports) if port.has_tag(tag)]
            if not found:
                raise UsageError("this position comes from a BrandSampler of another Mixture; give both the same one")
            self._member_of[tag] = found[0]
        return self._member_of[tag]

    @property
    def nodes(self) -> int:
        """Number of nodes that fetch from the members together. Raises the errors of a client."""
        return max(port.resolver.nodes for port in self.ports)

    def begin(
        self,
        tag: int,
        member: int,
        order: Order,
        announcement: Announcement,
        *,
        origin: str,
        rule: RankRule | None,
    ) -> None:
        """Announce to a member that a sampler is about to draw from it; see `DrawPort.announce`."""
        self.ports[member].announce(order, announcement, origin=origin, rule=rule)
        self._begun[tag] = announcement.epoch

    def continue_with(self, tag: int, epoch: int) -> int:
        """Continue with an epoch of the member with this tag, if this process has not begun it. Returns the member."""
        member = self.member_of(tag)
        if member in self.mixed:  # its own members begin their epochs
            return member
        if epoch > self._begun.get(tag, -1):
            self.ports[member].continue_with(tag, epoch)
            self._begun[tag] = epoch
        return member

    def portions(
        self, asked: NDArray[np.int64], fetch: Callable[[int, NDArray[np.int64]], FetchedSamples]
    ) -> list[Portion]:
        """Divide tickets into requests, and send each: one to each member, and one more if a member's epoch ends.

        `fetch` returns the samples of a member for its tickets.
        """
        orders, portions = asked >> 32, []
        for name in sorted(set(orders.tolist())):  # epochs of one member ascend
            at = np.flatnonzero(orders == name)
            tag, epoch = tag_and_epoch(name << 32)
            member = self.continue_with(tag, epoch)
            portions.append(Portion(member, epoch, at, fetch(member, asked[at])))
        return portions


def loaded_order(own: MixedOrder, state: Mapping[str, Any]) -> MixedOrder:
    """Return the order of a state whose members are those of `own`: orders of one data set, with the same subsets.

    Raises `UsageError` if the state is inside an epoch of another version; KeyError, TypeError or ValueError if its
    members or sizes are others.
    """
    facts, members = dict(state["order"]), [order for order in own.orders if isinstance(order, Order)]
    begun = 0 < state["position"] < own.samples
    orders = tuple(
        Order.from_json(renewed(each, epoch=state["epoch"], begun=begun), mine.subset)
        for each, mine in zip(facts["members"], members, strict=True)
    )
    there, here = (
        [(each.samples, each.chunk_size, each.times, member_of_seed(each.seed)) for each in some]
        for some in (orders, members)
    )
    if state["version"] != MIXED_VERSION or there != here or facts["samples"] != own.samples:
        raise ValueError("its sizes are others")
    if not 0 <= state["position"] <= own.samples:
        raise ValueError(f"position {state['position']:,} of {own.samples:,}")
    return MixedOrder(orders, own.samples, whole("seed", facts["seed"], MAX_SEED), own.pattern)


class MixedSequence(Reprs, AccessSequence, shows="_members.name seed samples"):
    """The sequence of a `Mixture`. `mixed`: the sequences of members that are mixtures themselves, by number."""

    order: MixedOrder
    shuffle = True

    def __init__(
        self, members: MixtureMembers, order: MixedOrder, origin: str, mixed: Mapping[int, MixedSequence] | None = None
    ) -> None:
        self._members, self.order, self._origin, self._mixed = members, order, origin, dict(mixed or {})
        self.seed = order.seed
        self._tags = [
            0 if isinstance(each, MixedOrder) else members.ports[number].tag_of(each)
            for number, each in enumerate(order.orders)
        ]
        """The tag of each member's tickets; 0 for one that is a mixture."""
        self._rules: dict[int, RankRule] = {}
        """The rule with which each member was last begun, on several nodes."""
        self._taken = 0
        """The absolute position before which this process has taken all positions."""
        tags = {tag: number for number, tag in enumerate(self._tags) if number not in self._mixed}
        for number, sequence in self._mixed.items():
            tags |= dict.fromkeys(sequence._tags, number)
        members.add_tags(tags)
        self._begin_to_follow()

    def _begin_to_follow(self) -> None:
        self.lock = threading.Lock()
        """Held while positions are taken and weights are set, because a loader takes positions in another thread."""
        self._members.add_sequence(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_to_follow()

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def nodes(self) -> int:
        return self._members.nodes

    def ints(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tickets of members at positions of an epoch, same shape. Raises `UsageError`."""
        order = self.take(epoch, int(positions.max(initial=-1)) + 1)
        try:
            drawn = order.draws(epoch, positions)
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = tickets_of(np.array(self._tags)[drawn.member], drawn.epoch, drawn.position)
        for number, sequence in self._mixed.items():
            here = np.flatnonzero(drawn.member == number)
            for of in np.unique(drawn.epoch[here]).tolist():
                at = here[drawn.epoch[here] == of]
                found[at] = sequence.ints(of, drawn.position[at])
        return found

    def take(self, epoch: int, end: int) -> MixedOrder:
        """Return the order, whose weights do not change any more before the position `end` of an epoch."""
        with self.lock:
            self._taken = max(self._taken, epoch * self.samples + end)
            return self.order

    def dealt(self, epoch: int, start: int, rounds: range, ranks: tuple[int, int]) -> NDArray[np.int64]:
        """See `positions_of_rank`."""
        return positions_of_rank(self.seed, epoch, start, rounds, ranks)

    def begin(
        self,
        announcement: Announcement,
        *,
        goes_on: bool,
        outer: MemberRanks | None = None,
        planned: Callable[[int, MixedOrder], RankRule] | None = None,
    ) -> None:
        """Have the servers of members that have a weight begin to read.

        To the server of a single node, all processes of all ranks are one rank, because the mixture decides which of
        them draws a position. Servers of several nodes get the rule by which it does. `outer`: the rule of this
        mixture, if it is a member of another one. `planned` returns the rule of a member if batches are planned.
        """
        epoch, position = announcement.epoch, announcement.position
        processes = announcement.replicas * announcement.processes if announcement.copies == 1 else UNTOLD
        several = self.nodes > 1
        if announcement.batch:
            raise UsageError(f"locality= splits the batches of one BrandDataset: leave it out for {self._members.what}")
        if processes > 1:
            weights = self.order.pattern.to_json()
            facts = f"{weights} of {self.samples:,} samples from position {position:,} of epoch {epoch} on"
            check_agreed(f"{self._origin}|begin", facts, f"the weights of {self._members.what} are")
        come, present = self.order.counts(epoch, position), self.order.weights_at(epoch, position)
        begins = []
        for number, (order, size) in enumerate(zip(self.order.orders, self.order.sizes, strict=True)):
            if not present[number]:
                continue
            of, at = divmod(come[number], size)
            one = replace(announcement, epoch=of, position=at)
            rule: RankRule | None = None
            if not several:
                one = replace(one, rank=0, replicas=1, processes=processes)
            elif planned is None:
                rule = self._rule(number, size, announcement, outer)
            else:
                rule = planned(number, self.order)
            if isinstance(order, MixedOrder):
                assert rule is None or isinstance(rule, MemberRanks)
                self._mixed[number].begin(one, goes_on=goes_on, outer=rule)
                continue
            # If the weights have changed, the rest of the member's epoch is divided in another way: it begins again.
            same = rule is None or rule.agrees_with(self._rules.get(number))
            origin = f"{self._origin}|member {number}"
            one = replace(one, processes=GOES_ON) if goes_on and same else one
            self._members.ports[number].prepare(order, one, origin=origin, rule=rule)
            begins.append(
                partial(self._members.begin, self._tags[number], number, order, one, origin=origin, rule=rule)
            )
            if rule is not None:
                self._rules[number] = rule
        for begin in begins:
            begin()

    def _rule(self, member: int, size: int, begins: Announcement, outer: MemberRanks | None) -> MemberRanks:
        """Return the rule by which ranks divide a member of `size` positions an epoch."""
        level = member, self.order.pattern
        if outer is not None:
            return replace(outer, levels=(level, *outer.levels), draws=size)
        first = begins.epoch * self.samples + begins.position
        return MemberRanks((level,), size, self.samples, self.seed, first, begins.replicas)

    def to_json(self) -> dict[str, Any]:
        facts = self.order.to_json()
        for number, sequence in self._mixed.items():
            facts["members"][number] = sequence.to_json()
        return facts

    def facts_at(self, epoch: int, position: int) -> dict[str, Any]:  # noqa: ARG002 - the same at all positions
        return {"version": MIXED_VERSION}

    def loaded(self, state: Mapping[str, Any]) -> MixedSequence:
        """Return a sequence of the same members with a state's samples, seed and weights. Raises `UsageError`."""
        if state["version"] != MIXED_VERSION or not state["shuffle"]:
            raise UsageError("the state is of a BrandDataset, and this sampler fetches from a Mixture")
        try:
            facts, epoch = state["order"]["members"], state["epoch"]
            begun = bool(epoch or state["position"])  # its epochs begin inside epochs of members
            inner = {"epoch": epoch, "position": int(begun), "shuffle": True, "version": MIXED_VERSION}
            mixed = {
                number: sequence.loaded({**inner, "order": facts[number]}) for number, sequence in self._mixed.items()
            }
            members = [
                each if number in mixed else renewed(each, epoch=epoch, begun=begun)
                for number, each in enumerate(facts)
            ]
            known = {number: each.order for number, each in mixed.items()}
            order = MixedOrder.from_json({**state["order"], "members": members}, known, self.order.subsets)
        except UsageError:
            raise
        except (ValueError, TypeError, LookupError) as error:
            raise UsageError(f"this is no state of a Mixture: {error}") from None
        there, here = (
            [each.data_set for each in orders if isinstance(each, Order)]
            for orders in (order.orders, self.order.orders)
        )
        if there != here:
            raise UsageError(
                f"the state is of a mixture of data sets {', '.join(there)}, this one is of {', '.join(here)}: give "
                "the same members in the same order"
            )
        for one, other in zip(order.orders, self.order.orders, strict=True):
            if isinstance(one, MixedOrder) or isinstance(other, MixedOrder):
                continue
            if (one.samples, one.chunk_size) != (other.samples, other.chunk_size):
                raise UsageError("this is no state of a Mixture: sizes are not those of its members")
        if state["position"] > order.samples:
            raise UsageError(f"this is no state of a Mixture: position {state['position']:,} of {order.samples:,}")
        sequence = MixedSequence(self._members, order, self._origin, mixed)
        sequence.take(epoch, state["position"])
        return sequence

    def weighted(self, weights: tuple[float, ...], epoch: int | None, position: int) -> MixedOrder:
        """Return the order with other weights from a position of an epoch on; None: of the next one that it can take.

        Raises `UsageError` if this process has taken the position.
        """
        epoch = -(-self._taken // self.samples) if epoch is None else epoch
        try:
            order = self.order.with_weights(weights, epoch, position)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if order != self.order and epoch * self.samples + position < self._taken:
            at = "epoch {}, position {:,}".format(*divmod(self._taken, self.samples))
            raise UsageError(
                f"weights from epoch {epoch}, position {position:,} on, and samples up to {at} are on their way: say a "
                "later position, the same one on all ranks"
            )
        return order

    def follow(self, order: MixedOrder) -> None:
        """Continue with an order of other weights."""
        self.order = order

    def end(self) -> None:
        """Follow no more weights: an iteration that goes on keeps those that it has."""
        self._members.remove_sequence(self)
