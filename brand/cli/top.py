"""`brand top [ADDRESS]`: show the statistics of a data server while it runs, on a terminal or as a web page."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
import webbrowser
from contextlib import closing, suppress
from functools import partial

import click

from brand.cli.output import echo, print_json
from brand.cli.top_view import view
from brand.errors import ServerError, UsageError
from brand.node.client.connector import look_at
from brand.node.serve.http import HttpPort
from brand.node.wire.connection import own_addresses


@click.command()
@click.argument("address", required=False)
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--json", "as_json", is_flag=True, help="Print all counters as JSON, once.")
@click.option("--web", is_flag=True, help="Show a page in the browser, until Ctrl-C.")
@click.option("--http", metavar="[HOST:]PORT", help="With --web: where the page is served. Default: any free port.")
def top(address: str | None, *, interval: float, once: bool, as_json: bool, web: bool, http: str | None) -> None:
    """Watch trainings and their data server: pace, progress, waits, reads, memory.

    Without ADDRESS, watch the only running server of this user.
    """
    if http is not None and not web:
        raise UsageError("--http goes with --web")
    where = address or _only_server()
    facts = look_at(where)
    if web:
        _serve_page(where, http or "0")
        return
    if as_json:
        print_json(facts)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if once or not console.is_terminal:
        console.print(view(facts, None, interval), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        before = None
        while True:
            live.update(view(facts, before, interval), refresh=True)
            time.sleep(interval)
            before = facts
            try:
                facts = look_at(where)
            except ServerError:
                console.print("the server has ended")
                return


def _serve_page(where: str, http: str) -> None:
    """Serve the page of a server, and open it if there is a browser, until Ctrl-C or the server's end."""
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    with closing(HttpPort(http, secrets.token_hex(16), partial(look_at, where))) as port:
        echo(port.url)
        echo("until Ctrl-C; from another machine: ssh -L PORT:ADDRESS:PORT, then the same address", err=True)
        if sys.stdout.isatty():
            webbrowser.open(port.url)
        while not ended.wait(1.0):
            try:
                look_at(where)
            except ServerError:
                echo("the server has ended", err=True)
                return


def _only_server() -> str:
    """Return the address of the only server of this user. Skips servers that do not answer. Raises `UsageError`."""
    there: dict[str, str] = {}
    for name in own_addresses():
        with suppress(ServerError):
            facts = look_at(name)
            there[facts["address"]] = facts["data_set"]
    if not there:
        raise UsageError(
            "no data server of this user runs here; one starts with the first fetch, or with `brand serve`"
        )
    if len(there) > 1:
        error = UsageError("several servers run here; name one of")
        for address, data_set in there.items():
            error.add_note(f"  {address}  {data_set}")
        raise error
    return next(iter(there))
