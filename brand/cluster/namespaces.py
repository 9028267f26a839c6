"""Nodes with a network between them, on one machine: each in a Linux network namespace, joined by a bridge.

    with namespaces(3, rate="1gbit") as spaces:
        subprocess.run(spaces[1].command(["ping", "-c", "1", spaces[2].address]))

The namespaces are `brand-PROCESS-0`, `brand-PROCESS-1`, ... The bridge has a namespace of its own,
`brand-PROCESS-bridge`, so neither the machine's network nor its firewall is involved. All are removed at the end of the
block. Namespaces of a killed process are removed by the next process that makes some. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brand.errors import ServerError, UsageError

NETWORK: Final = ipaddress.IPv4Network("10.77.0.0/16")
"""Addresses of the nodes; each block has the whole network to itself."""
MAX_SPACES: Final = 1000
"""A bridge has 1,023 ports."""
_NAMES: Final = Path("/var/run/netns")
_OURS: Final = re.compile(r"brand-(\d+)-(?:\d+|bridge)")
_RATE: Final = re.compile(r"\d+(\.\d+)?[kmg]?bit")
_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace with one address, and loopback."""

    name: str
    """Its name for `ip netns`."""
    address: str
    """Its IP address, at which the other namespaces of the block reach it."""

    def command(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def namespaces(count: int, rate: str | None = None) -> Iterator[list[Namespace]]:
    """Make `count` namespaces for the length of the block. `rate` limits each link both ways (in tc's form: 1gbit).

    Raises `UsageError` (not root, no `ip` or `tc`, a wrong rate), `ServerError` (a command failed, which it names).
    """
    _check(count, rate)
    _remove_stale()
    own = [f"brand-{os.getpid()}-{number}" for number in range(count)]
    spaces = [Namespace(name, str(NETWORK[number])) for number, name in enumerate(own, 1)]
    bridge = f"brand-{os.getpid()}-bridge"
    with ExitStack() as made:
        for name in [bridge, *own]:
            _run(["ip", "netns", "add", name])
            made.callback(_remove, name)
        for command in commands(spaces, bridge, rate):
            _run(command)
        yield spaces


def commands(spaces: Sequence[Namespace], bridge: str, rate: str | None) -> list[list[str]]:
    """Return the commands that join existing namespaces, in order. `bridge` is the name of the bridge's namespace."""
    lines = [f"ip -n {bridge} link add name bridge type bridge", f"ip -n {bridge} link set bridge up"]
    for number, space in enumerate(spaces):
        port = f"port{number}"
        lines += [
            f"ip -n {space.name} link set lo up",
            f"ip -n {bridge} link add name {port} type veth peer name eth0 netns {space.name}",
            f"ip -n {bridge} link set {port} master bridge up",
            f"ip -n {space.name} address add {space.address}/{NETWORK.prefixlen} dev eth0",
            f"ip -n {space.name} link set eth0 up",
        ]
        if rate is not None:
            ends = ((space.name, "eth0"), (bridge, port))
            lines += [f"tc -n {n} qdisc add dev {d} root tbf rate {rate} burst 256k latency 50ms" for n, d in ends]
    return [line.split() for line in lines]


def _check(count: int, rate: str | None) -> None:
    if not 1 <= count <= MAX_SPACES:
        raise UsageError(f"{count} network namespaces; 1 to {MAX_SPACES:,} can be joined")
    if rate is not None and not _RATE.fullmatch(rate):
        raise UsageError(f"{rate!r} is not the rate of a link; write it like 1gbit or 100mbit")
    if os.geteuid() != 0:
        raise UsageError("only root can make network namespaces; without them, nodes run on loopback ports")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise UsageError(f"network namespaces need `{tool}`, which is not installed; install iproute2")


def _remove_stale() -> None:
    for path in sorted(_NAMES.iterdir()) if _NAMES.is_dir() else []:
        match = _OURS.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(path.name)


def _remove(name: str) -> None:
    """Remove a namespace and its ends of links. It may have been removed already."""
    _call(["ip", "netns", "delete", name])


def _run(command: list[str]) -> None:
    done = _call(command)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise ServerError(f"the network between the nodes cannot be made: `{' '.join(command)}` failed: {said}")


def _call(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, so that Ctrl-C does not end it half-way."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LIMIT_S, start_new_session=True)
