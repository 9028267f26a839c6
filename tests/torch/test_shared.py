"""Several jobs that draw from one server: each gets each of its samples once an epoch, whatever the others do."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from brand import DecodeImage, pack
from brand.errors import UsageError
from brand.node.setup.decoding import Prepared
from brand.orders import Shared
from brand.orders.base.joins import Joins
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.node.conftest import texts as texts
from tests.places import EVERYWHERE
from tests.support import LIMIT_S, wait_until
from tests.torch.support import endless

SAMPLES = 1200
JOB = Path(__file__).with_name("shared_job.py")


@pytest.fixture
def server(texts: Path) -> Iterator[RunningServer]:
    """A server whose memory holds a quarter of the data set."""
    with running_server(texts, memory=0.25) as running:
        yield running


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 pictures of noise."""
    rng, samples = np.random.default_rng(0), []
    for number in range(160):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (20, 16, 3), np.uint8)).save(file, "PNG")
        samples.append({"image": file.getvalue(), "label": number % 5})
    target = tmp_path_factory.mktemp("sets") / "pictures.brand"
    pack(samples, target, {"image": "image", "label": "int"}, chunk_size=8, jobs=1)
    return target


def preparers_of(server: RunningServer) -> list[int]:
    """Processes that prepare for a server of this process."""
    preparers = server.node._work._workers.decode
    assert preparers is not None
    return [found.process.pid for found in list(preparers._processes.values())]


def job(server: RunningServer, name: str, **more: Any) -> BrandDataset:
    """A job's data set."""
    order = more.pop("order", "shared")
    return BrandDataset(server.path, server=server.address, order=order, job=name, fields=("index",), **more)


def drawn(batches: Any) -> list[int]:
    """The indices of some batches."""
    return [index for (indices,) in batches for index in indices.tolist()]


def facts_of(server: RunningServer, name: str) -> dict[str, Any]:
    """What the server tells of a job."""
    return next(each for each in server.facts()["jobs"] if each["job"] == name)


@EVERYWHERE
@pytest.mark.slow
def test_a_job_alone_draws_what_stripes_draw(texts: Path) -> None:
    """To the bit, epoch by epoch."""
    found = {}
    for order in ("shared", "stripes"):
        with running_server(texts, memory=0.25) as server:
            data_set = job(server, "alone", order=order)
            loader = BrandLoader(data_set, 16, sampler=BrandSampler(data_set, seed=7))
            found[order] = [drawn(loader) for _ in range(3)]
    assert found["shared"] == found["stripes"]


@pytest.mark.slow
def test_a_job_that_is_done_may_stay_connected(texts: Path) -> None:
    """The server then caches as much for the other job as for a job that is alone."""
    wanted = 0.0
    for alone in (True, False):
        with running_server(texts, memory=0.5) as server:
            data_sets = [job(server, name) for name in ("first", "second")]
            first, second = (BrandLoader(each, 16, sampler=BrandSampler(each)) for each in data_sets)
            for _ in first if alone else zip(first, second, strict=True):
                pass
            for _ in range(4 if alone else 40):  # a choice of cached samples may take some epochs on a busy machine
                drawn(first)
                cached = server.facts()["memory"]["cached"]
                if not alone and cached >= wanted:
                    break
            assert len(server.facts()["jobs"]) == (1 if alone else 2)
            assert cached >= wanted > 0 or alone
            wanted = 0.95 * cached


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
                part = drawn(islice(iterators[number], 1 + 2 * number))
                found[number] += part
                if not part:
                    going.remove(number)
        assert [sorted(each) for each in found] == wanted
        orders.append(found)
    assert orders[0][0] != orders[1][0]
    joins = [facts_of(server, name)["joins"] for name in ("first", "second", "third")]
    assert all(joins)


@pytest.mark.slow
def test_one_read_serves_jobs_that_go_together(server: RunningServer) -> None:
    """In step, the second job reads next to nothing, and both draw in the same order."""
    data_sets = [job(server, name) for name in ("one", "two")]
    loaders = [
        BrandLoader(each, 16, sampler=BrandSampler(each), num_workers=1, prefetch_batches=1) for each in data_sets
    ]
    found: list[list[int]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for number, (indices,) in enumerate(batches):
            found[number] += indices.tolist()
    assert sorted(found[0]) == sorted(found[1]) == list(range(SAMPLES))
    read = server.facts()["read_bytes"] / server.facts()["data_bytes"]
    assert read < 1.5, "two jobs read each sample for themselves"


RECORDS = 60_000


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 600 bytes each."""
    rng, target = np.random.default_rng(0), tmp_path_factory.mktemp("sets") / "records.brand"
    pack(({"data": rng.bytes(600)} for _ in range(RECORDS)), target, {"data": "bytes"}, chunk_size=64, jobs=1)
    return target


@pytest.mark.slow
@pytest.mark.parametrize(("times", "turns", "most"), [(1, RECORDS // 100, 0.55), (4, RECORDS // 200, 0.95)])
def test_in_little_memory_jobs_read_less_than_each_alone(records: Path, times: int, turns: int, most: float) -> None:
    """Memory for a sixteenth; the first job is so many times as fast. Reads over those of separate jobs.

    The server may be ahead of the jobs by all of its memory: in the first case, 0.03 of the reads of separate jobs.
    """
    with running_server(records, memory=1 / 16) as server:
        list(BrandLoader(job(server, "alone", order="stripes"), 100))
        alone = server.facts()["read_bytes"]
    with running_server(records, memory=1 / 16) as server:
        fast, slow = (endless(BrandLoader(job(server, name), 100, prefetch_batches=2)) for name in ("fast", "slow"))
        for _ in range(turns):
            for _ in range(times):
                next(fast)
            next(slow)
        facts = server.facts()
    epochs = turns * (times + 1) * 100 / RECORDS
    assert facts["read_bytes"] <= most * epochs * alone
    assert facts["direct"] <= 0.01 * facts["fetched"]


@pytest.mark.slow
def test_what_a_job_with_a_part_reads_serves_a_job_with_all(records: Path) -> None:
    """It passes the samples that only the other job needs. Bytes over those of separate jobs."""
    some, order = np.arange(RECORDS) % 5 < 3, "stripes"

    def draw(server: RunningServer, *parts: Any) -> float:
        jobs = [job(server, f"job {number}", order=order) for number in range(len(parts))]
        samplers = [BrandSampler(each, subset=part) for each, part in zip(jobs, parts, strict=True)]
        loaders = [
            endless(BrandLoader(each, 100, sampler=sampler, prefetch_batches=2))
            for each, sampler in zip(jobs, samplers, strict=True)
        ]
        for _ in range(RECORDS // 100):
            for loader in loaders:
                next(loader)
        return float(server.facts()["read_bytes"])

    alone = 0.0
    for part in (None, some):
        with running_server(records, memory=1 / 16) as server:
            alone += draw(server, part)
    order = "shared"
    with running_server(records, memory=1 / 16) as server:
        assert draw(server, None, some) <= 0.72 * alone


@pytest.mark.slow
@pytest.mark.parametrize("late", [16, 400, 1184])
def test_a_late_job_goes_on_from_each_of_its_states(texts: Path, server: RunningServer, late: int) -> None:
    """On another server, alone, it draws just what it would have drawn."""
    leading = job(server, "leading")
    ahead = iter(BrandLoader(leading, 16, sampler=BrandSampler(leading), num_workers=1, prefetch_batches=1))
    drawn(islice(ahead, late // 16))
    following = job(server, "following", order=Shared(rejoin=False))
    loader = BrandLoader(following, 100, sampler=BrandSampler(following), num_workers=1, prefetch_batches=1)
    found: list[int] = []
    states: list[tuple[int, dict[str, Any]]] = []
    for (indices,) in loader:
        states.append((len(found), json.loads(json.dumps(loader.state_dict()))))
        found += indices.tolist()
        drawn(islice(ahead, 4))
    assert sorted(found) == list(range(SAMPLES))
    (first,) = states[0][1]["joins"]
    assert first[0] == 0
    assert first[1:3] != [0, 0]
    for done, state in states[::3]:
        with running_server(texts, memory=0.5) as anew:
            data_set = job(anew, "again", order=Shared(rejoin=False))
            sampler = BrandSampler(data_set)
            sampler.load_state_dict(state)
            assert state["position"] == done + 100 if done + 100 < SAMPLES else state["epoch"] == 1
            rest = drawn(BrandLoader(data_set, 50, sampler=sampler))
            if state["epoch"] == 0:
                assert rest == found[state["position"] :]
            else:
                assert sorted(rest) == list(range(SAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize("rejoin", [False, True])
def test_each_state_tells_what_was_drawn(texts: Path, server: RunningServer, rejoin: bool) -> None:
    """At each step of an epoch beside a faster job. Without new joins it also tells what comes."""
    leading = job(server, "leading")
    ahead = (
        batch for _ in range(9) for batch in BrandLoader(leading, 16, sampler=BrandSampler(leading), prefetch_batches=1)
    )
    drawn(islice(ahead, 20))
    following = job(server, "following", order=Shared(rejoin=rejoin))
    loader = BrandLoader(following, 16, sampler=BrandSampler(following), num_workers=1, prefetch_batches=1)
    found, states = list[int](), list[dict[str, Any]]()
    for (indices,) in loader:
        found += indices.tolist()
        states.append(json.loads(json.dumps(loader.state_dict())))
        drawn(islice(ahead, 3))
    assert sorted(found) == list(range(SAMPLES))
    order = following._source.port.order(0)
    for step, state in enumerate(states[:-1], 1):
        joins = Joins.from_json(state["joins"], state["lap"]).rows
        planned = StoredDataSet(texts).indices(order.plan(0, joins).sample_of).tolist()
        assert state["position"] == 16 * step
        assert planned[: 16 * step] == found[: 16 * step]
        assert rejoin or planned == found
    assert (states[-1]["epoch"], states[-1]["position"]) == (1, 0)


@pytest.mark.slow
def test_each_job_gets_what_it_would_get_alone(pictures: Path) -> None:
    """Parts, fields and preparations of its own, of a server that prepares, and one of whose preparers is killed."""
    exact = BrandDataset(pictures)
    small, large = DecodeImage(size=(8, 8)), DecodeImage(shorter=12, mode="L")
    kinds: list[dict[str, Any]] = [
        {"fields": ("index", "label")},
        {"fields": ("index", "image"), "decode": {"image": small}},
        {"fields": ("index", "image", "label"), "decode": {"image": small}},
        {"fields": ("index", "image"), "decode": {"image": large}},
    ]
    some = np.arange(len(exact)) % 4 != 0
    with running_server(pictures, memory=0.3, prepared=Prepared("100kB", 2)) as server:
        made = [
            BrandDataset(pictures, server=server.address, order="shared", job=f"job {number}", **kind)
            for number, kind in enumerate(kinds)
        ]
        parts = [None, None, some, some]
        loaders = [
            BrandLoader(data_set, 7 + 2 * number, sampler=BrandSampler(data_set, subset=part), collate_fn=list)
            for number, (data_set, part) in enumerate(zip(made, parts, strict=True))
        ]
        found: list[list[Any]] = [[] for _ in made]
        for step, batches in enumerate(zip_longest(*loaders, fillvalue=())):
            for number, batch in enumerate(batches):
                found[number] += batch
            if step == 4:
                os.kill(preparers_of(server)[0], signal.SIGKILL)
        facts = server.facts()["decoding"]
    assert facts["ended"] >= 1
    assert facts["fetched_decoded"] > 0
    for number, (kind, part) in enumerate(zip(kinds, parts, strict=True)):
        wanted = np.flatnonzero(np.ones(len(exact), np.bool_) if part is None else part).tolist()
        assert sorted(sample[0] for sample in found[number]) == wanted
        alone = BrandDataset(pictures, **kind)
        for sample in found[number]:
            for mine, its in zip(sample, alone[sample[0]], strict=True):
                assert np.array_equal(mine, its)


def test_random_transforms_are_each_jobs_own(server: RunningServer) -> None:
    """Jobs with one seed have other numbers for a sample; the same job has the same ones again."""

    def numbers(name: str) -> dict[int, float]:
        data_set = job(server, name, transform={"index": lambda index: (index, torch.rand(1).item())})
        loader = BrandLoader(data_set, 100, sampler=BrandSampler(data_set), collate_fn=list)
        return {index: number for samples in loader for ((index, number),) in samples}

    one, other, again = numbers("one"), numbers("other"), numbers("one")
    assert one == again
    assert one.keys() == other.keys()
    assert sum(one[index] == other[index] for index in one) <= 1


def test_a_state_tells_the_joins(server: RunningServer) -> None:
    """Before anything is drawn it knows none; others, and damaged ones, are refused."""
    data_set = job(server, "told")
    sampler = BrandSampler(data_set)
    state = sampler.state_dict()
    assert (state["version"], state["joins"], state["lap"]) == (2, [], -1)
    drawn(islice(BrandLoader(data_set, 8, sampler=sampler, prefetch_batches=1), 1))
    state = sampler.state_dict(samples=8)
    assert (state["joins"], state["position"]) == ([[0, 0, 0, 0]], 8)
    for wrong in ([[0, 0, SAMPLES, 0]], [[0, 0, 0, 0], [SAMPLES + 1, 0, 0, 0]], [[0, 0, 0, 1]], "none"):
        with pytest.raises(UsageError, match="no state of a BrandSampler"):
            BrandSampler(job(server, "other")).load_state_dict(state | {"joins": wrong})
    with pytest.raises(UsageError, match="no state of a BrandSampler"):
        BrandSampler(job(server, "other")).load_state_dict({key: state[key] for key in state if key != "lap"})


def test_a_state_that_does_not_fit_a_running_epoch_is_refused(server: RunningServer) -> None:
    """A job of the same name has begun the epoch in another way."""
    first = BrandSampler(job(server, "same"))
    drawn(islice(BrandLoader(first.dataset, 8, sampler=first, prefetch_batches=1), 1))
    state = first.state_dict(samples=8) | {"joins": [[0, 0, 40, 1024]]}
    again = BrandSampler(job(server, "same"))
    again.load_state_dict(state)
    with pytest.raises(UsageError, match="epoch 0 is under way, and not as the loader state says"):
        list(again)


def test_what_cannot_be_is_refused(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a server, and ranks on several nodes whose servers do not know each other."""
    with pytest.raises(UsageError, match="give server=, too"):
        BrandDataset(texts, job="name")
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "node-0.example")
    with (
        running_server(texts, memory=0.25) as server,
        pytest.raises(UsageError, match="servers that know each other"),
    ):
        BrandSampler(BrandDataset(texts, server=server.address, order="shared"))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["server", "job"])
def test_jobs_of_a_common_server_survive_a_kill(texts: Path, tmp_path: Path, killed: str) -> None:
    """Two processes start one server. It, or one of them, is killed: whoever lives draws each sample once an epoch."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(JOB), str(texts)]
    jobs = [
        subprocess.Popen([*command, name], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
            epochs = json.loads(told)
            assert [sorted(epoch) for epoch in epochs] == 2 * [list(range(SAMPLES))]
    finally:
        for process in jobs:
            process.kill()
            process.communicate()
    wait_until(lambda: not Path(f"/proc/{servers[0]}").exists(), "the server ends with its last job")
