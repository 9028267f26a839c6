"""`BrandSampler`: which positions does this rank fetch, in which order, and from which one does a run continue after
a stop?

The global access sequence is cut into rounds of one position for each rank, so global batch `t` is the same set of
samples for any number of ranks. A loader state holds epoch, position and order. A run with another number of ranks,
workers or samples per batch can continue from it. `migrate_state` makes a state for another version of a collection.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from numpy.typing import ArrayLike

from brand.errors import UsageError, counted
from brand.formats.version import number_within
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.order import MAX_EPOCH, MAX_SEED
from brand.torch.data.drawable import Drawable, not_drawable, source_of
from brand.torch.data.set_source import SetSource
from brand.torch.job.model_parallel import refuse_model_parallel
from brand.torch.job.rank_groups import OWN_SEAT, RankGroups
from brand.torch.job.rank_log import warn_counted, warn_remainder, warn_stateless
from brand.torch.job.ranks import find_rank, is_alone, rank_source
from brand.torch.order.draw_port import origin_here
from brand.torch.order.mixed_sequence import MIXED_VERSION
from brand.torch.order.sequence import AccessSequence, SequenceOptions, other_data_set, whole
from brand.torch.pytorch import DistributedSampler
from brand.torch.sampler.batch_samplers import PlannedBatchSampler
from brand.torch.sampler.frameworks import (
    AskingLoader,
    accelerate_processes,
    asking_loader,
    nodes_epoch,
    refuse_begun_stateful,
    refuse_reordering,
    wrapping_of,
)
from brand.torch.sampler.lightning_epochs import TrainerEpoch, first_epoch, refuse_trainer, trainer_epoch
from brand.torch.sampler.positions import Dealing, IterationStart, Positions, States, Upcoming, samples_of_rank
from brand.torch.sampler.streams import ended_inside

LAST_VERSION: Final = MIXED_VERSION
"""The highest version of a state. States of a sequence without further facts have version 1."""
_FROM_A_STATE: Final = (
    "A BrandSampler goes on from its state, which fits any epoch and any number of processes; skipped batches fit "
    "neither. Use brand.frameworks.accelerate.prepare(accelerator, loader) in place of accelerator.prepare(loader), "
    "and brand.frameworks.transformers.BrandTrainerMixin with the Trainer (docs/guides/frameworks.md)"
)
log = logging.getLogger("brand")


class BrandSampler(DistributedSampler[int]):
    """Yields every sample of a `BrandDataset` once an epoch, in random order.

    Samples are fetched at the speed of sequential reads. For a `Mixture`, it yields the samples of each member in
    proportion to its weight.

    It yields tickets: ints that the data set understands as "the sample at this position", so that the data server can
    prefetch. Give it to a `DataLoader` as `sampler=`. Each epoch has its own order, and `set_epoch(n)` chooses the
    epoch; without it, each iteration is the next epoch.

    It gives each rank its own positions. Frameworks do not replace it, because it is a `DistributedSampler`. Accelerate
    divides batches in any case, so behind a loader that Accelerate has prepared, the sampler yields the positions of
    all ranks.

    Args:
        dataset: The data set to fetch from.
        seed: Seed of the order of every epoch. None: the seed of a `Mixture`; for a `BrandDataset`, 0.
        num_replicas, rank: Number of ranks, and the number of this rank. None: from torch.distributed, JAX,
            torchrun, Slurm or MPI, when the iteration begins; the log says from which.
        shuffle: Whether the order is that of the data set (`order=`), by default a random one. False: the plain indices
            in their order, by random access, without prefetch.
        drop_last: If the number of samples is no multiple of the number of ranks: drop the rest (True), or give some
            samples to two ranks (False).
        even: Whether all ranks get equally many samples, as a training needs. False, for an evaluation: every sample
            goes to exactly one rank, so some ranks get one sample more than others; call collective operations after
            the loop (`docs/guides/evaluate.md`).
        locality: On several nodes: split each global batch so that a rank first takes samples whose home node is its
            own. The global batches are the same sets of samples as without it, and few samples cross the network. Needs
            `batch_size`.
        batch_size: Samples of a batch of each rank, for `locality`; a `BrandLoader` sets it.
        subset: The samples to fetch, each once an epoch, or as often as `weights` says: a bool for each sample, shape
            (len(dataset),), for example `dataset.column("label") < 10`, or their indices, or an expression over columns
            as a text, such as `"label in [3, 5] and duration < 12"`. None: all.
        weights: How often each sample is fetched, relative to the others: a number for each sample, shape
            (len(dataset),), 0 or more; a dict with a weight for each class, by name or number (field `label`), which
            each of its samples gets; or `"balanced"`: each class equally often, apart from rounding. An epoch of M
            samples has sample `i` the floor or the ceiling of `M * weights[i] / sum(weights)` times. None: each sample
            once.
        num_samples: M, the samples of an epoch with `weights`; None: as many as there are samples.
        replication: Number of consecutive ranks that get the same samples, because they hold parts of one model
            (tensor, context or pipeline parallelism). Samples are divided among the groups, and each is read once for
            a group.
        device_mesh, dims: A `DeviceMesh` of all ranks, in place of `replication`, and the names of its data-parallel
            dimensions: ranks that differ only along other dimensions get the same samples.

    Raises:
        UsageError: An argument is not valid, or does not fit the data set or its order.
    """

    dataset: Drawable

    def __init__(  # noqa: PLR0913 - a keyword each
        self,
        dataset: Drawable,
        *,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        even: bool = True,
        locality: bool = False,
        batch_size: int | None = None,
        subset: ArrayLike | None = None,
        weights: ArrayLike | Mapping[Any, float] | str | None = None,
        num_samples: int | None = None,
        replication: int = 1,
        device_mesh: Any = None,
        dims: str | Sequence[str] = "dp",
    ) -> None:
        # DistributedSampler's own __init__ is left out: it needs a process group, and fixes the ranks too early.
        if not isinstance(dataset, Drawable):
            raise UsageError(f"BrandSampler {not_drawable(dataset)}")
        self._source = source_of(dataset)
        if drop_last and not even:
            raise UsageError("drop_last=True drops some samples, and even=False gives each to one rank: leave out one")
        seed = whole("seed", self._source.seed if seed is None else seed, MAX_SEED)
        self.dataset, self.drop_last, self.even = dataset, drop_last, even
        self.num_replicas, self.rank = num_replicas, rank  # type: ignore[assignment]
        self._groups = RankGroups(replication, device_mesh, dims)
        self.locality = locality
        self.batch_size = None if batch_size is None else max(1, whole("batch_size", batch_size, MAX_POSITIONS))
        if weights is None and num_samples is not None:
            raise UsageError("num_samples= is the length of an epoch with weights=: without weights, use subset=")
        if weights is not None and not shuffle:
            raise UsageError(
                "shuffle=False has each sample once, in order, and weights= repeats samples: leave out one"
            )
        replicas = None if num_replicas is None else num_replicas // self._groups.copies
        options = SequenceOptions(seed, origin_here(), replicas, subset, shuffle, weights, num_samples)
        self._sequence: AccessSequence = self._source.sequence(options)
        """The tickets or indices of all epochs."""
        self._groups.check_order(self._sequence.order if shuffle else None)
        self._pinned = False
        self._upcoming: Upcoming[Positions] = Upcoming()
        """The epoch and position at which the next iteration begins."""

    def __repr__(self) -> str:
        return f"BrandSampler({self.dataset.name!r}, seed={self.seed}, {self._upcoming!r})"

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its beginning, or from the position of a loaded state of this epoch.

        An iteration under way does not change; if it is of this epoch, it may continue. Raises `UsageError` if a state
        of a later epoch was loaded, because going back would train samples again. If a state of an earlier epoch was
        loaded, the log says how many samples of that epoch are left out.
        """
        epoch = whole("epoch", epoch, MAX_EPOCH)
        wrapping = wrapping_of(self)
        if wrapping is not None and wrapping.restored:
            raise UsageError(f"Accelerate restores a loader by skipping what it had yielded. {_FROM_A_STATE}")
        trainer = trainer_epoch()
        if trainer is not None and trainer.resumes and self._resume(trainer, epoch) != epoch:
            return

        def rest(loaded: IterationStart) -> str:
            left = self._sequence.samples - loaded.at
            return counted(left, "sample") if left else ""

        self._upcoming.set_epoch(epoch, rest)

    def __len__(self) -> int:
        """Return the number of samples of a whole epoch for this rank."""
        return samples_of_rank(self._dealing(), self.epoch, 0)

    def __iter__(self) -> Positions:
        self._upcoming.set_first(first_epoch())
        states = States(self._state_of_next, self.load_state_dict, self.set_epoch)
        return Positions(self._sequence.samples, self._upcoming, self._deal, states)

    @property
    def order(self) -> Any:
        """The order of all epochs: an `Order`; for a `Mixture`, and with `weights`, a `MixedOrder`."""
        return self._sequence.order

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed of the order of every epoch."""
        return self._sequence.seed

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        """Whether the order is random."""
        return self._sequence.shuffle

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the next iteration will be, or the epoch of the present iteration."""
        return self._upcoming.epoch

    def state_dict(
        self, *, samples: int | None = None, batches: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Return the loader state, as plain values.

        With workers, a sampler runs ahead of training, so say how much was trained since the iteration began: `samples`
        of this rank, or `batches` of `batch_size`. Without either: everything that the sampler has yielded. Raises
        `UsageError` if the iteration does not have that many samples.
        """
        if samples is not None and batches is not None:
            raise UsageError("say what was trained in samples or in batches, not both")
        if batches is not None and batch_size is None:
            raise UsageError("batches= needs batch_size=, the samples in each")
        present, trained = self._upcoming.present, samples or batches
        if present is None or self._upcoming.replaces(present, ended=not trained and present.yielded >= present.count):
            if trained:
                raise UsageError(f"{trained} samples or batches cannot have been trained: no iteration has begun")
            return self._state_of_next()
        if batches is not None and batch_size is not None:
            samples = batches * batch_size
            if samples - batch_size < present.most:  # the last batch may be short, or filled up
                samples = min(samples, present.most)
        return present.state_after(samples)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a loader state. Raises `UsageError` if it is none, or is one of another data set."""
        try:
            version, shuffle, _ = state["version"], state["shuffle"], dict(state["order"])
            epoch = whole("epoch", state["epoch"], MAX_EPOCH)
            position = whole("position", state["position"], MAX_POSITIONS)
            if not isinstance(shuffle, bool):
                raise TypeError(f"shuffle is {shuffle!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
        if version not in range(1, LAST_VERSION + 1):
            raise UsageError(f"a state of version {version}; this is version {LAST_VERSION}")
        last, self._sequence = self._sequence, self._sequence.loaded(state)
        last.end()
        if position == self._sequence.samples:  # an iteration has ended, or the state is of an older version
            epoch, position = epoch + 1, 0
        if position == 0 and epoch and (nodes_epoch() == epoch - 1 or ended_inside()):
            epoch, position = epoch - 1, self._sequence.samples
        self._upcoming.load(epoch, position)

    # -- for one iteration, and for loaders -------------------------------------------------------------------------

    def _state_of_next(self) -> dict[str, Any]:
        """Return the state at the beginning of the next iteration."""
        return self._sequence.state_at(*self._upcoming.place())

    def _pin_ranks(self, rank: int | None = None, replicas: int | None = None) -> None:
        """Divide positions among ranks even if Accelerate is in use, because it does not prepare the loader.

        If rank and number of ranks were not given before, they become `rank` and `replicas`, if given.
        """
        self._pinned = True
        if self.rank is self.num_replicas is None and rank is not None and replicas is not None:
            self.rank, self.num_replicas = rank, replicas

    def _serve_loader(self, batch_size: int) -> None:
        """Serve a `BrandLoader` with batches of this size. Raises `UsageError` if batches of another size are split."""
        self._pin_ranks()
        if self.locality:
            if self.batch_size not in (None, batch_size):
                raise UsageError(f"batch_size={batch_size}, and the sampler splits {self.batch_size}")
            self.batch_size = batch_size

    def _deal(self) -> Dealing[AccessSequence]:
        """Settle the ranks of an iteration that begins. Raises `UsageError`."""
        loader = asking_loader()
        refuse_reordering(loader)
        dealt, (_, replicas) = self._dealt(loader), self._ranks()
        self._source.check_ranks(replicas * dealt)
        source, batch, seat = rank_source(self.rank, self.num_replicas), self._batch_of(replicas), OWN_SEAT
        if self._groups.copies > 1:
            source = ""
            seat = self._groups.seat(*find_rank(self.rank, self.num_replicas), self._sequence.nodes)
            if batch and seat.spans > 1:
                raise UsageError(
                    "locality= gives ranks the samples of their own node, and a group of ranks is on several"
                )
        elif source and not self._accelerate_deals():
            refuse_model_parallel()
        what = f"{self.order!r}|{self.shuffle}"
        name, shares = self._source.name, getattr(self.order, "shares", False)
        alone = is_alone(self.rank, self.num_replicas) and not shares  # jobs that share fetch one order on purpose
        return replace(
            self._dealing(),
            dealt=dealt,
            batch=batch,
            seat=seat,
            source=source,
            name=name,
            what=what,
            alone=alone,
            loader=loader,
        )

    def _dealing(self) -> Dealing[AccessSequence]:
        """Return the division of the positions among the ranks. Raises `UsageError`."""
        return Dealing(*self._ranks(), self._sequence, self.drop_last, self.even)

    def _ranks(self) -> tuple[int, int]:
        """Return the rank and number of ranks here: 0 and 1 if Accelerate divides positions. Raises `UsageError`."""
        if self._accelerate_deals():
            return 0, 1
        return self._groups.division(*find_rank(self.rank, self.num_replicas))

    def _batch_of(self, replicas: int) -> int:
        """Return the samples of a batch of each rank if `locality` splits batches, otherwise 0. Raises `UsageError`."""
        if not self.locality or not self.shuffle or replicas == 1:
            return 0
        if self.batch_size is None:
            raise UsageError("locality=True needs batch_size=, the samples of a batch of each rank")
        return self.batch_size

    def _dealt(self, loader: AskingLoader) -> int:
        """Return among how many processes a framework divides this sampler's positions. Raises `UsageError`."""
        refuse_trainer()
        wrapping = wrapping_of(self)
        if loader.skipped and wrapping is None:
            raise UsageError(
                f"a StatefulDataLoader skips {counted(loader.skipped, 'batch', 'batches')}, to resume a run. A "
                "BrandSampler goes on from its state, which fits any epoch: use StatefulDataLoader(dataset, "
                "batch_size, sampler=BrandSampler(dataset)), without batch_sampler= (docs/guides/frameworks.md)"
            )
        if wrapping is None:
            if self._accelerate_deals():
                refuse_begun_stateful(_FROM_A_STATE)
                raise UsageError(
                    f"Accelerate runs {accelerate_processes()} processes and has not prepared the loader of this "
                    "BrandSampler, so each of them would fetch all samples. Call `accelerator.prepare(loader)`, or say "
                    "which share of them is fetched here: BrandSampler(dataset, num_replicas=..., rank=...)"
                )
            if loader.stateless and self._upcoming.place() == (0, 0):
                warn_stateless(self._source.name)
            return 1
        if wrapping.skipped:
            raise UsageError(
                f"Accelerate skips {counted(wrapping.skipped, 'batch', 'batches')}, to resume a run. {_FROM_A_STATE}"
            )
        if wrapping.processes > 1 and self._ranks()[1] > 1:
            raise UsageError(
                f"this BrandSampler shards positions to {self._ranks()[1]} ranks, and Accelerate deals its batches "
                f"out to {wrapping.processes} processes again. {self._one_of_both(wrapping.processes)}"
            )
        if wrapping.processes > 1 and not self.even:
            raise UsageError(
                "even=False: Accelerate gives all its processes equally many batches, and repeats samples for that. "
                "Leave out even=False and count with accelerator.gather_for_metrics, or leave out "
                "accelerator.prepare(loader) (docs/guides/evaluate.md)"
            )
        if not wrapping.ours:
            if self._upcoming.place() == (0, 0):
                warn_counted(self._source.name)
            warn_remainder(self._sequence.samples, len(self.dataset), self._source.name)
        return wrapping.processes

    def _one_of_both(self, processes: int) -> str:
        """Return advice for a sampler that divides its positions, behind a loader that Accelerate has prepared."""
        if self._ranks()[1] == processes:
            return "Leave out num_replicas= and rank="
        return (
            "Some of its processes get equal batches, as in tensor or pipeline parallelism: keep num_replicas= and "
            "rank=, and leave out accelerator.prepare(loader)"
        )

    def _resume(self, trainer: TrainerEpoch, epoch: int) -> int:
        """Continue inside an epoch of a Trainer; return the epoch of this sampler. Raises `UsageError`."""
        size: int = trainer.loader.batch_size
        _, replicas = self._ranks()

        def left(position: int) -> int:
            samples = samples_of_rank(self._dealing(), epoch, position)
            return samples // size if trainer.loader.drop_last else -(-samples // size)

        place = partial(trainer.place, epoch, left=left, size=size * replicas)
        return self._upcoming.resume(lambda loaded, begun: place(loaded, begun=begun))

    def _accelerate_deals(self) -> bool:
        """Return whether Accelerate divides this sampler's positions: it is in use, and no other ranks were given."""
        pinned = self._pinned or self._groups.copies > 1
        return not pinned and self.rank is self.num_replicas is None and accelerate_processes() > 1


def is_announced(sampler: BrandSampler | PlannedBatchSampler) -> bool:
    """Return whether the epoch of the next iteration was set, and that iteration has not begun."""
    return sampler._upcoming.beginning is not None


def state_at(sampler: BrandSampler | PlannedBatchSampler, epoch: int, position: int) -> dict[str, Any]:
    """Return the state of a run that continues at a position (or batch) of an epoch, with the sampler's order."""
    return sampler._sequence.state_at(epoch, position)


def state_of_next(sampler: BrandSampler | PlannedBatchSampler) -> dict[str, Any]:
    """Return the state of a run that continues with the epoch after the present one."""
    return state_at(sampler, sampler.epoch + 1, 0)


def migrate_state(state: Mapping[str, Any], sampler: BrandSampler) -> dict[str, Any]:
    """Return a state for another version of the collection, at the beginning of the epoch of `state`.

    Samples that were fetched in that epoch are fetched again in it; the log says how many. `sampler` fetches from the
    new version, with the seed of the state. Give the result to `load_state_dict` of the sampler or its loader.

    Raises `UsageError` if the state is of another data set, or has another seed.
    """
    try:
        epoch, position, order = int(state["epoch"]), int(state["position"]), state["order"]
        found, seed, shuffle = str(order["data_set"]), order["seed"], state["shuffle"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
    source = source_of(sampler.dataset)
    if not isinstance(source, SetSource):
        raise UsageError(f"migrate_state is for states of a collection, and this sampler fetches from {source.name}")
    if found == source.data.id:
        return dict(state)
    version = source.data.version
    number = None if version is None else number_within(version.collection, found)
    if version is None or number in (None, version.number):
        raise UsageError(other_data_set(found, source.data, source.name))
    if (seed, shuffle) != (sampler.seed, sampler.shuffle):
        raise UsageError(
            f"the state has seed {seed} and shuffle={shuffle}: make the sampler with the same, not with seed "
            f"{sampler.seed} and shuffle={sampler.shuffle}"
        )
    if position:
        said = "epoch %d begins again on %s: the first %s of it on version %d will be fetched again"
        log.warning(said, epoch, source.name, counted(position, "sample"), number)
    return state_at(sampler, epoch, 0)
