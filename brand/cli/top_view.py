"""The text of `brand top`: the facts of a data server as lines, with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from brand.cli.output import duration, new_table, size
from brand.errors import counted
from brand.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

Facts = dict[str, Any]

_BAR: Final = 40
_MOST_WARNINGS: Final = 3
_KINDS: Final = {"cached": "green", "samples of this epoch": "cyan", "being copied": "yellow", "free": "bright_black"}


def view(facts: Facts, before: Facts | None, interval: float) -> RenderableType:
    """Return the facts as text. Rates are those since `before`, or since the server started.

    `interval` is the number of seconds between two looks.
    """
    from rich.console import Group
    from rich.text import Text

    table = new_table()
    for name, value in [*_summary(facts), *_trainings(facts), *_details(facts, before, interval)]:
        table.add_row(Text(name, "bold"), Text(printable(value)))
    return Group(table, _memory(facts["memory"]))


def _summary(facts: Facts) -> list[tuple[str, str]]:
    rows = [
        ("data set", f"{facts['data_set']}, {size(facts['data_bytes'])}"),
        ("server", f"{facts['address']}, process {facts['process']}, up {duration(facts['uptime_s'])}"),
        ("why", facts["why"]["text"]),
    ]
    return [*rows, ("", facts["why"]["hint"])] if facts["why"]["hint"] else rows


def _trainings(facts: Facts) -> list[tuple[str, str]]:
    several = len(facts["training"]) > 1
    sharing = {job["job"]: job for job in facts["jobs"]}
    rows = []
    for job in facts["training"]:
        done = job["taken"] if job["reports"] else job["fetched"]
        rows.append((f"epoch {job['epoch']}", f"{_bar(done, job['fetched'], job['samples'])} {_progress(job, done)}"))
        if several:
            rows.append(("job", job["job"] + (_shared(sharing[job["job"]]) if job["job"] in sharing else "")))
        rows += [("loop", _loop(job))]
        if job["ranks_here"] > 1 or (job["ranks"] or 1) > 1:
            rows.append(("ranks", _ranks(job)))
    return rows


def _bar(done: int, fetched: int, samples: int) -> str:
    full, ahead = (round(_BAR * min(1.0, count / samples)) if samples else _BAR for count in (done, fetched))
    return "█" * full + "▒" * (ahead - full) + "░" * (_BAR - max(full, ahead))


def _progress(job: Facts, done: int) -> str:
    share = 100 * done / job["samples"] if job["samples"] else 100.0
    parts = [f"{share:.1f} %", f"{done:,} of {counted(job['samples'], 'sample')}"]
    if not job["reports"]:
        return ", ".join([*parts, "fetched"])
    if job["fetched"] > done:
        parts.append(f"{job['fetched'] - done:,} more read ahead")
    if job["left_s"] is not None and job["state"] != "ended":
        parts.append(f"{duration(job['left_s'])} left")
    return ", ".join(parts)


def _loop(job: Facts) -> str:
    if not job["reports"]:
        return "not known: a plain DataLoader does not report its loop"
    if job["samples_per_s"] is None:
        return f"{job['state']}, the last report was {duration(job['heard_s'])} ago"
    state = f"in one step for {duration(job['busy_s'])}" if job["busy_s"] else job["state"]
    rates = f"{_rate(job['samples_per_s'])} samples/s, {_rate(job['batches_per_s'])} batches/s over 10 s"
    return f"{state}, {rates}, waits for {100 * job['wait_share']:.0f} % of its time"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ranks(job: Facts) -> str:
    here = f"{job['ranks_here']} of {job['ranks']} here"
    return f"{here}, {job['slow_rank']['text'] if job['slow_rank'] else 'none is slow'}"


def _shared(job: Facts) -> str:
    if job["sets_the_pace"]:
        place = ", sets the pace"
    elif job["behind"] is None or not job["joins"]:
        place = ""
    else:
        place = f", {counted(abs(job['behind']), 'sample')} {'behind' if job['behind'] >= 0 else 'ahead'}"
    return f", {_share(job['shared'])} shared{place}"


def _details(facts: Facts, before: Facts | None, interval: float) -> list[tuple[str, str]]:
    earlier = before or dict.fromkeys(facts, 0)
    seconds = max(facts["uptime_s"] - earlier["uptime_s"], interval / 10)

    def rate(name: str) -> float:
        change: float = (facts[name] - earlier[name]) / seconds
        return change

    rows = [
        ("storage", facts["storage"]["text"]),
        (
            "reads",
            f"{rate('reads'):,.0f}/s, {size(rate('read_bytes'))}/s, {facts['reading']} in flight, "
            f"read utilisation {_share(facts['read_utilisation'])}, "
            f"amplification {_ratio(facts['read_amplification'])}",
        ),
        (
            "fetched",
            f"{rate('fetched'):,.0f}/s, {facts['fetched']:,} in all, {_share(facts['hit_ratio'])} from memory, "
            f"{facts['direct']:,} direct reads, {facts['waiting']} waiting",
        ),
    ]
    if facts["store"] is not None:
        rows.append(("store", _store(facts["store"], None if before is None else before["store"], seconds)))
    if facts["cache"] is not None:
        rows.append(("cache", _cache(facts["cache"], None if before is None else before["cache"], seconds)))
    if facts["decoding"] is not None:
        rows.append(("decoded", _decoded(facts["decoding"], None if before is None else before["decoding"], seconds)))
    if facts["cluster"] is not None:
        rows += [
            ("cluster", _nodes(facts["cluster"])),
            ("sent", f"{rate('sent'):,.0f}/s, {size(rate('sent_bytes'))}/s, {facts['sent']:,} in all"),
            ("received", f"{rate('received'):,.0f}/s, {size(rate('received_bytes'))}/s, {facts['received']:,} in all"),
            (
                "asked for",
                f"{facts['requests']:,} as planned, {facts['on_demand']:,} on demand, "
                f"{facts['timeouts']:,} timeouts, {facts['remote_reads']:,} remote reads",
            ),
        ]
    used = facts["processes"]
    rows += [
        ("processes", _processes(used)),
        ("machine", f"{size(used['available'])} of {size(used['limit'])} of memory left"),
    ]
    rows.append(("problems", "; ".join(facts["problems"]) or "none"))
    warnings = facts["recent_warnings"][:_MOST_WARNINGS]
    rows += [
        ("" if at else "warnings", f"{duration(one['ago_s'])} ago: {one['text']}") for at, one in enumerate(warnings)
    ]
    return rows


def _store(store: dict[str, int], before: dict[str, int] | None, seconds: float) -> str:
    earlier = before or dict.fromkeys(store, 0)
    requests, came = ((store[name] - earlier[name]) / seconds for name in ("requests", "bytes"))
    in_all = f"{counted(store['requests'], 'request')} and {size(store['bytes'])} in all"
    return f"{requests:,.0f} requests/s, {size(came)}/s, {in_all}"


def _cache(cache: Facts, before: Facts | None, seconds: float) -> str:
    earlier = before or {"read_bytes": 0, "written_bytes": 0}
    read, written = ((cache[name] - earlier[name]) / seconds for name in ("read_bytes", "written_bytes"))
    held = f"{size(cache['used'])} of {size(cache['limit'])}, {cache['state']}"
    return f"{size(read)}/s read, {size(written)}/s written, {held}, {cache['folder']}"


def _decoded(decoded: dict[str, int], before: dict[str, int] | None, seconds: float) -> str:
    """Format the output of the decode workers, and the fraction of the fetched samples that they decoded."""
    earlier = before or {"decoded": 0, "fetched_decoded": 0}
    made, fetched = ((decoded[name] - earlier[name]) / seconds for name in ("decoded", "fetched_decoded"))
    held = f"{size(decoded['used'])} of {size(decoded['limit'])}, {counted(decoded['workers'], 'decode worker')}"
    return f"{made:,.0f}/s, {fetched:,.0f}/s fetched, {decoded['fetched_encoded']:,} fetched encoded in all, {held}"


def _nodes(cluster: Facts) -> str:
    missing = sorted(set(range(cluster["nodes"])) - {cluster["node"], *cluster["reachable"]})
    others = f"not reachable: {', '.join(map(str, missing))}" if missing else "all others reachable"
    return f"node {cluster['node']} of {cluster['nodes']}, {others}"


def _processes(used: dict[str, int]) -> str:
    clients = f"{counted(used['client_processes'], 'client process', 'client processes')} {size(used['clients'])}"
    return f"server {size(used['server'])}, {clients}, memory for samples {size(used['arena'])}"


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
