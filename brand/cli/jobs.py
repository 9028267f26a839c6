"""`brand simulate DST --job SPEED --job SPEED`: predict the reads of several jobs that share a data server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brand.cli.output import duration, echo, empty_figure, new_table, print_json, save_figure, size
from brand.errors import UsageError, counted
from brand.node.setup.memory import SIZE, Memory, check_unit, memory_bytes, parse_size
from brand.simulate.together import POLICIES, PlannedJob, Policy, SharedReads, Together
from brand.simulate.whatif import Data

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other verbs need to start

_FORM: Final = "give a speed, then start=, subset= or epochs=, such as 1500/s,start=0.5,subset=0.1"
_LITTLE: Final = 0.15
"""Jobs that together save less than this fraction of their reads gain almost nothing."""
_WIDTH: Final = 240


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """The jobs, policies and memories that the user asks about."""

    jobs: Sequence[str]
    """The jobs as the user wrote them."""
    policies: str
    memories: Sequence[tuple[str, Memory]]
    """The user's name for each memory, and the memory."""
    decoded_memory: str | None
    decode_s: float
    epochs: int


@dataclass(frozen=True, slots=True)
class _Planned:
    """A job, with the text that the user wrote."""

    text: str
    job: PlannedJob
    per_second: bool
    """Whether its speed is in samples per second."""


@dataclass(frozen=True, slots=True)
class _JobsRow:
    memory: str
    policy: Policy
    sharing: SharedReads
    per_s: float
    """Samples per second of all jobs, or 0 if their speeds are not in samples per second."""


def show_jobs(data: Data, asked: JobsQuery, plot: Path | None, *, as_json: bool) -> None:
    """Simulate jobs with some policies and memories, and print their reads. Raises `UsageError`."""
    figure = empty_figure(plot) if plot else None
    planned = [_planned(text) for text in asked.jobs]
    jobs = [each.job for each in planned]
    if len({each.per_second for each in planned}) > 1:
        raise UsageError("--job: give all speeds in samples a second, such as 1500/s, or none")
    policies, decoded = _policies(asked.policies), _decoded(asked.decoded_memory, data.samples)
    facts = replace(data.facts, samples=data.samples)
    together, rows = Together(facts, jobs, asked.epochs), []
    for name, memory in asked.memories:
        share = memory_bytes(memory, data.stored_bytes) / data.stored_bytes
        for policy in policies:
            rows.append(_JobsRow(name, policy, together.sharing(policy, share, decoded), _rate(planned, policy)))
    first_share = memory_bytes(asked.memories[0][1], data.stored_bytes) / data.stored_bytes
    aligned = [replace(job, start=0.0) for job in jobs]
    advice = _advice(rows, jobs, lambda: Together(facts, aligned, asked.epochs).sharing("follow", first_share))
    if as_json:
        described = [{"job": each.text} | asdict(each.job) for each in planned]
        facts_of_rows = [_facts(row, data, asked) for row in rows]
        head = {"samples": data.samples, "stored_bytes": data.stored_bytes}
        print_json(head | {"jobs": described, "rows": facts_of_rows, "advice": advice})
    else:
        _show(data, asked, planned, rows, advice)
    if plot and figure:
        _draw(rows, figure)
        save_figure(figure, plot)
        if not as_json:
            echo(f"The plot of the policies is in {plot}")


# -- what is asked -----------------------------------------------------------------------------------------------------


def _planned(text: str) -> _Planned:
    speed, *others = [each.strip() for each in text.split(",")]
    given = dict[str, float]()
    for each in others:
        name, _, value = each.partition("=")
        if name not in {"start", "subset", "epochs"} or name in given:
            raise UsageError(f"--job {text}: {_FORM}")
        given[name] = _number(text, value)
    found = _number(text, speed.removesuffix("/s"))
    start, subset, epochs = given.get("start", 0.0), given.get("subset", 1.0), given.get("epochs")
    if found <= 0 or start < 0 or not 0 < subset <= 1 or (epochs is not None and (epochs < 1 or epochs % 1)):
        raise UsageError(f"--job {text}: a speed is above 0, a subset above 0 and at most 1, epochs a whole number")
    job = PlannedJob(found, start, subset, None if epochs is None else int(epochs))
    return _Planned(text, job, speed.endswith("/s"))


def _number(job: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"--job {job}: {_FORM}")
    return value


def _policies(text: str) -> list[Policy]:
    names = [each.strip() for each in text.split(",")]
    found = [policy for name in names for policy in POLICIES if policy == name]
    if len(found) < len(names):
        raise UsageError(f"--policies {text}: give some of {', '.join(POLICIES)}")
    return found


def _decoded(text: str | None, samples: int) -> float | None:
    if text is None:
        return None
    memory, colon, sample = text.partition(":")
    if not colon:
        raise UsageError(f"--decoded-memory {text}: give a memory and the size of a decoded sample, such as 2GB:262kB")
    check_unit(memory, f"--decoded-memory {text}", SIZE)
    try:
        return parse_size(memory) / max(1, parse_size(sample)) / samples
    except UsageError as error:
        raise UsageError(f"--decoded-memory {text}: {error}") from None


# -- what is answered --------------------------------------------------------------------------------------------------


def _rate(planned: Sequence[_Planned], policy: Policy) -> float:
    """Return the samples per second that all jobs fetch together, or 0 if that is not known."""
    speeds = [each.job.speed for each in planned if each.per_second] or [0.0]
    return len(speeds) * min(speeds) if policy == "coordl" else sum(speeds)


def _facts(row: _JobsRow, data: Data, asked: JobsQuery) -> dict[str, Any]:
    found = row.sharing
    return {
        "memory": row.memory,
        "policy": row.policy,
        "reads": round(found.operations),
        "read_bytes": _read_bytes(found, data),
        "read_per_byte_fetched": found.per_draw,
        "decoded_per_sample": found.prepared_per_draw,
        "decoding_threads": row.per_s * found.prepared_per_draw * asked.decode_s or None,
        "jobs": [
            {"epoch": epoch, "fetched": round(drawn * data.samples), "read_per_byte_fetched": read / drawn}
            for epoch, drawn, read in zip(found.epochs, found.draws, found.reads, strict=True)
        ],
    }


def _read_bytes(found: SharedReads, data: Data) -> int:
    return round(sum(found.reads) * data.stored_bytes)


def _advice(rows: list[_JobsRow], jobs: Sequence[PlannedJob], aligned: Any) -> str | None:
    """Return one sentence of advice, or None if nothing is known. `aligned()` simulates a common start of all jobs."""
    of = {row.policy: row.sharing for row in rows if row.memory == rows[0].memory}
    if len(jobs) == 1:
        return "One job has nobody to share with: give a --job for each job"
    if "follow" not in of or "alone" not in of or not of["alone"].per_draw:
        return None
    gain = 1 - of["follow"].per_draw / of["alone"].per_draw
    if gain < _LITTLE:
        why = (
            ": a random subset overlaps little with the samples of other jobs"
            if any(job.subset < 1 for job in jobs)
            else ""
        )
        return f"Together these jobs read only {max(0.0, gain):.0%} less than each for itself{why}. Run them apart"
    told = f"Together these jobs read {gain:.0%} less than each for itself"
    if len({job.start for job in jobs}) > 1:
        at_once = 1 - aligned().per_draw / of["alone"].per_draw
        if at_once > gain + 0.05:
            told += f", and {at_once:.0%} less if they start at the same time"
    return told


def _show(data: Data, asked: JobsQuery, planned: Sequence[_Planned], rows: list[_JobsRow], advice: str | None) -> None:
    from rich.console import Console

    several = len(asked.memories) > 1
    fixed = "" if several else f"; memory {rows[0].memory}"
    echo(f"{counted(data.samples, 'sample')}, {size(data.stored_bytes)}{fixed}")
    console = Console(highlight=False, width=_WIDTH)
    console.print(_jobs_table(data, planned, [row for row in rows if row.memory == rows[0].memory]))
    ends = planned[0].job.epochs is not None
    echo("From the first fetch to the last:" if ends else "While the fastest job could fetch all samples once:")
    console.print(_rows_table(data, asked, rows))
    if any(row.policy == "coordl" for row in rows) and len({each.job.speed for each in planned}) > 1:
        echo("With coordl all jobs run at the speed of the slowest one, so they fetch fewer samples in this time")
    if advice:
        echo(advice)


def _jobs_table(data: Data, planned: Sequence[_Planned], rows: list[_JobsRow]) -> Table:
    table, first = new_table(header=True), rows[0].sharing
    table.add_column("job")
    for name in ("epoch", "fetched", *(f"{row.policy} reads" for row in rows)):
        table.add_column(name, justify="right")
    fastest = max(each.job.speed for each in planned)
    for at, each in enumerate(planned):
        epoch = f"{first.epochs[at]:.2f}"
        if each.per_second:
            epoch = duration(first.epochs[at] * data.samples / fastest)
        per_draw = [f"{row.sharing.reads[at] / row.sharing.draws[at]:.2f}" for row in rows]
        table.add_row(each.text, epoch, f"{first.draws[at] * data.samples:,.0f}", *per_draw)
    return table


def _rows_table(data: Data, asked: JobsQuery, rows: list[_JobsRow]) -> Table:
    table, several = new_table(header=True), len(asked.memories) > 1
    threads = asked.decode_s > 0 and rows[0].per_s > 0
    names = [*(["memory"] if several else []), "policy", "reads", "read", "per byte fetched", "decoded per sample"]
    for name in [*names, *(["decoding threads"] if threads else [])]:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        found = row.sharing
        cells = [row.memory] if several else []
        cells += [row.policy, f"{found.operations:,.0f}", size(_read_bytes(found, data)), f"{found.per_draw:.2f}"]
        cells += [f"{found.prepared_per_draw:.2f}"]
        cells += [f"{row.per_s * found.prepared_per_draw * asked.decode_s:.1f}"] if threads else []
        table.add_row(*cells)
    return table


def _draw(rows: list[_JobsRow], figure: Any) -> None:
    axes, memories = figure.subplots(), list(dict.fromkeys(row.memory for row in rows))
    for policy in dict.fromkeys(row.policy for row in rows):
        axes.plot(memories, [row.sharing.per_draw for row in rows if row.policy == policy], marker="o", label=policy)
    axes.set(xlabel="memory", ylabel="bytes read for each byte fetched", ylim=(0, None))
    axes.legend()
