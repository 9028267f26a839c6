"""`brand serve --node --peers`: nodes that are started by hand meet, agree or say why not, go and come back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from brand.chunker import convert_images
from brand.cluster.launcher import free_ports
from brand.node.client.connector import look_at
from tests.cli.test_launch import certificate, check_draws
from tests.several_nodes.support import TOKEN
from tests.support import LIMIT_S, brand, options, wait_until

pytestmark = pytest.mark.slow


class Served:
    """`brand serve` in a process of its own, and what it has said so far."""

    def __init__(self, *args: object, token: str | None = TOKEN) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "BRAND_TOKEN"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brand", "serve", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | ({} if token is None else {"BRAND_TOKEN": token}),
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self.address = ""
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._wait)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))

    def _wait(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.address = line.strip()

    def says(self, pattern: str, *, times: int = 1) -> None:
        """Wait for lines that match."""

        def said() -> bool:
            return sum(bool(re.search(pattern, line)) for line in self.said) >= times

        wait_until(lambda: said() or self.process.poll() is not None, f"{pattern} in {self.said}")
        if not said():  # it has ended; what it said last may not have been read
            self._threads[0].join(LIMIT_S)
        assert said(), f"{pattern} in {self.said}"

    def ends(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join(LIMIT_S)
        return code

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.ends()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what was started."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def peers() -> Iterator[list[str]]:
    """Addresses for three nodes."""
    with free_ports(3) as ports:
        yield [f"127.0.0.1:{port}" for port in ports]


@contextmanager
def serving(*args: object, token: str | None = TOKEN) -> Iterator[Served]:
    """A node for the length of the block."""
    served = Served(*args, token=token)
    try:
        yield served
    finally:
        served.close()


def reachable(node: Served) -> list[int]:
    """Which others a node can ask, as `brand top` sees it; none before it listens."""
    found: list[int] = look_at(node.address)["cluster"]["reachable"] if node.address else []
    return found


def three(started: ExitStack, path: Path, peers: list[str]) -> list[Served]:
    """Three nodes that have met."""
    nodes = [
        started.enter_context(serving(path, "--memory", "0.5", "--node", node, "--peers", ",".join(peers)))
        for node in range(3)
    ]
    for node in nodes:
        node.says("^all 3 nodes are connected$")
    return nodes


def test_nodes_started_by_hand_serve_each_other(started: ExitStack, own_photos_set: Path, peers: list[str]) -> None:
    """Each has an address of its own, alone on stdout; every sample is drawn once over all of them."""
    nodes = three(started, own_photos_set, peers)
    for number, node in enumerate(nodes):
        assert re.fullmatch(
            rf"serving {own_photos_set} with [\d.]+ kB for samples, process {node.process.pid}", node.said[0]
        )
        assert node.said[1] == f"node {number} of 3 listens at {peers[number]}, not encrypted"
        assert node.said[2] == f'attach with: BrandDataset("{own_photos_set}", server="{node.address}")'
        assert reachable(node) == [other for other in range(3) if other != number]
    assert len({node.address for node in nodes}) == 3
    check_draws([own_photos_set] * 3, [node.address for node in nodes])
    for node in nodes:
        node.process.send_signal(signal.SIGINT)
    assert [node.ends() for node in nodes] == [0, 0, 0]


def test_a_node_that_goes_and_comes_back_is_told(started: ExitStack, own_photos_set: Path, peers: list[str]) -> None:
    """The others say who is missing, and when all are there again."""
    nodes = three(started, own_photos_set, peers)
    nodes[1].process.kill()
    for node in (nodes[0], nodes[2]):
        node.says(rf"^node 1 at {peers[1]} is lost: ")
        node.says(rf"^waiting for 1 of 3 nodes: node 1 at {peers[1]}")
    again = started.enter_context(serving(own_photos_set, "--memory", "0.5", "--node", 1, "--peers", ",".join(peers)))
    for node in (nodes[0], nodes[2]):
        node.says("^all 3 nodes are connected$", times=2)
    again.says("^all 3 nodes are connected$")


def test_a_node_alone_says_for_whom_it_waits(own_photos_set: Path, peers: list[str]) -> None:
    """And goes on waiting; Ctrl-C ends it."""
    with serving(own_photos_set, "--node", 2, "--peers", ",".join(peers)) as node:
        node.says(rf"^waiting for 2 of 3 nodes: node 0 at {peers[0]}.*; node 1 at {peers[1]}.*")
        node.process.send_signal(signal.SIGTERM)
        assert node.ends() == 0


def test_another_data_set_ends_it(photos: Path, own_photos_set: Path, peers: list[str], tmp_path: Path) -> None:
    """The node that finds the other one first; both nodes and both data sets are named, on both sides."""
    convert_images(photos, tmp_path / "other.brand", options(8, seed=1))
    args = ["--peers", ",".join(peers[:2]), "--node"]
    with serving(own_photos_set, *args, 0) as one:
        one.says("listens at")
        with serving(tmp_path / "other.brand", *args, 1) as two:
            wait_until(lambda: any(node.process.poll() is not None for node in (one, two)), "one ends")
            ended, other = (one, two) if two.process.poll() is None else (two, one)
            assert ended.ends() == 2
            other.says(r"^WARNING: ipv4:127\.0\.0\.1\S* is refused: ")
            last, told = ended.said[-1], next(line for line in other.said if "is refused" in line)
    assert re.fullmatch("brand: node [01] serves data set [0-9a-f]{32}, node [01] data set [0-9a-f]{32}", last)
    assert told.endswith(last.removeprefix("brand: "))


def test_the_token_may_be_in_a_file(own_photos_set: Path, peers: list[str], tmp_path: Path) -> None:
    """Or in the first line of standard input; both are the same as in the environment."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    args = [own_photos_set, "--peers", ",".join(peers), "--node"]
    with ExitStack() as nodes:
        found = [
            nodes.enter_context(serving(*args, 0)),
            nodes.enter_context(serving(*args, 1, "--token-file", tmp_path / "token", token=None)),
            nodes.enter_context(serving(*args, 2, "--token-file", "-", token=None)),
        ]
        assert found[2].process.stdin is not None
        found[2].process.stdin.write(f"{TOKEN}\nand more\n")
        found[2].process.stdin.flush()
        for node in found:
            node.says("^all 3 nodes are connected$")


def test_it_ends_with_its_input(own_photos_set: Path, peers: list[str]) -> None:
    """However the holder of the other side has ended; also where it serves alone."""
    alone: list[object] = []
    several = ["--node", 0, "--peers", ",".join(peers)]
    for args, blow in ((alone, signal.SIGTERM), (several, signal.SIGKILL)):
        holder = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        command = [sys.executable, "-m", "brand", "serve", own_photos_set, "--until-eof", *args]
        with subprocess.Popen(
            list(map(str, command)),
            stdin=holder.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"BRAND_TOKEN": TOKEN},
        ) as served:
            assert served.stdout is not None
            assert served.stdout.readline().startswith(b"unix:@")
            holder.send_signal(blow)
            assert served.wait(LIMIT_S) == 0
        holder.wait(LIMIT_S)
        holder.stdout.close()


def test_certificates_encrypt_what_nodes_say(own_photos_set: Path, peers: list[str], tmp_path: Path) -> None:
    """Two that have the same CA meet; one without certificates does not, and a hint says why."""
    tls = certificate(tmp_path)
    args = [own_photos_set, "--peers", ",".join(peers), "--node"]
    with serving(*args, 0, *tls) as one, serving(*args, 1, *tls) as two, serving(*args, 2) as plain:
        one.says(f"^node 0 of 3 listens at {peers[0]}, encrypted$")
        wait_until(lambda: reachable(one) == [1] and reachable(two) == [0], "they meet")
        plain.says(r"waiting for 2 of 3 nodes: .*do both sides use TLS, with the same CA")
        assert reachable(plain) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--node", "0", "--peers", "a:1,b:2"], "nodes that serve each other need a token, the same for all: make one"),
        (["--node", "0", "--peers", "a:1,b:2"], "--token-file token.txt, or have it in the environment variable BRAND"),
        (["--node", "0", "--peers", "a:1,b:2", "--token-file", "EMPTY"], "need a token"),
        (["--node", "0", "--peers", "a:1,b:2", "--token-file", "SHORT"], "a token has at least 16 characters"),
        (["--node", "0", "--peers", "a:1,b:2", "--token-file", "nowhere"], "'nowhere': No such file"),
        (["--node", "0", "--peers", "a:1,b:2", "--token", "on the command line"], "No such option '--token'"),
        (["--node", "0", "--peers", "a:1,b:2", "--tls-cert", "c", "--tls-ca", "c"], "give all three, or none"),
        (["--node", "0", "--peers", "a:1,b:2", "--tls-key", "c"], "give all three, or none"),
        (["--peers", "a:1,b:2"], "which of --peers is this one? Say so with --node"),
        (["--node", "2", "--peers", "a:1,b:2"], "node 2 of 2: --peers lists all nodes in order"),
        (["--node", "0", "--peers", "a,b:2"], "'a' is not an address"),
        (["--node", "0"], "--node is for one of several nodes"),
        (["--bind", "a:1"], "--bind is for one of several nodes"),
        (["--peer-memory", "0.1"], "--peer-memory is for one of several nodes"),
        (["--tls-ca", "c"], "--tls-ca is for one of several nodes"),
        (["--token-file", "SHORT"], "--token-file is for one of several nodes"),
    ],
)
def test_wrong_use(
    own_photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    """One line that says what to do, and exit code 2."""
    monkeypatch.delenv("BRAND_TOKEN", raising=False)
    (tmp_path / "EMPTY").write_text("\n")
    (tmp_path / "SHORT").write_text("short")
    given = [str(tmp_path / arg) if (tmp_path / arg).exists() else arg for arg in args]
    told = brand("serve", own_photos_set, *given)
    assert (told.code, told.out) == (2, "")
    assert says in told.err
    assert "Traceback" not in told.err
    assert told.err.count("\n") == 1 or told.err.startswith("Usage: ")


def test_a_share_is_served_by_its_node_alone(
    own_photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says whose share it is."""
    monkeypatch.setenv("BRAND_TOKEN", TOKEN)
    assert brand("partition", own_photos_set, tmp_path / "{node}", "--nodes", 2).code == 0
    told = brand("serve", tmp_path / "1", "--node", 0, "--peers", "127.0.0.1:1,127.0.0.1:2")
    assert told.code == 2
    assert "1 is the partition of node 1 of 2, but this is node 0 of 2" in told.err


def test_an_address_that_is_taken_is_named(own_photos_set: Path, peers: list[str], started: ExitStack) -> None:
    """Of the node, as of the server."""
    nodes = three(started, own_photos_set, peers)
    again = started.enter_context(serving(own_photos_set, "--node", 0, "--peers", ",".join(peers)))
    assert again.ends() == 2
    assert again.said == [
        f"brand: a program listens at {nodes[0].address} already: attach to it, or give another --address"
    ]
    third = started.enter_context(
        serving(own_photos_set, "--node", 0, "--peers", ",".join(peers), "--address", f"{nodes[0].address}-2")
    )
    assert third.ends() == 1
    assert third.said == [f"brand: the data server cannot listen at {peers[0]}: Address already in use"]


def test_it_may_listen_elsewhere(own_photos_set: Path, peers: list[str], started: ExitStack) -> None:
    """Behind an address that is not its own."""
    port = peers[0].rpartition(":")[2]
    args = [own_photos_set, "--peers", ",".join(peers[:2]), "--node"]
    one = started.enter_context(serving(*args, 0, "--bind", f"0.0.0.0:{port}"))
    two = started.enter_context(serving(*args, 1))
    two.says("^all 2 nodes are connected$")
    one.says("^all 2 nodes are connected$")
    assert f"node 0 of 2 listens at 0.0.0.0:{port}, not encrypted" in one.said


def test_openssl_is_there() -> None:
    """What the documentation makes a token with, and the tests certificates."""
    assert shutil.which("openssl") is not None
