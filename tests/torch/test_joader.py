"""Jobs that draw by JOADER's rule: each gets each of its samples once an epoch, whatever dies or is resumed."""

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
from torch.utils.data import DataLoader

import brand
from brand.errors import UsageError
from brand.orders.baselines import Joader
from brand.orders.joader.growing import pack_drawn, unpack_drawn
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.node.conftest import texts as texts
from tests.places import EVERYWHERE
from tests.support import LIMIT_S, wait_until
from tests.torch.support import endless

SAMPLES = 1200
JOB = Path(__file__).with_name("joader_job.py")


@pytest.fixture
def server(texts: Path) -> Iterator[RunningServer]:
    """A server whose memory holds a quarter of the data set."""
    with running_server(texts, memory=0.25) as running:
        yield running


def job(server: RunningServer, name: str) -> BrandDataset:
    """A job's data set."""
    return BrandDataset(server.path, server=server.address, order=Joader(), job=name, fields=("index",))


def drawn(batches: Any) -> list[int]:
    """The indices of some batches."""
    return [index for (indices,) in batches for index in indices.tolist()]


@EVERYWHERE
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_of_all_kinds_draw_each_sample_once(server: RunningServer, workers: int) -> None:
    """Own batch sizes, parts, beginnings and paces, with worker processes and without."""
    some = np.arange(SAMPLES) % 3 != 0
    first, second, third = (job(server, name) for name in ("first", "second", "third"))
    samplers = [BrandSampler(first), BrandSampler(second), BrandSampler(third, subset=some)]
    loaders: list[Any] = [
        BrandLoader(first, 16, sampler=samplers[0]),
        DataLoader(second, 24, sampler=samplers[1], num_workers=workers),
        DataLoader(third, 7, sampler=samplers[2], num_workers=workers),
    ]
    wanted = [list(range(SAMPLES)), list(range(SAMPLES)), np.flatnonzero(some).tolist()]
    orders = []
    for _ in range(2):
        iterators = [iter(loader) for loader in loaders]
        found: list[list[int]] = [[], [], []]
        going = [0, 1, 2]
        found[0] += drawn(islice(iterators[0], 20))  # the others come late
        while going:
            for number in list(going):
                subset = drawn(islice(iterators[number], 1 + 2 * number))
                found[number] += subset
                if not subset:
                    going.remove(number)
        assert [sorted(each) for each in found] == wanted
        orders.append(found)
    assert orders[0][0] != orders[1][0]


@pytest.mark.slow
def test_ranks_of_a_job_draw_each_sample_once(server: RunningServer) -> None:
    """Two ranks in two threads of one program; one begins long before the other."""
    ranks = [job(server, "ranks") for _ in range(2)]
    samplers = [BrandSampler(data, num_replicas=2, rank=rank) for rank, data in enumerate(ranks)]
    loaders = [BrandLoader(data, 10, sampler=s, num_workers=1) for data, s in zip(ranks, samplers, strict=True)]
    for _ in range(2):
        begun = iter(loaders[0])
        found = drawn(islice(begun, 30))
        found += drawn(loaders[1])
        found += drawn(begun)
        assert sorted(found) == list(range(SAMPLES))


@pytest.mark.slow
def test_one_read_serves_jobs_that_go_together(server: RunningServer) -> None:
    """In step they draw the same samples, and each is read once."""
    data_sets = [job(server, name) for name in ("one", "two")]
    loaders = [
        BrandLoader(each, 16, sampler=BrandSampler(each), num_workers=1, prefetch_batches=1) for each in data_sets
    ]
    found: list[list[int]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for number, (indices,) in enumerate(batches):
            found[number] += indices.tolist()
    assert sorted(found[0]) == sorted(found[1]) == list(range(SAMPLES))
    facts = server.facts()
    assert facts["read_bytes"] / facts["data_bytes"] < 1.4, "two jobs read each sample for themselves"
    assert all(each["joins"] == [] and each["pace"] is None for each in facts["jobs"])


@pytest.mark.slow
def test_in_little_memory_slow_jobs_share_the_reads_of_fast_ones(texts: Path) -> None:
    """The server decides no more for four jobs than memory holds. So it reads a sample once for all of them."""
    with running_server(texts, memory=1 / 16) as server:
        data_sets = [job(server, name) for name in ("fast", "also fast", "slow", "also slow")]
        jobs = [
            endless(BrandLoader(each, 4, sampler=BrandSampler(each), num_workers=1, prefetch_batches=1))
            for each in data_sets
        ]
        for _ in range(SAMPLES // 8):
            for batches, times in zip(jobs, (4, 4, 1, 1), strict=True):
                drawn(islice(batches, times))
        facts = server.facts()
    assert facts["read_bytes"] / facts["data_bytes"] * SAMPLES < 0.6 * facts["fetched"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_from_each_of_its_states(texts: Path, server: RunningServer, workers: int) -> None:
    """On another server, with other batches and ranks: what it has drawn is drawn no more, and all else is."""
    data_set = job(server, "first")
    sampler = BrandSampler(data_set)
    loader: Any = BrandLoader(data_set, 100, sampler=sampler, num_workers=1, prefetch_batches=1)
    if workers:
        loader = DataLoader(data_set, 100, sampler=sampler, num_workers=workers)
    states, found = [], []
    for turn, (indices,) in enumerate(loader, 1):
        found += indices.tolist()
        state = sampler.state_dict(batches=turn, batch_size=100)
        states.append((turn * 100, json.loads(json.dumps(state))))
    assert sorted(found) == list(range(SAMPLES))
    for done, state in states[:: 4 if workers else 1]:
        with running_server(texts, memory=0.5) as anew:
            again = job(anew, "again")
            resumed = BrandSampler(again)
            resumed.load_state_dict(state)
            if done < SAMPLES:
                assert (state["version"], state["epoch"], state["position"]) == (2, 0, done)
                assert resumed.state_dict() == state
                rest = drawn(DataLoader(again, 64, sampler=resumed, num_workers=workers))
                assert sorted(found[:done] + rest) == list(range(SAMPLES))
            else:
                assert (state["epoch"], state["position"]) == (1, 0)
                assert sorted(drawn(BrandLoader(again, 50, sampler=resumed))) == list(range(SAMPLES))


@pytest.mark.slow
def test_a_job_goes_back_to_its_own_state(server: RunningServer) -> None:
    """While its server lives, and knows the order in which it drew: from there on it draws the same again."""
    data_set = job(server, "back")
    sampler = BrandSampler(data_set)
    batches = iter(BrandLoader(data_set, 50, sampler=sampler, num_workers=1, prefetch_batches=1))
    before = drawn(islice(batches, 6))
    state = sampler.state_dict(samples=200)
    del batches
    sampler.load_state_dict(state)
    again = drawn(BrandLoader(data_set, 40, sampler=sampler, num_workers=1))
    assert again[:100] == before[200:]
    assert sorted(before[:200] + again) == list(range(SAMPLES))
    other = BrandSampler(job(server, "back"))  # another process knows only the state
    other.load_state_dict(state)
    assert sorted(before[:200] + drawn(BrandLoader(other.dataset, 40, sampler=other))) == list(range(SAMPLES))


def test_a_state_that_is_damaged_is_refused(server: RunningServer) -> None:
    """What was drawn is as many samples as the position says, all of the part, and of an epoch that has begun so."""
    data_set = job(server, "told")
    subset = np.arange(SAMPLES) % 2 == 0
    sampler = BrandSampler(data_set, subset=subset)
    drawn(islice(BrandLoader(data_set, 8, sampler=sampler, prefetch_batches=1), 2))
    state = sampler.state_dict(samples=8)
    places = unpack_drawn(state["drawn"], SAMPLES)
    assert len(places) == 8
    outside = data_set._source.data.places(np.arange(1, 17, 2))
    for wrong in ("none", None, pack_drawn(places[:7], SAMPLES), pack_drawn(outside, SAMPLES)):
        with pytest.raises(UsageError, match="no state of a BrandSampler"):
            BrandSampler(job(server, "other"), subset=subset).load_state_dict(state | {"drawn": wrong})
    with pytest.raises(UsageError, match="no state of a BrandSampler"):
        BrandSampler(job(server, "other"), subset=subset).load_state_dict(
            {k: v for k, v in state.items() if k != "drawn"}
        )
    others = data_set._source.data.places(np.arange(SAMPLES - 16, SAMPLES, 2))
    again = BrandSampler(job(server, "told"), subset=subset)
    again.load_state_dict(state | {"drawn": pack_drawn(others, SAMPLES)})
    with pytest.raises(UsageError, match="with another order than this process has"):
        list(again)


@places.turns("workers")
@pytest.mark.slow
@pytest.mark.parametrize("killed", ["server", "job"])
@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_survive_a_kill(tmp_path: Path, killed: str, workers: int) -> None:
    """Two jobs start one server. It, or one of them, is killed: whoever lives draws each sample once an epoch."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    own = tmp_path / "own.brand"  # other runs of this test have a common server of their own
    samples = [{"text": f"{number} {tmp_path} {os.getpid()}"} for number in range(SAMPLES)]
    brand.pack(samples, own, {"text": "str"}, chunk_size=32, compression="none", jobs=1)
    command = [sys.executable, str(JOB), str(own)]
    jobs = [
        subprocess.Popen(
            [*command, name, str(workers), "common"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    try:
        servers = []
        for process in jobs:
            assert process.stdout is not None
            servers.append(int(process.stdout.readline()))  # it has drawn a part of its first epoch
        assert servers[0] == servers[1], "two jobs have started two servers"
        os.kill(servers[0] if killed == "server" else jobs[0].pid, signal.SIGKILL)
        for process in jobs if killed == "server" else jobs[1:]:
            told, _ = process.communicate("go on\n", LIMIT_S)
            assert process.returncode == 0
            assert [sorted(epoch) for epoch in json.loads(told)] == 2 * [list(range(SAMPLES))]
    finally:
        for process in jobs:
            process.kill()
            process.communicate()
    wait_until(lambda: not Path(f"/proc/{servers[0]}").exists(), "the server ends with its last job")
