"""A `BrandSampler` with `subset=`: these samples and no others, each once an epoch, wherever it stops."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from brand import pack
from brand.errors import UsageError
from brand.node.serve.server import NodeServer
from brand.node.setup.caching import Cache
from brand.node.setup.server_spec import ServerSpec
from brand.orders import Stripes
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import random_address, running, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.places import EVERYWHERE
from tests.storage.support import chunk as chunk_path
from tests.support import wait_until
from tests.tools.cluster import running_cluster
from tests.tools.damage import flip_bit
from tests.torch.support import MANY_WORKERS, indices_of, planned, served

SAMPLES = 75
MASK = np.arange(SAMPLES) % 3 != 1
PART = np.flatnonzero(MASK).tolist()


@EVERYWHERE
@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "slots", "uniform"])
@pytest.mark.parametrize("memory", [0.3, 1.0])
@MANY_WORKERS
def test_each_sample_of_the_part_comes_once_an_epoch(small: Path, order: OrderOption, memory: float) -> None:
    """In the order of the plan without the others; with workers, and with a `BrandLoader`."""
    with served(small, memory=memory, order=order, fields=("index",)) as data_set:
        sampler = BrandSampler(data_set, seed=3, subset=MASK)
        assert len(sampler) == len(PART)
        expected = [planned(small, sampler.order, epoch) for epoch in range(4)]
        assert [sorted(epoch) for epoch in expected] == 4 * [PART]
        assert indices_of(DataLoader(data_set, 8, sampler=sampler)) == expected[0]
        assert indices_of(DataLoader(data_set, 8, sampler=sampler, num_workers=2)) == expected[1]
        loader = BrandLoader(data_set, 8, sampler=sampler)
        assert len(loader) == -(-len(PART) // 8)
        assert [indices_of(loader) for _ in range(2)] == expected[2:]
        if memory == 1.0:
            assert data_set.stats()["direct"] == 0
            kept = data_set.stats()["memory"]["used"]
    if memory == 1.0 and order == "stripes":
        with served(small, memory=memory, fields=("index",)) as data_set:
            indices_of(BrandLoader(data_set, 8))
            assert kept < 0.8 * data_set.stats()["memory"]["used"]  # nothing of the others lies in memory


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "uniform"])
@pytest.mark.parametrize(("memory", "share"), [(0.8, None), (0.2, 0.5)])
def test_memory_and_cache_folder_are_for_the_part(
    small: Path, tmp_path: Path, order: OrderOption, memory: float, share: float | None
) -> None:
    """Once they hold a part that fits into one of them, nothing is read any more."""
    third, size = np.arange(SAMPLES) % 3 == 0, int(StoredDataSet(small).rows(0, SAMPLES)["size"].sum())
    cache = None if share is None else Cache(tmp_path / "cache", f"{int(share * size)}B")
    with running_server(small, memory=memory, cache=cache) as server:
        data_set = BrandDataset(small, server=server.address, order=order, fields=("index",))
        loader = BrandLoader(data_set, 5, sampler=BrandSampler(data_set, subset=third))

        def nothing_is_read() -> bool:
            before = data_set.stats()["reads"]
            assert sorted(indices_of(loader)) == np.flatnonzero(third).tolist()
            found: bool = data_set.stats()["reads"] == before
            return found

        wait_until(nothing_is_read, "the part is in memory, or in the folder")
        if cache is not None:
            assert data_set.stats()["cache"]["cached"] == third.sum()


@pytest.mark.parametrize("name", ["uniform", "slots"])
def test_the_order_is_that_of_all_without_the_others(small: Path, name: Literal["uniform", "slots"]) -> None:
    """So two parts of one data set and seed draw their samples in the same order. `stripes` has one for each part."""
    data_set = BrandDataset(small, order=name)
    whole = planned(small, data_set._source.port.order(3), 2)
    assert planned(small, data_set._source.port.order(3, MASK), 2) == [index for index in whole if MASK[index]]


def test_the_part_of_all_samples_has_their_order(small: Path) -> None:
    data_set = BrandDataset(small, order="stripes")
    assert data_set._source.port.order(3, np.ones(SAMPLES, np.bool_)) == data_set._source.port.order(3)


def test_a_part_that_is_not_shuffled(small: Path) -> None:
    """The indices, ascending, also for ranks; nothing but these is read."""
    data_set = BrandDataset(small, fields=("index",))
    sampler = BrandSampler(data_set, subset=list(reversed(PART)), shuffle=False)
    assert list(sampler) == PART
    assert indices_of(DataLoader(data_set, 8, sampler=sampler)) == PART
    ranks = [BrandSampler(data_set, subset=PART, shuffle=False, rank=rank, num_replicas=3) for rank in range(3)]
    assert sorted(chain(*ranks)) == sorted(PART + PART[: -len(PART) % 3])


def test_a_state_says_whether_a_part_is_shuffled(small: Path) -> None:
    """As without a part: a sampler that was made otherwise goes on as the state says."""
    data_set = BrandDataset(small)
    state = BrandSampler(data_set, subset=MASK, shuffle=False)._sequence.state_at(0, 7)
    sampler = BrandSampler(data_set, subset=MASK)
    sampler.load_state_dict(state)
    assert list(sampler) == PART[7:]
    other = BrandSampler(data_set, seed=5, subset=MASK, shuffle=False)._sequence.state_at(0, 3)
    sampler.load_state_dict(other)
    assert sampler._sequence.state_at(0, 3) == other


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_it_goes_on_at_every_step(small: Path, ranks: int) -> None:
    """A state names the part by its digest; another number of ranks takes over."""
    with served(small, fields=("index",)) as data_set:
        first = BrandSampler(data_set, seed=3, subset=MASK)
        expected = planned(small, first.order, 0)
        for position in range(len(PART)):
            state = first._sequence.state_at(0, position)
            assert state["order"]["part"] == first.order.to_json()["part"]
            found = []
            for rank in range(ranks):
                sampler = BrandSampler(data_set, subset=PART, rank=rank, num_replicas=ranks)
                sampler.load_state_dict(state)
                drawn = indices_of(DataLoader(data_set, 4, sampler=sampler)) if position % 10 == 0 else list(sampler)
                found.append(drawn)
            if position % 10 == 0:
                rest = expected[position:]
                assert sorted(chain(*found)) == sorted(rest + expected[: -len(rest) % ranks])
            assert {len(each) for each in found} == {-(-(len(PART) - position) // ranks)}


def test_a_state_of_another_part_is_refused(small: Path) -> None:
    """In both directions, shuffled or not, with both parts named."""
    data_set = BrandDataset(small)
    for shuffle in (True, False):
        every, some = (BrandSampler(data_set, shuffle=shuffle, subset=part) for part in (None, MASK))
        digest = some.order.to_json()["part"]
        with pytest.raises(UsageError, match=f"the state is of subset {digest}, this sampler fetches all samples"):
            every.load_state_dict(some.state_dict())
        with pytest.raises(UsageError, match=f"the state is of all samples, this sampler fetches subset {digest}"):
            some.load_state_dict(every.state_dict())
        some.load_state_dict(some.state_dict())
    far = some._sequence.state_at(0, len(PART) + 1)
    with pytest.raises(UsageError, match="this is no state of a BrandSampler: position 51 of 50"):
        some.load_state_dict(far)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (MASK[1:], r"is a mask of shape \(74,\); this data set has 75 samples"),
        (MASK.reshape(3, 25), r"is a mask of shape \(3, 25\)"),
        ([], "has no sample"),
        (np.zeros(SAMPLES, np.bool_), "has no sample"),
        ([3, 75], "has sample 75; this data set has samples 0 to 74"),
        ([-1], "has sample -1"),
        ([7, 3, 7], "has sample 7 twice"),
        ([1.0, 2.0], "is a float64 array"),
        ([[1], [2]], r"is a int64 array of shape \(2, 1\)"),
        (["abc"], "give one bool a sample, or indices"),
    ],
)
def test_what_is_no_part_is_refused(small: Path, part: Any, why: str) -> None:
    """When the sampler is made."""
    with pytest.raises(UsageError, match=f"subset= {why}" if not why.startswith("give") else why):
        BrandSampler(BrandDataset(small), subset=part)


def test_tensors_and_lists_say_the_same(small: Path) -> None:
    """Whatever NumPy takes."""
    data_set = BrandDataset(small)
    ways = [MASK, MASK.tolist(), PART, torch.from_numpy(MASK), torch.tensor(PART)]
    assert len({BrandSampler(data_set, subset=part).order for part in ways}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 2, -1])
@MANY_WORKERS
def test_only_samples_of_the_part_replace_a_damaged_one(tmp_path: Path, kind: int) -> None:
    """As the others may be those that must not be trained on."""
    path = tmp_path / "set"
    pack([{"data": bytes([n]) * 9} for n in range(64)], path, {"data": "bytes"}, chunk_size=8, jobs=1)
    data = StoredDataSet(path)
    mask = np.zeros(64, np.bool_)
    mask[data.indices(np.arange(64))[np.arange(64) % 4 == 0]] = True
    for place in range(0, 64, 16):
        flip_bit(chunk_path(path, place // 8), 8 * int(data.rows(place, place + 1)["offset"][0]))
    broken = set(data.indices(np.arange(0, 64, 16)).tolist())
    with served(path, memory=0.5, fields=("index", "data"), on_error="skip", order=Stripes(buffer=1.0)) as data_set:
        sampler = BrandSampler(data_set, subset=mask)
        loader = (
            BrandLoader(data_set, 4, sampler=sampler)
            if kind < 0
            else DataLoader(data_set, 4, sampler=sampler, num_workers=kind)
        )
        found = indices_of(loader)
        replaced = data_set.stats()["replaced"]
    assert len(found) == mask.sum()
    assert {fact["index"] for fact in replaced} == broken
    assert all(mask[index] for index in found)
    assert not broken & set(found)


@pytest.mark.slow
def test_plans_that_foresee_nodes_refuse_a_part(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do instead, before anything is drawn."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with running_cluster(small, nodes=2, memory=0.5) as cluster:
        data_set = BrandDataset(small, server=cluster.addresses[0], order="slots")
        with pytest.raises(UsageError, match=r"several nodes do not fetch a subset .* give order='stripes'"):
            BrandSampler(data_set, subset=MASK)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "shared"])
def test_several_nodes_draw_a_part(small: Path, order: Any) -> None:
    """Each sample of it once an epoch, on both nodes together."""
    with running_cluster(small, nodes=2, memory=0.5) as cluster:
        loaders = []
        for rank, address in enumerate(cluster.addresses):
            data_set = BrandDataset(small, fields=("index",), server=address, order=order, job="part")
            sampler = BrandSampler(data_set, subset=MASK, num_replicas=2, rank=rank)
            loaders.append(BrandLoader(data_set, 4, sampler=sampler))
        for _ in range(2):
            with ThreadPoolExecutor(2) as pool:
                found = [index for part in pool.map(indices_of, loaders) for index in part]
            assert set(found) == set(PART)
            assert len(found) == -(-len(PART) // 2) * 2  # ranks get equally many


def test_a_recorded_server_is_replayed(small: Path, tmp_path: Path) -> None:
    """The record has the part, so the replay decides the same."""
    record = tmp_path / "record"
    with running(str(small), NodeServer(ServerSpec(small, random_address(), memory=0.5, record=record))) as found:
        data_set = BrandDataset(small, server=found.address, fields=("index",))
        assert sorted(indices_of(BrandLoader(data_set, 8, sampler=BrandSampler(data_set, subset=MASK)))) == PART
    command = [sys.executable, "-m", "tests.tools.replay", str(record), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "the same decisions" in done.stdout
