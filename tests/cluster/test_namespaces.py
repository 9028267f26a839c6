"""Network namespaces with links between them: how they are made, what they can do, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brand.cluster.namespaces import Namespace, commands, namespaces
from brand.errors import ServerError, UsageError

SPACES = [Namespace("brand-1-0", "10.77.0.1"), Namespace("brand-1-1", "10.77.0.2")]
ASKS = """
import socket, sys
print(socket.create_connection((sys.argv[1], 7070), timeout=600).recv(10).decode())
"""
ANSWERS = """
import socket
listener = socket.create_server(("0.0.0.0", 7070))
print("listens", flush=True)
listener.settimeout(600)
listener.accept()[0].sendall(b"hello")
"""


def existing() -> set[str]:
    """Namespaces of this machine that have a name."""
    folder = Path("/var/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture(scope="module")
def permitted() -> None:
    """Skips where one may not make namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("this test makes network namespaces: it needs root, ip and tc")
    done = subprocess.run(["ip", "netns", "add", "brand-probe"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this test makes network namespaces, which is not permitted here: {done.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", "brand-probe"], check=True)


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, ip: str) -> None:
    """Put scripts in place of `ip` and `tc`."""
    for name, body in (("ip", ip), ("tc", "exit 0")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_each_is_joined_to_the_bridge() -> None:
    """Loopback, a link with an address, and a limit at both ends of it."""
    lines = [" ".join(command) for command in commands(SPACES, "brand-1-bridge", "1gbit")]
    assert lines[:2] == [
        "ip -n brand-1-bridge link add name bridge type bridge",
        "ip -n brand-1-bridge link set bridge up",
    ]
    assert lines[9:] == [
        "ip -n brand-1-1 link set lo up",
        "ip -n brand-1-bridge link add name port1 type veth peer name eth0 netns brand-1-1",
        "ip -n brand-1-bridge link set port1 master bridge up",
        "ip -n brand-1-1 address add 10.77.0.2/16 dev eth0",
        "ip -n brand-1-1 link set eth0 up",
        "tc -n brand-1-1 qdisc add dev eth0 root tbf rate 1gbit burst 256k latency 50ms",
        "tc -n brand-1-bridge qdisc add dev port1 root tbf rate 1gbit burst 256k latency 50ms",
    ]
    assert not [command for command in commands(SPACES, "brand-1-bridge", None) if command[0] == "tc"]


def test_a_command_runs_in_it() -> None:
    """Whatever the command is."""
    assert SPACES[1].command(["a", "b c"]) == ["ip", "netns", "exec", "brand-1-1", "a", "b c"]


@pytest.mark.parametrize(
    ("count", "rate", "says"),
    [
        (0, None, "0 network namespaces; 1 to 1,000 can be joined"),
        (1001, None, "1001 network namespaces"),
        (2, "fast", "'fast' is not the rate of a link; write it like 1gbit"),
        (2, "1gbit; reboot", "is not the rate"),
        (2, "-1gbit", "is not the rate"),
    ],
)
def test_what_cannot_be_made(count: int, rate: str | None, says: str) -> None:
    """The message says what can."""
    with pytest.raises(UsageError, match=says), namespaces(count, rate):
        pass


def test_only_root_can_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what there is without them."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(UsageError, match="only root can make network namespaces; without them, nodes run on"),
        namespaces(2),
    ):
        pass


def test_without_the_tools_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ip` and `tc` are one package."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="need `ip`, which is not installed; install iproute2"), namespaces(2):
        pass


def test_a_command_that_fails_is_named_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made before is removed, in reverse, and nothing else."""
    log = tmp_path / "log"
    tools(tmp_path, monkeypatch, f'echo "$*" >> {log}; case "$*" in *port0*) echo no such device >&2; exit 2;; esac')
    bridge = f"brand-{os.getpid()}-bridge"
    with pytest.raises(ServerError, match="no such device") as caught, namespaces(1):
        pass
    assert f"`ip -n {bridge} link add name port0 type veth peer name eth0 netns brand-{os.getpid()}-0` failed" in str(
        caught.value
    )
    ours = f" brand-{os.getpid()}-"  # it also removes what other processes that were killed have left
    made = [line for line in log.read_text().splitlines() if line.startswith("netns") and ours in line]
    assert made == [
        f"netns add {bridge}",
        f"netns add brand-{os.getpid()}-0",
        f"netns delete brand-{os.getpid()}-0",
        f"netns delete {bridge}",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
def test_they_reach_each_other_and_nothing_else() -> None:
    """Each has loopback and one address; the machine's own network does not change; all are gone after the block."""
    before = subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout
    with namespaces(3, rate="100mbit") as spaces:
        assert [space.address for space in spaces] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        assert {space.name for space in spaces} < existing()
        assert subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout == before
        for target in (spaces[0].address, "127.0.0.1"):
            answers = spaces[0].command([sys.executable, "-c", ANSWERS])
            with subprocess.Popen(answers, stdout=subprocess.PIPE, text=True) as listener:
                assert listener.stdout is not None
                assert listener.stdout.readline() == "listens\n"
                space = spaces[0] if target == "127.0.0.1" else spaces[2]
                asks = space.command([sys.executable, "-c", ASKS, target])
                assert subprocess.run(asks, capture_output=True, text=True, check=True).stdout == "hello\n"
        outside = spaces[1].command([sys.executable, "-c", ASKS, "192.0.2.1"])
        assert "unreachable" in subprocess.run(outside, capture_output=True, text=True, check=False).stderr
    assert not {name for name in existing() if name.startswith(f"brand-{os.getpid()}-")}


@pytest.mark.usefixtures("permitted")
def test_what_a_killed_process_has_left_is_removed() -> None:
    """The next one removes it; what belongs to a process that runs stays."""
    with subprocess.Popen(["true"]) as gone:
        pass
    stale, alive, foreign = f"brand-{gone.pid}-0", "brand-1-0", "brand-of-somebody"
    for name in (stale, alive, foreign):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        with namespaces(1):
            assert stale not in existing()
            assert {alive, foreign} < existing()
    finally:
        for name in (alive, foreign):
            subprocess.run(["ip", "netns", "delete", name], check=True)
