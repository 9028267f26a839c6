"""A training in a container, without a container engine: it is process 1, and system calls are refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from brand import anonymous
from brand.formats.preparation import DecodeImage
from brand.node.client.connector import look_at
from brand.node.memory.arena import Arena
from brand.node.serve import lifetime, requests
from brand.node.serve.lifetime import owner_here
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.node.support import servers_of
from tests.sandbox import OTHER_PROC, PROCESS_ONE, environment, needs_namespaces, without
from tests.support import LIMIT_S, wait_until

TRAINING = """
import json, os, sys
from torch.utils.data import DataLoader
from brand.torch import BrandDataset, BrandLoader, BrandSampler

def main():
    ds = BrandDataset(sys.argv[1], fields=("number",), memory=0.5, server=None if sys.argv[3] == "own" else sys.argv[3])
    sampler = BrandSampler(ds, seed=3)
    if sys.argv[2] == "loader":
        loader = BrandLoader(ds, 50, sampler=sampler)
    else:
        workers, _, start = sys.argv[2].partition(":")
        loader = DataLoader(ds, 50, sampler=sampler, num_workers=int(workers), multiprocessing_context=start or None)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            found += batch[0].tolist()
    direct = [sample[0] for sample in ds.__getitems__([5, 900, 17])]
    stats = ds.stats()
    print(json.dumps({"pid": os.getpid(), "found": found, "direct": direct, "problems": stats["problems"]}))

if __name__ == "__main__":
    main()
"""
HOW = ["loader", "0", "2:fork", "2:spawn", "2:forkserver"]


def train(command: tuple[str, ...], data: Path, folder: Path, how: str = "loader", server: str = "own") -> Any:
    """What a training prints that this command runs."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    done = subprocess.run(
        [*command, sys.executable, str(script), str(data), how, server],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def free(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Train without a sandbox, once for each kind of loader, and return what the training prints."""
    return cache(lambda how: train((), texts, tmp_path_factory.mktemp("free"), how))


@places.turns("how")
@pytest.mark.parametrize("how", ["loader", "2:fork", pytest.param("2:spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", [PROCESS_ONE, OTHER_PROC], ids=["process 1", "another /proc"])
def test_a_training_that_is_process_1(
    texts: Path, tmp_path: Path, free: Callable[[str], dict[str, Any]], command: tuple[str, ...], how: str
) -> None:
    """It gets the samples in the order in which every process gets them."""
    needs_namespaces(command)
    outside, inside = free(how), train(command, texts, tmp_path, how)
    assert inside["pid"] == 1
    assert outside["pid"] != 1
    for name in ("found", "direct", "problems"):
        assert inside[name] == outside[name]


ATTACHED = """
import os, sys
import numpy as np
from brand.node.client.client import Client
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire.drawing import Announcement
from brand.storage.dataset.dataset import StoredDataSet
from tests.made_orders import order_of
from tests.node.training import draw_all

data = StoredDataSet(sys.argv[1])
node = Client(ServerSpec(str(data.path), sys.argv[2], 0.3), data.id, data.mean_bytes, "run", attach=True)
order = order_of(data.path)
node.begin(order, 1, Announcement(0))
assert draw_all(node, order, 0, np.arange(90), owner=os.getpid()) == order.plan(0).sample_of[:90].tolist()
print(os.getpid(), flush=True)
input()
"""


def attached(command: tuple[str, ...], data: Path, folder: Path, address: str) -> subprocess.Popen[str]:
    """A process that has fetched from a server at this address, and ends with its standard input."""
    script = folder / "attached.py"
    script.write_text(ATTACHED)
    run = [*command, sys.executable, str(script), str(data), address]
    return subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())


def check_outlives_its_first_client(texts: Path, tmp_path: Path, prefix: tuple[str, ...], number: str) -> None:
    """A server that a process has started serves a second client after the end of the first, and ends with the second.

    `prefix` starts the second one, which says `number` as its own, if that is given.
    """
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as first,
        running_server(texts, owners=(first.pid,)) as server,
    ):
        with attached(prefix, texts, tmp_path, server.address) as client:
            assert client.stdout is not None
            said = client.stdout.readline()
            assert said == number if number else said
            first.kill()
            first.wait()
            for _ in range(20):
                time.sleep(0.05)
                assert server.facts()["clients"] >= 1
            client.communicate("\n")
        wait_until(lambda: not server.thread.is_alive(), "it ends with its last client")


def test_a_server_lives_as_long_as_a_client_of_another_container(texts: Path, tmp_path: Path) -> None:
    """The client is process 1 of its PID namespace and shares the network: its number here is another one."""
    needs_namespaces()
    check_outlives_its_first_client(texts, tmp_path, PROCESS_ONE, "1\n")


def test_a_server_in_a_container_whose_client_it_cannot_see(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells no number of the client: the server lives as long as the connection, and a while."""
    monkeypatch.setattr(lifetime, "LINGER_S", 0.05)
    monkeypatch.setattr(requests, "peer", lambda _: (0, os.getuid()))
    monkeypatch.setattr(requests, "pid_namespace", lambda: 1)
    check_outlives_its_first_client(texts, tmp_path, (), "")


def test_two_containers_share_a_server(texts: Path, tmp_path: Path) -> None:
    """Both trainings are process 1: they are two, and neither skips samples."""
    needs_namespaces()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda n: train(PROCESS_ONE, texts, made(tmp_path / str(n)), server="common"), range(2)))
    assert [each["pid"] for each in found] == [1, 1]
    assert sorted(found[0]["found"]) == sorted(found[1]["found"]) == sorted(2 * list(range(1200)))
    assert not any(each["problems"] for each in found)


def made(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir()
    return folder


def test_whose_numbers_name_the_owner() -> None:
    """The number in the message counts in this namespace only; elsewhere the kernel's number of the client does."""
    assert owner_here(1, 7, 4242, 8) == 4242
    assert owner_here(1, 7, 0, 8) == 0
    assert owner_here(1, 8, 4242, 8) == 1
    assert owner_here(1, 0, 4242, 8) == owner_here(1, 0, 4242, 0) == 4242


REFUSED = {
    "pidfd": {"pidfd_open": "EPERM"},
    "memfd": {"memfd_create": "ENOSYS"},
    "both": {"pidfd_open": "ENOSYS", "memfd_create": "EPERM"},
}


@places.turns("how")
@pytest.mark.parametrize("how", ["loader", "2:fork", pytest.param("2:spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_training_whose_sandbox_refuses_calls(
    texts: Path, tmp_path: Path, free: Callable[[str], dict[str, Any]], refused: dict[str, str], how: str
) -> None:
    """As gVisor and old container runtimes do. The order and the samples are the same, and the server ends after it."""
    command, before = without(**refused), set(servers_of(texts))
    found, wanted = train(command, texts, tmp_path, how), free(how)
    for name in ("found", "direct", "problems"):
        assert found[name] == wanted[name]
    wait_until(lambda: set(servers_of(texts)) <= before, "its server ends")


@pytest.mark.slow
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_nodes_and_decode_workers_in_a_sandbox(photos_set: Path, refused: dict[str, str]) -> None:
    """`brand launch` notices that a node has ended; the decode workers decode."""
    run = [*without(**refused), sys.executable, "-m", "brand", "launch", str(photos_set), "--local", "2"]
    run += ["--memory", "0.9", "--decoded-memory", "2MB", "--decode-workers", "1"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        addresses = process.stdout.readline().split()
        assert len(addresses) == 2, process.stderr.read()
        processes = [look_at(address)["process"] for address in addresses]
        os.kill(processes[1], signal.SIGKILL)
        said = ""
        while "continue without it" not in said:
            said = process.stderr.readline()
            assert said
        ds = BrandDataset(photos_set, server=addresses[0], decode={"image": DecodeImage(size=(16, 24))})
        with closing(ds._source.port.client):
            count = sum(
                len(batch["image"]) for batch in BrandLoader(ds, 4, sampler=BrandSampler(ds, num_replicas=1, rank=0))
            )
            assert count == len(ds)
            assert ds.stats()["decoding"]["decoded"] > 0
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1


def test_a_file_for_memory_where_there_is_no_memfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed at once, with its space; another process gets a descriptor for reading. A full disk is an error now."""
    monkeypatch.setattr(os, "memfd_create", refuse_call)
    monkeypatch.setattr(anonymous, "SHARED_FILES", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arena = Arena(4, 4096)
    arena.pages[3] = 7
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(arena.descriptor).st_blocks * 512 >= 4 * 4096
    assert os.pread(arena.descriptor, 4096, 3 * 4096) == bytes([7]) * 4096
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(arena.descriptor, b"x", 0)
    arena.close()
    with pytest.raises(
        OSError, match=r"memfd_create is refused here, and neither .* can hold a file of 1,125,899,906,842,624 bytes"
    ):
        Arena(1 << 38, 4096)
    assert list(tmp_path.iterdir()) == []


def refuse_call(*_: object) -> int:
    """As a filter of a container does."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
NO_SHM = 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "refused", "missing"),
    [
        ((*PROCESS_ONE, "sh", "-c", SMALL_SHM, "sh"), {}, set()),
        (OTHER_PROC, REFUSED["memfd"], {"shared memory"}),
        (("unshare", "-rm", "sh", "-c", NO_SHM, "sh"), REFUSED["pidfd"], {"DataLoader", "/dev/shm", "kernel"}),
    ],
    ids=["process 1, 64 MB /dev/shm", "another /proc, no memfd", "no /dev/shm, no pidfd"],
)
def test_doctor_names_what_is_missing(command: tuple[str, ...], refused: dict[str, str], missing: set[str]) -> None:
    """And nothing else; a training works in each of these."""
    needs_namespaces(command)
    if refused:
        command = (*command, *without(**refused))
    run = [*command, sys.executable, "-m", "brand", "doctor", "--json"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    found = json.loads(done.stdout)
    assert (done.returncode, found["problems"]) == (0, 0), done.stdout
    parts = [each for each in found["findings"] if each["part"] != "installed" and each["state"] == "missing"]
    assert {each["name"] for each in parts} - {"page cache", "cache", "compiled"} == missing
