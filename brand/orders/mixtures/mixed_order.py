"""The order of a mixture: the orders of its members, and the member of each position.

A mixture has one endless sequence of positions. Its epochs are cuts of it, `samples` positions each: the sequence
continues from one epoch to the next. Each position draws from one member (`Pattern`). Draw number
`d` of a member is position `d % n` of epoch `d // n` in the member's own order of `n` samples. So a member that is
exhausted continues with its next epoch: each of its samples is drawn once before any is drawn twice.

Weights may change at a position. From there on the counts begin again, and each member continues its order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.part import RandomSubset, Subset
from brand.orders.base.policy import check_number, check_type
from brand.orders.base.random import RandomStream, bits
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.mixtures.shares import MAX_POSITION, Pattern, Stretch
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order

_NUMBER_BITS: Final = 8
"""Bits of a number of a member (`MAX_MEMBERS`)."""


@dataclass(frozen=True, slots=True)
class MixedDraws:
    """The members, epochs and positions that a mixture draws; all shapes are (positions,)."""

    member: NDArray[np.int16]
    epoch: NDArray[np.int64]
    """Epoch of the member."""
    position: NDArray[np.int64]
    """Position in that epoch."""


@dataclass(frozen=True, slots=True)
class MixedOrder:
    """The order of all epochs of a mixture. Raises ValueError if its numbers do not fit together."""

    orders: tuple[Order | MixedOrder, ...]
    """By member. One that is mixed itself draws all samples of an epoch before it draws one again."""
    samples: int
    """Positions of an epoch."""
    seed: int
    pattern: Pattern
    """The member of each position of the sequence."""

    def __post_init__(self) -> None:
        check_number("samples", self.samples, 1, MAX_POSITIONS)
        check_type("seed", self.seed, int)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed {self.seed} is not from 0 to 2**128 - 1")
        if self.pattern.members != len(self.orders):
            raise ValueError(f"weights for another number of members: there are {len(self.orders)}")

    @classmethod
    def of(cls, orders: Sequence[Order | MixedOrder], samples: int, seed: int, weights: Sequence[float]) -> MixedOrder:
        """Return the order of members with the same weights at all positions."""
        return cls(tuple(orders), samples, seed, Pattern((Stretch(0, tuple(weights)),)))

    def draws(self, epoch: int, positions: NDArray[np.int64]) -> MixedDraws:
        """Return draws at positions of an epoch. Raises ValueError if a member would begin more epochs than it has."""
        first = epoch * self.samples
        if first + self.samples - 1 > MAX_POSITION:
            raise ValueError(
                f"epoch {epoch} of {self.samples:,} samples: the sequence has at most {MAX_POSITION + 1:,}"
            )
        member, number = self.pattern.drawn(first + positions)
        sizes = np.array(self.sizes)[member]
        found = MixedDraws(member, *np.divmod(number, sizes))
        if len(positions) and int(found.epoch.max()) > MAX_EPOCH:
            which_one = int(member[found.epoch.argmax()])
            raise ValueError(
                f"member {which_one} has {self.sizes[which_one]:,} samples and would begin its epoch "
                f"{MAX_EPOCH + 1:,}, the last one is {MAX_EPOCH:,}: give it a smaller weight"
            )
        return found

    def by_position(self, epoch: int, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the value of the sample at each position of an epoch, shape (samples,).

        `values` are those of the samples of each member, by place. Members are no mixtures. Raises ValueError as
        `draws` does.
        """
        drawn = self.draws(epoch, np.arange(self.samples))
        found = np.empty(self.samples, np.result_type(*values))
        for member, order in enumerate(self.orders):
            assert isinstance(order, Order)
            here = np.flatnonzero(drawn.member == member)
            begins = np.flatnonzero(np.diff(drawn.epoch[here], prepend=-1))  # the draws of a member are consecutive
            for at in np.split(here, begins[1:]) if len(here) else ():
                first = int(drawn.position[at[0]])
                places = order.places(int(drawn.epoch[at[0]]), first, first + len(at))
                found[at] = values[member][places]
        return found

    @property
    def subsets(self) -> dict[int, Subset | RandomSubset]:
        """The subsets of the members that have one, by number of the member."""
        own = {n: order.subset for n, order in enumerate(self.orders) if isinstance(order, Order)}
        return {n: subset for n, subset in own.items() if subset is not None}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The draws of an epoch of each member."""
        return tuple(order.samples if isinstance(order, MixedOrder) else order.draws for order in self.orders)

    def counts(self, epoch: int, position: int) -> tuple[int, ...]:
        """Return how often each member was drawn before a position of an epoch."""
        return self.pattern.counts(epoch * self.samples + position)

    def weights_at(self, epoch: int, position: int) -> tuple[float, ...]:
        """Return the weights at a position of an epoch."""
        return self.pattern.weights_at(epoch * self.samples + position)

    def with_weights(self, weights: Sequence[float], epoch: int, position: int) -> MixedOrder:
        """Return the order with these weights from a position of an epoch on, in place of all weights from there on.

        If these weights apply there already, nothing changes: a restarted program may repeat the call.
        """
        stretch = Stretch(epoch * self.samples + position, tuple(map(float, weights)))
        return replace(self, pattern=self.pattern.changed(stretch))

    def to_json(self) -> dict[str, Any]:
        return {
            "members": [order.to_json() for order in self.orders],
            "samples": self.samples,
            "seed": self.seed,
            "weights": self.pattern.to_json(),
        }

    @classmethod
    def from_json(
        cls,
        value: Any,
        mixed: Mapping[int, MixedOrder] | None = None,
        subsets: Mapping[int, Subset | RandomSubset] | None = None,
    ) -> MixedOrder:
        """Read the output of `to_json`, but for the members that are `mixed`. Raises ValueError if it is invalid.

        `subsets`: those of members that have one, which the output names only.
        """
        match value:
            case {"members": [*members], "samples": samples, "seed": seed, "weights": [*weights]} if len(value) == 4:
                known, parts = mixed or {}, subsets or {}
                orders = tuple(
                    known[n] if n in known else Order.from_json(each, parts.get(n)) for n, each in enumerate(members)
                )
            case _:
                raise ValueError("the order of a mixture has members, samples, seed and weights")
        return cls(orders, samples, seed, Pattern.from_json(weights))


def ranks_of_rounds(seed: int, epoch: int, start: int, rounds: range, replicas: int) -> NDArray[np.int64]:
    """Return the rotation of the ranks in each round, 0 to `replicas` - 1, shape (len(rounds),).

    Rank `r` draws number `(r + rotation) % replicas` of a round's positions. Members follow a pattern: without the
    rotation, a rank could always draw from the same members.
    """
    first = rounds.start // 4 * 4
    words = bits(rounds.stop - first, seed, RandomStream.MIXED_RANKS, epoch, start, first=first)[rounds.start - first :]
    return (words % np.uint64(replicas)).astype(np.int64)


def positions_of_rank(seed: int, epoch: int, start: int, rounds: range, ranks: tuple[int, int]) -> NDArray[np.int64]:
    """Return the positions of a rank in these rounds, shape (len(rounds),). `ranks`: the rank and the number of ranks.

    An epoch is drawn from the position `start` on. The last round may have positions beyond the end of the epoch.
    """
    rank, replicas = ranks
    in_round = (rank + ranks_of_rounds(seed, epoch, start, rounds, replicas)) % replicas
    return start + np.arange(rounds.start, rounds.stop, dtype=np.int64) * replicas + in_round


def seed_of_member(seed: int, member: int) -> int:
    """Return the seed of a member's own order, so that members of one size have different orders."""
    return int.from_bytes(hashlib.blake2s(f"{seed} {member}".encode(), digest_size=16).digest())


def numbered_seed(seed: int, member: int) -> int:
    """Return the same with the member's number in it: any process finds it by `member_of_seed`.

    It is for members that are orders of one data set, which a ticket does not tell apart.
    """
    return seed_of_member(seed, member) >> _NUMBER_BITS << _NUMBER_BITS | member


def member_of_seed(seed: int) -> int:
    """Return the number of the member that has a `numbered_seed`."""
    return seed & ((1 << _NUMBER_BITS) - 1)
