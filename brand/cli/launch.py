"""`brand launch DST`."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TextIO

import click

from brand.cli.dataset import DATA_SET
from brand.cli.output import echo
from brand.cli.serve import (
    cache_option,
    check_tls,
    decoding_of,
    decoding_options,
    http_option,
    memory_options,
    say,
    tls_options,
)
from brand.cluster.launcher import NODE, Serving, Start, free_ports, in_namespaces, on_ports, over_ssh, parse_hosts
from brand.cluster.namespaces import namespaces
from brand.cluster.supervisor import Supervisor
from brand.errors import UsageError, counted

_TOKEN_BYTES: Final = 32


@click.command()
@click.argument("dst", type=DATA_SET)
@click.option("--nodes", type=click.File(), metavar="FILE", help="Hosts, one [user@]host[:port] a line; port 7070.")
@click.option("--local", type=click.IntRange(1, 1000), metavar="K", help="K nodes on this machine instead.")
@click.option("--namespaces", "apart", is_flag=True, help="With --local: each in a network namespace (needs root).")
@click.option("--rate", help="With --namespaces: how fast each link is, such as 1gbit.")
@memory_options
@cache_option
@decoding_options
@click.option("--address", help="Where nodes listen, unix:@NAME. Default: a name made from the data set and the node.")
@tls_options
@http_option
@click.option("--ssh", metavar="COMMAND", default="ssh", show_default=True, help="The ssh command, with its options.")
@click.option("--python", metavar="COMMAND", help="Python on the hosts. Default: python3; with --local, this one.")
def launch(
    dst: Path | str,
    *,
    nodes: TextIO | None,
    local: int | None,
    apart: bool,
    rate: str | None,
    ssh: str,
    python: str | None,
    decoded_memory: str | None,
    decode_workers: int | None,
    **passed: str | None,
) -> None:
    """Start data servers of DST on several hosts until Ctrl-C.

    DST is the same path or URL on every host; {node} in it, in --cache, --address, --http and the TLS files stands for
    0 to K-1. A training on a host attaches with BrandDataset(DST, server=ADDRESS). The addresses are printed when all
    nodes are ready.

    If a node ends before all are ready, all nodes are stopped. If a node ends later, the other nodes continue.
    """
    check_tls(passed["tls_cert"], passed["tls_key"], passed["tls_ca"])
    options = {f"--{name.replace('_', '-')}": value for name, value in passed.items()}
    decoding_of(decoded_memory, decode_workers)
    options |= {
        "--decoded-memory": decoded_memory,
        "--decode-workers": None if decode_workers is None else str(decode_workers),
    }
    paths = {name: value for name, value in options.items() if name.startswith(("--tls", "--cache")) and value}
    options |= {name: os.path.abspath(value) for name, value in paths.items()}
    serving = Serving(os.path.abspath(dst) if isinstance(dst, Path) else dst, options)
    starts: list[Start] = []

    def ready(addresses: list[str]) -> None:
        say(f"{counted(len(starts), 'node')} ready, until Ctrl-C; attach with")
        for node, (start, address) in enumerate(zip(starts, addresses, strict=True)):
            say(f'  node {node} at {start.where}: BrandDataset("{serving.folder(node)}", server="{address}")')
        echo(" ".join(addresses))

    with closing(Supervisor(secrets.token_hex(_TOKEN_BYTES), say, ready)) as supervisor:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: supervisor.stop())
        with _starts(serving, nodes, local, ssh, python, rate, apart=apart) as found:
            starts += found
            supervisor.run(starts)


@contextmanager
def _starts(
    serving: Serving,
    nodes: TextIO | None,
    local: int | None,
    ssh: str,
    python: str | None,
    rate: str | None,
    *,
    apart: bool,
) -> Iterator[list[Start]]:
    """Yield the command that starts each node. Its port or namespace exists during the block. Raises `UsageError`."""
    if (nodes is None) == (local is None):
        raise UsageError("on which hosts? Give --nodes FILE, or --local K for K nodes on this machine")
    if (apart and local is None) or (rate is not None and not apart):
        raise UsageError("--rate goes with --namespaces, and --namespaces with --local")
    if nodes is not None:
        hosts = parse_hosts(nodes.read(), nodes.name)
        yield over_ssh(serving, hosts, python or "python3", shlex.split(ssh))
    elif apart:
        with namespaces(local or 0, rate) as spaces:
            yield in_namespaces(serving, spaces, python or sys.executable)
    else:
        for name, more in (("--address", "-" + NODE), ("--http", NODE)):
            value = serving.options[name]
            if value is not None and NODE not in value:
                raise UsageError(f"{name} {value}: nodes on one machine need one each, such as {value}{more}")
        with free_ports(local or 0) as ports:
            yield on_ports(serving, ports, python or sys.executable)
