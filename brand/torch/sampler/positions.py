"""One iteration of a `BrandSampler`: where it begins, the ints of this rank, and the loader state.

An iteration begins when its first int is taken. Until then it has no epoch, because PyTorch makes iterators that it
never uses, and frameworks set the epoch after they have made an iterator. It begins at the epoch after the present
iteration's, at the epoch that `set_epoch` named, or at the place of a loaded state. A `BrandSampler` counts places in
an epoch as positions, a batch sampler counts batches. Both have one `Upcoming`, which owns the place and knows the
iteration that began last.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import IterationExtent
from brand.orders.order import MAX_EPOCH
from brand.reprs import Reprs
from brand.torch.job.rank_groups import OWN_SEAT, GroupSeat
from brand.torch.job.rank_log import say_alone, say_rank, warn_alone, warn_first, warn_lonely
from brand.torch.job.readers import check_dividers, check_workers
from brand.torch.order.sequence import AccessSequence, whole
from brand.torch.sampler.frameworks import AskingLoader, torchdata_discards
from brand.torch.sampler.lightning_epochs import first_epoch
from brand.torch.sampler.streams import refuse_skipped_stream

_BLOCK: Final = 1 << 14
_REPEATS: Final = 2
"""Iterations that may be left early and begun again at their beginning, before the log says so."""
_LEFT_EARLY: Final = (
    "epoch %d begins again at the same place, after it was left early %d times, the last time after %d of %d: the "
    "first samples are repeated, and the others are never fetched. Call set_epoch with a new number before each "
    "iteration (accelerator.prepare sets the same number again after a break: use brand.frameworks.accelerate.prepare)"
)
_EPOCHS_HINT: Final = (
    ". A framework that counts its own iterations from 0 cannot go on from this state: docs/guides/frameworks.md says "
    "what to use instead"
)
_TURNS_HINT: Final = (
    ". A framework that makes its iterator first needs the epoch before: call set_epoch where you make the loader"
)
_Sequence = TypeVar("_Sequence")
_Iteration = TypeVar("_Iteration", bound="SamplerIteration[Any]")

log = logging.getLogger("brand")


@dataclass(frozen=True, slots=True)
class IterationStart:
    """Epoch and place at which an iteration begins."""

    epoch: int
    at: int = 0
    """The global position, or the number of the batch."""
    loaded: bool = False
    """Whether they are those of a loaded state."""
    named: int | None = None
    """The epoch of the last `set_epoch`, also if a state was loaded after it; None if there was none."""


class Upcoming(Generic[_Iteration]):
    """The place at which the next iteration begins, and the present iteration."""

    def __init__(self) -> None:
        self.beginning: IterationStart | None = IterationStart(0)
        """The start of the next iteration; None if it is the epoch after the present one."""
        self.present: _Iteration | None = None
        """The iteration that began last."""
        self._left_early = 0
        """How many iterations in a row began at the place of the one before, which was left early."""

    def __repr__(self) -> str:
        present = [] if self.present is None else [repr(self.present)]
        coming = [] if self.beginning is None else [f"next epoch {self.beginning.epoch} from {self.beginning.at:,}"]
        return ", ".join(present + coming)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be, or the epoch of the present iteration."""
        return self._epoch_of_present() if self.beginning is None else self.beginning.epoch

    def place(self) -> tuple[int, int]:
        """Return the epoch and place at which the next iteration begins. Raises `UsageError` if no epoch is left."""
        if self.beginning is not None:
            return self.beginning.epoch, self.beginning.at
        return whole("epoch", self._epoch_of_present() + 1, MAX_EPOCH), 0

    def set_epoch(self, epoch: int, rest: Callable[[IterationStart], str]) -> None:
        """Begin the next iteration with this epoch, from its beginning or from the place of its loaded state.

        `rest` names the remainder of an epoch from a place on, for the log; empty if nothing remains. Raises
        `UsageError` if a state of a later epoch was loaded.
        """
        coming = self.beginning
        if coming is not None and coming.loaded:
            if epoch == coming.epoch:
                self.beginning = replace(coming, named=epoch)
                return
            if epoch < coming.epoch:
                raise UsageError(
                    f"a state of epoch {coming.epoch} was loaded, and set_epoch({epoch}) would go back: begin the loop "
                    f"over epochs with {coming.epoch} (`state['epoch']`){_EPOCHS_HINT}"
                )
            if coming.at and (left := rest(coming)):
                said = "set_epoch(%d) leaves out the last %s of epoch %d, inside which the loaded state is"
                log.warning(said, epoch, left, coming.epoch)
        self.beginning = IterationStart(epoch, named=epoch)

    def load(self, epoch: int, at: int) -> None:
        """Begin the next iteration at the place of a loaded state."""
        named = None if self.beginning is None else self.beginning.named
        self.beginning, self.present = IterationStart(epoch, at, loaded=True, named=named), None

    def set_first(self, epoch: int | None) -> None:
        """Begin the next iteration with the epoch that a framework will set, unless a state was loaded."""
        if epoch is not None and not (self.beginning is not None and self.beginning.loaded):
            self.beginning = IterationStart(epoch)

    def resume(self, check: Callable[[tuple[int, int], bool], tuple[int, int]]) -> int:
        """Continue at the place that `check` returns; return its epoch.

        `check` gets the place of the loaded state, and whether an iteration has begun there: worker processes begin it
        before a framework sets the epoch.
        """
        present = self.present if self.beginning is None else None
        loaded = self.place() if present is None else (self._epoch_of_present(), present.start)
        place = check(loaded, present is not None)
        if place != loaded:
            self.load(*place)
        return place[0]

    def begin(self, iteration: _Iteration) -> None:
        """Make an iteration the present one, whose first element is about to be taken.

        The log says if it is the third one in a row from one place, and the others were left early.
        """
        last = self.present
        same = last is not None and (last.epoch, last.start) == (iteration.epoch, iteration.start)
        again = last is not None and last is not iteration and same and 0 < last.yielded < last.count
        self._left_early = self._left_early + 1 if again else 0
        if last is not None and self._left_early == _REPEATS:
            log.warning(_LEFT_EARLY, iteration.epoch, _REPEATS, last.yielded, last.count)
        self.beginning, self.present = None, iteration

    def replaces(self, iteration: _Iteration, *, ended: bool) -> bool:
        """Return whether the next iteration is set and differs from this one, or follows it because it has `ended`."""
        coming = self.beginning
        return coming is not None and (coming.loaded or coming.epoch != iteration.epoch or ended)

    def go_on(self, iteration: _Iteration) -> None:
        """Continue an iteration. Raises `UsageError` if `set_epoch` or a loaded state has requested another one.

        Otherwise the caller would believe that it gets another epoch.
        """
        coming = self.beginning
        if coming is not None and self.replaces(iteration, ended=False):
            said = "a state was loaded" if coming.loaded else f"set_epoch({coming.epoch}) was called"
            raise UsageError(
                f"{said} while an iteration of epoch {iteration.epoch} was under way, and that iteration went on: "
                f"begin a new one (`iter(loader)`) after it{_TURNS_HINT}"
            )
        self.beginning = None

    def _epoch_of_present(self) -> int:
        assert self.present is not None, "without an iteration, the next one is set"
        assert self.present.epoch is not None, "the present iteration has begun"
        return self.present.epoch


@dataclass(frozen=True, slots=True)
class Dealing(Generic[_Sequence]):
    """The sequence of an iteration, and the ranks and processes among which its positions or batches are divided."""

    rank: int
    replicas: int
    sequence: _Sequence
    drop_last: bool
    even: bool = True
    """Whether all ranks get equally many samples."""
    dealt: int = 1
    """Number of processes among which a framework divides the positions of the rank."""
    batch: int = 0
    """Samples of a batch of each rank, with `locality`; otherwise 0."""
    seat: GroupSeat = OWN_SEAT
    """The place of this rank among the ranks that get the same samples."""
    source: str = ""
    """The library or variable that says the rank; empty if the caller of the sampler gave it."""
    name: str = ""
    """The data set's name for users."""
    what: str = ""
    """A text that identifies the order of the samples."""
    alone: bool = False
    """Whether this process gets all samples because it found no job; the caller of the sampler has not said so."""
    loader: AskingLoader = field(default_factory=AskingLoader)
    """The PyTorch loader that asks for the samples."""

    @property
    def ranks(self) -> tuple[int, int]:
        return self.rank, self.replicas

    def announcement(self, epoch: int, position: int, processes: int) -> Announcement:
        """Return the announcement that this rank is about to draw an epoch from a position on."""
        seat = self.seat
        return Announcement(
            epoch,
            position,
            *self.ranks,
            self.batch,
            processes,
            copies=seat.copies,
            spans=seat.spans,
            part=seat.part,
        )


@dataclass(frozen=True, slots=True)
class States:
    """Functions of a sampler for an iteration that has not begun."""

    of_next: Callable[[], dict[str, Any]]
    """Returns the state at the beginning of the next iteration."""
    load: Callable[[dict[str, Any]], None]
    """Loads a state; one at the end of an epoch is that at the beginning of the next epoch."""
    set_epoch: Callable[[int], None]


class SamplerIteration(Reprs, ABC, Generic[_Sequence], shows="epoch yielded count"):
    """One iteration of a sampler.

    It has its own state, for torchdata's `StatefulDataLoader`, which asks a sampler's iterator for it.

    Args:
        upcoming: Epoch and place at which the iteration begins.
        deal: Settles the ranks. Called when the iteration begins. Raises `UsageError`.
        states: Functions for the state of the sampler.
    """

    epoch: int | None
    """The epoch, once it has begun."""
    _place: str
    """The name of the place in a state."""

    def __init__(self, upcoming: Upcoming[Any], deal: Callable[[], Dealing[_Sequence]], states: States) -> None:
        self._upcoming, self._deal, self._states = upcoming, deal, states
        self._reset()

    def _reset(self) -> None:
        self._dealing: Dealing[_Sequence] | None = None
        """The division of positions or batches; None if the iteration has not begun."""
        self._made = self.yielded = self.start = self.count = 0
        """Positions or batches of this rank that were made and that were yielded, the first one of all ranks, and how
        many this rank gets.
        """
        self.announced = False
        """Whether the server knows of it: some rank gets samples."""
        self._discarded = False
        """Whether torchdata has restored this iteration only to begin another one."""

    def begin(self) -> None:
        """Settle epoch, place and ranks, as late as possible, and announce them to the server.

        A second call does nothing. If the call fails, the iteration has not begun: the next iteration is the same
        epoch. Raises `UsageError`.
        """
        if self._dealing is None:
            dealing = self._deal()
            check_workers((0, 1) if dealing.source else dealing.ranks)
            check_dividers(dealing.replicas)
            if self._upcoming.beginning is not None and not self._upcoming.beginning.loaded:
                refuse_skipped_stream()
            say_rank(*dealing.ranks, dealing.source)
            if dealing.alone:
                say_alone(dealing.what, dealing.name)
            warn_alone(dealing.replicas, dealing.source, dealing.what, dealing.name)
            self._announce(dealing, *self._upcoming.place())
            self._dealing = dealing
            self._upcoming.begin(self)
            if self.start and not self.announced:
                said = "the loaded state was taken after the last batch of epoch %d: this iteration is empty"
                log.warning(f"{said}, and the next one is epoch %d", self.epoch, self._upcoming.place()[0])

    def _end(self) -> None:
        """Note that this process has taken all that it gets in this epoch."""
        if self._dealing is not None and self.count:
            due = self.extent
            warn_lonely(*self.ranks, self._dealing.source, seen=due.due, samples=due.samples)
            warn_first(*self.ranks, self._dealing.source, self._dealing.what, self._dealing.name)

    @property
    @abstractmethod
    def extent(self) -> IterationExtent:
        """The samples that the iteration covers, once it has begun."""

    @abstractmethod
    def _announce(self, dealing: Dealing[_Sequence], epoch: int, start: int) -> None:
        """Begin with this place of an epoch, and announce it to the server."""

    @property
    def begun(self) -> bool:
        return self._dealing is not None

    @property
    def ranks(self) -> tuple[int, int]:
        return self._begun_dealing.ranks

    @property
    def _begun_dealing(self) -> Dealing[_Sequence]:
        assert self._dealing is not None
        return self._dealing

    def go_on(self) -> None:
        """Raise `UsageError` if another iteration of the sampler was requested meanwhile."""
        self._upcoming.go_on(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of an iteration. After a state at the end of an epoch, nothing is left to yield.

        An epoch that `set_epoch` has named before counts, because torchdata loads a state when the loop begins. Raises
        `UsageError` as `set_epoch` does.
        """
        self._states.load(state)
        self._reset()
        coming = self._upcoming.beginning
        assert coming is not None, "a state was loaded"
        if coming.epoch > state["epoch"] and first_epoch() != coming.epoch:
            self._discarded = torchdata_discards()
            if not self._discarded:
                self._upcoming.load(state["epoch"], state[self._place])
        if coming.named is not None:
            self._states.set_epoch(coming.named)

    def _refuse_reordered(self) -> None:
        """Raise `UsageError` if batches are delivered in another order than that in which they were yielded."""
        if self._begun_dealing.loader.reorders:
            raise UsageError(
                f"with in_order=False, worker processes deliver batches in any order, so no state inside epoch "
                f"{self.epoch} can name those that were trained: leave out in_order=False, or save states at the end "
                "of an epoch"
            )


class Positions(SamplerIteration[AccessSequence], Iterator[int]):
    """One iteration of a `BrandSampler`. `samples`: samples of a whole epoch, for all ranks."""

    epoch: int
    _place = "position"

    def __init__(
        self, samples: int, upcoming: Upcoming[Positions], deal: Callable[[], Dealing[AccessSequence]], states: States
    ) -> None:
        super().__init__(upcoming, deal, states)
        self._samples = samples

    def _reset(self) -> None:
        super()._reset()
        self._ints: list[int] = []
        """The rest of the present block, in reverse order."""
        self.epoch = self.most = 0
        """Epoch, and how many of the ints this process takes if Accelerate divides them."""
        self._mine: NDArray[np.int64] | None = None
        """The positions of this rank, with `locality`; otherwise None."""

    def __repr__(self) -> str:
        if self._dealing is None:
            return "Positions(not begun)"
        return f"Positions(epoch {self.epoch} from {self.start:,}, {self.yielded:,} of {self.most:,} yielded)"

    def _announce(self, dealing: Dealing[AccessSequence], epoch: int, start: int) -> None:
        self.epoch, self.start = epoch, start
        self.count = samples_of_rank(dealing, epoch, start)
        self.most = -(-self.count // dealing.dealt)
        self.announced = rounds(self._samples - start, dealing.replicas, drop_last=dealing.drop_last) > 0
        if self.announced:
            last = self._upcoming.present
            goes_on = last is not None and last.announced and last.ended and (epoch, start) == (last.epoch + 1, 0)
            announcement = dealing.announcement(epoch, start, dealing.dealt)
            mine = dealing.sequence.begin(announcement, goes_on=goes_on)
            self._mine = None if mine is None else self._with_tail(mine, dealing)

    @property
    def extent(self) -> IterationExtent:
        """The samples that the iteration covers, once it has begun."""
        return IterationExtent(self.start, self._samples, self.most)

    @property
    def ended(self) -> bool:
        return self.begun and self.yielded >= self.count

    def replaced(self, *, ended: bool) -> bool:
        """Return whether the sampler's next iteration is set and differs from this one; see `Upcoming.replaces`."""
        return self._upcoming.replaces(self, ended=ended)

    def __next__(self) -> int:
        if not self._ints:
            self._ints = [] if self._discarded else self._make(_BLOCK)[::-1].tolist()
            if not self._ints:
                self._end()
                raise StopIteration
        if self._upcoming.beginning is not None:
            self.go_on()
        self.yielded += 1
        return self._ints.pop()

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` ints at once, fewer at the end. `BrandLoader` calls this."""
        first = np.array(self._ints[: -count - 1 : -1], np.int64)
        del self._ints[len(self._ints) - len(first) :]
        taken = np.concatenate((first, self._make(count - len(first))))
        self.yielded += len(taken)
        if len(taken) < count:
            self._end()
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this iteration after all ints that it has yielded; at its end, nothing is left."""
        if not self.begun:
            return self._states.of_next()
        position = self._samples if self._is_last(self.count - self.yielded) else self._position
        return self._begun_dealing.sequence.state_at(self.epoch, position)

    def state_after(self, samples: int | None) -> dict[str, Any]:
        """Return the loader state after `samples` samples of this process. None: after all samples that it has yielded.

        If nothing is left of this epoch, the state is at the beginning of the next one. Raises `UsageError` if this
        process cannot have trained that many samples.
        """
        if samples is None:
            return self._state_at(self._position, left=self.count - self.yielded)
        if not 0 <= samples <= self.most:
            raise UsageError(f"{counted(samples, 'sample')}: this rank has {self.most:,} in this epoch")
        dealing = self._begun_dealing
        if dealing.batch and samples % dealing.batch and samples != self.count:
            raise UsageError(
                f"{counted(samples, 'sample')} cannot be divided into batches of {dealing.batch}, as `locality` needs"
            )
        position = self.start + samples * dealing.replicas * dealing.dealt
        return self._state_at(position, left=self.count - samples * dealing.dealt)

    def _is_last(self, left: int) -> bool:
        """Return whether no loader makes a further batch of the last `left` positions of this rank."""
        return left < max(1, self._begun_dealing.loader.dropped * self._begun_dealing.dealt)

    @property
    def _position(self) -> int:
        """Global position after all ints that were yielded."""
        return min(self._samples, self.start + self.yielded * self.ranks[1])

    def _state_at(self, position: int, *, left: int) -> dict[str, Any]:
        ended = self._is_last(left) or position >= self._samples
        if position > self.start and not ended:
            self._refuse_reordered()
        return self._begun_dealing.sequence.state_at(*((self.epoch + 1, 0) if ended else (self.epoch, position)))

    def _make(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` ints, fewer at the end."""
        self.begin()
        sequence, end = self._begun_dealing.sequence, min(self._made + count, self.count)
        if self._mine is None:
            positions = sequence.dealt(self.epoch, self.start, range(self._made, end), self.ranks)
        else:
            positions = self._mine[self._made : end]
        if len(positions) and int(positions.max()) >= self._samples:
            positions = positions % self._samples
        self._made = end
        return sequence.ints(self.epoch, positions)

    def _with_tail(self, mine: NDArray[np.int64], dealing: Dealing[AccessSequence]) -> NDArray[np.int64]:
        """Return this rank's positions, and then its positions of the last, incomplete global batch.

        In that batch, ranks take positions in turn. If all ranks get equally many, positions past the end represent
        samples from the beginning.
        """
        beyond = np.arange(self._samples, self.start + self.count * dealing.replicas)
        beyond = beyond[(beyond - self.start) % dealing.replicas == dealing.rank]
        return np.concatenate((mine, beyond))[: self.count]


def samples_of_rank(dealing: Dealing[AccessSequence], epoch: int, start: int) -> int:
    """Return the number of samples that a rank gets from position `start` of an epoch on."""
    sequence = dealing.sequence
    most = rounds(sequence.samples - start, dealing.replicas, drop_last=dealing.drop_last)
    if dealing.even or not most:
        return most
    (last,) = sequence.dealt(epoch, start, range(most - 1, most), dealing.ranks).tolist()
    return most if last < sequence.samples else most - 1


def rounds(samples: int, replicas: int, *, drop_last: bool) -> int:
    """Return the number of rounds of one position for each rank, or of batches; the last may be incomplete."""
    return samples // replicas if drop_last else -(-samples // replicas)
