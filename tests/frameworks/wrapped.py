"""Do the states of a loader count the trained batches, if a wrapper takes one ahead? Each step of an epoch is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from brand import BrandDataset, BrandLoader, LengthBatchSampler

Make = Callable[[BrandDataset], BrandLoader]
_BATCH = 64


def fixed_size(data: BrandDataset) -> BrandLoader:
    """Batches of one size; the last one is short."""
    return BrandLoader(data, _BATCH, num_workers=1)


def planned(data: BrandDataset) -> BrandLoader:
    """Batches of samples of similar length."""
    lengths = [1 + n % 50 for n in range(len(data))]
    return BrandLoader(data, batch_sampler=LengthBatchSampler(data, lengths, batch_size=_BATCH), num_workers=1)


def check_states(path: Path, make: Make, wrap: Callable[[BrandLoader], Iterable[Any]]) -> None:
    """Take a state at each step of the second epoch, and after the loop. Each continues with the next batch."""
    data = BrandDataset(path, server="none", fields=("index", "label"))

    def epochs(loader: BrandLoader, count: int) -> list[list[list[int]]]:
        return [[indices.tolist() for indices, _ in wrap(loader)] for _ in range(count)]

    _, second, third = epochs(make(data), 3)
    stopped, states = make(data), []
    stopped.set_epoch(1)
    for _ in wrap(stopped):
        states.append(stopped.state_dict())
    states.append(stopped.state_dict())
    assert len(states) == len(second) + 1
    for trained, state in enumerate(states, 1):
        again = make(data)
        again.load_state_dict(state)
        assert epochs(again, 1) == [second[trained:] or third], f"after {trained} batches"
