"""`brand convert ... --task K/N` and `--engine ray`: options for a conversion on several machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click

from brand.chunker import Options, Report
from brand.chunker.distributed import Job, Task, TaskReport, run_task, seal
from brand.chunker.plan.report import OnProgress
from brand.cli.dataset import options
from brand.cli.output import chunk_run, duration, echo, size
from brand.errors import UsageError, counted

Command = TypeVar("Command", bound=Callable[..., Any])


class _TaskNumber(click.ParamType[Task]):
    """Parses a task of a conversion: `3/8`."""

    name = "task"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Task:
        try:
            return value if isinstance(value, Task) else Task.parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


several_machines: Final = options(
    click.option(
        "--task",
        type=_TaskNumber(),
        metavar="K/N",
        help="Make only task K of N, counted from 0; other machines that see SRC and DST make the others, and `brand"
        " seal DST` finishes it.",
    ),
    click.option("--engine", type=click.Choice(["ray"]), help="Let a Ray cluster make the chunks, then finish DST."),
    click.option("--address", help="With --engine ray: the cluster (default: RAY_ADDRESS, or a new one here)."),
)


def one_machine(command: Command) -> Command:
    """Hide these options, and refuse them with the reason."""
    for name in ("--engine", "--task"):
        command = click.option(name, hidden=True, expose_value=False, callback=_refuse)(command)
    return command


def _refuse(_: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError(
            f"{option.opts[0]} is for images and audio, whose files are read in any order. Shards are read once, in"
            " order, and sorted on the disk of one machine: leave the option out; -j sets that machine's processes"
        )


def convert_together(
    plan: Callable[..., Job],
    dst: str,
    options: Options,
    on_progress: OnProgress,
    *,
    task: Task | None,
    engine: str | None,
    address: str | None,
) -> Report | TaskReport | None:
    """Convert with other machines; return None if no option asks for that. `plan(tasks, on_progress)` makes the job."""
    if task is not None and engine is not None:
        raise UsageError("--task and --engine: an engine makes all tasks by itself, so give one of the two")
    if address is not None and engine is None:
        raise UsageError("--address is for --engine ray")
    if task is not None:
        job = plan(tasks=task.of, on_progress=on_progress)
        return replace(run_task(job, task, jobs=options.jobs, on_progress=on_progress), target=dst)
    if engine is None:
        return None
    from brand.engines.ray import make_chunks

    started = time.monotonic()
    job = plan(on_progress=on_progress)
    found = make_chunks(job, address=address, jobs=options.jobs, on_progress=on_progress)
    report = seal(job.target, on_progress)
    return replace(report, target=dst, chunks_found=found, seconds=time.monotonic() - started)


def print_task(report: TaskReport) -> None:
    if report.chunks:
        which = chunk_run(report.first, report.first + report.chunks - 1)
        echo(
            f"Task {report.task}: {which} of {report.chunks_in_all:,} {_are(report.chunks)} in {report.target}:"
            f" {counted(report.samples, 'sample')}, {size(report.source_bytes)}"
        )
    else:
        echo(f"Task {report.task} is empty: the data set has only {counted(report.chunks_in_all, 'chunk')}")
    if report.chunks_found:
        echo(f"{counted(report.chunks_found, 'chunk')} of them had been made before")
    then = f"`brand seal {report.target}` finishes the data set"
    if report.chunks_missing:
        lost = counted(report.chunks_missing, "chunk")
        echo(f"{lost} of other tasks {_are(report.chunks_missing)} still missing; once all are there, {then}")
    else:
        echo(f"All chunks are there: {then}")
    echo(f"Done in {duration(report.seconds)}")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
