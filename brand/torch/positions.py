"""One iteration of a `BrandSampler`: which ints does this rank get, and what is its state?

An iteration begins when its first int is taken. Until then it has no epoch, because PyTorch makes iterators that it
never uses, and frameworks set the epoch after they have made an iterator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError

if TYPE_CHECKING:
    from brand.torch.sampler import BrandSampler

_BLOCK: Final = 1 << 14


class Positions(Iterator[int]):
    """One iteration. It has its own state, for torchdata's `StatefulDataLoader`, which asks a sampler's iterator."""

    def __init__(self, sampler: BrandSampler) -> None:
        self._sampler = sampler
        self._samples = sampler.samples
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._begun = False
        self._ints: list[int] = []
        """The rest of the present block, last first."""
        self._made = self.yielded = 0
        self.epoch = self.start = self.count = self.most = 0
        """Epoch, first position, number of ints, and how many of them this process keeps where Accelerate deals."""
        self._mine: NDArray[np.int64] | None = None
        """The positions of this rank, with `locality`; else None."""

    def __repr__(self) -> str:
        if not self._begun:
            return "Positions(not begun)"
        return f"Positions(epoch {self.epoch} from {self.start:,}, {self.yielded:,} of {self.most:,} yielded)"

    def begin(self) -> None:
        """Settle epoch, position and ranks, as late as possible, and announce them to the server.

        A second call does nothing. Where the call fails, nothing has begun: the next iteration is the same epoch.
        """
        if self._begun:
            return
        sampler = self._sampler
        self._dealt = sampler.dealt()
        self._rank, self._replicas = sampler.ranks()
        sampler.data_set.check_ranks(self._replicas * self._dealt)
        self._batch = sampler.batch_of(self._replicas)
        self.epoch, self.start = sampler.upcoming.place()
        self.count = rounds(self._samples - self.start, self._replicas, drop_last=sampler.drop_last)
        self.most = -(-self.count // self._dealt)
        if self.count:
            ranks = (self._rank, self._replicas)
            goes_on = sampler.comes_to(self.epoch, self.start)
            mine = sampler.sequence.begin(self.epoch, self.start, ranks, self._batch, self._dealt, goes_on=goes_on)
            self._mine = None if mine is None else self._with_tail(mine)
        self._begun = True
        sampler.upcoming.begin(self)

    @property
    def begun(self) -> bool:
        """Whether the iteration has begun."""
        return self._begun

    def __next__(self) -> int:
        if not self._ints:
            self._ints = self._make(_BLOCK)[::-1].tolist()
            if not self._ints:
                raise StopIteration
        if self._sampler.announced:
            self._sampler.upcoming.go_on(self)
        self.yielded += 1
        return self._ints.pop()

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` ints at once, fewer at the end. `BrandLoader` calls this."""
        first = np.array(self._ints[: -count - 1 : -1], np.int64)
        del self._ints[len(self._ints) - len(first) :]
        taken = np.concatenate((first, self._make(count - len(first))))
        self.yielded += len(taken)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The state of this iteration after all ints that it has yielded; at its end, nothing is left."""
        if not self._begun:
            return self._sampler.state_dict()
        return self._sampler.state_at(self.epoch, self._position)

    def state_after(self, samples: int | None) -> dict[str, Any]:
        """The state of the run after `samples` samples of this process (None: after all that it has yielded).

        Where nothing is left of this epoch, the state is at the beginning of the next one. Raises `UsageError` where so
        many samples cannot have been trained.
        """
        if samples is None:
            return self._state_at(self._position, all_of_it=self.yielded >= self.count)
        if not 0 <= samples <= self.most:
            raise UsageError(f"{samples:,} samples: this rank has {self.most:,} in this epoch")
        if self._batch and samples % self._batch and samples != self.count:
            raise UsageError(f"{samples:,} samples are no whole batches of {self._batch}, as `locality` needs")
        return self._state_at(self.start + samples * self._replicas * self._dealt, all_of_it=samples == self.most)

    @property
    def _position(self) -> int:
        """Global position after all ints that were yielded."""
        return min(self._samples, self.start + self.yielded * self._replicas)

    def _state_at(self, position: int, *, all_of_it: bool) -> dict[str, Any]:
        if all_of_it or position >= self._samples:
            return self._sampler.state_at(self.epoch + 1, 0)
        return self._sampler.state_at(self.epoch, position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state of an iteration says. A state at the end of an epoch leaves nothing to yield."""
        self._sampler.load_state_dict(state)
        self._begin_anew()
        if state["position"] == self._samples:
            self._sampler.upcoming.load(state["epoch"], self._samples, present=self)

    def _make(self, count: int) -> NDArray[np.int64]:
        """The next `count` ints, fewer at the end."""
        self.begin()
        sampler, end = self._sampler, min(self._made + count, self.count)
        if self._mine is None:
            ranks = (self._rank, self._replicas)
            positions = sampler.sequence.dealt(self.epoch, self.start, range(self._made, end), ranks)
        else:
            positions = self._mine[self._made : end]
        if len(positions) and int(positions.max()) >= self._samples:
            positions = positions % self._samples
        self._made = end
        return sampler.sequence.ints(self.epoch, positions)

    def _with_tail(self, mine: NDArray[np.int64]) -> NDArray[np.int64]:
        """This rank's positions and its part of the last, incomplete global batch, which ranks draw in turn.

        All ranks get equally many: positions past the end stand for samples from the beginning.
        """
        beyond = np.arange(self._samples, self.start + self.count * self._replicas)
        beyond = beyond[(beyond - self.start) % self._replicas == self._rank]
        return np.concatenate((mine, beyond))[: self.count]


def rounds(samples: int, replicas: int, *, drop_last: bool) -> int:
    """Samples for each rank."""
    return samples // replicas if drop_last else -(-samples // replicas)
