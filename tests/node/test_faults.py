"""Processes die at any moment: nothing is left behind, and the next start works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.errors import ServerError
from brand.node.client.client import Client
from brand.node.serve import lifetime
from brand.node.wire.drawing import Announcement
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import random_address, running_server
from brand.torch import BrandDataset, BrandSampler
from tests.made_orders import order_of
from tests.node.conftest import SAMPLES, text
from tests.node.support import greeted, listeners, servers_of
from tests.node.training import draw_all, node_for
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, runs, session_processes, wait_until


def left_behind() -> set[str]:
    """Shared memory with a name that could be ours."""
    return {name for name in os.listdir("/dev/shm") if "brand" in name}


class Training:
    """`tests.node.training` in a session of its own, or in a process `group` of this one (0: its own)."""

    def __init__(
        self,
        path: Path,
        address: str,
        *,
        workers: int = 2,
        epochs: int = 3,
        stops: Sequence[int] = (),
        group: int | None = None,
        deaf: bool = False,
        temporary: Path | None = None,
        files: int | None = None,
    ) -> None:
        limit = [] if files is None else ["sh", "-c", f'ulimit -Sn {files}; exec "$@"', "sh"]
        command = [
            *limit,
            sys.executable,
            "-m",
            "tests.node.training",
            path,
            address,
            workers,
            epochs,
            "".join(f"{batch}," for batch in stops),
            *(["deaf"] * deaf),
        ]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=group is None,
            process_group=group,
            env=os.environ | ({} if temporary is None else {"TMPDIR": str(temporary)}),
        )
        self.pid, self.text = self.process.pid, ""
        self.server, self.workers = 0, list[int]()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            self.text += data.decode()

    def started(self) -> None:
        """Wait for the first batch."""
        wait_until(lambda: "\n" in self.text or self.process.poll() is not None, "the first batch")
        facts = json.loads(self.text.splitlines()[0])
        self.server, self.workers = facts["server"], facts["workers"]

    def at(self, batches: int) -> None:
        """Wait for so many batches, or the end."""
        wait_until(lambda: self.text.count(".") >= batches or self.process.poll() is not None, "batches come")

    def result(self) -> list[str]:
        """What it said of its epochs, when it has ended by itself; empty where it failed."""
        code = self.process.wait(LIMIT_S)
        self._thread.join()
        self._said.seek(0)
        assert code == 0, self._said.read().decode()
        return [line for line in self.text.splitlines() if line.startswith("epoch")]

    def close(self) -> None:
        """End it, however."""
        for process in session_processes(self.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self._said.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def training(path: Path, address: str, **more: object) -> Iterator[Training]:
    """A training that ends with the block, and its server with it."""
    started = Training(path, address, **more)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        started.close()
        for process in servers_of(path):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not listeners(address), "the server has ended")


@pytest.mark.slow
@rounds(2)
def test_kill_9_at_any_moment(texts: Path, tmp_path: Path, chance: Chance) -> None:
    """Of the training, of a worker or of the server: nothing is left, and the next training finds its way."""
    rng, address, data = chance.rng, random_address(), StoredDataSet(texts)
    victim = ("training", "worker", "server")[chance.number % 3]
    before = left_behind()
    with training(texts, address, epochs=1000, temporary=tmp_path) as victims:
        if rng.random() < 0.8:
            victims.started()
            victims.at(rng.randint(1, 90))
        else:  # while it starts
            time.sleep(rng.uniform(0, 0.6))
            victim = "training"
        time.sleep(rng.uniform(0, 0.005))
        target = {"training": victims.pid, "worker": (victims.workers or [0])[0], "server": victims.server}[victim]
        os.kill(target, signal.SIGKILL)
        if victim == "server":  # it is replaced, and the epochs go on
            done = victims.text.count("right")
            wait_until(lambda: victims.text.count("right") > done + 1, "two more epochs")
            assert "WRONG" not in victims.text
            victims.process.kill()
        victims.process.wait()
        wait_until(lambda: not session_processes(victims.pid), "training and workers have ended")
        wait_until(lambda: not listeners(address), "nobody listens any more")
        wait_until(lambda: not servers_of(texts), "the server has ended")
        node, order = node_for(data, address, "next"), order_of(data.path)
        with closing(node):
            node.begin(order, 1, Announcement(0))
            found = draw_all(node, order, 0, np.arange(SAMPLES), owner=os.getpid())
            assert found == order.plan(0).sample_of.tolist()
            server = node.stats()["process"]
        os.kill(server, signal.SIGTERM)
        wait_until(lambda: not runs(server), "it ends when it is told to")
    assert list(tmp_path.iterdir()) == []
    assert left_behind() == before
    assert not listeners(address)


@pytest.mark.slow
def test_a_server_that_is_killed_is_replaced(texts: Path) -> None:
    """Again and again in the middle of an epoch: each epoch brings each sample once, in the order of its plan."""
    address = random_address()
    with training(texts, address, epochs=4, stops=[11, 58, 105]) as going:
        going.started()
        killed = set()
        for _ in range(3):
            wait_until(lambda: Path(f"/proc/{going.pid}/stat").read_text().rpartition(") ")[2][0] == "T", "it stops")
            for process in servers_of(texts):
                killed.add(process)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.kill(going.pid, signal.SIGCONT)
        lines = going.result()
    assert [line.split()[:3] for line in lines] == [["epoch", str(n), "right"] for n in range(4)]
    assert len(killed) == 3
    assert int(lines[-1].split()[-1]) not in killed


@pytest.mark.slow
def test_a_server_that_is_killed_while_many_threads_have_connections(texts: Path) -> None:
    """Each thread of a training has a connection to the old one; whoever draws next finds the new one."""
    data_set = BrandDataset(texts, fields=("index",), memory=0.3)
    sampler = BrandSampler(data_set)
    asked = list(sampler)
    want = StoredDataSet(texts).indices(sampler.order.plan(0).sample_of).tolist()
    everybody, client = threading.Barrier(6), data_set._source.port.client
    assert isinstance(client, Client)
    try:

        def draw() -> None:
            connection = client._connector.connect(os.getpid())
            everybody.wait()
            client._idle.append(connection)

        threads = [threading.Thread(target=draw) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server = data_set.stats()["process"]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not runs(server), "it is dead")
        assert [index for (index,) in data_set.__getitems__(asked[:50])] == want[:50]
    finally:
        server = data_set.stats()["process"]
        data_set._source.port.client.close()
        os.kill(server, signal.SIGKILL)
    wait_until(lambda: not runs(server), "it has ended")


@pytest.mark.slow
def test_a_server_lives_as_long_as_its_last_owner(texts: Path) -> None:
    """Two trainings share a server; the one that started it ends first."""
    address = random_address()
    with training(texts, address, epochs=1000) as first:
        first.started()
        with training(texts, address, epochs=1000) as second:
            second.started()
            assert second.server == first.server
            first.process.kill()
            first.process.wait()
            wait_until(lambda: not session_processes(first.pid), "the first has ended")
            done = second.text.count("right")
            wait_until(lambda: second.text.count("right") > done + 1, "the second goes on")
            assert runs(first.server)
            assert servers_of(texts) == [first.server]
            second.process.kill()
            second.process.wait()
            wait_until(lambda: not runs(first.server), "the server ends with the second")


@pytest.mark.slow
def test_ctrl_c_does_not_take_the_server_from_others(texts: Path) -> None:
    """The whole process group gets SIGINT; a training that ignores it goes on with the server of one that does not."""
    address = random_address()
    with training(texts, address, epochs=1000, group=0) as first:
        first.started()
        with training(texts, address, epochs=1000, group=first.pid, deaf=True) as second:
            second.started()
            assert second.server == first.server
            os.killpg(first.pid, signal.SIGINT)
            assert first.process.wait(LIMIT_S) != 0
            done = second.text.count("right")
            wait_until(lambda: second.text.count("right") > done + 1, "the second goes on")
            # A server that a training has started on a busy machine while this one was slow to answer ends by itself.
            wait_until(lambda: servers_of(texts) == [first.server], "there is the one server")


@pytest.mark.slow
def test_a_server_that_nobody_is_connected_to_ends(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner lives, and has dropped its data set: after `LINGER_S` it ends. One that nobody owns stays."""
    monkeypatch.setattr(lifetime, "LINGER_S", 0.05)
    with running_server(texts, owners=(os.getpid(),)) as owned, running_server(texts) as served:
        with greeted(owned.address, texts) as client:
            client.stats()
        wait_until(lambda: not owned.thread.is_alive(), "it ends")
        assert not listeners(owned.address)
        assert served.facts()["clients"] == 1


def test_a_server_whose_owner_is_gone_before_it_starts(texts: Path) -> None:
    """It ends at once."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with running_server(texts, owners=(process.pid,)) as server:
        wait_until(lambda: not server.thread.is_alive(), "it ends")


def dies_at_its_start(folder: Path, times: int) -> str:
    """A Python that is killed so many times before it has done anything."""
    program, deaths = folder / "python", folder / "deaths"
    program.write_text(
        f'#!/bin/sh\n[ "$(cat {deaths} 2>/dev/null | wc -l)" -ge {times} ] || {{ echo >> {deaths}; kill -9 $$; }}\n'
        f'exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_starts(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is started; where that dies as well, again and again, the error says so."""
    data, address = StoredDataSet(texts), random_address()
    order = order_of(data.path)
    with monkeypatch.context() as patch, closing(node_for(data, address, "run")) as node:
        patch.setattr(sys, "executable", dies_at_its_start(tmp_path, 2))
        found = draw_all(node, order, 0, np.arange(100), owner=os.getpid())
        assert found == order.plan(0).sample_of[:100].tolist()
        server = node.stats()["process"]
    os.kill(server, signal.SIGTERM)
    wait_until(lambda: not runs(server), "it has ended")
    with monkeypatch.context() as patch, closing(node_for(data, random_address(), "run")) as node:
        patch.setattr(sys, "executable", dies_at_its_start(tmp_path, 99))
        with pytest.raises(ServerError, match="ended before it listened"):
            node.draw(order, 0, np.arange(10), owner=os.getpid())


@pytest.mark.slow
def test_many_start_a_server_at_once(texts: Path) -> None:
    """Six threads find none and start one each: one listens, and all draw from it."""
    data, address = StoredDataSet(texts), random_address()
    found: list[int] = []
    everybody = threading.Barrier(6)

    def start() -> None:
        with closing(node_for(data, address, "run")) as node:
            everybody.wait()
            found.append(node.stats()["process"])
            everybody.wait()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    os.kill(found[0], signal.SIGTERM)
    wait_until(lambda: not servers_of(texts), "no server is left")


@pytest.mark.slow
def test_more_chunks_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    """300 chunks, eight threads that read, 400 descriptors (usual are 1,024, for more chunks): no read fails."""
    path, address = tmp_path / "chunks.brand", random_address()
    samples = [{"number": number, "text": text(number)} for number in range(SAMPLES)]
    brand.pack(samples, path, {"number": "int", "text": "str"}, chunk_size=4, compression="none", jobs=1)
    with training(path, address, epochs=1000, files=400) as going:
        going.started()
        with closing(node_for(StoredDataSet(path), address, "other")) as node:
            for epoch in range(1, 9):
                wait_until(lambda epoch=epoch: going.text.count("right") >= epoch, "epochs")  # type: ignore[misc]
                facts = node.stats()
                assert facts["failed_reads"] == 0
                assert len(os.listdir(f"/proc/{going.server}/fd")) < 390


ORPHAN = '''
import multiprocessing, sys, time
from torch.utils.data import DataLoader, get_worker_info
from brand.torch import BrandDataset, BrandSampler

class Late(BrandDataset):
    """Its workers draw their first batches, and others when their training process is dead."""

    calls = 0

    def __getitems__(self, indices):
        self.calls += 1
        if get_worker_info() is not None and self.calls > 2:
            (self.path.parent / "waiting").touch()
            multiprocessing.parent_process().join()
            while True:  # until it ends
                super().__getitems__(indices)
        return super().__getitems__(indices)

if __name__ == "__main__":
    data_set = Late(sys.argv[1], fields=("number",), memory=0.5)
    sampler = BrandSampler(data_set)
    context = sys.argv[2]
    loader = DataLoader(data_set, 16, sampler=sampler, num_workers=1, collate_fn=list, prefetch_factor=4,
                        multiprocessing_context=context)
    batches = iter(loader)
    next(batches)
    time.sleep(1000)
'''


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_worker_that_outlives_its_training_starts_no_server(texts: Path, tmp_path: Path, context: str) -> None:
    """kill -9 of the training: a worker that has batches left to draw ends, and no server is left."""
    data_set = tmp_path / "texts.brand"
    subprocess.run(["cp", "-a", str(texts), str(data_set)], check=True)
    script = tmp_path / "training.py"
    script.write_text(ORPHAN)
    command = [sys.executable, str(script), str(data_set), context]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as training:
        try:
            wait_until((tmp_path / "waiting").exists, "a worker is about to draw")
            before = set(servers_of(data_set))
            training.kill()
            wait_until(lambda: not session_processes(training.pid), "the worker has ended")
            assert set(servers_of(data_set)) <= before
            wait_until(lambda: not servers_of(data_set), "no server is left")
        finally:
            for process in servers_of(data_set):
                os.kill(process, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(training.pid, signal.SIGKILL)
