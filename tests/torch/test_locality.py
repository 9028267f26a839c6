"""`BrandSampler(locality=True)`: ranks take what their own node owns first, all equally many, and every sample once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from brand.errors import UsageError
from brand.orders.base.tickets import positions_of, tag_and_epoch
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.node.conftest import texts as texts
from tests.support import LIMIT_S
from tests.tools.cluster import RunningCluster, running_cluster

pytestmark = [places.EVERYWHERE, pytest.mark.usefixtures("one_job")]
NODES, BATCH, SAMPLES = 3, 16, 1200
SEEDS = count(1)
"""Each test has a seed of its own. Otherwise its first ranks could divide an epoch with ranks of the test before it, of
whose end a node has not heard yet, and be gone when the last rank begins."""


@pytest.fixture(scope="module")
def cluster(texts: Path) -> Iterator[RunningCluster]:
    """Three nodes."""
    with running_cluster(texts, nodes=NODES, memory=0.5) as running:
        yield running


def on_all(act: Callable[[int], Any]) -> list[Any]:
    """What each rank makes, all at the same time."""
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda rank=rank: found.update({rank: act(rank)})) for rank in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(found) == NODES
    return [found[rank] for rank in range(NODES)]


def sampler_of(cluster: RunningCluster, rank: int, **more: Any) -> BrandSampler:
    """One rank's sampler, on its own node."""
    data = BrandDataset(cluster.path, fields=("index",), server=cluster.addresses[rank])
    facts = {"locality": True, "batch_size": BATCH, "num_replicas": NODES, "rank": rank}
    return BrandSampler(data, **facts | more)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("start", [0, 5 * BATCH * NODES, 5 * BATCH * NODES + 7])
def test_every_position_once_and_as_many_for_each(cluster: RunningCluster, drop_last: bool, start: int) -> None:
    """From the beginning and from a state: whole global batches, then the rest in turn; what is over comes twice."""
    seed = next(SEEDS)
    state = sampler_of(cluster, 0, seed=seed).state_dict() | {"position": start}

    def draw(rank: int) -> list[int]:
        sampler = sampler_of(cluster, rank, drop_last=drop_last, seed=seed)
        sampler.load_state_dict(state)
        tickets = list(sampler)
        assert {tag_and_epoch(ticket) for ticket in tickets} == {
            tag_and_epoch(int(sampler._sequence.ints(0, np.arange(1))[0]))
        }
        return [int(positions_of(ticket)) for ticket in tickets]  # type: ignore[arg-type]

    found = on_all(draw)
    left = SAMPLES - start
    each = left // NODES if drop_last else -(-left // NODES)
    assert [len(positions) for positions in found] == [each] * NODES
    together = list(chain.from_iterable(found))
    assert sorted(together) == sorted(position % SAMPLES for position in range(start, start + each * NODES))
    for batch in range(left // (BATCH * NODES)):
        here = list(chain.from_iterable(positions[batch * BATCH :][:BATCH] for positions in found))
        assert sorted(here) == list(range(start + batch * BATCH * NODES, start + (batch + 1) * BATCH * NODES))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BrandLoader", "DataLoader"])
def test_through_a_loader(cluster: RunningCluster, kind: str) -> None:
    """Two epochs of real samples, with and without worker processes."""

    def draw(rank: int) -> list[list[int]]:
        sampler = sampler_of(cluster, rank, seed=77)
        data = sampler.dataset
        loader: Any = (
            BrandLoader(data, BATCH, sampler=sampler)
            if kind == "BrandLoader"
            else DataLoader(data, BATCH, sampler=sampler)
        )
        return [[index for (indices,) in loader for index in indices.tolist()] for _ in range(2)]

    found = on_all(draw)
    for epoch in range(2):
        assert sorted(chain.from_iterable(rank[epoch] for rank in found)) == list(range(SAMPLES))


def test_a_state_is_at_the_end_of_a_batch(cluster: RunningCluster) -> None:
    """Where it goes on, whole global batches were trained."""

    def draw(rank: int) -> tuple[int, str]:
        sampler = sampler_of(cluster, rank, seed=78)
        taken = iter(sampler)
        for _ in range(3 * BATCH):
            next(taken)
        position = sampler.state_dict(samples=2 * BATCH)["position"]
        with pytest.raises(UsageError, match="17 samples cannot be divided into batches of 16") as error:
            sampler.state_dict(samples=17)
        return position, str(error.value)

    assert {position for position, _ in on_all(draw)} == {2 * BATCH * NODES}


def test_it_needs_the_batch_size(cluster: RunningCluster) -> None:
    """A DataLoader does not tell; a BrandLoader does, and refuses another one."""
    with pytest.raises(UsageError, match="batch_size"):
        list(sampler_of(cluster, 0, batch_size=None))
    sampler = sampler_of(cluster, 0, batch_size=None)
    BrandLoader(sampler.dataset, 8, sampler=sampler)
    assert sampler.batch_size == 8
    with pytest.raises(UsageError, match="splits 8"):
        BrandLoader(sampler.dataset, 16, sampler=sampler)


def test_one_rank_has_nothing_to_split(cluster: RunningCluster) -> None:
    """It takes all positions in their order."""
    sampler = sampler_of(cluster, 0, num_replicas=1, batch_size=None, seed=79)  # a run that no other test has begun
    assert [int(positions_of(ticket)) for ticket in sampler] == list(range(SAMPLES))  # type: ignore[arg-type]
