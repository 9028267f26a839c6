"""A server knows how far a training is: its numbers are those that the loop itself counts, not what was read ahead.

Each test trains, stops at a step, and waits until the server has heard of it. No number depends on how long that takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.node.client.connector import look_at
from brand.node.serve.metrics import prometheus
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture
from tests.node.test_metrics import read
from tests.support import brand, wait_until
from tests.torch.support import make_samples, make_set, served

pytestmark = pytest.mark.slow
COUNT = 75


class Loop:
    """A training loop that counts its samples itself."""

    def __init__(self, loader: BrandLoader) -> None:
        self._batches: Iterator[Any] = iter(loader)
        self.samples = self.steps = 0

    def take(self, steps: int) -> None:
        """Train some batches."""
        for _ in range(steps):
            self._count(next(self._batches))

    def end(self) -> None:
        """Train the rest of the epoch."""
        for batch in self._batches:
            self._count(batch)

    def _count(self, batch: Any) -> None:
        self.samples += len(batch[0])
        self.steps += 1


def known(data_set: BrandDataset, taken: int, job: int = 0) -> dict[str, Any]:
    """What a server says of a training that reports, once it has heard that so many samples of the epoch were taken."""
    found: dict[str, Any] = {}

    def heard() -> bool:
        trainings = data_set.stats()["training"][job : job + 1]
        found.update(*trainings)
        return bool(trainings and found["taken"] == taken and found["state"] != "paused")

    wait_until(heard, f"the server knows that {taken} samples were taken")
    return found


def rank_of(data_set: BrandDataset) -> dict[str, Any]:
    """What a server says of the only rank, with the seconds of its steps."""
    (loop,) = look_at(data_set.stats()["address"], cells=1)["loops"]
    return dict(loop)


def test_progress_is_what_the_loop_has_taken(small: Path) -> None:
    """In the middle of an epoch, when all of it has been read ahead; on the page of metrics and in `brand top`, too."""
    with served(small) as data_set:
        loop = Loop(BrandLoader(data_set, 5))
        loop.take(4)
        wait_until(lambda: data_set.stats()["fetched"] == COUNT, "all samples are fetched")
        found = known(data_set, loop.samples)
        assert (found["step"], found["fetched"], found["samples"]) == (loop.steps, COUNT, COUNT)
        assert found["share"] == pytest.approx(loop.samples / COUNT, rel=1e-5)
        assert found["state"] == "training"
        assert found["left_s"] > 0  # 55 samples, which a fast loop trains in less than 50 ms
        metrics = read(prometheus(look_at(data_set.stats()["address"], cells=1)))
        assert list(metrics["brand_loop_samples_total"].values()) == [loop.samples]
        assert list(metrics["brand_run_taken_samples"].values()) == [loop.samples]
        assert list(metrics["brand_run_position_samples"].values()) == [COUNT]
        shown = " ".join(brand("top", data_set.stats()["address"], "--once").out.split())
        assert f"26.7 %, {loop.samples} of {COUNT} samples, {COUNT - loop.samples} more read ahead" in shown
        loop.end()
        assert loop.samples == COUNT
        assert known(data_set, COUNT)["state"] == "ended"


def test_the_pace_is_that_of_the_loop(small: Path) -> None:
    """Within 5 % of what the loop counts: both divide the same samples by the time that the same steps took."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 5)
        Loop(loader).end()
        known(data_set, COUNT)
        before = rank_of(data_set)  # of an epoch that has ended, so the time of this look is no training
        loop, start_s = Loop(loader), time.monotonic()
        for _ in range(12):
            loop.take(1)
            seconds = time.monotonic() - start_s
            time.sleep(0.1)
        known(data_set, loop.samples)
        after = rank_of(data_set)
        counted_s, samples = after["seconds"] - before["seconds"], after["samples"] - before["samples"]
        assert samples == loop.samples
        assert samples / counted_s == pytest.approx(loop.samples / seconds, rel=0.05)


def test_ranks_add_up(small: Path) -> None:
    """Each has taken its own samples."""
    with served(small) as data_set:
        samplers = [BrandSampler(data_set, num_replicas=3, rank=rank) for rank in range(3)]
        loops = [Loop(BrandLoader(data_set, 5, sampler=sampler)) for sampler in samplers]
        for rank, loop in enumerate(loops):
            loop.take(rank + 1)
        found = known(data_set, sum(loop.samples for loop in loops))
        assert (found["taken"], found["ranks"], found["ranks_here"]) == (30, 3, 3)


def test_an_epoch_that_goes_on(small: Path) -> None:
    """After a loader state, the samples before it count."""
    with served(small) as data_set:
        first = BrandLoader(data_set, 5)
        loop = Loop(first)
        loop.take(6)
        state = first.state_dict()
        second = BrandLoader(data_set, 5)
        second.load_state_dict(state)
        loop = Loop(second)
        loop.take(2)
        assert known(data_set, 30 + loop.samples)["epoch"] == 0


def test_the_last_batch_that_is_left_out(small: Path) -> None:
    """An epoch without it is whole."""
    with served(small) as data_set:
        loop = Loop(BrandLoader(data_set, 10, drop_last=True))
        loop.end()
        assert loop.samples == 70
        assert known(data_set, COUNT)["state"] == "ended"


def test_batches_that_differ_in_size(small: Path) -> None:
    """Samples count, not batches."""
    with served(small) as data_set:
        lengths = np.arange(1, COUNT + 1)
        sampler = LengthBatchSampler(data_set, lengths, batch_length=150)
        loop = Loop(BrandLoader(data_set, batch_sampler=sampler))
        loop.take(5)
        assert known(data_set, loop.samples)["samples"] == COUNT
        loop.end()
        assert known(data_set, COUNT)["state"] == "ended"


def test_a_mixture_reports_its_own_epoch(tmp_path: Path) -> None:
    """To the server of each member, which knows fetches of its own samples only."""
    one, other = (make_set(tmp_path / name, make_samples(40, 100), 8) for name in ("one", "other"))
    with served(one) as first, served(other) as second:
        loop = Loop(BrandLoader(Mixture({first: 1, second: 3}, samples=80), 8))
        loop.take(3)
        for member in (first, second):
            assert known(member, loop.samples)["samples"] == 80


def test_jobs_are_told_apart(small: Path) -> None:
    """Two trainings of one server."""
    with running_server(small, memory=0.3) as server:
        loops = {}
        for job, steps in (("a", 3), ("b", 5)):
            data_set = BrandDataset(small, fields=("index",), server=server.address, job=job)
            loops[job] = Loop(BrandLoader(data_set, 5))
            loops[job].take(steps)
        for number, job in enumerate(("a", "b")):
            assert known(data_set, loops[job].samples, number)["job"] == job
