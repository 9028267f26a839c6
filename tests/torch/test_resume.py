"""A run that stops at any step and goes on, elsewhere and otherwise, sees what it would have seen without the stop."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from brand.errors import UsageError
from brand.orders.policies.registry import OrderOption
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.torch.support import TORCHDATA, indices_of, make_samples, make_set, planned, stateful_loader

pytestmark = [places.EVERYWHERE, TORCHDATA]

COUNT, BATCH, SEED = 22, 4, 3
STEPS = range(-(-COUNT // BATCH) + 1)
"""Batches after which a run may stop, the last one short."""

State = dict[str, Any]


def through_json(state: State) -> State:
    """Written and read."""
    found: State = json.loads(json.dumps(state))
    return found


def through_torch(state: State) -> State:
    """Saved, and loaded as safely as it goes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: State = torch.load(file, weights_only=True)
    return found


@pytest.fixture(scope="module", params=["stripes", "slots"])
def order(request: pytest.FixtureRequest) -> OrderOption:
    """Both."""
    found: OrderOption = request.param
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 samples in chunks of four."""
    return make_set(tmp_path_factory.mktemp("sets") / "set", make_samples(COUNT, 300), 4)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    """For all tests."""
    with running_server(path, memory=0.7) as running:
        yield running


@pytest.fixture
def data_set(server: RunningServer, order: OrderOption) -> BrandDataset:
    """Opened anew for each test, as a new process does."""
    return opened(server, order)


@pytest.fixture
def epochs(path: Path, data_set: BrandDataset) -> list[list[int]]:
    """What a run without a stop sees."""
    order = BrandSampler(data_set, seed=SEED).order
    return [planned(path, order, epoch) for epoch in range(3)]


def opened(server: RunningServer, order: OrderOption) -> BrandDataset:
    """(index, key)."""
    return BrandDataset(server.path, fields=("index", "key"), server=server.address, order=order)


def dealt(parts: list[list[int]]) -> list[int]:
    """The global order of what ranks saw: one sample of each in turn."""
    assert len({len(part) for part in parts}) == 1
    return [index for turn in zip(*parts, strict=True) for index in turn]


def rests(loaders: list[Any], state: State, samplers: Iterable[Any] | None = None) -> tuple[list[int], list[int]]:
    """What the ranks' loaders give from a state on: the rest of its epoch, and the epoch after it."""
    for loads in loaders if samplers is None else samplers:
        loads.load_state_dict(state)
    rest, following = (dealt([indices_of(loader) for loader in loaders]) for _ in range(2))
    return rest, following


def check(
    found: tuple[list[int], list[int]], begun: int, epochs: list[list[int]], epoch: int = 0, *, iterator: bool = False
) -> None:
    """The rest is what was not seen, in the same order; where ranks do not divide it, the epoch begins anew.

    Of an epoch of which all was seen there is no rest: the next one begins, unless an `iterator` was restored.
    """
    if begun == COUNT and not iterator:
        begun, epoch = 0, epoch + 1
    for seen, order, start in zip(found, epochs[epoch:], (begun, 0), strict=False):
        assert seen[: len(order) - start] == order[start:]
        extra = seen[len(order) - start :]
        assert extra == order[: len(extra)]


# -- the sampler -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trip", "ranks"), [(through_json, 1), (through_torch, 2), (through_json, 3), (through_torch, 5)]
)
def test_a_sampler_at_every_step(
    data_set: BrandDataset, epochs: list[list[int]], trip: Callable[[State], State], ranks: int
) -> None:
    """Stopped alone; goes on as one of several ranks, with batches of another size, in a sampler of another seed."""
    sampler = BrandSampler(data_set, seed=SEED)
    assert indices_of(DataLoader(data_set, BATCH, sampler=sampler)) == epochs[0]
    for step in STEPS:
        state = trip(sampler.state_dict(batches=step, batch_size=BATCH))
        samplers = [BrandSampler(data_set, seed=step, num_replicas=ranks, rank=rank) for rank in range(ranks)]
        loaders = [DataLoader(data_set, 3, sampler=each) for each in samplers]
        check(rests(loaders, state, samplers), min(step * BATCH, COUNT), epochs)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_at_every_step(data_set: BrandDataset, epochs: list[list[int]], ranks: int) -> None:
    """Stopped as several ranks, all at the same step; goes on alone."""
    samplers = [BrandSampler(data_set, seed=SEED, num_replicas=ranks, rank=rank) for rank in range(ranks)]
    for sampler in samplers:
        list(sampler)
    for step in range(-(-COUNT // (BATCH * ranks)) + 1):
        states = [sampler.state_dict(batches=step, batch_size=BATCH) for sampler in samplers]
        assert all(state == states[0] for state in states)
        alone = BrandSampler(data_set, seed=9)
        found = rests([DataLoader(data_set, 5, sampler=alone)], states[-1], [alone])
        check(found, min(step * BATCH * ranks, COUNT), epochs)


@pytest.mark.slow
def test_workers_from_every_step(data_set: BrandDataset, epochs: list[list[int]]) -> None:
    """Goes on with two workers, or with one that stays."""
    sampler = BrandSampler(data_set, seed=SEED)
    list(sampler)
    for step in STEPS:
        again = BrandSampler(data_set, seed=9)
        loader = DataLoader(
            data_set, 3, sampler=again, num_workers=1 + step % 2, persistent_workers=bool(step % 2), prefetch_factor=1
        )
        found = rests([loader], sampler.state_dict(batches=step, batch_size=BATCH), [again])
        check(found, min(step * BATCH, COUNT), epochs)


def test_a_run_that_stops_again_and_again(data_set: BrandDataset, epochs: list[list[int]]) -> None:
    """A batch, a stop, a batch, a stop: through three epochs, none of them named."""
    seen: list[list[int]] = [[], [], []]
    state = BrandSampler(data_set, seed=SEED).state_dict()
    while state["epoch"] < 3:
        loader = BrandLoader(data_set, BATCH)
        loader.load_state_dict(state)
        seen[state["epoch"]] += indices_of([next(iter(loader))])
        state = through_json(loader.state_dict())
    assert seen == epochs


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loop_over_epochs_goes_on(data_set: BrandDataset, epochs: list[list[int]], *, shuffle: bool) -> None:
    """The loop of the documentation: `set_epoch` of the epoch that a state is in keeps the place."""
    orders = epochs if shuffle else [list(range(COUNT))] * 3
    stopped = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=SEED, shuffle=shuffle))
    stopped.set_epoch(1)
    begun = indices_of(batch for _, batch in zip(range(2), stopped, strict=False))
    loader = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set))
    loader.load_state_dict(stopped.state_dict())
    found = []
    for epoch in range(loader.state_dict()["epoch"], 3):
        loader.set_epoch(epoch)
        found += indices_of(loader)
    assert begun + found == orders[1] + orders[2]


# -- BrandLoader -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trip", "ranks", "batch", "threads"),
    [(through_json, 1, BATCH, 1), (through_torch, 1, 7, 3), (through_json, 2, 3, 2), (through_torch, 3, 1, 1)],
)
def test_a_brand_loader_at_every_step(
    data_set: BrandDataset,
    epochs: list[list[int]],
    trip: Callable[[State], State],
    ranks: int,
    batch: int,
    threads: int,
) -> None:
    """Stopped alone, in its second epoch; goes on with other ranks, batches and threads."""
    stopped = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=SEED), num_workers=2)
    assert indices_of(stopped) == epochs[0]
    stopped.set_epoch(1)
    states, seen = [BrandSampler(data_set, seed=SEED).state_dict() | {"epoch": 1}], [0]
    for each in stopped:
        states.append(trip(stopped.state_dict()))
        seen.append(seen[-1] + len(each[0]))
    assert len(states) == len(STEPS)
    for state, begun in zip(states, seen, strict=True):
        loaders = [
            BrandLoader(
                data_set, batch, sampler=BrandSampler(data_set, num_replicas=ranks, rank=rank), num_workers=threads
            )
            for rank in range(ranks)
        ]
        check(rests(loaders, state), begun, epochs, 1)


def test_the_three_ways_say_the_same(data_set: BrandDataset) -> None:
    """After each step, the loader's, the sampler's and torchdata's state."""
    loader = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=SEED))
    sampler = BrandSampler(data_set, seed=SEED)
    list(sampler)
    states = [loader.state_dict() for _ in loader]
    assert states == [sampler.state_dict(batches=step, batch_size=BATCH) for step in STEPS[1:]]


def test_an_epoch_whose_last_batch_is_dropped_has_ended(data_set: BrandDataset, epochs: list[list[int]]) -> None:
    """It goes on with the next epoch, as a run without a stop does, and with no empty iteration."""
    stopped = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=SEED), drop_last=True)
    assert len(indices_of(stopped)) == 20
    loader = BrandLoader(data_set, BATCH, drop_last=True)
    loader.load_state_dict(stopped.state_dict())
    loader.set_epoch(1)
    assert indices_of(loader) == epochs[1][:20]


def test_a_state_before_the_first_batch_of_an_epoch(data_set: BrandDataset) -> None:
    """A checkpoint at the beginning of an epoch."""
    loader = BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=SEED))
    assert len(indices_of(loader)) == COUNT
    loader.set_epoch(1)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_loader_with_another_sampler_has_no_state(data_set: BrandDataset) -> None:
    """It says so."""
    loader = BrandLoader(data_set, BATCH, sampler=torch.utils.data.SequentialSampler(data_set))
    with pytest.raises(UsageError, match="SequentialSampler"):
        loader.state_dict()


# -- torchdata -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_at_every_step(
    server: RunningServer, order: OrderOption, epochs: list[list[int]], workers: int
) -> None:
    """In a new data set each time."""

    def loader(seed: int) -> Any:
        data_set = opened(server, order)
        return stateful_loader(data_set, BATCH, sampler=BrandSampler(data_set, seed=seed), num_workers=workers)

    stopped, states, seen = loader(SEED), [], [0]
    for each in stopped:
        states.append(through_torch(stopped.state_dict()))
        seen.append(seen[-1] + len(each[0]))
    assert len(states) == len(STEPS) - 1
    for state, begun in zip(states, seen[1:], strict=True):
        check(rests([loader(9)], state), begun, epochs, iterator=True)
