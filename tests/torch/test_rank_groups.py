"""Ranks that get the same samples: `replication=`, `device_mesh=`, of all samplers, from real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler
from brand.errors import UsageError
from brand.testing.node import running_server
from brand.torch.job.rank_groups import GroupSeat, RankGroups
from tests.support import LIMIT_S

SAMPLES, BATCH, BYTES = 2400, 10, 400


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of 1 kB that do not compress, with lengths, in chunks of 48."""
    target, rng = tmp_path_factory.mktemp("groups") / "set.brand", np.random.default_rng(1)
    samples = ({"length": int(rng.integers(1, 60)), "data": rng.bytes(BYTES)} for _ in range(SAMPLES))
    brand.pack(samples, target, {"length": "int", "data": "bytes"}, chunk_size=48, jobs=1)
    return target


def opened(path: Path, server: str, **more: Any) -> BrandDataset:
    return BrandDataset(path, fields=("index",), server=server, job="groups", **more)


def in_step(loaders: list[Any]) -> Iterator[list[list[int]]]:
    """The batches that the ranks get at each step; all have equally many."""
    for batches in zip(*loaders, strict=True):
        yield [batch[0].tolist() for batch in batches]


def ranks_of(path: Path, server: str, groups: int, copies: int, **more: Any) -> list[BrandLoader]:
    """A loader for each rank."""
    found = []
    for rank in range(groups * copies):
        data = opened(path, server)
        sampler = BrandSampler(data, seed=3, num_replicas=groups * copies, rank=rank, replication=copies, **more)
        found.append(BrandLoader(data, BATCH, sampler=sampler, num_workers=1, prefetch_batches=1))
    return found


@pytest.mark.parametrize(("groups", "copies"), [(2, 4), (4, 2), (1, 8)])
def test_ranks_of_a_group_get_equal_batches_and_each_sample_is_read_once(path: Path, groups: int, copies: int) -> None:
    """Three epochs: as many bytes as without the other ranks of the groups."""
    read = []
    for shape in ((groups, copies), (groups, 1)):
        with running_server(path, memory=0.3) as server:
            loaders = ranks_of(path, server.address, *shape)
            for _ in range(3):
                drawn = []
                for batches in in_step(loaders):
                    for group in range(shape[0]):
                        members = batches[group * shape[1] : (group + 1) * shape[1]]
                        assert all(batch == members[0] for batch in members)
                        drawn += members[0]
                assert sorted(drawn) == list(range(SAMPLES))
            facts = server.facts()
            assert facts["direct"] < facts["fetched"] / 20
            read.append(facts["read_bytes"])
    assert read[0] < 1.25 * read[1]  # the ranks begin one after another, so some samples are read twice


def test_a_run_goes_on_with_groups_of_another_size(path: Path) -> None:
    """2 x 4 ranks stop after five steps; 4 x 2 and 8 x 1 get the rest."""
    with running_server(path, memory=0.3) as server:
        loaders = ranks_of(path, server.address, 2, 4)
        steps = islice(in_step(loaders), 5)
        begun = [index for batches in steps for index in batches[0] + batches[4]]
        state = loaders[0].state_dict()
        assert all(loader.state_dict() == state for loader in loaders)
    assert len(begun) == 2 * 5 * BATCH
    for groups, copies in ((4, 2), (8, 1)):
        with running_server(path, memory=0.3) as server:
            loaders = ranks_of(path, server.address, groups, copies)
            for loader in loaders:
                loader.load_state_dict(state)
            rest = [index for batches in in_step(loaders) for batch in batches[::copies] for index in batch]
        assert sorted({*begun, *rest}) == list(range(SAMPLES))
        assert len(begun) + len(rest) - SAMPLES < groups  # the last round is filled up


MEMBER = """
import json, sys
from brand import BrandDataset, BrandLoader, BrandSampler

path, server, state = sys.argv[1:]
data = BrandDataset(path, fields=("index",), server=server, job="groups")
loader = BrandLoader(data, 10, sampler=BrandSampler(data, seed=3, num_replicas=2, rank=1, replication=2))
if state:
    loader.load_state_dict(json.loads(state))
for (batch,) in loader:
    print(json.dumps(batch.tolist()), flush=True)
    sys.stdin.readline()
"""


def test_a_rank_is_killed_and_comes_back(path: Path) -> None:
    """The other rank goes on, as far as the test does; the new process gets the same batches from the state on."""
    with running_server(path, memory=0.3) as server:
        data = opened(path, server.address)
        loader = BrandLoader(data, 10, sampler=BrandSampler(data, seed=3, num_replicas=2, rank=0, replication=2))
        batches, state, drawn = iter(loader), "", list[int]()
        for killed_after in (20, SAMPLES):
            command = [sys.executable, "-W", "error", "-c", MEMBER, str(path), server.address, state]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as member:
                assert member.stdin is not None
                assert member.stdout is not None
                for number, (batch,) in enumerate(batches, 1):
                    assert json.loads(member.stdout.readline()) == batch.tolist()
                    drawn += batch.tolist()
                    if number == killed_after:
                        os.kill(member.pid, signal.SIGKILL)
                        break
                    member.stdin.write("\n")
                    member.stdin.flush()
                member.stdin.close()
                member.wait(LIMIT_S)
            state = json.dumps(loader.state_dict())
        assert sorted(drawn) == list(range(SAMPLES))


def noisy(sample: tuple[Any, ...]) -> tuple[Any, float]:
    return sample[0], float(torch.rand(()))


def test_random_transforms_are_the_same_in_a_group(path: Path) -> None:
    """A `BrandLoader` seeds each sample by run, epoch and index, and not by rank or thread."""
    with running_server(path, memory=0.3) as server:
        loaders = []
        for rank in range(2):
            data = opened(path, server.address, transform=noisy)
            sampler = BrandSampler(data, seed=3, num_replicas=2, rank=rank, replication=2)
            loaders.append(BrandLoader(data, BATCH, sampler=sampler, num_workers=1 + rank))
        noise = set[float]()
        for (indices, mine), (others, theirs) in zip(*loaders, strict=True):
            assert indices.tolist() == others.tolist()
            assert mine.tolist() == theirs.tolist()
            noise |= set(mine.tolist())
        assert len(noise) > SAMPLES * 0.9


@pytest.mark.parametrize("kind", ["weights", "mixture", "lengths", "packed", "lengths of a mixture"])
def test_other_samplers(path: Path, kind: str) -> None:
    """Each group gets batches of its own, and its ranks the same."""
    with running_server(path, memory=0.4) as server:
        loaders = []
        for rank in range(4):
            data = opened(path, server.address)
            ranks: dict[str, Any] = {"num_replicas": 4, "rank": rank, "replication": 2}
            if kind == "weights":
                weights = np.arange(SAMPLES) % 3 + 1
                loaders.append(BrandLoader(data, 10, sampler=BrandSampler(data, weights=weights, **ranks)))
            elif kind == "mixture":
                mixture = Mixture({data: 1}, samples=400)
                loaders.append(BrandLoader(mixture, 10, sampler=BrandSampler(mixture, **ranks)))
            elif kind == "lengths of a mixture":
                mixture = Mixture({data: 1})
                planned = LengthBatchSampler(mixture, "length", batch_size=10, window=100, **ranks)
                loaders.append(BrandLoader(mixture, batch_sampler=planned))
            else:
                sampler: Any = (
                    LengthBatchSampler(data, "length", batch_size=10, **ranks)
                    if kind == "lengths"
                    else PackedBatchSampler(data, "length", tokens_per_row=64, rows_per_batch=4, **ranks)
                )
                loaders.append(BrandLoader(data, batch_sampler=sampler))
        drawn = []
        for batches in in_step(loaders):
            assert batches[0] == batches[1]
            assert batches[2] == batches[3] != batches[0]
            drawn += batches[0] + batches[2]
        if kind not in ("weights", "mixture"):  # the last round may be filled up with batches
            assert len(set(drawn)) == SAMPLES
        else:
            assert len(drawn) == {"mixture": 400, "weights": SAMPLES}[kind]
        assert server.facts()["direct"] < len(drawn) / 5


def test_groups_of_a_mesh() -> None:
    """Of a mesh of PyTorch with the dimensions pipeline, data, tensor."""
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=12, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("pp", "dp", "tp"))
        groups = RankGroups(1, mesh, "dp")
        assert [groups.division(rank, 12) for rank in range(12)] == [(n, 3) for n in (0, 0, 1, 1, 2, 2)] * 2
        assert groups.seat(9, 12, 1) == GroupSeat(4, 1, 0)
        assert [groups.seat(rank, 12, 2) for rank in (3, 9)] == [GroupSeat(2, 2, 0), GroupSeat(2, 2, 1)]
        assert RankGroups(1, mesh, ("pp", "dp")).division(9, 12) == (4, 6)
        with pytest.raises(UsageError, match=r"dims='data': device_mesh= has the dimensions 'pp', 'dp', 'tp'"):
            RankGroups(1, mesh, "data")
        with pytest.raises(UsageError, match=r"device_mesh= has 12 ranks, and this job has 24"):
            groups.division(0, 24)
        with pytest.raises(UsageError, match="leave out replication="):
            RankGroups(2, mesh, "dp")
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("replication", "ranks", "nodes", "copies"), [(4, 8, 2, 4), (2, 8, 4, 2), (8, 8, 1, 8), (8, 8, 4, 2), (3, 3, 3, 1)]
)
def test_groups_on_nodes(replication: int, ranks: int, nodes: int, copies: int) -> None:
    """Each has as many ranks on each of its nodes; each rank knows which of these nodes it is on."""
    for rank in range(ranks):
        groups = RankGroups(replication, None, "dp")
        assert groups.division(rank, ranks) == (rank // replication, ranks // replication)
        seat = GroupSeat(copies, replication // copies, rank % replication // copies)
        assert groups.seat(rank, ranks, nodes) == seat


@pytest.mark.parametrize(
    ("replication", "ranks", "nodes", "why"),
    [
        (3, 12, 3, "ranks 3, 4, 5 get the same samples, and are on the nodes 0, 1, 1: give each group"),
        (3, 6, 3, "ranks 0, 1, 2 get the same samples, and are on the nodes 0, 0, 1: give each group"),
    ],
)
def test_groups_that_lie_on_nodes_in_different_ways_are_refused(
    replication: int, ranks: int, nodes: int, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        RankGroups(replication, None, "dp").seat(0, ranks, nodes)


def test_a_server_that_is_alone_counts_the_ranks_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of groups that lie on nodes in different ways."""
    for name, value in {"RANK": 5, "WORLD_SIZE": 12, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert RankGroups(12, None, "dp").seat(5, 12, 1) == GroupSeat(4)
    assert [RankGroups(3, None, "dp").seat(rank, 12, 1).copies for rank in (0, 3, 5)] == [3, 1, 2]


def test_wrong_groups_are_refused(path: Path) -> None:
    """By name, with what to do."""
    with running_server(path, memory=0.3) as server:
        data = opened(path, server.address)
        for options, why in (
            ({"replication": 0}, "replication=0: a whole number of ranks from 1 to 255"),
            ({"replication": 2.0}, "replication=2.0"),
            (
                {"replication": 3, "num_replicas": 8, "rank": 0},
                "replication=3: the 8 ranks of this job are no multiple",
            ),
            ({"replication": 2}, "replication=2: the 1 ranks of this job are no multiple"),
            ({"device_mesh": 5}, "device_mesh= is a int"),
        ):
            with pytest.raises(UsageError, match=why):
                list(BrandSampler(data, **options))
        with pytest.raises(UsageError, match="order='shared' shares reads"):
            BrandSampler(opened(path, server.address, order="shared"), replication=2, num_replicas=2, rank=0)
