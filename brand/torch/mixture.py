"""`Mixture`: how do several data sets train as one, each with its share of every global batch?

    BrandSampler   positions of one endless sequence -> tickets of the members    `mixed_sequence`
    Mixture        tickets -> one request to each member, and the samples in order    `mixed_fetched`
    members        each draws from its own node server, in its own memory

A mixture owns no samples and no server. It knows which member a ticket is of, and tells a member's server when this
process comes to the member's next epoch: that may be in the middle of a batch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError
from brand.node.wire.looping import LoopReport
from brand.protocol.mixed_order import MixedOrder, Stretch, seed_of_member
from brand.protocol.order import MAX_SEED, Order
from brand.protocol.shares import check_weights
from brand.protocol.tickets import MAX_POSITIONS, TICKET, TICKETS_END, tag_and_epoch
from brand.torch.dataset import BrandDataset
from brand.torch.drawable import Drawable
from brand.torch.habit import ReadingHabit
from brand.torch.mixed_fetched import MEMBER, MixedFetched, Portion
from brand.torch.mixed_sequence import MixedSequence
from brand.torch.ranks import node_by_launcher
from brand.torch.sequence import whole

_ONE_NODE = (
    "a Mixture draws on one node: on several nodes, a node server would not know what its ranks draw. Train on one "
    "node, or make one data set of all of them (docs/mixtures.md)"
)


class Mixture(Drawable):
    """Several data sets that are drawn from as one, each with a share of all draws. Immutable and picklable.

    Give it to a `BrandSampler` and a `BrandLoader`, or a `DataLoader` with that sampler, in place of a data set:

        mixture = Mixture({web: 0.7, books: 0.3}, seed=0)
        loader = BrandLoader(mixture, batch_size=100)

    Weights are relative. Where `G * weight / sum of weights` is whole for all members, any `G` samples in a row (so any
    global batch of `G`) have exactly these shares, whatever the number of ranks. Else each member's count from the
    beginning on is its share, rounded up or down (with more than four members rarely one more or less).

    A member that is exhausted goes on with its next epoch, in a new order: each of its samples comes once before any
    comes twice. Epochs of the mixture are cuts of one endless sequence, so a member goes on where it was.

    Samples are those of the members, which all have the same fields. A sample that is a dict says in `member` the
    number of its member, in the order given. `memory=`, `transform=`, `prepare=` and `server=` are those of each
    member.

    Args:
        weights: The members, `BrandDataset`s, and their weights: finite, 0 or more, not all 0. A member of weight 0 is
            drawn from once `BrandSampler.set_weights` gives it another.
        seed: Fixes the order of every epoch, unless the sampler is given a seed.
        samples: Samples of an epoch; None: as many as all members have together.

    Raises:
        SchemaError: Members whose samples differ in their fields.
        UsageError: Weights that cannot be, or no members.
    """

    def __init__(self, weights: Mapping[BrandDataset, float], *, seed: int = 0, samples: int | None = None) -> None:
        if not isinstance(weights, Mapping) or not weights:
            raise UsageError("a Mixture is made of a dict: Mixture({one: 0.7, other: 0.3})")
        for member in weights:
            if not isinstance(member, BrandDataset):
                raise UsageError(f"a Mixture is of BrandDatasets, not of a {type(member).__name__}")
        self.members = tuple(weights)
        self.weights = self.weights_of(weights)
        self.seed = whole("seed", seed, MAX_SEED)
        together = sum(member.catalogue.samples_present for member in self.members)
        self._samples = together if samples is None else max(1, whole("samples", samples, MAX_POSITIONS))
        _check_alike(self.members)
        first = self.members[0]
        self.fields = first.fields
        self.name = f"a mixture of {', '.join(member.name for member in self.members)}"
        self.transform = tuple(m.transform for m in self.members) if any(m.transform for m in self.members) else None
        """Those of the members; None: no member has one."""
        self.job = "+".join(dict.fromkeys(member.job for member in self.members if member.job is not None)) or None
        self._member_of: dict[int, int] = {}
        """Number of the member by tag."""
        self._habit = ReadingHabit()
        self._begun: dict[int, int] = {}
        """The last epoch that this process has begun, by tag."""

    def __len__(self) -> int:
        return self._samples

    def __repr__(self) -> str:
        members = ", ".join(f"{m!r}: {weight:g}" for m, weight in zip(self.members, self.weights, strict=True))
        return f"Mixture({{{members}}}, seed={self.seed}, samples={self._samples:,})"

    # -- for a sampler -----------------------------------------------------------------------------------------------

    def sequence(self, seed: int, origin: str, *, part: ArrayLike | None, shuffle: bool) -> MixedSequence:
        """What a sampler draws. Raises `UsageError`."""
        if part is not None or not shuffle:
            what = "shuffle=False" if part is None else "part="
            raise UsageError(f"{what} is for a sampler of one BrandDataset, and this one draws from a Mixture")
        if (node_by_launcher() or (0, 1))[1] > 1:
            raise UsageError(_ONE_NODE)
        orders = [member.ordering.order(seed_of_member(seed, number)) for number, member in enumerate(self.members)]
        for member, order in zip(self.members, orders, strict=True):
            if order.shares:
                raise UsageError(
                    f"{member.name} shares its reads with other jobs (protocol={order.policy.name!r}), and a member of "
                    "a Mixture does not: give it protocol='stripes'"
                )
        return MixedSequence(self, MixedOrder(tuple(orders), self._samples, seed, (Stretch(0, self.weights),)), origin)

    def weights_of(self, weights: Mapping[Any, float]) -> tuple[float, ...]:
        """Weights by number of the member. Raises `UsageError`."""
        if not isinstance(weights, Mapping) or set(weights) != set(self.members):
            raise UsageError("weights are a dict with a number for each member of the Mixture, and for nothing else")
        numbers = [weights[member] for member in self.members]
        try:
            check_weights(numbers)
        except ValueError as error:
            raise UsageError(f"this is no Mixture: {error}") from None
        return tuple(map(float, numbers))

    def know(self, tags: Sequence[int]) -> None:
        """A sampler draws from the members with these tags."""
        self._member_of |= {tag: number for number, tag in enumerate(tags)}

    def begin(
        self, tag: int, member: BrandDataset, order: Order, epoch: int, position: int, processes: int, *, origin: str
    ) -> None:
        """A sampler is about to draw from a member. `processes`: as for `BrandDataset.announce`."""
        if member.ordering.nodes > 1:
            raise UsageError(_ONE_NODE)
        member.announce(order, epoch, position, (0, 1), 0, processes, origin=origin)
        self._begun[tag] = epoch

    # -- for a loader ------------------------------------------------------------------------------------------------

    def fetch(self, indices: Sequence[int] | NDArray[np.int64]) -> MixedFetched:
        """The samples for these tickets: one request to each member, and one more where a member's epoch ends."""
        asked = indices
        if not isinstance(asked, np.ndarray):
            asked = np.fromiter(map(operator.index, asked), np.int64, len(asked))
        if len(asked) and not TICKET <= int(asked.min()) <= int(asked.max()) < TICKETS_END:
            raise UsageError(
                "a Mixture has no indices of its own: draw with sampler=BrandSampler(mixture), or read a sample of a "
                "member, mixture.members[0][index]"
            )
        self._habit.note_draw(len(asked), self)
        orders = asked >> 32
        portions = []
        for name in sorted(set(orders.tolist())):  # epochs of one member ascend
            at = np.flatnonzero(orders == name)
            tag, epoch = tag_and_epoch(name << 32)
            member = self._member(tag)
            if epoch > self._begun.get(tag, -1):
                self.members[member].come_to(tag, epoch)
                self._begun[tag] = epoch
            portions.append(Portion(member, epoch, at, self.members[member].draw(asked[at])))
        return MixedFetched(portions, with_member=self.fields is None)

    def finish(self, samples: list[dict[str, Any]]) -> list[Any]:
        """Samples as their members finish them."""
        return [self.members[sample[MEMBER]].finish([sample])[0] for sample in samples]

    @property
    def plain(self) -> bool:
        """Whether no member decodes or transforms anything."""
        return all(member.plain for member in self.members)

    @property
    def files(self) -> set[str]:
        """Fields that hold the bytes of an image or audio file."""
        return self.members[0].files

    @property
    def mean_bytes(self) -> float:
        """Mean size of a stored sample that is drawn, as often as the weights say."""
        total = sum(self.weights)
        return sum(m.mean_bytes * w / total for m, w in zip(self.members, self.weights, strict=True))

    @property
    def server_bytes(self) -> int | None:
        """How many bytes the node servers may hold together; None where only one of them knows."""
        limits = [member.server_bytes for member in self.members]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    def check_ranks(self, replicas: int) -> None:
        """See `BrandDataset.check_ranks`."""
        for member in self.members:
            member.check_ranks(replicas)

    def stats(self) -> dict[str, Any]:
        """By name of the member: its part of all draws from the servers of the members, and what its server says.

        An empty dict before the first draw.
        """
        found = {member.name: member.stats() for member in self.members}
        draws = sum(said.get("draws", 0) for said in found.values())
        return (
            {
                name: {"share": round(said["draws"] / max(1, draws), 6), "server": said} if said else {}
                for name, said in found.items()
            }
            if draws
            else {}
        )

    def tell_loop(self, report: LoopReport) -> bool:
        """Tell the node servers of all members. Returns whether any was told."""
        told = [member.tell_loop(report) for member in self.members]  # each of them, so no generator
        return any(told)

    def _member(self, tag: int) -> int:
        """The member that a ticket with this tag draws from."""
        if tag not in self._member_of:  # the sampler was made, or loaded its state, after this worker started
            found = [number for number, member in enumerate(self.members) if member.knows(tag)]
            if not found:
                raise UsageError("this ticket comes from a BrandSampler of another Mixture; give both the same one")
            self._member_of[tag] = found[0]
        return self._member_of[tag]


def _check_alike(members: Sequence[BrandDataset]) -> None:
    """Raises `SchemaError` where samples of members differ in their fields."""
    first = members[0]
    for member in members:
        if member.fields != first.fields:
            raise SchemaError(
                f"samples of a Mixture have the same fields in the same order: {first.name} has fields={first.fields}, "
                f"{member.name} fields={member.fields}"
            )
        one, other = (
            {name: codec for name, codec in each.schema.items() if first.fields is None or name in first.fields}
            for each in (first, member)
        )
        if one != other:
            raise SchemaError(
                f"samples of a Mixture have the same fields: {first.name} has {one}, {member.name} has {other}; name "
                "those that they have in common with fields=(...)"
            )
        if first.files & set(one) and member.decode != first.decode:
            raise SchemaError(f"decode= is {first.decode} for {first.name}, and {member.decode} for {member.name}")
    if first.fields is None and MEMBER in first.schema:
        raise SchemaError(
            f"a Mixture says in the field {MEMBER!r} where a sample comes from, and the data sets have a field of that "
            "name: name fields with fields=(...)"
        )
