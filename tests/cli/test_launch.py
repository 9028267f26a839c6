"""`brand launch`: all nodes start together, serve each other, and end together, whatever ends first."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from brand.cluster.launcher import free_ports
from brand.errors import ServerError
from brand.formats.preparation import DecodeImage
from brand.node.client.connector import look_at
from brand.node.client.decoded import DecodeSpecs
from tests.made_orders import order_of
from tests.several_nodes.support import Rank, check_epoch, draw_in_step, node_of
from tests.support import LIMIT_S, Outcome, brand, descendants, running_brand, wait_until

SSH = """#!/bin/sh
# Runs its last argument here, as ssh does there, and keeps the others.
for last; do :; done
printf '%s\\n' "$*" >> "$0.log"
exec sh -c "$last"
"""


@contextmanager
def launching(*args: object) -> Iterator[tuple[list[str], subprocess.Popen[bytes]]]:
    """`brand launch ...` in a process of its own, once all are ready: their addresses, and the process."""
    with running_brand("launch", *args) as process:
        assert process.stdout is not None
        addresses = process.stdout.readline().decode().split()
        assert addresses, told(process)
        yield addresses, process


def told(process: subprocess.Popen[bytes]) -> list[str]:
    """What it wrote to standard error, once it has ended."""
    assert process.stderr is not None
    return process.stderr.read().decode().splitlines()


def alive(processes: Sequence[int]) -> list[int]:
    """Those that still run."""
    return [process for process in processes if Path(f"/proc/{process}").exists()]


def check_draws(paths: Sequence[Path], addresses: Sequence[str], wants: DecodeSpecs | None = None) -> None:
    """Every sample is drawn once over all nodes, with one rank on each, in two epochs."""
    with ExitStack() as attached:
        nodes = [
            attached.enter_context(closing(node_of(path, address, wants=wants)))
            for path, address in zip(paths, addresses, strict=True)
        ]
        ranks = [Rank(node, order_of(paths[0]), rank, len(nodes)) for rank, node in enumerate(nodes)]
        draw_in_step(ranks, [0, 1])
        for epoch in (0, 1):
            check_epoch(ranks, epoch)


def certificate(folder: Path) -> list[object]:
    """Options with a certificate for 127.0.0.1, which is its own CA."""
    names = {name: folder / f"{name}.pem" for name in ("key", "cert")}
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(names["key"]), "-out", str(names["cert"])]
    subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S)
    return ["--tls-cert", names["cert"], "--tls-key", names["key"], "--tls-ca", names["cert"]]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nodes_on_this_machine(own_photos_set: Path, how: signal.Signals) -> None:
    """They are told from each other, draw every sample once, and end with Ctrl-C, all of them, with exit code 0."""
    with launching(own_photos_set, "--local", 2, "--memory", "0.5", "--peer-memory", "0.2") as (addresses, process):
        nodes = descendants(process.pid)
        assert len(nodes) == 2
        check_draws([own_photos_set] * 2, addresses)
        assert sum(look_at(address)["received"] for address in addresses) > 0
        process.send_signal(how)
        assert process.wait(LIMIT_S) == 0
        assert alive(nodes) == []
        assert process.stdout is not None
        assert process.stdout.read() == b""
        lines = told(process)
    for node, address in enumerate(addresses):
        assert f"[node {node}] all 2 nodes are connected" in lines
        pattern = rf'  node {node} at 127\.0\.0\.1:\d+: BrandDataset\("{own_photos_set}", server="{address}"\)'
        assert any(re.fullmatch(pattern, line) for line in lines)
    assert "2 nodes ready, until Ctrl-C; attach with" in lines
    assert lines[-1] == "stopping 2 nodes" + (" after their clients" if how == signal.SIGTERM else "")


@pytest.mark.slow
def test_nodes_that_prepare(own_photos_set: Path) -> None:
    """Each has preparers of its own, which prepare what its ranks draw, from whichever node it comes."""
    options = ("--memory", "0.9", "--decoded-memory", "2MB", "--decode-workers", "1", "--decode-allotment", "equal")
    with launching(own_photos_set, "--local", 2, *options) as (addresses, _):
        check_draws([own_photos_set] * 2, addresses, DecodeSpecs({"image": DecodeImage(size=(16, 24))}))
        for address in addresses:
            facts = look_at(address)["decoding"]
            assert (facts["workers"], facts["limit"], facts["ended"]) == (1, 1_998_848, 0)
            assert facts["allotment"] == "equal"
            assert facts["fetched_decoded"] > facts["fetched_encoded"]


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_nothing(own_photos_set: Path) -> None:
    """The nodes' input ends with it."""
    with launching(own_photos_set, "--local", 3) as (_, process):
        nodes = descendants(process.pid)
        assert len(alive(nodes)) == 3
        process.kill()
        process.wait(LIMIT_S)
        wait_until(lambda: not alive(nodes), "the nodes end")


@pytest.mark.slow
def test_the_others_go_on_without_a_node_that_is_killed(own_photos_set: Path) -> None:
    """They draw every sample; the ranks of its host hear which server has ended, and the launcher says how."""
    with launching(own_photos_set, "--local", 3, "--memory", "0.5") as (addresses, process):
        nodes = descendants(process.pid)
        with closing(node_of(own_photos_set, addresses[1])) as client:
            killed = client.stats()["process"]
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(ServerError, match=rf"the server of node 1 of 3 at \S+, process {killed}, has ended: "):
                client.stats()
        check_draws([own_photos_set] * 2, [addresses[0], addresses[2]])
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 1
        assert alive(nodes) == []
        lines = told(process)
    fate = r"node 1 at 127\.0\.0\.1:\d+ was ended by signal 9; "
    assert any(re.fullmatch(fate + "2 of 3 nodes continue without it", line) for line in lines)
    assert re.fullmatch("brand: " + fate + "the other nodes continued without it", lines[-1])


@pytest.mark.slow
def test_what_a_node_cannot_do_ends_all(tmp_path: Path) -> None:
    """Its own words are shown, and its exit code."""
    with running_brand("launch", tmp_path / "nowhere", "--local", 2) as process:
        assert process.wait(LIMIT_S) == 1
        lines = told(process)
    assert any(re.fullmatch(r"\[node [01]\] brand: .*nowhere: there is no such folder", line) for line in lines)
    assert re.fullmatch(
        r"brand: node [01] at 127\S+ ended with exit code 1, and the other nodes were stopped", lines[-1]
    )


@pytest.mark.slow
def test_nodes_over_ssh(own_photos_set: Path, tmp_path: Path) -> None:
    """Each host gets one command through ssh, without the token in it; the nodes end with ssh's input."""
    shares = tmp_path / "the shares"
    assert brand("partition", own_photos_set, shares / "{node}.brand", "--nodes", 3).code == 0
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    name = f"unix:@brand-testing-{os.getpid()}"
    with running_ports(tmp_path, 3) as hosts:
        args = [
            "--nodes",
            hosts,
            "--ssh",
            f"{ssh} -p 2222",
            "--python",
            sys.executable,
            "--address",
            f"{name}-{{node}}",
        ]
        with launching(shares / "{node}.brand", *args) as (addresses, process):
            nodes = descendants(process.pid)
            assert addresses == [f"{name}-{node}" for node in range(3)]
            check_draws([shares / f"{node}.brand" for node in range(3)], addresses)
            commands = [Path(f"/proc/{node}/cmdline").read_text() for node in nodes]
            process.kill()
            process.wait(LIMIT_S)
            wait_until(lambda: not alive(nodes), "the nodes end")
    calls = Path(f"{ssh}.log").read_text().splitlines()
    assert len(calls) == 3
    for call in calls:
        assert re.match(r"-p 2222 -o BatchMode=yes -o ConnectTimeout=\d+ .*me@127\.0\.0\.1 \S+ -m brand serve '", call)
        assert "--token-file - --until-eof" in call
    assert not any(re.search("[0-9a-f]{64}", text) for text in (*commands, *calls))


@contextmanager
def running_ports(folder: Path, count: int) -> Iterator[Path]:
    """A list of hosts: this one, with free ports."""
    with free_ports(count) as ports:
        (folder / "hosts.txt").write_text("# here\n" + "".join(f"me@127.0.0.1:{port}\n" for port in ports))
        yield folder / "hosts.txt"


@pytest.mark.slow
def test_encrypted_nodes(own_photos_set: Path, tmp_path: Path) -> None:
    """With both sides checked."""
    with launching(own_photos_set, "--local", 2, *certificate(tmp_path)) as (addresses, process):
        check_draws([own_photos_set] * 2, addresses)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        lines = told(process)
    assert sum(line.endswith(", encrypted") for line in lines) == 2


@pytest.mark.slow
def test_nodes_in_namespaces(own_photos_set: Path) -> None:
    """Each has the same port at an address of its own; the namespaces end with them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("this test makes network namespaces: it needs root, ip and tc")
    with running_brand("launch", own_photos_set, "--local", 2, "--namespaces", "--rate", "1gbit") as process:
        assert process.stdout is not None
        addresses = process.stdout.readline().decode().split()
        if not addresses and "ermi" in "".join(lines := told(process)):
            pytest.skip(f"this test makes network namespaces, which is not permitted here: {lines[-1]}")
        spaces = [f"brand-{process.pid}-{node}" for node in (0, 1)]
        for node, (space, address) in enumerate(zip(spaces, addresses, strict=True)):
            look = ["ip", "netns", "exec", space, sys.executable, "-m", "brand", "top", address]
            seen = subprocess.run(look, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
            assert f"node {node} of 2, all others reachable" in seen
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        lines = told(process)
    assert any(re.match(rf"  node 1 at 10\.77\.0\.2:7070 in {spaces[1]}: BrandDataset", line) for line in lines)
    assert not [space for space in spaces if Path(f"/var/run/netns/{space}").exists()]


def wrong(*args: object) -> Outcome:
    """The command, which must be wrong use."""
    answer = brand("launch", *args)
    assert (answer.code, answer.out) == (2, "")
    assert "Traceback" not in answer.err
    return answer


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "on which hosts? Give --nodes FILE, or --local K"),
        (["--local", "2", "--nodes", "HOSTS"], "on which hosts?"),
        (["--local", "0"], "1<=x<=1000"),
        (["--nodes", "nowhere.txt"], "'nowhere.txt': No such file"),
        (["--nodes", "HOSTS"], "hosts.txt, line 2: 'two words' is not a host"),
        (["--local", "2", "--rate", "1gbit"], "--rate goes with --namespaces"),
        (["--nodes", "HOSTS", "--namespaces"], "--namespaces with --local"),
        (["--local", "2", "--namespaces", "--rate", "fast"], "'fast' is not the rate of a link"),
        (["--local", "2", "--tls-ca", "ca.pem"], "--tls-cert, --tls-key and --tls-ca go together"),
        (["--local", "2", "--address", "unix:@x"], "nodes on one machine need one each, such as unix:@x-{node}"),
        (["--local", "2", "--token", "on the command line"], "No such option '--token'"),
        (["--local", "2", "--decoded-memory", "100B"], "memory of 100 bytes is too small"),
        (["--local", "2", "--decode-workers", "2"], "give it memory with --decoded-memory"),
        (["--local", "2", "--decode-allotment", "equal"], "--decode-allotment is for a server that decodes"),
    ],
)
def test_wrong_use(own_photos_set: Path, tmp_path: Path, args: list[str], says: str) -> None:
    """One line that says what to do; nothing is started."""
    (tmp_path / "hosts.txt").write_text("node0\ntwo words\n")
    given = [str(tmp_path / "hosts.txt") if arg == "HOSTS" else arg for arg in args]
    assert says in wrong(own_photos_set, *given).err
