"""`Uniform` and the baseline `Pool`, as users run them: what comes and is read, resuming, wrong use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import brand
from brand.errors import UsageError
from brand.node.setup.choose import Facts, Nodes, choose_order
from brand.orders import Uniform, baselines
from brand.orders.baselines import Joader, Pool
from brand.orders.policies.registry import CHOICES as CHOICES_OF_ALL
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.storage.support import chunk as chunk_path
from tests.torch.support import indices_of, make_samples, make_set, planned, records, records_of, served

COUNT, CHUNK = 75, 8
CHOICES: list[OrderOption] = [Pool(chunks=1), Pool(chunks=3), "uniform"]
FACTS = Facts("any", 10_000, 16, 1000.0, 512 << 10)
"""625 chunks."""


# -- orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", CHOICES, ids=repr)
def test_the_order_depends_neither_on_nodes_nor_on_memory(order: OrderOption) -> None:
    """So any number of nodes, with any memory that holds a pool, has the same."""
    orders = {
        choose_order(FACTS, 3, order, share, memory, Nodes(nodes, ranks))
        for nodes, ranks in ((1, 1), (1, 5), (2, 2), (5, 10))
        for share, memory in ((None, 0.1), (None, "5MB"), (None, 1.0), (0.2, None))
    }
    assert len(orders) == 1


@pytest.mark.parametrize("chunks", [1, 2, 3, 47, 256, 257, 100_000])
def test_groups_are_even_shares_of_at_least_two_chunks(chunks: int) -> None:
    """At most 256 groups, as far as there are two chunks for one."""
    order = choose_order(Facts("any", 8 * chunks, 8, 1000.0, 0), 0, Uniform(), None, 1.0)
    assert order.mapping.groups <= 256
    assert order.policy.group_chunks >= min(2, chunks)


@pytest.mark.parametrize(("chunks", "least"), [(1, 19), (8, 147), (54, 988), (625, 10_000)])
def test_a_pool_fits_into_memory_with_room_to_read_ahead(chunks: int, least: int) -> None:
    """Memory for a seventh more samples than a pool has is enough, or memory for all; a sample less is not."""
    assert choose_order(FACTS, 0, Pool(chunks), least / FACTS.samples, None).to_json()["pool"] == chunks
    with pytest.raises(UsageError, match=rf"Pool\(chunks={chunks}\): memory holds .* chunks of a pool: give"):
        choose_order(FACTS, 0, Pool(chunks), (least - 1) / FACTS.samples, None)


def test_a_pool_that_does_not_fit_says_which_one_does() -> None:
    """And that one is taken."""
    with pytest.raises(
        UsageError, match="memory holds 54 chunks of a pool: give a pool of 54 or fewer, or more memory"
    ):
        choose_order(FACTS, 0, Pool(55), 0.1, None)
    assert choose_order(FACTS, 0, Pool(54), 0.1, None).to_json()["pool"] == 54
    with pytest.raises(UsageError, match="memory holds 0 chunks of a pool: give more memory"):
        choose_order(FACTS, 0, Pool(1), 0.001, None)


@pytest.mark.parametrize("chunks", [0, -1, 626, 1.5, "8", None])
def test_a_pool_of_a_number_that_is_none_is_refused(chunks: Any) -> None:
    """With the numbers that there are."""
    with pytest.raises(UsageError, match="a pool has at most 625 chunks"):
        choose_order(FACTS, 0, Pool(chunks), 1.0, None)


@pytest.mark.parametrize("order", ["pool", "minio", "pool:8", Pool, Joader, Uniform])
def test_a_class_or_a_name_in_place_of_a_choice_is_refused(order: Any) -> None:
    """The message lists the choices."""
    with pytest.raises(UsageError, match=r"or one of Stripes\(\.\.\.\), .* Joader\(\.\.\.\)"):
        choose_order(FACTS, 0, order, 1.0, None)


def test_all_are_public() -> None:
    """Also without an import of their package; baselines have a module of their own."""
    assert brand.orders.Uniform is Uniform
    assert set(brand.orders.__all__) == {choice.__name__ for choice in CHOICES_OF_ALL if not choice.baseline}
    assert set(baselines.__all__) == {choice.__name__ for choice in CHOICES_OF_ALL if choice.baseline}


def test_uniform_by_name_is_uniform() -> None:
    """A name is the choice with default options."""
    named, made = (choose_order(FACTS, 0, choice, 1.0, None) for choice in ("uniform", Uniform()))
    assert named == made


# -- real servers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.5, 1.0])
@pytest.mark.parametrize("order", CHOICES, ids=repr)
def test_a_server_delivers_every_sample_once_in_the_order_of_the_plan(
    small: Path, order: OrderOption, memory: float
) -> None:
    """Three epochs of either loader, whole samples under their own names."""
    every = records(make_samples(COUNT, 1500))
    with served(small, memory=memory, fields=None, order=order) as data_set:
        for loads in (DataLoader, BrandLoader):
            sampler = BrandSampler(data_set, seed=5)
            loader: Any = loads(data_set, 4, sampler=sampler)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                found = records_of(loader)
                assert found == [every[index] for index in planned(small, sampler.order, epoch)]
                assert sorted(found) == every


@pytest.mark.slow
@pytest.mark.parametrize(("order", "samples_a_read"), [(Pool(chunks=2), CHUNK), (Uniform(), 1)])
def test_memory_keeps_what_it_can_and_the_rest_is_read(tmp_path: Path, order: OrderOption, samples_a_read: int) -> None:
    """Equal samples, memory for half of them: later epochs read what is not kept, chunk by chunk or one by one.

    At the end of an epoch the next one is read ahead, as far as there is room beside the kept samples.
    """
    samples = [sample | {"data": bytes([n % 251]) * 1000} for n, sample in enumerate(make_samples(480, 8))]
    path = make_set(tmp_path / "set", samples, CHUNK)
    with served(path, memory=0.5, order=order) as data_set:
        loader = DataLoader(data_set, 8, sampler=BrandSampler(data_set))
        counts = []
        for _ in range(4):
            assert sorted(indices_of(loader)) == list(range(480))
            counts.append(data_set.stats())
        stats = counts[-1]
        kept = stats["memory"]["cached"] / stats["memory"]["limit"] * 240
        assert stats["direct"] == 0
        assert stats["read_samples"] == samples_a_read * stats["reads"]
        assert 150 < kept < 240
        read = counts[3]["read_samples"] - counts[2]["read_samples"]
        assert abs(read - (480 - kept)) <= 240 - kept


# fmt: off
GOLDEN: dict[OrderOption, list[list[int]]] = {
    Pool(chunks=3): [
        [15, 10, 6, 18, 4, 23, 3, 26, 14, 24, 12, 29, 27, 17, 16, 9, 28, 22, 20, 19, 1, 7, 0, 5, 8, 21, 13, 2, 11, 25],
        [22, 5, 24, 16, 14, 8, 15, 25, 13, 28, 19, 10, 23, 26, 2, 6, 12, 29, 18, 11, 3, 21, 4, 0, 20, 7, 1, 9, 17, 27],
    ],
    "uniform": [
        [15, 27, 0, 17, 5, 10, 16, 6, 8, 21, 13, 18, 2, 9, 28, 4, 23, 3, 26, 11, 25, 22, 20, 14, 24, 19, 1, 12, 7, 29],
        [23, 26, 2, 20, 6, 12, 29, 18, 22, 7, 11, 5, 3, 24, 16, 14, 1, 9, 21, 8, 15, 17, 25, 13, 28, 19, 10, 4, 27, 0],
    ],
}
# fmt: on


@pytest.mark.parametrize("order", GOLDEN, ids=repr)
def test_golden_indices(smaller: Path, order: OrderOption) -> None:
    """WARNING: they must never change, as in `test_order.py`. 30 samples in chunks of four, seed 2024."""
    with served(smaller, memory=1.0, order=order) as data_set:
        loader = BrandLoader(data_set, 4, sampler=BrandSampler(data_set, seed=2024))
        assert [indices_of(loader) for _ in range(2)] == GOLDEN[order]


@pytest.mark.slow
@pytest.mark.parametrize("order", CHOICES, ids=repr)
def test_a_training_goes_on_from_every_position(smaller: Path, order: OrderOption) -> None:
    """With another seed and another number of ranks: the rest of the epoch, and the next one."""
    with running_server(smaller, memory=0.7) as server:

        def opened() -> BrandDataset:
            return BrandDataset(smaller, fields=("index", "key"), server=server.address, order=order)

        first = BrandSampler(opened(), seed=2)
        list(first)
        whole = [planned(smaller, first.order, epoch) for epoch in range(2)]
        for position in range(30):
            state = json.loads(json.dumps(first.state_dict(batches=position, batch_size=1)))
            ranks = 1 + position % 2
            samplers = [BrandSampler(opened(), seed=9, num_replicas=ranks, rank=rank) for rank in range(ranks)]
            loaders = [DataLoader(sampler.dataset, 4, sampler=sampler) for sampler in samplers]
            for sampler in samplers:
                sampler.load_state_dict(state)
            for expected in (whole[0][position:], whole[1]):
                parts = [indices_of(loader) for loader in loaders]
                dealt = [index for turn in zip(*parts, strict=True) for index in turn]
                assert dealt[: len(expected)] == expected


@pytest.mark.parametrize("order", CHOICES, ids=repr)
def test_a_missing_chunk_is_replaced_by_its_group(small: Path, tmp_path: Path, order: OrderOption) -> None:
    """Each lost sample by one of another chunk; all others come once."""
    path = shutil.copytree(small, tmp_path / "missing")
    data = StoredDataSet(path)
    lost = set(data.indices(np.arange(2 * CHUNK, 3 * CHUNK)).tolist())
    chunk_path(path, 2).unlink()
    with served(path, memory=0.5, order=order, on_error="skip") as data_set:
        found = indices_of(BrandLoader(data_set, 5))
    assert len(found) == COUNT
    assert set(found) == set(range(COUNT)) - lost
