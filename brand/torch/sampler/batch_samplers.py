"""Which samples make a batch together, if they differ in length? `LengthBatchSampler`, `PackedBatchSampler`.

Lengths are known before any sample is read, so the batches of an epoch are planned with its order: batches of similar
length, batches up to a length, or rows packed full (`brand.orders.batches.batching`). Each batch is a list
of tickets, which are fetched as those of a `BrandSampler`. A loader state holds epoch, number of batches, limits and
order; any number of ranks and workers can continue from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from numpy.typing import ArrayLike

from brand.errors import UsageError, counted
from brand.node.setup.lengths import SetLengths, lengths_of, planned_limits
from brand.orders.base.part import named
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.batch_ranks import SampleLengths
from brand.orders.batches.batching import BatchLimits
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order, renewed
from brand.torch.data.dataset import BrandDataset
from brand.torch.data.drawable import Drawable, not_drawable, source_of
from brand.torch.data.expanded import ExpandedSource
from brand.torch.data.mixture import Mixture, MixtureSource
from brand.torch.data.set_source import SetSource
from brand.torch.job.model_parallel import refuse_model_parallel
from brand.torch.job.rank_groups import OWN_SEAT, RankGroups
from brand.torch.job.ranks import find_rank, is_alone, rank_source
from brand.torch.order.draw_port import origin_here
from brand.torch.order.mixed_sequence import MIXED_VERSION, MixedSequence
from brand.torch.order.sequence import OfOneSet, SequenceOptions, other_data_set, whole
from brand.torch.pytorch import DistributedSampler
from brand.torch.sampler.frameworks import asking_loader, nodes_epoch, refuse_reordering, unless_in_trainer, wrapping_of
from brand.torch.sampler.lightning_epochs import TrainerEpoch, first_epoch, refuse_trainer, trainer_epoch
from brand.torch.sampler.packed import PackedRows
from brand.torch.sampler.planned import VERSION, PlannedBatches, PlannedSequence
from brand.torch.sampler.positions import Dealing, IterationStart, States, Upcoming, rounds
from brand.torch.sampler.streams import ended_inside

_SIZES: Final = {"batch_size": "size", "batch_length": "most", "tokens_per_row": "row", "rows_per_batch": "rows"}
"""Parameters -> fields of `BatchLimits`."""
_PREPARE: Final = "Use brand.frameworks.accelerate.prepare(accelerator, loader) in place of accelerator.prepare(loader)"
_OF_PAIRS: Final = (
    "plans batches of stored samples, and expand= makes several samples of each: fetch with a BrandSampler, or choose "
    "one element of each list in a transform"
)
_OF_MEMBERS: Final = (
    "for a Mixture, length= is a field that all members have, or a dict with a field or an array for each member: "
    "length={member: array, ...}"
)


Length = ArrayLike | str | Mapping[BrandDataset, ArrayLike | str] | None
"""The lengths of samples, as users give them."""


class PlanOptions(NamedTuple):
    """Options that both batch samplers have, as users give them."""

    seed: int | None
    num_replicas: int | None
    rank: int | None
    drop_last: bool
    subset: ArrayLike | None
    window: int | None
    groups: RankGroups


class PlannedBatchSampler(DistributedSampler[list[int]]):
    """Base class of the samplers that plan batches before any sample is read. `limits` are their own parameters."""

    dataset: BrandDataset | Mixture
    _lengths = "an `int` or `float` field, an array of all lengths by index, or None for the bytes of each sample"
    """The values of `length=`, in words."""
    shuffle = True
    """Frameworks read this attribute of a sampler. The order of batches is always random."""

    def __init__(
        self, dataset: BrandDataset | Mixture, length: Length, limits: Mapping[str, Any], options: PlanOptions
    ) -> None:
        # DistributedSampler's own __init__ is left out: it needs a process group, and fixes the ranks too early.
        if not isinstance(dataset, Drawable):
            raise UsageError(f"{type(self).__name__} {not_drawable(dataset)}")
        source = source_of(dataset)
        assert isinstance(source, SetSource | MixtureSource)
        sets = source.sets if isinstance(source, MixtureSource) else (source,)
        if any(isinstance(each, ExpandedSource) for each in sets):
            raise UsageError(f"{type(self).__name__} {_OF_PAIRS}")
        window = options.window
        for name, value in {**limits, "window": window}.items():
            optional = name in ("batch_size", "batch_length", "window")
            if (value is None and optional) or name == "batch_length":  # `BatchLimits` checks it
                continue
            if not whole(name, value, MAX_POSITIONS):
                raise UsageError(f"{name}={value}: at least 1 is needed")
        self._source = source
        self.dataset, self.drop_last = dataset, options.drop_last
        self.num_replicas, self.rank = options.num_replicas, options.rank  # type: ignore[assignment]
        self._groups = options.groups
        replicas = None if options.num_replicas is None else options.num_replicas // self._groups.copies
        seed = whole("seed", source.seed if options.seed is None else options.seed, MAX_SEED)
        access = source.sequence(SequenceOptions(seed, origin_here(), replicas, options.subset, shuffle=True))
        assert isinstance(access, OfOneSet | MixedSequence)
        order = access.order
        if isinstance(order, Order) and order.shares:
            raise UsageError("with order='shared' the order is decided while jobs fetch; batches are planned before")
        given = self._by_member(length)
        lengths = [SampleLengths(lengths_of(of.data, own, self._lengths)) for of, own in zip(sets, given, strict=True)]
        orders, weights = (order.orders, order.weights_at(0, 0)) if isinstance(order, MixedOrder) else ((order,), None)
        planned = list[SetLengths]()
        for of, each, own, values in zip(sets, orders, given, lengths, strict=True):
            assert isinstance(each, Order)
            planned.append(SetLengths(of.data, each, own, values, "" if weights is None else of.name))
        sizes: dict[str, Any] = {field: limits.get(name) for name, field in _SIZES.items()}
        room = room_of(order, sets) if window is None else window
        chosen = planned_limits(planned, weights, sizes, access.samples, room, fixed=window is not None)
        self._sequence = PlannedSequence(access, chosen, tuple(lengths))
        """The batches of all epochs."""
        self._upcoming: Upcoming[PlannedBatches] = Upcoming()
        """The epoch and batch at which the next iteration begins."""

    def _by_member(self, length: Length) -> list[ArrayLike | str | None]:
        """Return the lengths as the user gives them, for each data set. Raises `UsageError`."""
        if not isinstance(self.dataset, Mixture):
            if isinstance(length, Mapping):
                raise UsageError("length= is a dict, which is for the members of a Mixture: give an array, or a field")
            return [length]
        members = self.dataset.members
        if isinstance(length, Mapping) and set(length) == set(members):
            return [length[member] for member in members]
        if length is None or isinstance(length, str):
            return [length] * len(members)
        raise UsageError(_OF_MEMBERS)

    def __repr__(self) -> str:
        values = ", ".join((f"window={self.limits.window}", _named(replace(self.limits, lengths=""))))
        return f"{type(self).__name__}({self.dataset.name!r}, {values}, seed={self.seed}, {self._upcoming!r})"

    @property
    def order(self) -> Order | MixedOrder:
        """The order of all epochs: an `Order`; for a `Mixture`, a `MixedOrder`."""
        return self._sequence.order

    @property
    def sampler(self) -> PlannedBatchSampler:
        """The batch sampler itself: Lightning sets the epoch of this attribute of a `batch_sampler`."""
        return self

    @property
    def limits(self) -> BatchLimits:
        """The limits of a batch. Together with the order, they determine the batches of an epoch."""
        return self._sequence.limits

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed of the order of every epoch, and of its batches."""
        return self.order.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the next iteration will be, or the epoch of the present iteration."""
        return self._upcoming.epoch

    def __len__(self) -> int:
        """Return the number of batches of the present epoch for this rank; between epochs, of the next one.

        Unless `batch_size` alone limits batches, other epochs may have a few more or fewer.
        """
        present = self._upcoming.present
        under_way = self._upcoming.beginning is None and present is not None and present.yielded < present.count
        epoch = self.epoch if under_way else self._upcoming.place()[0]
        return rounds(len(self._sequence.batches_of(epoch)), self._ranks()[1], drop_last=self.drop_last)

    def __iter__(self) -> PlannedBatches:
        self._upcoming.set_first(first_epoch())
        states = States(self._state_of_next, self.load_state_dict, self.set_epoch)
        return PlannedBatches(self._upcoming, self._deal, states)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its beginning, or from a loaded state of this epoch.

        Raises `UsageError` if a state of a later epoch was loaded, because going back would train samples again. If a
        state of an earlier epoch was loaded, the log says how many batches of that epoch are left out.
        """

        def rest(loaded: IterationStart) -> str:
            left = len(self._sequence.batches_of(loaded.epoch)) - loaded.at
            return counted(left, "batch", "batches") if left else ""

        epoch, trainer = whole("epoch", epoch, MAX_EPOCH), trainer_epoch()
        if trainer is not None:
            trainer.warn_of_rest(epoch, self._left(epoch, 0))
            if trainer.resumes and self._resume(trainer, epoch) != epoch:
                return
        self._upcoming.set_epoch(epoch, rest)

    def padding(self, epoch: int) -> float:
        """Return the fraction of an epoch's batches that is padding: 0 if all samples of each batch have one length."""
        return self._sequence.batches_of(whole("epoch", epoch, MAX_EPOCH)).padding()

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return the loader state, as plain values.

        With workers, a sampler runs ahead of training, so say how many `batches` of this rank were trained since the
        iteration began. None: all that were yielded. Raises `UsageError` if the iteration does not have that many
        batches.
        """
        present = self._upcoming.present
        if present is None or self._upcoming.replaces(present, ended=not batches and present.yielded >= present.count):
            if batches:
                raise UsageError(
                    f"{counted(batches, 'batch', 'batches')} cannot have been trained: no iteration has begun"
                )
            return self._state_of_next()
        return present.state(present.yielded if batches is None else batches)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a loader state. Raises `UsageError` if it is not one, or is one of other samples or batches."""
        try:
            version, facts = state["version"], dict(state["order"])
            epoch, batch = whole("epoch", state["epoch"], MAX_EPOCH), whole("batch", state["batch"], MAX_POSITIONS)
            if version != VERSION:
                raise UsageError(f"a state of version {version}; this is version {VERSION}")
            limits = BatchLimits.from_json(state["limits"])
            access = self._loaded(facts, epoch, begun=batch > 0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{self._no_state}: {error!r}") from None
        fits = replace(self.limits, window=limits.window) == limits
        if batch and not fits:
            raise UsageError(
                f"the state is inside an epoch of {_named(limits)}, and this plan has {_named(self.limits)}: go on "
                "with the same lengths and limits; from the beginning of an epoch any will do"
            )
        self._sequence.access.end()
        self._sequence = self._sequence.replaced(access, limits if fits else self.limits)
        if batch and batch > (count := len(self._sequence.batches_of(epoch))):
            raise UsageError(f"{self._no_state}: batch {batch:,} of {count:,}")
        if batch and batch == count:  # an iteration has ended
            epoch, batch = epoch + 1, 0
        if batch == 0 and epoch and (nodes_epoch() == epoch - 1 or ended_inside()):
            epoch, batch = epoch - 1, len(self._sequence.batches_of(epoch - 1))
        self._upcoming.load(epoch, batch)

    def _loaded(self, facts: dict[str, Any], epoch: int, *, begun: bool) -> OfOneSet | MixedSequence:
        """Return the sequence of a state. Raises `UsageError`, and KeyError, TypeError or ValueError."""
        access, source = self._sequence.access, self._source
        if isinstance(access, MixedSequence):
            if "members" not in facts:
                raise UsageError("the state is of a BrandDataset, and this sampler fetches from a Mixture")
            position = {"epoch": epoch, "position": int(begun), "shuffle": True, "version": MIXED_VERSION}
            access = access.loaded({"order": facts} | position)
            access.take(epoch, access.samples if begun else 0)
            return access
        if "members" in facts:
            raise UsageError("the state is of a Mixture, and this sampler fetches from a BrandDataset")
        assert isinstance(source, SetSource)
        own = access.order
        if facts["data_set"] != source.data.id:
            begin = f"set_epoch({epoch})"
            raise UsageError(other_data_set(str(facts["data_set"]), source.data, source.name, begin))
        mine = None if own.subset is None else own.subset.digest
        if (theirs := facts.get("part")) != mine:
            raise UsageError(f"the state is of {named(theirs)}, this plan of {named(mine)}: give the same subset=")
        order = Order.from_json(renewed(facts, epoch=epoch, begun=begun), own.subset)
        if (order.samples, order.chunk_size) != (own.samples, own.chunk_size) or order.shares:
            raise UsageError(f"{self._no_state}: its sizes are not those of the data set")
        return access.replaced(order)

    # -- for one iteration -------------------------------------------------------------------------------------------

    @property
    def _no_state(self) -> str:
        return f"this is no state of a {type(self).__name__}"

    def _state_of_next(self) -> dict[str, Any]:
        """Return the state at the beginning of the next iteration."""
        return self._sequence.state_at(*self._upcoming.place())

    def _ranks(self) -> tuple[int, int]:
        return self._groups.division(*find_rank(self.rank, self.num_replicas))

    def _left(self, epoch: int, batch: int) -> int:
        """Return the number of batches of this rank from a batch of an epoch on."""
        batches = self._sequence.batches_of(epoch)
        return rounds(len(batches) - batch, self._ranks()[1], drop_last=self.drop_last)

    def _resume(self, trainer: TrainerEpoch, epoch: int) -> int:
        """Continue inside an epoch of a Trainer; return the epoch of this sampler. Raises `UsageError`."""
        left, size = partial(self._left, epoch), self._ranks()[1]
        return self._upcoming.resume(lambda place, begun: trainer.place(epoch, place, left, size, begun=begun))

    def _deal(self) -> Dealing[PlannedSequence]:
        """Settle the ranks. Raises `UsageError` if a framework divides the batches."""
        refuse_trainer()
        loader = asking_loader()
        refuse_reordering(loader)
        if loader.skipped and wrapping_of(self) is None:
            raise UsageError(
                f"batches are skipped, to resume a run: a {type(self).__name__} goes on from its state: load_state_dict"
            )
        wrapping = wrapping_of(self)
        if wrapping is not None and not wrapping.ours:
            raise UsageError(
                f"Accelerate shards the batches of a loader that it has prepared, and a {type(self).__name__} gives "
                f"each rank its own. {unless_in_trainer(_PREPARE)} (docs/guides/frameworks.md)"
            )
        rank, replicas = self._ranks()
        self._source.check_ranks(replicas)
        source, seat = rank_source(self.rank, self.num_replicas), OWN_SEAT
        if self._groups.copies > 1:
            source = ""
            seat = self._groups.seat(*find_rank(self.rank, self.num_replicas), self._sequence.access.nodes)
        elif source:
            refuse_model_parallel()
        return Dealing(
            rank,
            replicas,
            self._sequence,
            self.drop_last,
            seat=seat,
            source=source,
            name=self._source.name,
            what=repr(self.order),
            alone=is_alone(self.rank, self.num_replicas),
            loader=loader,
        )


class LengthBatchSampler(PlannedBatchSampler):
    """Batches of samples of similar length, planned before any sample is read (bucketing).

    Give it to a `BrandLoader` or a `DataLoader` as `batch_sampler=`. Every sample is fetched once an epoch, in random
    order; those of a `Mixture` as often as its weights say. Only samples within one *bucketing window* of the order can
    be in one batch; a larger window leaves less padding and needs more memory. All ranks get equally many batches,
    which ranks take in turn.

    Args:
        dataset: The data set or `Mixture` to fetch from.
        length: An `int` or `float` field with the length of each sample, or an array of all lengths by index; for the
            members of a `Mixture`, a dict of them. None: the bytes of each sample, uncompressed.
        batch_size: Samples of a batch; with `batch_length`, at most that many.
        batch_length: Largest padded length of a batch: the length of its longest sample times its number of samples.
        seed: Seed of the order of every epoch, and of its batches. None: the seed of a `Mixture`; for a `BrandDataset`,
            0.
        num_replicas, rank, replication, device_mesh, dims: As for `BrandSampler`.
        drop_last: If the number of batches is no multiple of the number of ranks: drop the last round of them (True),
            or fill it up with batches from the beginning of the epoch (False).
        subset: The samples to fetch, as for `BrandSampler`; None: all.
        window: Samples of a bucketing window; None: as many as memory can hold and as reduce the padding.

    Raises:
        UsageError: A sample is longer than a batch; the message names it. Or an argument is not valid.
        SchemaError: `length` names a field that does not exist or has no column.
    """

    def __init__(  # noqa: PLR0913 - a keyword each
        self,
        dataset: BrandDataset | Mixture,
        length: Length = None,
        *,
        batch_size: int | None = None,
        batch_length: float | None = None,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        subset: ArrayLike | None = None,
        window: int | None = None,
        replication: int = 1,
        device_mesh: Any = None,
        dims: str | Sequence[str] = "dp",
    ) -> None:
        if batch_size is None and batch_length is None:
            raise UsageError("give the limit of a batch: batch_size=, batch_length= or both")
        groups = RankGroups(replication, device_mesh, dims)
        options = PlanOptions(seed, num_replicas, rank, drop_last, subset, window, groups)
        super().__init__(dataset, length, {"batch_size": batch_size, "batch_length": batch_length}, options)


class PackedBatchSampler(PlannedBatchSampler):
    """Batches of rows that are packed with whole documents, planned before any document is read (sequence packing).

    Give it to a `BrandLoader` or a `DataLoader` as `batch_sampler=`, with `collate_fn=sampler.collate("tokens")`. Every
    document is fetched once an epoch, in random order; those of a `Mixture` as often as its weights say. A document
    longer than a row continues in the next rows of its batch. Only documents within one *bucketing window* of the order
    can be in one batch; a larger window leaves less padding and needs more memory. All ranks get equally many batches,
    as with `LengthBatchSampler`.

    Args:
        dataset: The data set or `Mixture` to fetch from.
        length: An `int` field with the number of tokens of each document, or an array of these numbers by index; for
            the members of a `Mixture`, a dict of them.
        tokens_per_row: Tokens of a row.
        rows_per_batch: Rows of a batch.
        seed, num_replicas, rank, drop_last, subset, window, replication, device_mesh, dims: As for
            `LengthBatchSampler`.

    Raises:
        UsageError: A document is longer than a batch; the message names it. Or an argument is not valid.
        SchemaError: `length` names a field that does not exist or has no column.
    """

    _lengths = "an `int` field, or an array of the number of tokens of all samples by index"

    def __init__(  # noqa: PLR0913 - a keyword each
        self,
        dataset: BrandDataset | Mixture,
        length: ArrayLike | str | Mapping[BrandDataset, ArrayLike | str],
        *,
        tokens_per_row: int,
        rows_per_batch: int,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        subset: ArrayLike | None = None,
        window: int | None = None,
        replication: int = 1,
        device_mesh: Any = None,
        dims: str | Sequence[str] = "dp",
    ) -> None:
        limits = {"tokens_per_row": tokens_per_row, "rows_per_batch": rows_per_batch}
        groups = RankGroups(replication, device_mesh, dims)
        options = PlanOptions(seed, num_replicas, rank, drop_last, subset, window, groups)
        super().__init__(dataset, length, limits, options)
        self._rows = tokens_per_row, rows_per_batch

    def collate(self, field: str, *, pad: int = 0) -> PackedRows:
        """Return a `collate_fn` that makes tensors of packed rows out of a field of tokens. Raises `SchemaError`."""
        return PackedRows(self._source, field, *self._rows, pad)


def mean_samples(plan: PlannedBatchSampler) -> int:
    """Return the mean number of samples of a batch of the present epoch, at least 1."""
    return plan._sequence.batches_of(plan.epoch).mean_samples


def room_of(order: Order | MixedOrder, sets: Sequence[SetSource]) -> int:
    """Return about how many samples the data servers can hold in addition to those of their shuffle buffers.

    A server of a member of a mixture holds two of its epochs at a time: those of a window of half an epoch.
    """
    if isinstance(order, Order):
        return sets[0].port.room(order)
    rooms = []
    for number, (own, source) in enumerate(zip(order.orders, sets, strict=True)):
        assert isinstance(own, Order)
        share = max(stretch.weights[number] / sum(stretch.weights) for stretch in order.pattern.stretches)
        rooms.append(min(source.port.room(own), own.draws // 2) / share if share else MAX_POSITIONS)
    return int(min(rooms))


def _named(limits: BatchLimits) -> str:
    """Return limits as parameters and their values."""
    values, fields = limits.to_json(), _SIZES | {"lengths": "lengths"}
    return ", ".join(f"{name}={values[key]}" for name, key in fields.items() if values.get(key))
