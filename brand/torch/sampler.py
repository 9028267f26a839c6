"""`BrandSampler`: which positions does this rank draw, in which order, and where does a run go on after a stop?

The global access sequence is cut into rounds of one position a rank, so global batch `t` is the same set of samples
for any number of ranks. A state is (epoch, position) with what fixes the order; any other number of ranks, workers or
samples a batch goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from brand.errors import UsageError
from brand.protocol.order import MAX_EPOCH, MAX_SEED, Order
from brand.protocol.tickets import MAX_POSITIONS, tickets
from brand.torch.dataset import BrandDataset
from brand.torch.ranks import find_rank

STATE_VERSION: Final = 1
_BLOCK: Final = 1 << 14


class BrandSampler(Sampler[int]):
    """Draws every sample of a `BrandDataset` once an epoch, in random order, at the speed of sequential storage.

    It yields tickets: ints that the data set understands as "what comes at this position", so that it can be read
    ahead. Give it to a `DataLoader` as `sampler=`. Each epoch has its own order: `set_epoch(n)` says which; without it,
    each iteration is the next epoch.

    Args:
        data_set: The data set to draw from.
        seed: Fixes the order of every epoch.
        num_replicas, rank: Number of ranks and which this one is; by default what torch.distributed, torchrun or
            Slurm say, asked when the iteration begins.
        shuffle: False: the plain indices in their order, exact reads; nothing is read ahead.
        drop_last: Where the ranks do not divide the samples: drop the rest (True), or give some samples to two ranks.
            All ranks always get equally many.
        locality: On several nodes: split each global batch so that a rank takes what its own node owns first. The
            global batches stay the same sets, and little crosses the network. Needs `batch_size`.
        batch_size: Samples of a batch of each rank, for `locality`; `BrandLoader` says it by itself.
    """

    def __init__(
        self,
        data_set: BrandDataset,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        locality: bool = False,
        batch_size: int | None = None,
    ) -> None:
        if not isinstance(data_set, BrandDataset):
            raise UsageError(
                f"BrandSampler draws from a BrandDataset, not from a {type(data_set).__name__}; give it the data set "
                "itself. A Subset is read exactly, by any other sampler"
            )
        seed = _whole("seed", seed, MAX_SEED)
        self.data_set, self.seed, self.shuffle, self.drop_last = data_set, seed, shuffle, drop_last
        self.num_replicas, self.rank = num_replicas, rank
        self.locality = locality
        self.batch_size = None if batch_size is None else max(1, _whole("batch_size", batch_size, MAX_POSITIONS))
        self.order = data_set.order(seed)
        """What fixes the order of all epochs."""
        self.tag = data_set.tag_of(self.order)
        self._epoch = 0
        self._position = 0
        """Global position at which the next iteration begins."""
        self._running: Positions | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its beginning; no change where a loaded state is in this epoch."""
        epoch = _whole("epoch", epoch, MAX_EPOCH)
        if epoch != self._epoch or self._running is not None:
            self._epoch, self._position, self._running = epoch, 0, None

    def __len__(self) -> int:
        """Samples of a whole epoch for this rank."""
        _, replicas = find_rank(self.rank, self.num_replicas)
        return _rounds(len(self.data_set), replicas, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[int]:
        if self._running is not None and self._running.used:  # a second iteration, and nobody said which epoch
            self._epoch, self._position = self._epoch + 1, 0
        self._running = Positions(self, self._epoch, self._position)
        return self._running

    @property
    def epoch(self) -> int:
        """The epoch that the present iteration is in, or the next one will be."""
        return self._epoch

    @property
    def iterating(self) -> bool:
        """Whether an iteration of the present epoch has begun."""
        return self._running is not None

    def batch_of(self, replicas: int) -> int:
        """Samples of a batch of each of so many ranks where `locality` splits them, else 0. Raises `UsageError`."""
        if not self.locality or not self.shuffle or replicas == 1:
            return 0
        if self.batch_size is None:
            raise UsageError("locality=True needs batch_size=, the samples of a batch of each rank")
        return self.batch_size

    def state_dict(
        self, *, samples: int | None = None, batches: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Where a run goes on, as plain values.

        With workers a sampler runs ahead of training, so say what was trained since the iteration began: `samples` of
        this rank, or `batches` of `batch_size`. Without either: all that was yielded.
        """
        if samples is not None and batches is not None:
            raise UsageError("say what was trained in samples or in batches, not both")
        epoch, position = self._epoch, self._position
        if batches is not None:
            if batch_size is None:
                raise UsageError("batches= needs batch_size=, the samples in each")
            samples = batches * batch_size
            if self._running is not None and samples - batch_size < self._running.count:  # the last may be short
                samples = min(samples, self._running.count)
        if self._running is not None:
            position = self._running.position_after(self._running.yielded if samples is None else samples)
        elif samples:
            raise UsageError(f"{samples} samples cannot have been trained: no iteration has begun")
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "shuffle": self.shuffle,
            "order": self.order.to_json() if self.shuffle else {"data_set": self.data_set.id, "seed": self.seed},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says. Raises `UsageError` where it is no state, or one of another data set."""
        try:
            version, shuffle, facts = state["version"], state["shuffle"], dict(state["order"])
            epoch = _whole("epoch", state["epoch"], MAX_EPOCH)
            position = _whole("position", state["position"], len(self.data_set))
            seed, data_set = _whole("seed", facts["seed"], MAX_SEED), facts["data_set"]
            if not isinstance(shuffle, bool):
                raise TypeError(f"shuffle is {shuffle!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
        if version != STATE_VERSION:
            raise UsageError(f"a state of version {version}; this is version {STATE_VERSION}")
        if data_set != self.data_set.id:
            raise UsageError(f"the state is of data set {data_set}, this one is {self.data_set.id}")
        if shuffle:
            try:
                order = Order.from_json(facts)
            except (ValueError, TypeError) as error:
                raise UsageError(f"this is no state of a BrandSampler: {error}") from None
            if (order.samples, order.chunk_size) != (self.order.samples, self.order.chunk_size):
                raise UsageError("this is no state of a BrandSampler: its sizes are not those of the data set")
            self.order, self.tag = order, self.data_set.tag_of(order)
        self.seed, self.shuffle = seed, shuffle
        self._epoch, self._position, self._running = epoch, position, None


class Positions(Iterator[int]):
    """One iteration. Has a state of its own, as torchdata's `StatefulDataLoader` asks its sampler's iterator."""

    def __init__(self, sampler: BrandSampler, epoch: int, start: int) -> None:
        self._sampler, self._epoch, self._start = sampler, epoch, start
        self._rank, self._replicas = find_rank(sampler.rank, sampler.num_replicas)
        self._samples = len(sampler.data_set)
        self.count = _rounds(self._samples - start, self._replicas, drop_last=sampler.drop_last)
        self._ints: list[int] = []
        """The rest of the present block, last first."""
        self._made, self.yielded, self._announced = 0, 0, False
        self._batch = sampler.batch_of(self._replicas)
        self._mine: NDArray[np.int64] | None = None
        """With `locality`: the positions of this rank."""

    @property
    def used(self) -> bool:
        """Whether anything was taken from it; PyTorch makes iterators that it never uses."""
        return self.yielded > 0 or not self.count

    def position_after(self, samples: int) -> int:
        """Global position after so many samples of each rank."""
        if self._batch and samples % self._batch and samples != self.count:
            raise UsageError(f"{samples:,} samples are no whole batches of {self._batch}, as `locality` needs")
        if not 0 <= samples <= self.count:
            raise UsageError(f"{samples:,} samples: this rank has {self.count:,} in this epoch")
        return min(self._samples, self._start + samples * self._replicas)

    def __next__(self) -> int:
        if not self._ints:
            self._ints = self._make(_BLOCK)[::-1].tolist()
            if not self._ints:
                raise StopIteration
        self.yielded += 1
        return self._ints.pop()

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` ints at once, fewer at the end; what `BrandLoader` calls."""
        first = np.array(self._ints[: -count - 1 : -1], np.int64)
        del self._ints[len(self._ints) - len(first) :]
        taken = np.concatenate((first, self._make(count - len(first))))
        self.yielded += len(taken)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state after what was yielded."""
        return self._sampler.state_dict(samples=self.yielded)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says."""
        self._sampler.load_state_dict(state)
        self._sampler._running = self
        self.__init__(self._sampler, self._sampler._epoch, self._sampler._position)  # type: ignore[misc]

    def _make(self, count: int) -> NDArray[np.int64]:
        """The next `count` ints, fewer at the end."""
        sampler, end = self._sampler, min(self._made + count, self.count)
        if sampler.shuffle and not self._announced and end > self._made:
            self._announced = True
            ranks = (self._rank, self._replicas)
            mine = sampler.data_set.announce(sampler.order, self._epoch, self._start, ranks, self._batch)
            self._mine = None if mine is None else self._with_tail(mine)
        if self._mine is None:
            positions = self._start + self._rank + np.arange(self._made, end, dtype=np.int64) * self._replicas
        else:
            positions = self._mine[self._made : end]
        positions = positions % self._samples
        self._made = end
        return tickets(sampler.tag, self._epoch, positions) if sampler.shuffle else positions

    def _with_tail(self, mine: NDArray[np.int64]) -> NDArray[np.int64]:
        """As many positions as every rank has: the last, incomplete global batch is split in turn, and goes on."""
        beyond = np.arange(self._samples, self._start + self.count * self._replicas)
        beyond = beyond[(beyond - self._start) % self._replicas == self._rank]
        return np.concatenate((mine, beyond))[: self.count]


def _whole(name: str, value: Any, most: int) -> int:
    """A whole number from 0 to `most`. Raises `UsageError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) <= most:
        raise UsageError(f"{name}={value!r}: a whole number from 0 to {most:,} is needed")
    return int(value)


def _rounds(samples: int, replicas: int, *, drop_last: bool) -> int:
    """Samples for each rank."""
    return samples // replicas if drop_last else -(-samples // replicas)
