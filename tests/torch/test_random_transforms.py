"""Torch's random functions in a transform: the same in every run, whichever thread calls them; other in each epoch."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import choice
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import RandomSampler, SequentialSampler

from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.loader import copies
from tests.torch.support import make_samples, make_set

COUNT = 40

Draw = Callable[[], torch.Tensor]
ONES = torch.ones(8)

# What a user may call, in any of its spellings.
RANDOM: dict[str, Draw] = {
    "rand": lambda: torch.rand(4),
    "rand out": lambda: torch.rand(4, out=torch.empty(4)),
    "randn": lambda: torch.randn(2, 2, dtype=torch.float64),
    "randint": lambda: torch.randint(1 << 30, (3,)),
    "randint low": lambda: torch.randint(5, 1 << 30, size=(1,)),
    "randperm": lambda: torch.randperm(30),
    "normal": lambda: torch.normal(ONES, 2.0),
    "normal size": lambda: torch.normal(0.0, 1.0, (4,)),
    "bernoulli": lambda: torch.bernoulli(torch.full((60,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(99), 8),
    "poisson": lambda: torch.poisson(100 * ONES),
    "uniform_": lambda: torch.empty(1).uniform_(0.5, 1.5),
    "normal_": lambda: torch.empty(4).normal_(),
    "random_": lambda: torch.empty(4, dtype=torch.int64).random_(1 << 30),
    "bernoulli_": lambda: torch.empty(60).bernoulli_(0.5),
    "exponential_": lambda: torch.empty(4).exponential_(),
    "geometric_": lambda: torch.empty(20).geometric_(0.1),
    "cauchy_": lambda: torch.empty(4).cauchy_(),
    "log_normal_": lambda: torch.empty(4).log_normal_(),
    "method bernoulli": lambda: torch.full((60,), 0.5).bernoulli(),
    "method multinomial": lambda: torch.ones(99).multinomial(8),
    "item": lambda: torch.tensor([torch.rand(1).item(), int(torch.randint(1 << 30, ()))]),
    "own dropout": lambda: ONES.repeat(8) * (torch.rand(64) < 0.5),
    "nested": lambda: torch.stack([torch.rand(2), torch.randn(2)]).flip(0),
    "Uniform": lambda: torch.distributions.Uniform(0.0, 1.0).sample((3,)),
    "Normal": lambda: torch.distributions.Normal(0.0, 1.0).sample((3,)),
    "Categorical": lambda: torch.distributions.Categorical(torch.ones(99)).sample((4,)),
    "rand_like": lambda: torch.rand_like(ONES),
    "randn_like": lambda: torch.randn_like(ONES),
    "randint_like": lambda: torch.randint_like(ONES, 1 << 20),
    "dropout": lambda: functional.dropout(torch.ones(64)),
    "Dropout": lambda: torch.nn.Dropout()(torch.ones(64)),
    "Dropout2d": lambda: torch.nn.Dropout2d()(torch.ones(1, 64, 1, 1)),
    "alpha_dropout": lambda: functional.alpha_dropout(torch.ones(64), training=True),
    "rrelu": lambda: functional.rrelu(-ONES, training=True),
    "gumbel_softmax": lambda: functional.gumbel_softmax(ONES),
    "init.uniform_": lambda: torch.nn.init.uniform_(torch.empty(4)),
    "binomial": lambda: torch.binomial(torch.full((8,), 1000.0), torch.full((8,), 0.5)),
    "Beta": lambda: torch.distributions.Beta(1.0, 1.0).sample((2,)),
    "Gamma": lambda: torch.distributions.Gamma(1.0, 1.0).sample((2,)),
    "dropout in place": lambda: functional.dropout(torch.ones(64), inplace=True),
    "alpha_dropout of features": lambda: functional.feature_alpha_dropout(torch.ones(1, 64, 1), training=True),
    "kaiming_uniform_": lambda: torch.nn.init.kaiming_uniform_(torch.empty(2, 4)),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(4)),
    "xavier_normal_": lambda: torch.nn.init.xavier_normal_(torch.empty(2, 4)),
    "Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Forty samples."""
    path = make_set(tmp_path_factory.mktemp("sets") / "set", make_samples(COUNT, 50), 4)
    with running_server(path, memory=0.5) as running:
        yield running


@pytest.fixture
def opened(server: RunningServer) -> Callable[[Draw], BrandDataset]:
    """(index, what is drawn)."""

    def make(draw: Draw) -> BrandDataset:
        def transform(sample: tuple[int]) -> tuple[int, torch.Tensor]:
            return sample[0], draw()

        return BrandDataset(server.path, fields=("index",), transform=transform, server=server.address)

    return make


def drawn(loader: BrandLoader) -> dict[int, torch.Tensor]:
    """What each sample got."""
    return {index: value for batch in loader for index, value in zip(batch[0].tolist(), batch[1], strict=True)}


def same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    """To the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[index], other[index]) for index in one)


def distinct(found: dict[int, torch.Tensor]) -> int:
    """How many are different."""
    return len({tuple(value.flatten().tolist()) for value in found.values()})


def epochs(data_set: BrandDataset, threads: int, batch: int = 6, seed: int = 1) -> list[dict[int, torch.Tensor]]:
    """Two epochs."""
    loader = BrandLoader(data_set, batch, sampler=BrandSampler(data_set, seed=seed), num_workers=threads)
    return [drawn(loader) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_every_random_function(opened: Callable[[Draw], BrandDataset], name: str) -> None:
    """The same for 1, 2 and 4 threads, other batches and a second run; other for each sample, epoch and seed.

    The numbers of the process itself are left alone.
    """
    data_set = opened(RANDOM[name])
    before = torch.get_rng_state()
    first = epochs(data_set, 1)
    for threads, batch in ((2, 6), (4, 20)):
        assert all(map(same, epochs(data_set, threads, batch), first))
    assert torch.equal(torch.get_rng_state(), before)
    assert distinct(first[0]) == distinct(first[1]) == COUNT
    assert not any(torch.equal(first[0][index], first[1][index]) for index in range(COUNT))
    assert distinct(epochs(data_set, 2, seed=2)[0] | {index + COUNT: value for index, value in first[0].items()}) == (
        2 * COUNT
    )


def test_a_resumed_run_gives_the_same(opened: Callable[[Draw], BrandDataset]) -> None:
    """From the middle of an epoch."""
    data_set = opened(lambda: torch.rand(3))
    whole = epochs(data_set, 2)[0]
    stopped = BrandLoader(data_set, 6, sampler=BrandSampler(data_set, seed=1), num_workers=2)
    for number, _ in enumerate(stopped):
        if number == 2:
            break
    again = BrandLoader(data_set, 5, num_workers=1)
    again.load_state_dict(stopped.state_dict())
    rest = drawn(again)
    assert len(rest) == COUNT - 18
    assert same(rest, {index: whole[index] for index in rest})


def test_ranks_give_the_same(opened: Callable[[Draw], BrandDataset]) -> None:
    """One rank, or each its part of three."""
    data_set = opened(lambda: torch.rand(3))
    whole = epochs(data_set, 2)[0]
    for rank in range(3):
        part = drawn(BrandLoader(data_set, 4, sampler=BrandSampler(data_set, seed=1, num_replicas=3, rank=rank)))
        assert same(part, {index: whole[index] for index in part})


def test_a_generator_of_the_users_own_is_used(opened: Callable[[Draw], BrandDataset]) -> None:
    """As given."""
    data_set = opened(lambda: torch.rand(3, generator=torch.Generator().manual_seed(7)))
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7))
    assert all(torch.equal(value, expected) for value in epochs(data_set, 2)[0].values())


def test_the_training_loops_own_numbers_are_not_seeded(opened: Callable[[Draw], BrandDataset]) -> None:
    """What the loop draws between batches is what it would have drawn without a loader."""
    torch.manual_seed(5)
    expected = [torch.rand(1).item() for _ in range(7)]
    torch.manual_seed(5)
    data_set = opened(lambda: torch.rand(3))
    assert [torch.rand(1).item() for _ in BrandLoader(data_set, 6, num_workers=4)] == expected


def test_a_transform_that_fails_leaves_the_thread_as_it_was(opened: Callable[[Draw], BrandDataset]) -> None:
    """The next epoch's numbers are right."""
    calls: list[int] = []
    failing = [True]

    def draw() -> torch.Tensor:
        calls.append(1)
        if failing[0] and len(calls) == 10:
            raise RuntimeError("once")
        return torch.rand(3)

    data_set = opened(draw)
    loader = BrandLoader(data_set, 6, sampler=BrandSampler(data_set, seed=1), num_workers=1)
    with pytest.raises(RuntimeError, match="once"):
        drawn(loader)
    failing[0] = False
    loader.set_epoch(0)
    assert same(drawn(loader), epochs(opened(lambda: torch.rand(3)), 1)[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_exact_reads_are_seeded_by_the_process(opened: Callable[[Draw], BrandDataset], threads: int) -> None:
    """With a plain sampler: `torch.manual_seed` fixes the numbers."""
    data_set = opened(lambda: torch.rand(3))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(drawn(BrandLoader(data_set, 6, sampler=SequentialSampler(data_set), num_workers=threads)))
    assert same(found[0], found[1])
    assert distinct(found[0] | {index + COUNT: value for index, value in found[2].items()}) == 2 * COUNT


def test_exact_reads_get_other_numbers_in_each_epoch(opened: Callable[[Draw], BrandDataset]) -> None:
    """Augmentation that is the same in each epoch is none."""
    data_set = opened(lambda: torch.rand(3))
    loader = BrandLoader(data_set, 6, sampler=RandomSampler(data_set))
    first, second = drawn(loader), drawn(loader)
    assert not any(torch.equal(first[index], second[index]) for index in range(COUNT))


def test_a_sample_that_comes_twice_gets_other_numbers(opened: Callable[[Draw], BrandDataset]) -> None:
    """As a `WeightedRandomSampler` makes it."""
    data_set = opened(lambda: torch.rand(3))
    sampler: Any = [5, 5, 5]
    (batch,) = BrandLoader(data_set, 3, sampler=sampler)
    assert len({tuple(value.tolist()) for value in batch[1]}) == 3


def test_the_loop_may_use_torch_functions_while_transforms_run(
    opened: Callable[[Draw], BrandDataset], tmp_path: Path
) -> None:
    """A mode of one thread is not seen in another."""
    data_set = opened(lambda: torch.rand(64) @ torch.rand(64, 1))
    torch.manual_seed(9)
    expected = [torch.randn(3) for _ in range(7)]
    torch.manual_seed(9)
    found = [torch.randn(3) for _ in BrandLoader(data_set, 6, num_workers=3)]
    assert all(map(torch.equal, found, expected))


OWN, OWN_OF_NUMPY = random.Random(), np.random.default_rng()


def by_random(sample: tuple[int]) -> tuple[int, float]:
    return sample[0], random.uniform(0, 1)


def by_numpy(sample: tuple[int]) -> tuple[int, float]:
    return sample[0], float(np.random.rand())


def by_import(sample: tuple[int]) -> tuple[int, float]:
    import numpy

    return sample[0], float(numpy.random.normal())


def by_name(sample: tuple[int]) -> tuple[int, float]:
    return sample[0], choice((1.0, 2.0, 3.0))


class Flip:
    """As augmentations are written."""

    def __call__(self, sample: tuple[int]) -> tuple[int, float]:
        return by_name(sample) if self.chance() < 0.5 else by_numpy(sample)

    @staticmethod
    def chance() -> float:
        return random.random()


def by_own(sample: tuple[int]) -> tuple[int, float]:
    return sample[0], OWN.uniform(0, 1) + OWN_OF_NUMPY.random() + float(torch.rand(()))


PROCESS_RANDOM: dict[str, tuple[Any, str]] = {
    "random": (by_random, "random.uniform"),
    "numpy": (by_numpy, "np.random.rand"),
    "import": (by_import, "numpy.random.normal"),
    "name": (by_name, "choice"),
    "object": (Flip(), "choice, np.random.rand, random.random"),
    "partial": (partial(by_random), "random.uniform"),
}


@pytest.mark.parametrize("name", PROCESS_RANDOM)
def test_numbers_of_a_generator_of_the_process_are_told_once(
    server: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The cure, generators that the transform refers to, gives the same numbers in each run, and tells nothing."""
    monkeypatch.setattr(copies, "_warned", set())

    def epoch(transform: Any, threads: int) -> list[tuple[int, float]]:
        data = BrandDataset(server.path, fields=("index",), transform=transform, server=server.address)
        loader = BrandLoader(data, 8, sampler=BrandSampler(data), num_workers=threads)
        return [pair for batch in loader for pair in zip(*(each.tolist() for each in batch), strict=True)]

    transform, names = PROCESS_RANDOM[name]
    with caplog.at_level(logging.WARNING, "brand"):
        for _ in range(2):
            epoch(transform, 4)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "brand"]
    assert told.startswith(f"transform uses {names}. ")
    caplog.clear()
    assert epoch(by_own, 4) == epoch(by_own, 1)
    assert not caplog.records
