"""`Mixture`: how do several data sets train as one, each with its fraction of every global batch?

    BrandSampler   positions of one endless sequence -> tickets of the members    `mixed_sequence`
    Mixture        tickets -> one request to each member, and the samples in order    `fetched`
    members        each fetches from its own data server, in its own memory

A mixture owns no samples and no server. It knows the member of each ticket, and tells the server of a member when this
process begins the member's next epoch, which may be in the middle of a batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError, UsageError
from brand.node.wire.looping import LoopReport
from brand.orders.base.tickets import MAX_POSITIONS, TICKET, TICKETS_END
from brand.orders.mixtures.mixed_order import MixedOrder, seed_of_member
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.data.dataset import BrandDataset
from brand.torch.data.drawable import Drawable, SampleSource
from brand.torch.data.expanded import ExpandedSource
from brand.torch.data.set_source import AccessHint, SetSource
from brand.torch.fetch.fetched import MEMBER, Form, UndecodedMixture
from brand.torch.fetch.filled import FilledField, filled_fields
from brand.torch.job.wrappers import refuse_create_loader
from brand.torch.order.draw_port import origin_here
from brand.torch.order.mixed_sequence import MixedSequence, MixtureMembers
from brand.torch.order.sequence import SequenceOptions, whole


class Mixture(Drawable):
    """Several data sets as one, each with a fraction of the samples. Can be pickled.

    Give it to a `BrandSampler` and a `BrandLoader`, or a `DataLoader` with that sampler, in place of a data set:

        mixture = Mixture({web: 0.7, books: 0.3}, seed=0)
        loader = BrandLoader(mixture, batch_size=100)

    Weights are relative. If `G * weight / sum of weights` is whole for all members, any `G` samples in a row (so any
    global batch of `G`) have exactly these fractions, for any number of ranks. Otherwise the number of samples of each
    member, counted from the beginning, is its fraction rounded up or down (with more than four members, rarely one more
    or less).

    If all samples of a member were fetched, the member begins its next epoch, in a new order: each of its samples is
    fetched once before any is fetched twice. Epochs of the mixture are consecutive sections of one endless sequence, so
    a member continues from its last sample.

    All members have the same fields, or `fill` has a value for each field that a member lacks. If samples are dicts,
    `member` is the number of the sample's member, in the order given. Each member has its own `memory=`, `transform=`,
    `decode=` and `server=`.

    Args:
        weights: The members, `BrandDataset`s, and their weights: finite, 0 or more, not all 0. A member of weight 0 is
            fetched from once `set_weights` gives it another weight.
        seed: Seed of the order of every epoch, if the sampler has none.
        samples: Samples of an epoch; None: as many as all members have together.
        fill: Field -> the value that samples of members without this field get, before their transform. Samples are
            then dicts: the members have no `fields=`.

    Raises:
        SchemaError: The samples of the members differ in their fields, or a value of `fill` does not fit its field.
        UsageError: A weight is not valid, or there are no members.
    """

    _source: MixtureSource

    def __init__(
        self,
        weights: Mapping[BrandDataset, float],
        *,
        seed: int = 0,
        samples: int | None = None,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(weights, Mapping) or not weights:
            raise UsageError("a Mixture is made of a dict: Mixture({one: 0.7, other: 0.3})")
        for member in weights:
            if not isinstance(member, BrandDataset):
                raise UsageError(f"a Mixture is of BrandDatasets, not of a {type(member).__name__}")
        self.members = tuple(weights)
        """The data sets, in the order given."""
        sources = tuple(member._source for member in self.members)
        expanded = [number for number, source in enumerate(sources) if isinstance(source, ExpandedSource)]
        for number in expanded:
            if [source.data.id for source in sources].count(sources[number].data.id) > 1:
                raise UsageError(
                    f"a Mixture has {sources[number].name} more than once, and with expand=: a worker could not tell"
                    " the members apart. Give each a loader of its own, and take batches from these in turn"
                )
        members = MixtureMembers(self.members, [source.port for source in sources], expanded)
        shares, seed = members.weights_of(weights), whole("seed", seed, MAX_SEED)
        together = sum(source.samples_present for source in sources)
        count = together if samples is None else max(1, whole("samples", samples, MAX_POSITIONS))
        filled = filled_fields([source.schema for source in sources], fill or {})
        if fill and any(source.fields is not None for source in sources):
            raise UsageError("fill= is for samples that are dicts: leave out fields= of the members")
        _check_alike(sources, frozenset(filled))
        self._source = MixtureSource(sources, members, shares, seed, count, filled)
        self._origin = origin_here()

    def __repr__(self) -> str:
        source = self._source
        members = ", ".join(f"{m!r}: {weight:g}" for m, weight in zip(self.members, source.weights, strict=True))
        return f"Mixture({{{members}}}, seed={source.seed}, samples={len(source):,})"

    def set_weights(
        self, weights: Mapping[BrandDataset, float], *, epoch: int | None = None, position: int = 0
    ) -> None:
        """Set the weights from a position of an epoch on, for all samplers of this mixture.

        They replace all weights that were set for later positions. Call it on all ranks, with the same arguments. A
        position may be far ahead, so a whole curriculum can be set before the training begins, and again after a
        restart. A loader state contains the weights of its sampler, and a sampler that loads a state continues with
        those.

        Args:
            weights: The weights, as for `Mixture`.
            epoch: The epoch. None: for each sampler the next one that has not begun.
            position: Counts the samples of all ranks, as that of a state does: for step `n` it is `n` global batches.

        Raises:
            UsageError: A weight is not valid; the loader of a sampler has already taken the position, because samples
                under way keep the weights with which they were planned (the message names the first position that is
                possible); or ranks of several nodes change weights inside an epoch.
        """
        if epoch is None and position:
            raise UsageError(f"position={position} of which epoch? Say epoch=, too")
        epoch = None if epoch is None else whole("epoch", epoch, MAX_EPOCH)
        position = whole("position", position, max(0, len(self._source) - 1))
        self._source.members.set_weights(weights, epoch, position, self._origin)

    @property
    def transform(self) -> tuple[Any, ...] | None:
        """The transforms of the members; None if no member has one. Assign to those of the members."""
        return self._source.transform

    @transform.setter
    def transform(self, _: Any) -> None:
        refuse_create_loader()
        raise UsageError("a Mixture has no transform of its own: assign it to each member, or give it to BrandDataset")

    def stats(self) -> dict[str, Any]:
        """Return, by name of the member, its fraction of all samples fetched, and the counters of its data server.

        Returns an empty dict before the first fetch.
        """
        return self._source.stats()


class MixtureSource(Reprs, SampleSource, shows="name weights seed _samples"):
    """The source behind a `Mixture`. Can be pickled."""

    numbers = ("index", MEMBER)

    def __init__(
        self,
        sources: tuple[SetSource, ...],
        members: MixtureMembers,
        weights: tuple[float, ...],
        seed: int,
        samples: int,
        filled: Mapping[str, FilledField],
    ) -> None:
        self.sets, self.members, self.weights, self.seed, self._samples = sources, members, weights, seed, samples
        self._filled = dict(filled)
        self.name, self.fields, self.files = members.name, sources[0].fields, sources[0].files
        total = sum(weights)
        self.mean_bytes = sum(s.mean_bytes * w / total for s, w in zip(sources, weights, strict=True))
        self.job = "+".join(dict.fromkeys(source.job for source in sources if source.job is not None)) or None
        self._hint = AccessHint()

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return self._samples

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec of its values in a sample, for the fields of all members."""
        return {name: codec for source in self.sets for name, codec in source.schema.items()}

    @property
    def transform(self) -> tuple[Any, ...] | None:
        """The transforms of the members; None if no member has one."""
        found = tuple(source.transform for source in self.sets)
        return found if any(found) else None

    # -- for a sampler -----------------------------------------------------------------------------------------------

    def sequence(self, options: SequenceOptions) -> MixedSequence:
        """See `SampleSource`."""
        seed = options.seed
        if options.weights is not None:
            raise UsageError("weights= is for a sampler of one BrandDataset; a Mixture has a weight for each member")
        if options.subset is not None or not options.shuffle:
            what = "shuffle=False" if options.subset is None else "subset="
            raise UsageError(f"{what} is for a sampler of one BrandDataset, and this one fetches from a Mixture")
        orders: list[Order | MixedOrder] = []
        expanded = dict[int, MixedSequence]()
        for number, source in enumerate(self.sets):
            own = seed_of_member(seed, number)
            if isinstance(source, ExpandedSource):
                expanded[number] = source.as_member(own, f"{options.origin}|member {number}")
                orders.append(expanded[number].order)
                continue
            order = source.port.order(own)
            orders.append(order)
            if order.shares:
                raise UsageError(
                    f"{source.name} shares its reads with other jobs (order={order.policy.name!r}), and a member of "
                    "a Mixture does not: give it order='stripes'"
                )
        mixed = self.members.with_changes(MixedOrder.of(orders, self._samples, seed, self.weights))
        return MixedSequence(self.members, mixed, options.origin, expanded)

    # -- for a loader ------------------------------------------------------------------------------------------------

    def fetch(
        self,
        indices: Sequence[int] | NDArray[np.int64],
        seeds: Sequence[int] | None = None,  # noqa: ARG002 - it has no samples by index
    ) -> UndecodedMixture:
        """Return the samples for these tickets: one request to each member, and one more if a member's epoch ends."""
        asked = indices
        if not isinstance(asked, np.ndarray):
            asked = np.fromiter(map(operator.index, asked), np.int64, len(asked))
        if len(asked) and not TICKET <= int(asked.min()) <= int(asked.max()) < TICKETS_END:
            raise UsageError(
                "a Mixture has no indices of its own: fetch with sampler=BrandSampler(mixture), or read a sample of a "
                "member, mixture.members[0][index]"
            )
        self._hint.note_draw(len(asked), self.name)
        portions = self.members.portions(asked, lambda member, tickets: self.sets[member].drawn(tickets))
        return UndecodedMixture(portions, with_member=self.fields is None, filled=self._filled)

    def finish(self, samples: list[dict[str, Any]], transform: tuple[Any, ...] | None) -> list[Any]:
        """Return each sample as its member finishes it."""
        each = transform or (None,) * len(self.sets)
        return [self.sets[s[MEMBER]].finish([s], each[s[MEMBER]])[0] for s in samples]

    @property
    def forms(self) -> dict[str, Form]:
        """See `SampleSource`; empty if those of the members differ."""
        first, *others = (member.forms for member in self.sets)
        return first if all(each == first for each in others) else {}

    @property
    def random_parts(self) -> bool:
        """Whether a member decodes to random parts."""
        return any(member.random_parts for member in self.sets)

    @property
    def plain(self) -> bool:
        """Whether no member decodes or transforms anything."""
        return all(member.plain for member in self.sets)

    @property
    def server_bytes(self) -> int | None:
        """Memory of all data servers for samples, in bytes; None if only a server knows its own limit."""
        limits = [member.server_bytes for member in self.sets]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    def check_ranks(self, replicas: int) -> None:
        """See `SampleSource`."""
        for member in self.sets:
            member.check_ranks(replicas)

    def stats(self) -> dict[str, Any]:
        """See `Mixture.stats`."""
        found = {member.name: member.stats() for member in self.sets}
        fetched = sum(said.get("fetched", 0) for said in found.values())
        if not fetched:
            return {}
        return {
            name: {"share": round(said["fetched"] / fetched, 6), "server": said} if said else {}
            for name, said in found.items()
        }

    def tell_loop(self, report: LoopReport) -> bool:
        """Report the waits to the data servers of all members. Returns whether any report was sent."""
        told = [member.tell_loop(report) for member in self.sets]  # each of them, so no generator
        return any(told)


def _check_names(one: StoredDataSet, other: StoredDataSet, fields: Iterable[str]) -> None:
    """Raise `SchemaError` if a number of a field has two names. One of the data sets may have more names, or none."""
    for place in one.names.keys() & other.names.keys():
        if place.partition(".")[0] not in fields:
            continue
        for number, (mine, theirs) in enumerate(zip(one.names[place], other.names[place], strict=False)):
            if mine != theirs:
                raise SchemaError(
                    f"{place} {number} means {mine!r} in {one.name} and {theirs!r} in {other.name}: convert one of "
                    "them again with the numbers of the other (`brand convert ... --classes-of`, or classes=)"
                )


def _check_alike(members: Sequence[SetSource], filled: frozenset[str]) -> None:
    """Raise `SchemaError` if samples of members differ in their fields, apart from those that are `filled`."""
    first = members[0]
    for member in members:
        if member.fields != first.fields:
            raise SchemaError(
                f"samples of a Mixture have the same fields in the same order: {first.name} has fields={first.fields}, "
                f"{member.name} fields={member.fields}"
            )
        one, other = (
            {
                name: codec
                for name, codec in each.schema.items()
                if name not in filled and (first.fields is None or name in first.fields)
            }
            for each in (first, member)
        )
        if one != other:
            raise SchemaError(
                f"samples of a Mixture have the same fields: {first.name} has {one}, {member.name} has {other}; name "
                "those that they have in common with fields=(...), or give values for the others: fill={'NAME': ...}"
            )
        _check_names(first.data, member.data, one)
        if first.files & set(one) and member.decodes != first.decodes:
            raise SchemaError(f"decode= is {first.decodes} for {first.name}, and {member.decodes} for {member.name}")
    if first.fields is None and MEMBER in first.data.schema:
        raise SchemaError(
            f"a Mixture says in the field {MEMBER!r} where a sample comes from, and the data sets have a field of that "
            "name: name fields with fields=(...)"
        )
