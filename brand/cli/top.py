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
from typing import TYPE_CHECKING, Any, Final

import click

from brand.cli.output import duration, echo, new_table, print_json, size
from brand.errors import ServerError, UsageError, counted
from brand.node.client.connector import look_at
from brand.node.serve.http import HttpPort
from brand.node.wire.connection import own_addresses
from brand.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR: Final = 40
_KINDS: Final = {"cached": "green", "samples of this epoch": "cyan", "being copied": "yellow", "free": "bright_black"}


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
    """Watch the rates, reads, memory and stalls of a data server.

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
        console.print(_view(facts, None, interval), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        before = None
        while True:
            live.update(_view(facts, before, interval), refresh=True)
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


def _view(facts: dict[str, Any], before: dict[str, Any] | None, interval: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    earlier = before or dict.fromkeys(facts, 0)
    seconds = max(facts["uptime_s"] - earlier["uptime_s"], interval / 10)

    def rate(name: str) -> float:
        change: float = (facts[name] - earlier[name]) / seconds
        return change

    table = new_table()
    rows = {
        "data set": f"{facts['data_set']}, {size(facts['data_bytes'])}",
        "server": f"{facts['address']}, process {facts['process']}, up {duration(facts['uptime_s'])}",
        "fetched": f"{rate('draws'):,.0f}/s, {facts['draws']:,} in all, hit ratio {_share(facts['hit_ratio'])}",
        "reads": f"{rate('reads'):,.0f}/s, {size(rate('read_bytes'))}/s, {facts['reading']} in flight, "
        f"read utilisation {_share(facts['read_utilisation'])}, amplification {_ratio(facts['read_amplification'])}",
        "direct reads": f"{facts['direct']:,}, {counted(len(facts['replaced']), 'sample')} replaced, "
        f"{counted(facts['failed_reads'], 'read')} failed",
        "clients": f"{facts['clients']}, {facts['waiting']} waiting, "
        f"{100 * rate('wait_s'):.0f} % of a client's time waited",
    }
    if facts["store"] is not None:
        rows["store"] = _store(facts["store"], None if before is None else before["store"], seconds)
    if facts["cache"] is not None:
        rows["cache"] = _cache(facts["cache"], None if before is None else before["cache"], seconds)
    if facts["prepared"] is not None:
        rows["decoded"] = _prepared(facts["prepared"], None if before is None else before["prepared"], seconds)
    if facts["cluster"] is not None:
        rows |= {
            "cluster": _nodes(facts["cluster"]),
            "sent": f"{rate('sent'):,.0f}/s, {size(rate('sent_bytes'))}/s, {facts['sent']:,} in all",
            "received": f"{rate('received'):,.0f}/s, {size(rate('received_bytes'))}/s, {facts['received']:,} in all",
            "asked for": f"{facts['requests']:,} as planned, {facts['on_demand']:,} on demand, "
            f"{counted(facts['timeouts'], 'timeout')}, {counted(facts['remote_reads'], 'remote read')}",
        }
    rows["why"] = facts["why"]["text"]
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(printable(value)))
    for job in facts["jobs"]:
        done = min(1.0, job["position"] / job["samples"])
        title = Text(f"epoch {job['epoch']}" if len(facts["jobs"]) == 1 else printable(job["job"]), "bold")
        bar = f"{'█' * round(_BAR * done):░<{_BAR}} {100 * done:.0f} %"
        table.add_row(title, Text(bar if len(facts["jobs"]) == 1 else f"{bar} of epoch {job['epoch']}, {_job(job)}"))
    return Group(table, _memory(facts["memory"]))


def _job(job: dict[str, Any]) -> str:
    if job["sets_the_pace"]:
        place = ", sets the pace"
    elif job["behind"] is None or not job["joins"]:
        place = ""
    else:
        place = f", {counted(abs(job['behind']), 'sample')} {'behind' if job['behind'] >= 0 else 'ahead'}"
    return f"{job['rate']:,.0f}/s, {_share(job['shared'])} shared{place}"


def _store(store: dict[str, int], before: dict[str, int] | None, seconds: float) -> str:
    earlier = before or dict.fromkeys(store, 0)
    requests, came = ((store[name] - earlier[name]) / seconds for name in ("requests", "bytes"))
    in_all = f"{counted(store['requests'], 'request')} and {size(store['bytes'])} in all"
    return f"{requests:,.0f} requests/s, {size(came)}/s, {in_all}"


def _cache(cache: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> str:
    earlier = before or {"read_bytes": 0, "written_bytes": 0}
    read, written = ((cache[name] - earlier[name]) / seconds for name in ("read_bytes", "written_bytes"))
    held = f"{size(cache['used'])} of {size(cache['limit'])}, {cache['state']}"
    return f"{size(read)}/s read, {size(written)}/s written, {held}, {cache['folder']}"


def _prepared(prepared: dict[str, int], before: dict[str, int] | None, seconds: float) -> str:
    """Format the output of the decode workers, and the fraction of the fetched samples that they decoded."""
    earlier = before or {"made": 0, "drawn": 0}
    made, drawn = ((prepared[name] - earlier[name]) / seconds for name in ("made", "drawn"))
    held = f"{size(prepared['used'])} of {size(prepared['limit'])}, {counted(prepared['preparers'], 'decode worker')}"
    return f"{made:,.0f}/s, {drawn:,.0f}/s fetched decoded, {prepared['raw']:,} fetched encoded in all, {held}"


def _nodes(cluster: dict[str, Any]) -> str:
    missing = sorted(set(range(cluster["nodes"])) - {cluster["node"], *cluster["reachable"]})
    others = f"not reachable: {', '.join(map(str, missing))}" if missing else "all others reachable"
    return f"node {cluster['node']} of {cluster['nodes']}, {others}"


def _memory(memory: dict[str, int]) -> RenderableType:
    from rich.text import Text

    held = max(0, memory["used"] - memory["cached"] - memory["leased"])
    amounts = dict(zip(_KINDS, (memory["cached"], held, memory["leased"], memory["free"]), strict=True))
    bar, legend = Text(), new_table()
    for kind, amount in amounts.items():
        bar.append("█" * round(_BAR * amount / memory["limit"]), _KINDS[kind])
        legend.add_row(Text("█", _KINDS[kind]), kind, size(amount))
    table = new_table()
    table.add_row("[bold]memory[/bold]", size(memory["limit"]), bar)
    table.add_row("", "", legend)
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"x{value:.2f}"
