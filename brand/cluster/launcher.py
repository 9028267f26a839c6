"""The commands that start the nodes of a cluster: on the hosts of a list, over ssh, or all on this machine.

This module decides, and `brand.cluster.supervisor` runs the commands. Each command is `brand serve`. It reads the token
from its standard input, and ends when that input ends. So a node lives no longer than its launcher, and the token is in
no command line, no file and no environment.
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from brand.cluster.greeting import MAX_NODES
from brand.cluster.namespaces import Namespace
from brand.errors import UsageError, counted
from brand.node.wire.network import split_address

PORT: Final = 7070
"""The port on which nodes listen for each other by default."""
NODE: Final = "{node}"
"""Placeholder of the node's number in the arguments that each node gets."""
CONNECT_S: Final = 10
SSH_OPTIONS: Final = (
    *("-o", "BatchMode=yes"),  # no user can type a password
    *("-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "ServerAliveInterval=5"),  # ssh notices a lost host within 15 s
)
_HOST: Final = re.compile(r"(?:([\w.-]+)@)?(\[[^\]]*\]|[^:\[\]]*)(?::(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Host:
    """A host that runs a node."""

    login: str
    """The host as ssh accepts it: `host` or `user@host`."""
    address: str
    """The address at which the node on this host listens for the others, `host:port`."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a node."""

    where: str
    """The host of the node, as a text for people."""
    command: list[str]


@dataclass(frozen=True, slots=True)
class Serving:
    """The arguments of every node. `{node}` in them is replaced by the node's number."""

    dst: str
    """Folder of the data set, or of the node's partition."""
    options: Mapping[str, str | Sequence[str] | None]
    """Values of options of `brand serve`, by name; several of an option that is repeated, None of one not given."""

    def folder(self, node: int) -> str:
        return self.dst.replace(NODE, str(node))

    def command(self, python: str, node: int, peers: Sequence[str]) -> list[str]:
        """Return the command that serves as this node; it reads the token from its standard input."""
        given = []
        for name, value in self.options.items():
            for each in () if value is None else (value,) if isinstance(value, str) else value:
                given += [name, each]
        return [
            *(python, "-m", "brand", "serve", self.folder(node)),
            *(word.replace(NODE, str(node)) for word in given),
            *("--node", str(node), "--peers", ",".join(peers), "--token-file", "-", "--until-eof"),
        ]


def parse_hosts(text: str, name: str) -> list[Host]:
    """Return the hosts of a text with one `[user@]host[:port]` a line; text after `#` is a comment.

    Raises `UsageError`, with the file's name.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        host = _parse_host(entry)
        if host is None:
            example = f"write it like node1, user@node1:{PORT} or [::1]"
            raise UsageError(f"{name}, line {number}: {entry!r} is not a host; {example}")
        if any(host.address == other.address for other in hosts):
            raise UsageError(f"{name}, line {number}: {host.address} is listed already; two nodes need two ports")
        hosts.append(host)
    if not 1 <= len(hosts) <= MAX_NODES:
        raise UsageError(f"{name} names {counted(len(hosts), 'host')}; a cluster has 1 to {MAX_NODES:,}")
    return hosts


def over_ssh(serving: Serving, hosts: Sequence[Host], python: str, ssh: Sequence[str]) -> list[Start]:
    """Return the starts of nodes on their hosts; `ssh` is the command before ssh's options, a host and a command."""
    peers = [host.address for host in hosts]
    return [
        Start(host.address, [*ssh, *SSH_OPTIONS, host.login, shlex.join(serving.command(python, node, peers))])
        for node, host in enumerate(hosts)
    ]


def on_ports(serving: Serving, ports: Sequence[int], python: str) -> list[Start]:
    """Return the starts of nodes on this machine, each on a port of loopback."""
    peers = [f"127.0.0.1:{port}" for port in ports]
    return [Start(peer, serving.command(python, node, peers)) for node, peer in enumerate(peers)]


def in_namespaces(serving: Serving, spaces: Sequence[Namespace], python: str) -> list[Start]:
    """Return the starts of nodes on this machine, each in a network namespace."""
    peers = [f"{space.address}:{PORT}" for space in spaces]
    return [
        Start(f"{peers[node]} in {space.name}", space.command(serving.command(python, node, peers)))
        for node, space in enumerate(spaces)
    ]


@contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Reserve ports of loopback, so that the system gives them to no other process. A node can listen there."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for found in sockets:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a node may bind it, too
            found.bind(("127.0.0.1", 0))
        yield [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


def _parse_host(entry: str) -> Host | None:
    match = _HOST.fullmatch(entry)
    if match is None:
        return None
    user, host, port = match.groups(default="")
    address = f"{host}:{port or PORT}"
    try:
        bare, number = split_address(address)
    except UsageError:
        return None
    if number == 0 or entry.startswith("-") or bare.startswith("-"):  # ssh would parse such a host as an option
        return None
    return Host(f"{user}@{bare}" if user else bare, address)
