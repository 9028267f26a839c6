"""`brand serve DST` runs the data server of a node, and `brand launch DST` those of several nodes."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import click

from brand.cli.dataset import DATA_SET, PLUGIN
from brand.cli.output import echo, size
from brand.cluster import serving
from brand.cluster.launcher import NODE, Serving, Start, free_ports, in_namespaces, on_ports, over_ssh, parse_hosts
from brand.cluster.namespaces import namespaces
from brand.cluster.supervisor import Supervisor
from brand.errors import StorageError, UsageError, counted
from brand.formats.media import registered_plugins
from brand.node.serve.http import HttpPort, check_where, derived_token
from brand.node.serve.process import tune_server_process
from brand.node.serve.server import NodeServer
from brand.node.setup.caching import as_caches, parse_cache
from brand.node.setup.decoding import ALLOTMENTS, Prepared
from brand.node.setup.memory import SIZE, check_unit, memory_bytes
from brand.node.setup.server_spec import Member, ServerSpec, Tls
from brand.node.wire.connection import own_address
from brand.pythonchild import ignore_job_signals
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.files import no_descriptor_left

_MAX_TOKEN: Final = 4096
_TOKEN_BYTES: Final = 32
_NO_TOKEN: Final = (
    "nodes that serve each other need a token, the same for all: make one with `(umask 077; openssl rand -hex 32 >"
    " token.txt)`, and give --token-file token.txt, or have it in the environment variable BRAND_TOKEN"
)

_F = TypeVar("_F", bound=Callable[..., Any])


class EnvironmentOnly(click.Option):
    """A secret that is read from an environment variable only, because other users can read the command line."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add nothing, so that the command line does not accept the option."""


def memory_options(command: _F) -> _F:
    own = "Memory for samples: 2GB, or a share of the data such as 0.25. Default: a quarter of what is free."
    others = "How much of --memory other nodes may fill: 200MB, or a share of it. Default: 0.1."
    wanted = click.option("--memory", help=own, callback=_check_memory)
    return wanted(click.option("--peer-memory", help=others, callback=_check_memory)(command))


def cache_option(command: _F) -> _F:
    meaning = (
        "Keep what was read in this folder on a local disk. Default size: what is free, less 5 % and 5 GB. Give it "
        "again for a slower disk."
    )
    return click.option("--cache", metavar="FOLDER[:SIZE]", multiple=True, help=meaning, callback=_check_caches)(
        command
    )


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """The options of server-side decoding, as given. Raises `UsageError` if they do not fit together."""

    decoded_memory: str | None
    decode_workers: int | None
    decode_allotment: str | None

    def __post_init__(self) -> None:
        if self.decoded_memory is not None:
            check_unit(self.decoded_memory, f"--decoded-memory {self.decoded_memory}", SIZE)
        else:
            for name, value in self.arguments.items():
                if value is not None:
                    raise UsageError(f"{name} is for a server that decodes: give it memory with --decoded-memory")
        _ = self.prepared

    @property
    def prepared(self) -> Prepared | None:
        """The settings of server-side decoding; None if it is off."""
        if self.decoded_memory is None:
            return None
        return Prepared(self.decoded_memory, self.decode_workers, allotment=self.decode_allotment or ALLOTMENTS[0])

    @property
    def arguments(self) -> dict[str, str | None]:
        """The options by name, for the command line of a server; None for those that were not given."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {f"--{name.replace('_', '-')}": None if value is None else str(value) for name, value in given}


def decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of server-side decoding. The command gets them as its argument `decoding`."""
    memory = "Memory for samples that this server decodes for all clients: 2GB."
    count = "Processes that decode. Default: one a core."
    divided = "How these are divided among ranks: least (default; the latest rank first), lobster, equal."

    @wraps(command)
    def with_decoding(
        *, decoded_memory: str | None, decode_workers: int | None, decode_allotment: str | None, **others: Any
    ) -> None:
        command(decoding=DecodingOptions(decoded_memory, decode_workers, decode_allotment), **others)

    options = (
        click.option("--decoded-memory", metavar="SIZE", help=memory),
        click.option("--decode-workers", type=click.IntRange(1), metavar="N", help=count),
        click.option("--decode-allotment", type=click.Choice(ALLOTMENTS), metavar="HOW", help=divided),
    )
    return reduce(lambda found, option: option(found), reversed(options), with_decoding)


def _check_caches(context: click.Context, option: click.Parameter, caches: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts, checked to name different folders, and sizes. Raises `UsageError`."""
    for cache in caches:
        check_cache(context, option, cache)
    as_caches([parse_cache(cache) for cache in caches])
    return caches


def check_cache(context: click.Context, option: click.Parameter, cache: str | None) -> str | None:
    """Return the text, checked to name a folder and a size. Raises `UsageError`."""
    del context
    try:
        if cache is not None:
            parse_cache(cache)
    except UsageError as error:
        raise UsageError(f"{option.opts[0] if isinstance(option, click.Option) else cache}: {error}") from None
    return cache


def _check_memory(_: click.Context, option: click.Parameter, memory: str | None) -> str | None:
    check_unit(memory, f"{option.opts[0]} {memory}")
    try:
        memory_bytes(as_memory(memory), 1 << 62)
    except UsageError as error:
        raise UsageError(f"{option.opts[0]}: {error}") from None
    return memory


def http_option(command: _F) -> _F:
    meaning = "Show statistics there: a page, and /metrics for Prometheus. Without a host: on this machine only."
    return click.option("--http", metavar="[HOST:]PORT", help=meaning, callback=_check_http)(command)


def _check_http(_: click.Context, option: click.Parameter, where: str | None) -> str | None:
    try:
        if where is not None:
            check_where(where.replace(NODE, "0"))
    except UsageError as error:
        raise UsageError(f"{option.opts[0]}: {error}") from None
    return where


def tls_options(command: _F) -> _F:
    """Add the options for certificates. A user gives all three, or none."""
    for name, meaning in (
        ("ca", "The CA that signs the other nodes' certificates. Without all three files, nodes speak unencrypted."),
        ("key", "The private key for --tls-cert."),
        ("cert", "This node's certificate, in PEM form."),
    ):
        command = click.option(f"--tls-{name}", metavar="FILE", help=meaning)(command)
    return command


@click.command()
@click.argument("dst", type=DATA_SET)
@memory_options
@cache_option
@decoding_options
@PLUGIN
@click.option(
    "--address", help="Address to listen at, unix:@NAME. Default: a name made from the data set and the node."
)
@click.option("--node", type=click.IntRange(0), metavar="K", help="Which of several nodes this is, from 0.")
@click.option("--peers", metavar="HOST:PORT,...", help="Addresses at which nodes listen for each other, in order.")
@click.option("--bind", metavar="HOST:PORT", help="Address to listen at, if not this node's entry in --peers.")
@click.option(
    "--token-file",
    type=click.File(),
    metavar="FILE",
    help="File with the token of all nodes, or of --http; - is the first line of standard input. Default: the variable "
    "BRAND_TOKEN.",
)
@click.option("--token", cls=EnvironmentOnly, envvar="BRAND_TOKEN", hidden=True)
@tls_options
@http_option
@click.option(
    "--until-eof", is_flag=True, help="End when standard input ends, and so with the program that started this one."
)
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Log all decisions, to replay them.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write reads and waits, for Perfetto.")
def serve(
    dst: Path | str,
    *,
    memory: str | None,
    cache: tuple[str, ...],
    decoding: DecodingOptions,
    address: str | None,
    until_eof: bool,
    record: Path | None,
    trace: Path | None,
    http: str | None,
    **cluster: Any,
) -> None:
    """Run the data server of DST until Ctrl-C.

    The trainings of one user on this machine attach with BrandDataset(DST, server=ADDRESS). Without this command, a
    training starts its own server.

    With --node and --peers the server is one of several nodes that serve each other; `brand launch` starts them all.
    """
    member, peers, secret = _member(**cluster, http=http)
    facts = StoredDataSet(dst).id if member is None else f"{StoredDataSet(dst).id} node {member.node}"
    where = address or own_address(facts.encode())
    ignore_job_signals()
    tune_server_process()
    logging.basicConfig(format="%(levelname)s: %(message)s")  # before it listens: it may have to warn at once
    try:
        spec = ServerSpec(
            dst,
            where,
            as_memory(memory),
            member=member,
            cache=as_caches([parse_cache(each) for each in cache]),
            prepared=decoding.prepared,
            plugins=registered_plugins(),
            record=record,
        )
        server = _server(spec)
    except OSError as error:
        if why := no_descriptor_left(error):
            raise UsageError(why) from None
        if error.errno != errno.EADDRINUSE or isinstance(error, StorageError):
            raise
        raise UsageError(f"a program listens at {where} already: attach to it, or give another --address") from None
    if trace is not None:
        server.trace(trace)
    signal.signal(signal.SIGINT, lambda *_: server.stop())
    signal.signal(signal.SIGTERM, lambda *_: server.drain())
    say(f"serving {dst} with {size(server.memory)} for samples, process {os.getpid()}")
    if member is not None:
        how = "not encrypted" if member.tls is None else "encrypted"
        say(f"node {member.node} of {member.nodes} listens at {server.listens_at}, {how}")
    say(f'attach with: BrandDataset("{dst}", server="{where}")')
    with ExitStack() as stack:
        if http is not None:
            token = derived_token(secret) if secret else secrets.token_hex(16)
            port = stack.enter_context(closing(HttpPort(http, token, server.facts)))
            say(f"look at it: {port.url}")
        echo(where)
        _run(server, member, peers, until_eof=until_eof)


def _server(spec: ServerSpec) -> NodeServer:
    if spec.member is None:
        return NodeServer(spec)
    from brand.cluster.process import server_of  # only here: gRPC takes longer to load than other verbs need

    return server_of(spec)


def _run(server: NodeServer, member: Member | None, peers: list[str], *, until_eof: bool) -> None:
    if until_eof:
        serving.stop_at_end_of(sys.stdin.fileno(), server.stop, server.drain)
    if member is None:
        server.run()
    else:
        serving.serve(server, peers, member.node, say)


def _member(  # one option each
    *,
    node: int | None,
    peers: str | None,
    bind: str | None,
    peer_memory: str | None,
    token_file: TextIO | None,
    token: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    http: str | None,
) -> tuple[Member | None, list[str], str | None]:
    """Return this node, the addresses of all nodes, and the token; None and no address for a single server."""
    if peers is None:
        given: dict[str, Any] = {"--node": node, "--bind": bind, "--peer-memory": peer_memory}
        given |= {"--token-file": token_file if http is None else None}
        given |= {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} is for one of several nodes: say with --peers where they are")
        return None, [], _secret(token, token_file)
    if node is None:
        raise UsageError("which of --peers is this one? Say so with --node, from 0")
    listed = [entry.strip() for entry in peers.split(",")]
    serving.check_peers(listed, node)
    check_tls(tls_cert, tls_key, tls_ca)
    tls = None if tls_cert is None or tls_key is None or tls_ca is None else Tls(tls_cert, tls_key, tls_ca, mutual=True)
    secret = _secret(token, token_file)
    if not secret:
        raise UsageError(_NO_TOKEN)
    return Member(node, len(listed), secret, bind or listed[node], as_memory(peer_memory), tls), listed, secret


def _secret(token: str | None, token_file: TextIO | None) -> str | None:
    return token if token_file is None else token_file.readline(_MAX_TOKEN).strip()


def check_tls(*files: str | None) -> None:
    """Raise `UsageError` if only some of the three files are given."""
    if None in files and any(files):
        raise UsageError("--tls-cert, --tls-key and --tls-ca go together: give all three, or none")


def as_memory(memory: str | None) -> str | float | None:
    """Return a share of the data for a number with a decimal point and no unit, and the text itself for any other."""
    try:
        return float(memory or "") if not (memory or "").strip().isdecimal() else memory
    except ValueError:
        return memory


def say(line: str) -> None:
    echo(line, err=True)


@click.command()
@click.argument("dst", type=DATA_SET)
@click.option("--nodes", type=click.File(), metavar="FILE", help="Hosts, one [user@]host[:port] a line; port 7070.")
@click.option("--local", type=click.IntRange(1, 1000), metavar="K", help="K nodes on this machine instead.")
@click.option("--namespaces", "apart", is_flag=True, help="With --local: each in a network namespace (needs root).")
@click.option("--rate", help="With --namespaces: how fast each link is, such as 1gbit.")
@memory_options
@cache_option
@decoding_options
@click.option(
    "--address", help="Address of each server, unix:@NAME. Default: a name made from the data set and the node."
)
@tls_options
@http_option
@click.option("--ssh", metavar="COMMAND", default="ssh", show_default=True, help="The ssh command, with its options.")
@click.option("--plugin", metavar="MODULE", help="Decode with a plug-in of Pillow, too: pillow_heif for HEIC.")
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
    cache: tuple[str, ...],
    decoding: DecodingOptions,
    **passed: str | None,
) -> None:
    """Start data servers of DST on several hosts until Ctrl-C.

    DST is the same path or URL on every host; {node} in it, in --cache, --address, --http and the TLS files stands for
    0 to K-1. A training on a host attaches with BrandDataset(DST, server=ADDRESS). The addresses are printed when all
    nodes are ready.

    If a node ends before all are ready, all nodes are stopped. If a node ends later, the other nodes continue.
    """
    check_tls(passed["tls_cert"], passed["tls_key"], passed["tls_ca"])
    options: dict[str, str | list[str] | None]
    options = {f"--{name.replace('_', '-')}": value for name, value in passed.items()}
    options |= decoding.arguments
    files = {f"--tls-{name}": passed[f"tls_{name}"] for name in ("cert", "key", "ca")}
    options |= {name: os.path.abspath(file) for name, file in files.items() if file}
    options["--cache"] = [os.path.abspath(each) for each in cache]
    serving = Serving(os.path.abspath(dst) if isinstance(dst, Path) else dst, options)
    starts: list[Start] = []

    def ready(addresses: list[str]) -> None:
        say(f"{counted(len(starts), 'node')} ready, until Ctrl-C; attach with")
        for node, (start, address) in enumerate(zip(starts, addresses, strict=True)):
            say(f'  node {node} at {start.where}: BrandDataset("{serving.folder(node)}", server="{address}")')
        echo(" ".join(addresses))

    with closing(Supervisor(secrets.token_hex(_TOKEN_BYTES), say, ready)) as supervisor:
        ignore_job_signals()
        signal.signal(signal.SIGINT, lambda *_: supervisor.stop())
        signal.signal(signal.SIGTERM, lambda *_: supervisor.drain())
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
