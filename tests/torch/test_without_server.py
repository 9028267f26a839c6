"""Is training without a data server the same? Order, values and states, for all orders, ways to start workers, resumes;
also on systems that lack what a server needs.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture
from brand.errors import FormatError, ServerError, UsageError
from brand.node.client.direct import DirectClient
from brand.node.wire.drawing import Announcement
from brand.orders import Slots, Stripes, Uniform
from brand.orders import places as places_module
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from tests import places
from tests.buckets import bucket
from tests.node.support import servers_of
from tests.storage.support import chunk
from tests.support import LIMIT_S
from tests.tools.damage import flip_bit
from tests.tools.objects import Busy, Fault, Faults

pytestmark = places.EVERYWHERE
SAMPLES = 600
ORDERS = [Stripes(), Slots(), Uniform()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples of 1 to 400 bytes, in chunks of 20."""
    path = tmp_path_factory.mktemp("none") / "set.brand"
    rng = np.random.default_rng(0)
    samples = [{"key": str(i), "label": i % 7, "data": rng.bytes(int(rng.integers(1, 400)))} for i in range(SAMPLES)]
    brand.pack(samples, path, {"key": "str", "label": "int", "data": "bytes"}, chunk_size=20)
    return path


def opened(path: Path, server: str | None, **more: Any) -> BrandDataset:
    """The data set, with little memory, so that an order mixes a part of it at a time."""
    return BrandDataset(path, fields=("index", "label", "data"), memory=0.3, server=server, **more)


def loader_of(data_set: BrandDataset | Mixture, batch: int, seed: int) -> BrandLoader:
    return BrandLoader(data_set, batch, sampler=BrandSampler(data_set, seed=seed))


def as_list(batch: Any) -> Any:
    index, label, data = batch
    return index.tolist(), label.tolist(), list(data)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@places.turns("order")
@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize(
    ("context", "workers"), [(None, 0), ("fork", 2), pytest.param("spawn", 1), ("forkserver", 4)], ids=str
)
def test_epochs_are_those_of_a_server(data: Path, lies_in: str, order: Any, context: str | None, workers: int) -> None:
    """Two epochs by a DataLoader, and the state in the second one."""
    if lies_in == "store" and context:
        context = "spawn"  # a fork of a process that has read from a store cannot, and a fork server has no keys
    runs = []
    for server in (None, "none"):
        data_set = opened(data, server, order=order)
        sampler = BrandSampler(data_set, seed=3)
        loader = DataLoader(data_set, 32, sampler=sampler, num_workers=workers, multiprocessing_context=context)
        batches = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches.append([as_list(batch) for batch in loader])
        runs.append((batches, sampler.state_dict()))
        if server == "none":
            assert data_set.stats().get("server", "none") == "none"
        del loader, sampler, data_set
    assert runs[0] == runs[1]
    assert sorted(i for batch in runs[1][0][0] for i in batch[0]) == list(range(SAMPLES))


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_run_is_resumed_across_the_two(data: Path, order: Any) -> None:
    """At every step, a state of one is resumed by the other."""
    whole = [as_list(batch) for batch in loader_of(opened(data, "none", order=order), 100, 1)]
    for first, then in (("none", None), (None, "none")):
        for step in range(len(whole)):
            loader = loader_of(opened(data, first, order=order), 100, 1)
            batches = iter(loader)
            start = [as_list(next(batches)) for _ in range(step)]
            state = loader.state_dict()
            del batches
            other = loader_of(opened(data, then, order=order), 100, 1)
            other.load_state_dict(state)
            assert start + [as_list(batch) for batch in other] == whole


def test_no_server_runs_and_statistics_are_those_of_the_process(data: Path) -> None:
    """And `stats()` is empty before the first draw, as with a server."""
    data_set, running = opened(data, "none"), set(servers_of(data))
    assert data_set.stats() == {}
    found = [int(i) for index, _, _ in BrandLoader(data_set, 50) for i in index]
    assert sorted(found) == list(range(SAMPLES))
    assert set(servers_of(data)) <= running
    assert data_set.stats() == {
        "server": "none",
        "fetched": SAMPLES,
        "direct": SAMPLES,
        "replaced": [],
    }


def test_ranks_divide_an_epoch_as_with_a_server(data: Path) -> None:
    """Each rank by itself; together they draw each sample once."""
    parts = []
    for rank in range(3):
        data_set = opened(data, "none")
        sampler = BrandSampler(data_set, seed=5, num_replicas=3, rank=rank)
        parts.append([i for batch in DataLoader(data_set, 20, sampler=sampler) for i in batch[0].tolist()])
    assert sorted(itertools.chain(*parts)) == list(range(SAMPLES))
    served = opened(data, None)
    assert [i for batch in loader_of(served, 20, 5) for i in batch[0].tolist()][:3] == [p[0] for p in parts]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch has many windows."""
    for name, number in (("FIRST", 8), ("MOST", 32), ("KEPT", 6)):
        monkeypatch.setattr(places_module, name, number)


def client_of(data: Path, order: Any) -> tuple[DirectClient, Order]:
    """A client, and an order that a sampler has chosen."""
    return DirectClient(StoredDataSet(data), "run"), BrandSampler(opened(data, "none", order=order), seed=7).order


@places.IN_A_FOLDER
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_windows_give_the_epochs_of_a_server(data: Path, lies_in: str, order: Any) -> None:
    """To ranks whose workers draw batches in turns, to the threads of a loader, and to a run that is resumed."""
    whole = [as_list(batch) for batch in loader_of(opened(data, None, order=order), 40, 1)]
    loader = loader_of(opened(data, "none", order=order), 40, 1)
    assert [as_list(batch) for batch in loader] == whole
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "position": 280})
    assert [as_list(batch) for batch in loader] == whole[7:]
    ranks = []
    for rank in range(2):
        data_set = opened(data, "none", order=order)
        sampler = BrandSampler(data_set, seed=1, num_replicas=2, rank=rank)
        batches = DataLoader(data_set, 20, sampler=sampler, num_workers=2, multiprocessing_context="fork")
        ranks.append([i for batch in batches for i in batch[0].tolist()])
    assert list(itertools.chain(*zip(*ranks, strict=True))) == [i for batch in whole for i in batch[0]]


@places.IN_A_FOLDER
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_threads_draw_two_epochs_at_a_time(data: Path, lies_in: str, order: Any) -> None:
    """In any order, from one client; one epoch begins while the other is still drawn."""
    client, drawn = client_of(data, order)
    draws = [(epoch, np.arange(first, first + 20)) for first in range(0, SAMPLES, 20) for epoch in (0, 1)]

    def draw(epoch: int, positions: Any) -> list[int]:
        client.begin(drawn, 1, Announcement(epoch))
        found: list[int] = client.draw(drawn, epoch, positions, owner=0)[0].places.tolist()
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: draw(*each), draws))
    plans = [drawn.plan(epoch).sample_of for epoch in range(2)]
    assert found == [plans[epoch][positions].tolist() for epoch, positions in draws]


@places.IN_A_FOLDER
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_process_that_is_forked_while_a_thread_draws(data: Path, lies_in: str, order: Any) -> None:
    """The child does not wait for a thread that it does not have."""
    client, drawn = client_of(data, order)
    client.begin(drawn, 1, Announcement(0))

    def draw() -> None:
        found = client.draw(drawn, 0, np.arange(50), owner=0)[0].places.tolist()
        os._exit(0 if found == drawn.plan(0).sample_of[:50].tolist() else 1)

    child = multiprocessing.get_context("fork").Process(target=draw, daemon=True)
    with client._lock:
        child.start()
    child.join(LIMIT_S)
    assert child.exitcode == 0


def test_buckets_and_mixtures_are_those_of_a_server(data: Path, tmp_path: Path) -> None:
    """Samplers of batches, and a mixture of two members."""
    lengths, copied = np.arange(SAMPLES) % 50 + 1, shutil.copytree(data, tmp_path / "copied")
    batches, mixed = [], []
    for server in (None, "none"):
        data_set = opened(data, server)
        sampler = LengthBatchSampler(data_set, lengths, batch_size=16, seed=2)
        batches.append([as_list(batch) for batch in DataLoader(data_set, batch_sampler=sampler)])
        mixture = Mixture({opened(data, server): 0.7, opened(copied, server): 0.3}, seed=4)
        mixed.append([as_list(batch) for batch in BrandLoader(mixture, 64)])
    assert batches[0] == batches[1]
    assert mixed[0] == mixed[1]


def test_a_damaged_sample_is_replaced_by_the_same_one(data: Path, tmp_path: Path) -> None:
    """`on_error="skip"`: the replacement and its report are those of a server."""
    path = tmp_path / "damaged.brand"
    shutil.copytree(data, path)
    row = StoredDataSet(data).rows(65, 66)[0]
    flip_bit(chunk(path, 65 // 20), 8 * int(row["offset"]))
    found = []
    for server in (None, "none"):
        data_set = opened(path, server, on_error="skip")
        epoch = [as_list(batch) for batch in loader_of(data_set, 50, 6)]
        found.append((epoch, data_set.stats()["replaced"]))
    assert found[0] == found[1]
    with pytest.raises(FormatError):
        list(loader_of(opened(path, "none"), 50, 6))


@places.IN_A_FOLDER
def test_a_sampler_of_later_is_refused_by_workers(data: Path, lies_in: str) -> None:
    """A worker that began before the sampler was made cannot ask a server for its order."""
    data_set = opened(data, "none")
    first, later = BrandSampler(data_set, seed=1), []

    def sampler() -> Iterator[int]:
        yield from itertools.islice(first, 4)
        later.append(BrandSampler(data_set, seed=2))
        yield from later[0]

    class Late:
        __iter__ = staticmethod(sampler)

    loader = DataLoader(data_set, 2, sampler=Late(), num_workers=1, multiprocessing_context="fork", prefetch_factor=1)
    with pytest.raises(ServerError, match="before the loader starts its workers"):
        list(loader)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"cache": "there"}, "cache="), ({"job": "a"}, "job="), ({"order": "shared"}, "shared")],
)
def test_what_needs_a_server_is_refused(data: Path, more: dict[str, Any], said: str) -> None:
    """At once, with its name."""
    with pytest.raises(UsageError, match=f'server="none".*{said}.* needs a data server'):
        list(BrandLoader(opened(data, "none", **more), 50))


def test_batches_by_locality_are_refused(data: Path) -> None:
    sampler = BrandSampler(data_set := opened(data, "none"), num_replicas=2, rank=0, locality=True, batch_size=10)
    with pytest.raises(UsageError, match="locality=True needs a data server"):
        list(DataLoader(data_set, 10, sampler=sampler))


SPARED, NEEDED = ("memfd_create", "pidfd_open", "O_DIRECT"), ("SCM_RIGHTS", "fork")
"""Parts of the system that a server can do without, and parts that it needs."""
SCRIPT = """
import hashlib, logging, sys
import numpy as np
from torch.utils.data import DataLoader
from brand import BrandDataset, BrandLoader, BrandSampler

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    data = BrandDataset(sys.argv[1], fields=("index", "data"), memory=0.3)
    loader = BrandLoader(data, 32, sampler=BrandSampler(data, seed=9))
    said = [[(int(i), x) for i, x in zip(*batch)] for batch in loader]
    sampler = BrandSampler(data, seed=9)
    said += [[(int(i), x) for i, x in zip(*batch)] for batch in DataLoader(data, 32, sampler=sampler, num_workers=1)]
    said += [data[5], data.column("label").sum(), sampler.state_dict()]
    print(hashlib.sha256(repr(said).encode()).hexdigest())
"""


@pytest.mark.slow
def test_where_a_server_cannot_run_training_goes_on_without_one(data: Path, tmp_path: Path) -> None:
    """Parts of the system are taken away, some and all at once: the epochs are the same, and the log says why."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(absent: str) -> tuple[str, str]:
        path = os.pathsep.join([str(Path(__file__).parents[1] / "tools" / "absent"), *sys.path])
        done = subprocess.run(
            [sys.executable, str(script), str(data)],
            env={**os.environ, "PYTHONPATH": path, "BRAND_ABSENT": absent},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    wanted, said = run("")
    assert said == ""
    for absent in (SPARED, NEEDED[:1], NEEDED[1:], SPARED + NEEDED):
        found, said = run(",".join(absent))
        assert found == wanted
        assert ("so no data server can run" in said) == (absent != SPARED), said


@places.IN_A_FOLDER
def test_a_store_that_does_not_answer_is_no_damage(
    data: Path, lies_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`on_error="skip"` skips no sample that might be whole."""
    with bucket(tmp_path, monkeypatch) as there:
        shutil.copytree(data, there.place("set.brand"))
        data_set = BrandDataset("s3://bucket/set.brand", server="none", on_error="skip")
        assert data_set[0]["key"] == "0"
        there.store.faults = Faults(Fault(Busy(status=403)))
        with pytest.raises(ServerError, match=r"chunks/.*cannot be read"):
            list(BrandLoader(data_set, 100))
