"""One iteration of a batch sampler: the batches of a rank, the loader state, and the fraction of padding.

Batches are numbered through the epoch. From the first batch of the iteration on, ranks take them in turn, so all ranks
get equally many, and any other number of ranks can continue from the number of batches that all of them have trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.node.wire.looping import IterationExtent
from brand.node.wire.messages import UNTOLD
from brand.orders.base.rank_rule import RankRule
from brand.orders.batch_ranks import BatchRanks, SampleLengths
from brand.orders.batches.batching import BatchLimits, PositionBatches
from brand.orders.mixed_batch_ranks import MixedBatchRanks
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.torch.order.mixed_sequence import MixedSequence
from brand.torch.order.sequence import OfOneSet
from brand.torch.sampler.positions import Dealing, SamplerIteration, rounds

VERSION: Final = 1
"""Version of loader states."""
_AHEAD: Final = 64
"""Batches whose ints are made together."""


class EpochBatches(Reprs, shows="epoch mean_samples"):
    """The batches of one epoch, and their lengths."""

    def __init__(self, limits: BatchLimits, lengths: NDArray[Any], seed: int, epoch: int) -> None:
        self.epoch = epoch
        self.batches: PositionBatches = limits.batches(lengths, seed, epoch)
        self._lengths = self.batches.sums(lengths)
        self._taken_up = limits.taken_up(self.batches, lengths)
        self._longest = lengths.max()

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def mean_samples(self) -> int:
        """Mean number of samples of a batch, at least 1."""
        return max(1, round(len(self.batches.positions) / len(self)))

    def padding(self, numbers: NDArray[np.int64] | slice = slice(None)) -> float:
        """Return the fraction of these batches that is padding; 0 if there is none."""
        taken_up = self._taken_up[numbers].sum()
        return float(1 - self._lengths[numbers].sum() / taken_up) if taken_up else 0.0

    def figures(self, numbers: NDArray[np.int64]) -> dict[str, Any]:
        """Return the padding of these batches and of the whole epoch, as plain values."""
        return {
            "batches": len(numbers),
            "length": self._lengths[numbers].sum().item(),
            "padding": round(self.padding(numbers), 6),
            "epoch_batches": len(self),
            "epoch_length": self._lengths.sum().item(),
            "epoch_padding": round(self.padding(), 6),
            "longest": self._longest.item(),
        }


class PlannedSequence(Reprs, shows="access limits _planned"):
    """The batches of all epochs: a sequence of samples, limits of batches, and the lengths of samples, by member.

    The lengths of one data set are those of one member.
    """

    def __init__(
        self, access: OfOneSet | MixedSequence, limits: BatchLimits, lengths: tuple[SampleLengths, ...]
    ) -> None:
        self.access, self.limits, self._lengths = access, limits, lengths
        self._planned: tuple[Order | MixedOrder, EpochBatches] | None = None
        """The batches that were planned last, and their order: weights of a mixture may change."""

    def replaced(self, access: OfOneSet | MixedSequence, limits: BatchLimits) -> PlannedSequence:
        return PlannedSequence(access, limits, self._lengths)

    @property
    def order(self) -> Order | MixedOrder:
        return self.access.order

    @property
    def samples(self) -> int:
        """Number of samples of an epoch, for all ranks."""
        return self.access.samples

    def batches_of(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch, for all ranks."""
        order = self.order
        if self._planned is None or self._planned[0] is not order or self._planned[1].epoch != epoch:
            lengths = order.by_position(epoch, [each.values for each in self._lengths])
            self._planned = order, EpochBatches(self.limits, lengths, order.seed, epoch)
        return self._planned[1]

    def take(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch that begins, whose samples do not change any more."""
        if isinstance(self.access, MixedSequence):
            self.access.take(epoch, self.samples)
        return self.batches_of(epoch)

    def begin(self, epoch: int, batch: int, position: int, dealing: Dealing[PlannedSequence], *, goes_on: bool) -> None:
        """Announce to the servers that ranks draw the batches from this one on. `position`: the lowest one of these.

        To the server of a single node, all ranks are one. Servers of several nodes get the lengths, and plan the same
        batches. `goes_on`: whether ranks have drawn all positions before this one. Raises `UsageError`.
        """
        several, places = self.access.nodes > 1, (epoch, batch, dealing.replicas)
        announcement = dealing.announcement(epoch, position, UNTOLD)
        if not several:
            announcement = replace(announcement, rank=0, replicas=1)
        if isinstance(self.access, MixedSequence):

            def planned(member: int, order: MixedOrder) -> RankRule:
                return MixedBatchRanks(self.limits, self._lengths, member, order, *places)

            self.access.begin(announcement, goes_on=goes_on, planned=planned)
            return
        rule = BatchRanks(self.limits, self._lengths[0], *places) if several else None
        self.access.begin(announcement, goes_on=goes_on, rule=rule)

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the state of a run that continues with a batch of an epoch."""
        facts = {"limits": self.limits.to_json(), "order": self.access.to_json()}
        return {"version": VERSION, "epoch": epoch, "batch": batch, **facts}


class PlannedBatches(SamplerIteration[PlannedSequence], Iterator[list[int]]):
    """The batches of one iteration, each a list of tickets."""

    _place = "batch"

    def _reset(self) -> None:
        super()._reset()
        self.epoch: int | None = None
        self._of: EpochBatches | None = None
        self._coming: list[list[int]] = []
        """The next batches, in reverse order."""

    def _announce(self, dealing: Dealing[PlannedSequence], epoch: int, start: int) -> None:
        of, last = dealing.sequence.take(epoch), self._upcoming.present
        self.start, self.count = start, rounds(len(of) - start, dealing.replicas, drop_last=dealing.drop_last)
        self.announced = self.count > 0
        if self.announced:
            goes_on = last is not None and last.drew_all and (last.epoch, 0) == (epoch - 1, start)
            dealing.sequence.begin(epoch, start, of.batches.first_from(start), dealing, goes_on=goes_on)
        self.epoch, self._of = epoch, of

    @property
    def drew_all(self) -> bool:
        """Whether the batches of the epoch were yielded, and none is dropped, so that ranks draw all its samples."""
        if self._of is None or not self.announced or self.yielded < self.count:
            return False
        return self.start + self.count * self.ranks[1] >= len(self._of)

    @property
    def extent(self) -> IterationExtent:
        """The samples that the iteration covers, once it has begun."""
        assert self._of is not None
        batches = self._of.batches
        sizes = np.diff(batches.ends, prepend=0)
        due = int(sizes[self._numbers(0, self.count)].sum())
        return IterationExtent(int(sizes[: self.start].sum()), len(batches.positions), due)

    @property
    def size(self) -> int:
        return 1 if self._of is None else self._of.mean_samples

    @property
    def seed(self) -> int:
        return self._begun_dealing.sequence.order.seed

    def __next__(self) -> list[int]:
        if not self._coming:
            if not self._discarded:
                ints, sizes = self._make(_AHEAD)
                parts = np.split(ints, np.cumsum(sizes)[:-1]) if len(sizes) else []
                self._coming = [part.tolist() for part in reversed(parts)]
            if not self._coming:
                self._end()
                raise StopIteration
        self.go_on()
        self.yielded += 1
        return self._coming.pop()

    def take(self, count: int) -> tuple[NDArray[np.int64], list[int]]:
        """Return the ints of the next `count` batches, and the number of ints of each, for a `BrandLoader`."""
        ints, sizes = self._make(count)
        self.yielded += len(sizes)
        if len(sizes) < count:
            self._end()
        return ints, sizes.tolist()

    def _make(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self.begin()
        assert self._of is not None
        some = self._numbers(self._made, min(self._made + count, self.count))
        self._made += len(some)
        positions, sizes = self._of.batches.taken(some)
        return self._begun_dealing.sequence.access.ints(self._of.epoch, positions), sizes

    def _numbers(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of some batches of this rank. Past the end, the first batches fill the round."""
        assert self._of is not None
        rank, replicas = self.ranks
        numbers = self.start + rank + np.arange(first, end, dtype=np.int64) * replicas
        return numbers % len(self._of)

    def figures(self, trained: int) -> dict[str, Any]:
        """Return the padding of the first `trained` batches and of the epoch; empty before the iteration has begun."""
        return {} if self._of is None else self._of.figures(self._numbers(0, trained))

    def state(self, trained: int) -> dict[str, Any]:
        """Return the loader state after `trained` batches of this iteration. Raises `UsageError` if there are fewer."""
        if not 0 <= trained <= self.count:
            raise UsageError(f"{counted(trained, 'batch', 'batches')}: this rank has {self.count:,} in this iteration")
        if self._of is None or self._upcoming.replaces(self, ended=trained == self.count):
            return self._states.of_next()
        number, count = self._number(trained), len(self._of)
        if trained and number < count:
            self._refuse_reordered()
        place = (self._of.epoch, number) if number < count else (self._of.epoch + 1, 0)
        return self._begun_dealing.sequence.state_at(*place)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after all batches that were yielded, for torchdata's `StatefulDataLoader`."""
        if self._of is None:
            return self._states.of_next()
        return self._begun_dealing.sequence.state_at(self._of.epoch, self._number(self.yielded))

    def _number(self, trained: int) -> int:
        """Return the number of the batch that follows `trained` batches; at the end, the number of all batches."""
        assert self._of is not None
        number = self.start + trained * self.ranks[1]
        return len(self._of) if trained == self.count else min(number, len(self._of))
