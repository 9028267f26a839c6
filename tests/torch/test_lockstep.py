"""Jobs that train in lock step, from one server: one order, one reading; whoever is killed holds up nobody."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from brand.errors import UsageError
from brand.orders.baselines import CoorDL
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.node.conftest import texts as texts
from tests.support import LIMIT_S
from tests.tools.cluster import running_cluster

SAMPLES, WINDOW = 1200, 256


def job(server: RunningServer, name: str, jobs: int = 2) -> BrandDataset:
    """The data set of one of some jobs."""
    order = CoorDL(jobs=jobs, window=WINDOW)
    return BrandDataset(server.path, server=server.address, order=order, job=name, fields=("index",))


def drawn(batches: Any) -> list[int]:
    """The indices of some batches."""
    return [index for (indices,) in batches for index in indices.tolist()]


def side_by_side(loaders: Sequence[Any]) -> list[list[int]]:
    """What each loader draws in an epoch, each in a thread of its own; the last one, which may fork, in this thread.

    A process that is forked in a thread of a pool ends with exit code 1: Python joins the pool's threads at its end.
    """
    with ThreadPoolExecutor(len(loaders)) as threads:
        others = [threads.submit(drawn, loader) for loader in loaders[:-1]]
        last = drawn(loaders[-1])
        return [*(other.result(LIMIT_S) for other in others), last]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_all_draw_one_order(texts: Path, workers: int) -> None:
    """With batches of their own, with worker processes and without: each sample once an epoch, and read once."""
    with running_server(texts, memory=0.5) as server:
        one, two = job(server, "one"), job(server, "two")
        loaders: list[Any] = [
            BrandLoader(one, 40, sampler=BrandSampler(one), prefetch_batches=2),
            DataLoader(two, 30, sampler=BrandSampler(two), num_workers=workers, prefetch_factor=2 if workers else None),
        ]
        for _ in range(2):
            found = side_by_side(loaders)
            assert found[0] == found[1]
            assert sorted(found[0]) == list(range(SAMPLES))


@pytest.mark.slow
def test_they_go_on_from_each_of_their_states(texts: Path) -> None:
    """On another server, both draw just what they would have drawn."""
    states, found = list[dict[str, Any]](), list[int]()

    def watched(loader: BrandLoader) -> Iterator[Any]:
        for batch in loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
            yield batch

    with running_server(texts, memory=0.5) as server:
        one, two = (job(server, name) for name in ("one", "two"))
        loaders = [
            BrandLoader(each, 100, sampler=BrandSampler(each), num_workers=1, prefetch_batches=1) for each in (one, two)
        ]
        found = side_by_side([watched(loaders[0]), loaders[1]])[0]
    for state in states[:-1:3]:
        with running_server(texts, memory=0.5) as server:
            rest = []
            for name in ("one", "two"):
                sampler = BrandSampler(job(server, name))
                sampler.load_state_dict(state)
                rest.append(BrandLoader(sampler.dataset, 50, sampler=sampler, prefetch_batches=2))
            assert side_by_side(rest) == 2 * [found[state["position"] :]]


def test_what_cannot_be_is_refused(texts: Path) -> None:
    """A part, a number of jobs where none is counted, and none where they are."""
    with running_server(texts, memory=0.5) as server:
        with pytest.raises(UsageError, match="jobs in lock step fetch the same samples: leave out subset="):
            BrandSampler(job(server, "one"), subset=np.arange(100))
        for order, reason in {
            CoorDL(jobs=0): "jobs=0 of an order is not from 1 to 255",
            CoorDL(jobs=2, window=0): "window=0 of an order is not",
        }.items():
            data_set = BrandDataset(texts, server=server.address, order=order, job="other")
            with pytest.raises(UsageError, match=reason):
                BrandSampler(data_set)


@pytest.mark.slow
def test_jobs_on_two_nodes_go_on_from_a_state(texts: Path) -> None:
    """Four loaders, two ranks of each job: both jobs fetch each sample once, in one order, also from a saved state."""
    states: dict[str, Any] = {}

    def opened(address: str, rank: int, name: str) -> BrandSampler:
        order = CoorDL(jobs=2, window=WINDOW)
        data_set = BrandDataset(texts, server=address, order=order, job=name, fields=("index",))
        sampler = BrandSampler(data_set, num_replicas=2, rank=rank)
        if states:
            sampler.load_state_dict(states[name])
        return sampler

    def epoch() -> dict[str, list[int]]:
        with running_cluster(texts, nodes=2, memory=0.6) as cluster:
            loaders = {
                (name, rank): BrandLoader((s := opened(address, rank, name)).dataset, 20, sampler=s, prefetch_batches=2)
                for name in ("one", "two")
                for rank, address in enumerate(cluster.addresses)
            }
            stop = None if states else 10

            def fetched(loader: BrandLoader) -> tuple[list[int], dict[str, Any]]:
                iterator = iter(loader)
                found = drawn(itertools.islice(iterator, stop))
                return found, json.loads(json.dumps(loader.state_dict()))

            with ThreadPoolExecutor(len(loaders)) as threads:
                running = {key: threads.submit(fetched, loader) for key, loader in loaders.items()}
                found = {key: future.result(LIMIT_S) for key, future in running.items()}
            after = {name: found[name, 0][1] for name in ("one", "two")}
            rounds = {n: zip(found[n, 0][0], found[n, 1][0], strict=True) for n in ("one", "two")}
            states.update(after)
            return {name: [index for pair in pairs for index in pair] for name, pairs in rounds.items()}

    before, after = epoch(), epoch()
    assert len(before["one"]) == 400
    assert before["one"] == before["two"]
    assert after["one"] == after["two"]
    assert sorted(before["one"] + after["one"]) == list(range(SAMPLES))
