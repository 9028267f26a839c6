"""Nodes of one job find each other through its store."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from brand.errors import ServerError, UsageError
from brand.torch import BrandDataset
from brand.torch.job import discovery
from brand.torch.job.discovery import JobNodes, find_nodes
from brand.torch.job.ranks import master, node_by_launcher
from brand.torch.job.resolver import ServerResolver
from tests.support import LIMIT_S


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store of a job, at an address that the environment says."""
    hosted = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S)
    )
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(hosted.port))
    return hosted


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, (0, 1)),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_NODEID": "2",
                "SLURM_STEP_NUM_NODES": "4",
                "MASTER_ADDR": "10.0.0.1",
            },
            (2, 4),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),
    ],
)
def test_what_launchers_say(environment: dict[str, str], expected: tuple[int, int] | None) -> None:
    """torchrun, Slurm, one machine by its loopback, or nothing."""
    assert node_by_launcher(environment) == expected


@pytest.mark.parametrize("environment", [{}, {"MASTER_ADDR": "host"}, {"MASTER_ADDR": "host", "MASTER_PORT": "x"}])
def test_a_store_that_nobody_names(environment: dict[str, str]) -> None:
    """The error says what the environment says."""
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        master(environment)


def _resolver(path: Path, **options: Any) -> ServerResolver:
    return BrandDataset(path, **options)._source.port.resolver


def test_nodes_meet(store: Any) -> None:
    """All get the same token and learn where the others listen; a server that is started anew gets its old address."""
    jobs = [JobNodes("job", node, 3) for node in range(3)]
    members = [job.member() for job in jobs]
    assert len({member.token for member in members}) == 1
    assert len(members[0].token) == 64
    assert [(member.node, member.nodes, member.bind) for member in members] == [(n, 3, "127.0.0.1:0") for n in range(3)]
    met: dict[int, list[str | None]] = {}
    threads = [
        threading.Thread(target=lambda job=job: met.update({job.node: job.meet(f"127.0.0.1:{7000 + job.node}")}))
        for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert met[1] == ["127.0.0.1:7000", None, "127.0.0.1:7002"]
    assert jobs[2].member().bind == "127.0.0.1:7002"
    other = JobNodes("another job", 0, 3).member()
    assert other.token != members[0].token


def test_two_that_say_they_are_the_same_node(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told so."""
    monkeypatch.setattr(discovery, "LIMIT_S", 0.2)
    with pytest.raises(ServerError, match="no data server on node 1 within"):
        JobNodes("job", 0, 2).meet("127.0.0.1:1")
    with pytest.raises(ServerError, match="two nodes say that they are node 0"):
        JobNodes("job", 0, 2).meet("127.0.0.1:2")


@pytest.mark.parametrize("which", ["memory=", "peer_memory=", "cache=", "MASTER_ADDR=", "the data set "])
def test_nodes_with_other_options_learn_what_differs(
    store: Any, monkeypatch: pytest.MonkeyPatch, small: Path, which: str
) -> None:
    """They look for each other under other names. What the other one has used before and is like here is not named."""
    monkeypatch.setattr(discovery, "LIMIT_S", 1.0)
    keys = _resolver(small, memory="1GB").job_keys()
    assert set(keys) > {"memory=", "peer_memory=", "cache=", "MASTER_ADDR=", "the data set "}
    other = {**keys, which: "another"}
    for name, of, have in (("x", 1, dict.fromkeys(keys, "far")), ("y", 1, other), ("z", 0, keys)):
        with pytest.raises(ServerError) as refused:
            JobNodes(name, of, 2, keys=have).meet(f"127.0.0.1:{of + 1}")
    ours = re.escape(f"{which}another (here {keys[which]})")
    assert re.fullmatch(
        f"no data server on node 1 within 1 s: node 1 has {ours}; give all of them the same", str(refused.value)
    )


def test_ranks_with_other_options_learn_what_differs(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where ranks tell each other where they are."""
    monkeypatch.setattr(discovery, "LIMIT_S", 0.2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(discovery, "_store_of_group", lambda: store)
    with pytest.raises(ServerError, match="do all ranks fetch from the same data set"):
        find_nodes(1, 2, "one", {"memory=": "0.5"})
    with pytest.raises(
        ServerError, match=r"rank 1 of 2 ranks has not .*: rank 1 has memory=0.5 \(here 0.25\); give all"
    ):
        find_nodes(0, 2, "other", {"memory=": "0.25"})


@pytest.mark.parametrize("address", ["127.0.1.1:7000", "[::1]:7000"])
def test_a_node_that_publishes_loopback(store: Any, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """On several machines it is an error on each of them, with a way out; on one machine it is fine."""
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setattr(discovery, "master", lambda: ("127.0.0.1", store.port))
    networks, here = {0: "here", 1: "there"}, threading.local()
    monkeypatch.setattr(discovery, "this_network", lambda: networks[here.node])
    said: dict[int, list[str]] = {0: [], 1: []}

    def meet(name: str, node: int) -> None:
        here.node = node
        try:
            said[node].append(str(JobNodes(name, node, 2).meet(address if node == 0 else "10.0.0.2:7000")))
        except UsageError as error:
            said[node].append(str(error))

    for name in ("apart", "together"):
        threads = [threading.Thread(target=meet, args=(name, node)) for node in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        networks[1] = "here"
    for node in range(2):
        assert said[node][0].startswith(f"the data server of node 0 listens at {address}, which no other node reaches")
        assert "MASTER_ADDR=node0 means loopback: set MASTER_ADDR" in said[node][0]
    assert [said[node][1] for node in range(2)] == ["[None, '10.0.0.2:7000']", f"[{address!r}, None]"]


@pytest.mark.slow
def test_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there: the error names it, and what to do."""
    monkeypatch.setattr(discovery, "LIMIT_S", 0.2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ServerError, match=r"store at 127.0.0.1:1 cannot be reached.*init_process_group"):
        JobNodes("job", 0, 2).member()


@pytest.mark.slow
def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is there, and rank 0 is not: nobody waits for it without a limit."""
    monkeypatch.setattr(discovery, "LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(listener.getsockname()[1]))
        with pytest.raises(ServerError, match=r"cannot be reached, so nodes cannot find each other: no answer in 0 s"):
            JobNodes("job", 0, 2).member()


def test_before_the_process_group_each_node_is_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody says where ranks are: a warning, and no waiting for ranks that may wait for this one."""
    assert find_nodes(0, 2, "job") is None
    assert "init_process_group" in caplog.text


ALONE = """
import os, pickle, sys, torch.distributed
from brand.torch import BrandDataset
from brand.torch.job import discovery

lives, life = os.pipe()
child = os.fork()
store = torch.distributed.FileStore(sys.argv[2], 2)
torch.distributed.init_process_group("gloo", store=store, rank=0 if child else 1, world_size=2)
if not child:
    os.close(life)
    os.read(lives, 1)  # until rank 0 has ended, however that came about
    os._exit(0)
discovery.LIMIT_S = 0.2
data_set = BrandDataset(sys.argv[1], fields=("index",))
print(data_set[3], data_set.stats())
for ask in (lambda: data_set._source.port.order(0), lambda: pickle.dumps(data_set)):
    try:
        ask()
    except Exception as error:
        print(error)
"""


@pytest.mark.slow
def test_a_data_set_waits_for_other_ranks_when_it_draws_and_not_before(small: Path, tmp_path: Path) -> None:
    """Rank 0 opens a data set and reads from it; only its order, and a copy for a worker, need to know the nodes."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-c", ALONE, str(small), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment)
    missing = "rank 1 of 2 ranks has not used the BrandDataset within 0 s: do all ranks fetch from the same data set?"
    assert done.stdout.splitlines() == ["(3,) {}", missing, missing]


FORKED = """
import os, sys, torch.distributed
from brand.torch.job.discovery import JobNodes

store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
token = JobNodes("job", 0, 2).member().token

def ask():
    assert all(JobNodes("job", 0, 2).member().token == token for _ in range(20))

children, (waits, go) = [], os.pipe()
for _ in range(4):
    child = os.fork()
    if not child:
        os.close(go)
        os.read(waits, 1)  # until all are there: none is forked while PyTorch looks up the name of another
        try:
            ask()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(go)
ask()
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_forked_workers_have_connections_to_the_store_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four that ask at the same time as their training get their own answers, and find the same job."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
