"""Mixtures, weights and expanded lists whose ranks are on several nodes: real servers, processes and loaders."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brand
from brand import BrandDataset, BrandSampler, LengthBatchSampler, Mixture
from brand.errors import UsageError
from tests.several_nodes.mixing import BATCH, MIXED, fetched_from
from tests.several_nodes.support import all_open
from tests.support import LIMIT_S, wait_until
from tests.tools.cluster import running_cluster

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
KINDS = (*MIXED, "weights", "expand", "lengths", "packed")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """600 samples of three classes, and 250 samples, in chunks of eight, with one to three captions each."""
    folder, found = tmp_path_factory.mktemp("mixing"), []
    for number, size in enumerate((600, 250)):
        labels = [0] * 450 + [1] * 125 + [2] * 25
        samples = (
            {
                "label": labels[n],
                "length": 7 * n % 31 + 1,
                "captions": [f"{n} {c}" for c in range(n % 3 + 1)],
                "data": bytes([n % 256]) * 500,
            }
            for n in range(size)
        )
        schema = {"label": "int", "length": "int", "captions": "list[str]", "data": "bytes"}
        brand.pack(samples, folder / f"{number}.brand", schema, chunk_size=8, jobs=1, classes=["a", "b", "c"])
        found.append(str(folder / f"{number}.brand"))
    return found


def trained(kind: str, sets: list[str], nodes: int, on_each: int, **more: Any) -> list[Any]:
    """Train on several nodes, and return the output of each rank."""
    paths, ranks = (sets if kind in MIXED else sets[:1]), nodes * on_each
    with ExitStack() as stack:
        clusters = [stack.enter_context(running_cluster(path, nodes=nodes, memory=0.6)) for path in paths]
        for cluster in clusters:
            wait_until(partial(all_open, cluster), "all nodes can be reached")
        processes = []
        for rank in range(ranks):
            servers = [cluster.addresses[rank // on_each] for cluster in clusters]
            facts = {"kind": kind, "paths": paths, "servers": servers, "ranks": ranks, "rank": rank, **more}
            command = [sys.executable, "-W", "error", "-m", "tests.several_nodes.mixing", json.dumps(facts)]
            processes.append(subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True))
            stack.callback(processes[-1].kill)
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * ranks
        return [json.loads(each) for each in said]


def samples_of(batches: list[Any]) -> list[tuple[int, ...]]:
    return [sample for batch in batches for sample in zip(*batch, strict=True)]


def check(ranks: list[list[Any]], alone: list[Any]) -> None:
    """Check that the ranks together fetch, in each global batch, the samples that a single rank fetches there."""
    positions, done = samples_of(alone), 0
    for number in range(max(map(len, ranks))):
        here = [sample for rank in ranks for sample in samples_of(rank[number : number + 1])]
        assert sorted(here) == sorted(positions[done : done + len(here)])
        done += len(here)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "on_each", "workers"), [(2, 1, None), (2, 2, 1), (3, 1, 2)])
def test_ranks_of_several_nodes_fetch_the_positions_of_one(
    kind: str, nodes: int, on_each: int, workers: int | None, sets: list[str]
) -> None:
    """Nodes send each other what their ranks fetch."""
    paths = sets if kind in MIXED else sets[:1]
    alone, _, _ = fetched_from(kind, paths, [None] * len(paths), 1, 0)
    said = trained(kind, sets, nodes, on_each, workers=workers)
    for epoch in range(2):
        check([found[epoch] for found, _, _ in said], alone[epoch])
    assert all(servers[0]["received"] for _, _, servers in said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_with_other_nodes(kind: str, sets: list[str]) -> None:
    """Two nodes stop after two batches; three ranks of three nodes, or one process, go on with the rest."""
    paths = sets if kind in MIXED else sets[:1]
    alone, _, _ = fetched_from(kind, paths, [None] * len(paths), 1, 0)
    first = trained(kind, sets, 2, 1, epochs=1, stop=2)
    check([found[0] for found, _, _ in first], alone[0])
    state, begun = first[0][1], sum(len(samples_of(found[0])) for found, _, _ in first)
    assert state == first[1][1]
    rest = samples_of(alone[0])[begun:]
    for nodes in (3, 1):
        if nodes == 1:
            found, _, _ = fetched_from(kind, paths, [None] * len(paths), 1, 0, epochs=1, state=state)
            assert samples_of(found[0]) == rest
        else:
            said = trained(kind, sets, nodes, 1, epochs=1, state=state)
            got = [sample for found, _, _ in said for sample in samples_of(found[0])]
            assert sorted(got) == sorted(rest[: len(got)])
            assert len(rest) - len(got) < nodes * (1 if kind in ("mixture", "weights", "expand") else 2 * BATCH)


@pytest.mark.parametrize("kind", [*MIXED, "plain"])
def test_ranks_of_a_group_on_each_node_get_the_same(kind: str, sets: list[str]) -> None:
    """Two nodes with two ranks each, of one model on each node."""
    paths = sets if kind in MIXED else sets[:1]
    alone, _, _ = fetched_from(kind, paths, [None] * len(paths), 1, 0, epochs=1)
    said = [found[0] for found, _, _ in trained(kind, sets, 2, 2, epochs=1, replication=2)]
    assert said[0] == said[1]
    assert said[2] == said[3]
    check([said[0], said[2]], alone[0])


@pytest.mark.parametrize("kind", [*KINDS, "plain"])
def test_ranks_of_a_group_are_on_two_nodes(kind: str, sets: list[str]) -> None:
    """Four ranks of one model on two nodes, then two pipelines, each with one rank on each of two nodes."""
    paths = sets if kind in MIXED else sets[:1]
    alone, _, _ = fetched_from(kind, paths, [None] * len(paths), 1, 0, epochs=1)
    said = trained(kind, sets, 2, 2, epochs=1, replication=4)
    first, *others = (found[0] for found, _, _ in said)
    assert all(batches == first for batches in others)
    check([first], alone[0])
    assert all(servers[0]["received"] for _, _, servers in said)
    said = trained(kind, sets, 2, 2, epochs=1, mesh=[2, 2])
    batches = [found[0] for found, _, _ in said]
    assert batches[0] == batches[2] != batches[1] == batches[3]
    check(batches[:2], alone[0])


@pytest.mark.parametrize("kind", MIXED)
def test_weights_change_between_epochs(kind: str, sets: list[str]) -> None:
    """All ranks say so before the epoch; members go on where they were."""
    alone, _, _ = fetched_from(kind, sets, [None, None], 1, 0, weights=[1, 2])
    said = trained(kind, sets, 2, 1, weights=[1, 2])
    for epoch in range(2):
        check([found[epoch] for found, _, _ in said], alone[epoch])


def test_weights_do_not_change_inside_an_epoch(sets: list[str]) -> None:
    """The nodes have begun to send each other the rest of the epoch."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(running_cluster(path, nodes=2, memory=0.6)) for path in sets]
        members = [
            BrandDataset(path, server=cluster.addresses[0], job="weights")
            for path, cluster in zip(sets, clusters, strict=True)
        ]
        mixture = Mixture(dict.fromkeys(members, 1))
        with pytest.raises(UsageError, match=r"on several nodes, weights change at the beginning of an epoch"):
            mixture.set_weights({members[0]: 1, members[1]: 2}, epoch=1, position=64)
        mixture.set_weights({members[0]: 1, members[1]: 2}, epoch=1)


def test_an_order_that_nodes_cannot_send_each_other_is_refused(tmp_path: Path) -> None:
    """Two million different weights; those of a few classes are sent."""
    path = tmp_path / "numbers.brand"
    brand.pack(({"label": n % 3} for n in range(2_000_000)), path, {"label": "int"}, jobs=1, classes=["a", "b", "c"])
    weights = np.random.default_rng(1).random(2_000_000)
    with running_cluster(path, nodes=2, memory=0.3) as cluster:
        data = BrandDataset(path, server=cluster.addresses[0], job="weights")
        sampler = BrandSampler(data, weights=weights, num_replicas=2, rank=0)
        with pytest.raises(UsageError, match=r"nodes send each other at most 8,323,072: with weights=, give a few"):
            next(iter(sampler))
        assert next(iter(BrandSampler(data, weights={"a": 1, "b": 2, "c": 3.5}, num_replicas=2, rank=0)))


def test_lengths_in_seconds_reach_the_servers(tmp_path: Path) -> None:
    """Fractions of a second do not compress: 400,000 of them take 3.6 MB. A million are refused."""
    lengths = np.random.default_rng(1).lognormal(2, 0.5, 1_000_000)
    for samples in (400_000, 1_000_000):
        path = tmp_path / f"{samples}.brand"
        brand.pack(({"label": n % 3} for n in range(samples)), path, {"label": "int"}, jobs=1)
        with running_cluster(path, nodes=2, memory=0.3) as cluster:
            data = BrandDataset(path, server=cluster.addresses[0], job="lengths")
            limits: dict[str, Any] = {"batch_size": 64, "window": 6400, "num_replicas": 2, "rank": 0}
            sampler = LengthBatchSampler(data, lengths[:samples], **limits)
            if samples == 400_000:
                assert len(next(iter(sampler))) == 64
                continue
            with pytest.raises(UsageError, match=r"nodes send each other at most 8,323,072.*make rows of one length"):
                next(iter(sampler))
