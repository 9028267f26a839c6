"""An error comes where its batch is due and says which sample it is; Ctrl-C and lost processes leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand import pack
from brand.errors import ChecksumError, DecodeError, LayoutError, MissingFileError, ServerError
from brand.node.client.connector import look_at
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from brand.testing.storage import BlockedStorage
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.job import resolver
from tests import places
from tests.places import named
from tests.storage.support import chunk as chunk_path
from tests.support import LIMIT_S, session_processes, wait_until
from tests.tools.damage import flip_bit
from tests.tools.forge import put_together, sign_index, take_apart
from tests.torch.support import indices_of, loader_threads, planned, served
from tests.torch.test_loader import gone

pytestmark = places.EVERYWHERE

BATCH = 4


class Theirs(Exception):
    """An error of a user's transform."""


def until_it_fails(loader: BrandLoader) -> tuple[list[int], BaseException]:
    """The indices that come, and the error that ends them."""
    found: list[int] = []
    try:
        for batch in loader:
            found += indices_of([batch])
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return found, error
    raise AssertionError("nothing failed")


@pytest.fixture
def order(small: Path) -> list[int]:
    """What comes in epoch 0."""
    return planned(small, BrandSampler(BrandDataset(small, memory=0.3)).order, 0)


@pytest.fixture
def damaged(small: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(small, tmp_path / "damaged")


def damage(path: Path, index: int) -> None:
    """Change the first byte of a sample."""
    data = StoredDataSet(path)
    place = int(data.places(np.array([index]))[0])
    flip_bit(chunk_path(path, data.chunk_of(index)), 8 * int(data.rows(place, place + 1)[0]["offset"]))


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("position", [0, 3, 4, 33, 74])
def test_an_error_in_a_transform(small: Path, order: list[int], position: int, threads: int) -> None:
    """All batches before it come; it is the user's own, with a note; what was handed out is what the state counts."""

    def fail(sample: tuple[int, str]) -> tuple[int, str]:
        if sample[0] == order[position]:
            raise Theirs("mine")
        return sample

    with served(small, transform=fail) as data_set:
        loader = BrandLoader(data_set, BATCH, num_workers=threads)
        found, error = until_it_fails(loader)
        assert type(error) is Theirs
        assert error.args == ("mine",)
        assert any(f"sample {order[position]} " in note and data_set.name in note for note in error.__notes__)
        begun = position // BATCH * BATCH
        assert found == order[:begun]
        assert loader.state_dict()["position"] == begun
        assert loader_threads("brand-draw") == []


def test_an_error_in_a_field_transform_and_in_collate(small: Path, order: list[int]) -> None:
    """The first says which sample, the second cannot."""

    def fail(_: object) -> None:
        raise Theirs("mine")

    with running_server(small, memory=0.3) as server:
        data_set = BrandDataset(small, fields=("index",), transform={"index": fail}, server=server.address)
        found, error = until_it_fails(BrandLoader(data_set, BATCH))
        assert found == []
        assert "sample " in str(error.__notes__)
        plain = BrandDataset(small, fields=("index",), server=server.address)
        for ahead in (1, 9):
            assert until_it_fails(BrandLoader(plain, BATCH, collate_fn=fail, prefetch_batches=ahead))[0] == []


def test_after_an_error_the_next_epoch_is_whole(small: Path, order: list[int]) -> None:
    """The error is no end."""
    broken = [True]

    def fail(sample: tuple[int, str]) -> tuple[int, str]:
        if broken[0] and sample[0] == order[20]:
            raise Theirs
        return sample

    with served(small, transform=fail) as data_set:
        loader = BrandLoader(data_set, BATCH)
        state = loader.state_dict()
        assert until_it_fails(loader)[0] == order[:20]
        state = loader.state_dict()
        broken[0] = False
        loader.load_state_dict(state)
        assert indices_of(loader) == order[20:]
        loader.set_epoch(0)
        assert indices_of(loader) == order


@pytest.mark.parametrize("transform", [None, {"index": int}], ids=["columns", "samples"])
@pytest.mark.parametrize("position", [0, 3, 4, 33, 74])
def test_a_damaged_sample(damaged: Path, order: list[int], position: int, transform: Any) -> None:
    """Named by file, chunk and sample, and raised where its batch is due."""
    damage(damaged, order[position])
    with served(damaged, transform=transform) as data_set:
        loader = BrandLoader(data_set, BATCH)
        found, error = until_it_fails(loader)
        assert isinstance(error, ChecksumError)
        data, sample = StoredDataSet(damaged), order[position]
        chunk = data.chunk_of(sample)
        assert (error.path, error.chunk, error.sample) == (named(data, chunk), chunk, sample)
        begun = position // BATCH * BATCH
        assert found == order[: len(found)]
        assert loader.state_dict()["position"] == len(found)
        assert loader_threads("brand-draw") == []
        assert len(found) == begun


@pytest.mark.parametrize("transform", [None, {"index": int}], ids=["columns", "samples"])
def test_a_record_that_does_not_decode(damaged: Path, transform: Any) -> None:
    """Its bytes are as they were written: named, and raised where its batch is due."""
    with served(damaged, memory=1.0) as data_set:
        order = planned(damaged, BrandSampler(data_set).order, 0)
    data, position = StoredDataSet(damaged), 45
    chunk = chunk_path(damaged, data.chunk_of(order[position]))
    parts = take_apart(chunk)
    (broken,) = (sample for sample in parts.samples if sample.index == order[position])
    broken.data, broken.raw_size = bytes([255] * len(broken.data)), len(broken.data)
    put_together(chunk, parts)
    sign_index(damaged)
    with served(damaged, memory=1.0, transform=transform) as data_set:
        found, error = until_it_fails(BrandLoader(data_set, BATCH))
        assert isinstance(error, DecodeError)
        assert error.sample == broken.index
        assert found == order[: position // BATCH * BATCH]


@places.IN_A_FOLDER
@pytest.mark.parametrize("memory", [0.3, 1.0])
def test_halves_of_the_index_that_disagree_are_named(small: Path, damaged: Path, memory: float) -> None:
    """Bytes and checksum of a sample are right, and its index is in doubt: it never comes, in any epoch."""
    file, wrong = damaged / "index" / "place.npy", [7, 48]
    place = np.load(file)
    start = file.stat().st_size - place.nbytes
    place[wrong] = place[wrong[::-1]]
    file.write_bytes(file.read_bytes()[:start] + place.tobytes())
    with served(damaged, memory=memory) as data_set:
        sampler = BrandSampler(data_set)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = planned(small, sampler.order, epoch)
            first = min(map(order.index, wrong))
            found, error = until_it_fails(BrandLoader(data_set, BATCH, sampler=sampler))
            assert isinstance(error, LayoutError)
            assert error.sample == order[first]
            assert found == order[: first // BATCH * BATCH]


@places.IN_A_FOLDER
@pytest.mark.parametrize("memory", [0.3, 1.0])
def test_a_client_of_a_large_data_set_reads_no_index(
    small: Path, damaged: Path, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples come with their own index, whatever `place.npy` says: the row in front of each has it."""
    monkeypatch.setattr(resolver, "MOST_LISTED", 0)
    file = damaged / "index" / "place.npy"
    place = np.load(file)
    start = file.stat().st_size - place.nbytes
    with served(damaged, memory=memory) as data_set:
        file.write_bytes(file.read_bytes()[:start] + np.roll(place, 1).tobytes())
        sampler = BrandSampler(data_set)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            loader = BrandLoader(data_set, BATCH, sampler=sampler)
            assert [index for batch in loader for index in indices_of([batch])] == planned(small, sampler.order, epoch)


def test_a_picture_that_does_not_decode(photos: Path, tmp_path: Path) -> None:
    """Named, and raised where its batch is due."""
    png = next(photos.rglob("*.png")).read_bytes()
    rows = [{"image": png if number != 6 else png[:100]} for number in range(9)]
    pack(rows, tmp_path / "set", {"image": "image"}, chunk_size=4, jobs=1)
    with served(tmp_path / "set", fields=("index", "image"), memory=1.0) as data_set:
        sampler = BrandSampler(data_set)
        due = planned(tmp_path / "set", sampler.order, 0).index(6) // 2 * 2
        found, error = until_it_fails(BrandLoader(data_set, 2, sampler=sampler, collate_fn=list_of_indices))
        assert isinstance(error, DecodeError)
        assert error.sample == 6
        assert len(found) == due


def list_of_indices(samples: list[Any]) -> list[list[int]]:
    """A collate function that leaves pictures out."""
    return [[sample[0] for sample in samples]]


def test_a_missing_chunk(damaged: Path) -> None:
    """A file that was not copied."""
    chunk_path(damaged, 3).unlink()
    with served(damaged) as data_set:
        _, error = until_it_fails(BrandLoader(data_set, BATCH))
        assert isinstance(error, MissingFileError)
        assert error.chunk == 3
        assert StoredDataSet(damaged).chunk_of(error.sample or 0) == 3


@pytest.mark.slow
def test_a_server_that_is_not_there(small: Path) -> None:
    """Said at the first batch, with what to do."""
    with running_server(small) as server:
        data_set = BrandDataset(small, server=server.address)
        sampler = BrandSampler(data_set)
    found, error = until_it_fails(BrandLoader(data_set, BATCH, sampler=sampler))
    assert isinstance(error, ServerError)
    assert "brand serve" in str(error)
    assert found == []
    del error  # it holds the loader
    gone()


@pytest.mark.slow
def test_a_server_that_is_killed_in_mid_epoch(small: Path, order: list[int]) -> None:
    """Another one starts, and nothing is lost or comes twice."""
    data_set = BrandDataset(small, fields=("index",), memory=0.3)
    found = []
    killed = set()
    try:
        for number, batch in enumerate(BrandLoader(data_set, BATCH, prefetch_batches=2)):
            found += indices_of([batch])
            if number in (2, 9):
                killed.add(process := data_set.stats()["process"])
                os.kill(process, signal.SIGKILL)
        assert found == order
        assert len(killed) == 2
    finally:
        with contextlib.suppress(ProcessLookupError, ServerError):
            os.kill(data_set.stats()["process"], signal.SIGKILL)


def test_a_server_that_is_replaced_after_several_threads_have_drawn(small: Path, order: list[int]) -> None:
    """Each of the five had a connection of its own, and all of these are dead."""
    with BlockedStorage() as storage, running_server(small, memory=0.3, storage=storage) as server:
        data_set = BrandDataset(small, fields=("index",), server=server.address)
        drawn = list(BrandSampler(data_set))
        parts = [drawn[first : first + 8] for first in range(0, 40, 8)]
        threads = [threading.Thread(target=data_set.__getitems__, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        wait_until(lambda: bool(server.facts()["waiting"] == 5), "five draws wait")
        storage.release()
        for thread in threads:
            thread.join()
    with running_server(small, memory=0.3, address=server.address):
        assert [sample[0] for sample in data_set.__getitems__(drawn[40:])] == order[40:]


# -- Ctrl-C and lost processes ---------------------------------------------------------------------------------------

TRAINING = """
import json, os, signal, sys, time, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch
from torch.utils.data import DataLoader
from brand.torch import BrandDataset, BrandLoader, BrandSampler

path, kind, when = sys.argv[1:]

told = threading.Lock()

def tell():
    print(json.dumps([data_set.stats()["process"], data_set._source.port.client.address]), flush=True)

def slowly(sample):
    if when == "before the first batch" and told.acquire(blocking=False):
        tell()
    time.sleep(0.001 if when == "between batches" else 0.1)
    return sample

data_set = BrandDataset(path, fields=("index",), memory=0.3, transform=slowly)
sampler = BrandSampler(data_set)
if kind == "BrandLoader":
    loader = BrandLoader(data_set, 2 if when == "between batches" else 64, sampler=sampler, num_workers=2)
else:
    loader = DataLoader(data_set, 2, sampler=sampler, num_workers=2, multiprocessing_context="fork")
for number, batch in enumerate(loader):
    if number == 3:
        tell()
        while True:
            time.sleep(0.1)  # a Ctrl-C that comes just before a sleep ends none: it is seen after it
"""


@contextlib.contextmanager
def training(*arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """A training in a session of its own, its server's process and address, from when it draws."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        server, address = json.loads(line)
        yield process, server, address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def nothing_left(session: int, server: int, address: str) -> None:
    """Wait until no process of the training and no server is there."""
    wait_until(lambda: not session_processes(session), "all processes of the training have ended")
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server has ended")
    with pytest.raises(ServerError):
        look_at(address)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BrandLoader", "DataLoader"])
def test_ctrl_c_ends_everything(small: Path, kind: str) -> None:
    """To all processes of the terminal, as Ctrl-C goes; the training says KeyboardInterrupt and nothing else."""
    with training(small, kind, "between batches") as (process, server, address):
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == -signal.SIGINT
        assert said.decode().strip().splitlines()[-1] == "KeyboardInterrupt"
        if kind == "BrandLoader":
            assert said.decode().count("Traceback") == 1
        nothing_left(process.pid, server, address)


@pytest.mark.slow
def test_ctrl_c_while_the_training_waits_for_a_batch(small: Path) -> None:
    """Which is still being decoded."""
    with training(small, "BrandLoader", "before the first batch") as (process, server, address):
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == -signal.SIGINT
        assert said.decode().strip().splitlines()[-1] == "KeyboardInterrupt"
        nothing_left(process.pid, server, address)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BrandLoader", "DataLoader"])
def test_a_training_that_is_killed_leaves_nothing(small: Path, kind: str) -> None:
    """Its workers and its server notice."""
    with training(small, kind, "between batches") as (process, server, address):
        process.kill()
        process.wait()
        nothing_left(process.pid, server, address)


HALF_USED = """
import os
import sys
from brand.torch import BrandDataset, BrandLoader

loader = BrandLoader(BrandDataset(sys.argv[1], memory=0.5), 4, num_workers=2)
abandoned = iter(loader)
next(abandoned)
batches = iter(loader)
next(batches)
os.kept = abandoned, batches  # until most modules are gone, as where a framework holds the script's module
"""


@pytest.mark.slow
def test_a_script_that_ends_within_an_iteration_says_nothing(small: Path) -> None:
    """Two iterations at the top of a module, each with one batch taken: nothing is printed at the end."""
    command = [sys.executable, "-W", "error", "-c", HALF_USED, str(small)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


COLLECTED = """
import concurrent.futures.thread as pools, gc, sys, threading, time
from brand.torch import BrandDataset, BrandLoader

loader = BrandLoader(BrandDataset(sys.argv[1], server="none"), 1, num_workers=1, prefetch_batches=4)
batches = iter(loader)
next(batches)
iteration = loader._epoch
gc.disable()
pools._global_shutdown_lock.acquire()
while sys._current_frames()[iteration._thread.ident].f_code is not pools.ThreadPoolExecutor.submit.__code__:
    if not iteration._ready.empty():
        next(batches)
    time.sleep(0.01)
del iteration, loader  # the producer waits for the lock of all pools
circle = [batches]
circle.append(circle)
del batches, circle
gc.collect()
pools._global_shutdown_lock.release()
end = time.monotonic() + 300
while any(thread.name in ("brand-draw", "brand-close") for thread in threading.enumerate()):
    assert time.monotonic() < end, threading.enumerate()
    time.sleep(0.01)
print("ended")
"""


@pytest.mark.slow
def test_the_garbage_collector_may_run_in_a_thread_that_holds_the_lock_of_all_pools(tmp_path: Path) -> None:
    """As `submit` does while it starts a thread. The producer needs that lock before it can stop."""
    pack([{"n": n} for n in range(64)], tmp_path / "small.brand", {"n": "int"}, jobs=1)
    ended = subprocess.run(
        [sys.executable, "-c", COLLECTED, tmp_path / "small.brand"],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr


@pytest.mark.slow
def test_the_garbage_collector_may_close_an_iteration_whose_thread_is_ending(tmp_path: Path) -> None:
    """Python 3.11 forgets the lock of such a thread, and `Thread.join` waits for ever."""
    pack([{"n": n} for n in range(64)], tmp_path / "small.brand", {"n": "int"}, jobs=1)
    data = BrandDataset(tmp_path / "small.brand", server="none")
    gc.disable()
    try:
        for pause in range(100):
            batches = iter(BrandLoader(data, 16, num_workers=1))
            next(batches)
            circle: list[Any] = [batches]
            circle.append(circle)
            end = time.perf_counter() + pause * 2e-5  # the thread ends within these two milliseconds
            while time.perf_counter() < end:
                pass
            del batches, circle
            gc.collect(1)
    finally:
        gc.enable()
