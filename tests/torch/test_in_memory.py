"""If memory holds all samples, the default order is a uniform shuffle from the second epoch on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brand
from brand.orders.order import MAX_EPOCH
from brand.testing.node import running_server
from brand.testing.shuffling import measure
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.torch.support import indices_of

COUNT, CHUNK, BATCH = 2_000, 50, 32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "set"
    brand.pack(({"number": n} for n in range(COUNT)), folder, {"number": "int"}, chunk_size=CHUNK, jobs=1)
    return folder


def loader_of(path: Path, address: str, **sampler: Any) -> BrandLoader:
    data = BrandDataset(path, fields=("index",), server=address)
    return BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=5, **{"num_replicas": 1, "rank": 0} | sampler))


def epoch_of(loader: BrandLoader, epoch: int) -> list[int]:
    loader.set_epoch(epoch)
    return indices_of(loader)


def test_epochs_after_the_first_are_uniform_and_read_nothing(path: Path) -> None:
    place_of = np.load(path / "index/place.npy")
    with running_server(path, memory=1.0) as server:
        loader = loader_of(path, server.address)
        epochs = [epoch_of(loader, epoch) for epoch in range(4)]
        facts = server.facts()
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert (facts["read_samples"], facts["direct"]) == (COUNT, 0)
    apart = [measure(np.array(e), chunk_size=CHUNK, batch=BATCH, place_of=place_of).adjacent_distance for e in epochs]
    assert apart[0] < 0.2
    assert all(0.32 < distance < 0.35 for distance in apart[1:])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("subset", [None, np.arange(COUNT) % 4 > 0], ids=["all", "subset"])
@pytest.mark.parametrize("batches", [0, 7, 40])
def test_a_run_goes_on_with_another_server(path: Path, subset: Any, batches: int, ranks: int) -> None:
    """Its ranks fetch the rest in order. For one rank, each stripe is read once, and no sample is read alone."""
    with running_server(path, memory=1.0) as server:
        loader = loader_of(path, server.address, subset=subset)
        expected = epoch_of(loader, MAX_EPOCH)  # there is no later epoch to read ahead
        loader.set_epoch(MAX_EPOCH)
        for _ in zip(range(batches), loader, strict=False):
            pass
        state = loader.state_dict()
    with running_server(path, memory=1.0) as server:
        loaders = [loader_of(path, server.address, subset=subset, num_replicas=ranks, rank=r) for r in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        rest = [indices_of(each) for each in zip(*zip(*loaders, strict=True), strict=True)]  # in step
        facts = server.facts()
    assert rest == [expected[batches * BATCH + rank :: ranks] for rank in range(ranks)]
    if ranks == 1:
        assert facts["direct"] == 0
        assert facts["read_samples"] <= COUNT


def test_a_smaller_memory_keeps_the_order_and_says_what_it_costs(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_server(path, memory=1.0) as server:
        loader = loader_of(path, server.address)
        expected = epoch_of(loader, 2)
        loader.set_epoch(2)
        state = loader.state_dict()
    with running_server(path, memory=0.2) as server:
        loader = loader_of(path, server.address)
        loader.load_state_dict(state)
        assert indices_of(loader) == expected
        assert server.facts()["direct"] > 0
    assert "The run began with memory for all samples" in caplog.text


def test_a_buffer_that_is_given_stays(path: Path) -> None:
    """`Stripes(buffer=...)` names the order of all epochs."""
    data = BrandDataset(path, fields=("index",), memory=1.0, order=brand.orders.Stripes(buffer=0.1), server="none")
    assert "all_cached" not in BrandSampler(data, seed=5, num_replicas=1, rank=0).state_dict()["order"]
