"""Show results and progress: bars on a terminal, plain lines in a file, JSON for programs, figures with matplotlib."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from brand.errors import MissingExtraError, UsageError
from brand.errors import size as size
from brand.formats.noticed import Noticed
from brand.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other commands need to start

LINE_EVERY_S: Final = 10.0
BAR_EVERY_S: Final = 0.1
_ENDINGS: Final = (".png", ".svg", ".pdf")
"""Endings of the files of figures."""


Meter = Callable[[str, int, int | None, int, int | None], None]
"""Shows the progress of a stage: its name, samples (or chunks) done and in all, bytes done and in all."""


def echo(line: str, *, err: bool = False) -> None:
    """Print one line for people, with control characters escaped. Commands print all lines here, and JSON elsewhere."""
    click.echo(printable(line), err=err)


def noticed_line(fact: Noticed) -> str:
    """Return a noticed fact as one line: the sentence, and the example."""
    field = f" in field {fact.field!r}" if fact.field else ""
    return f"Noticed{field}: {fact.text} (e.g. {fact.example})"


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. NaN and infinity, which JSON does not have, become null."""
    click.echo(printable_json(json.dumps(_finite(value), indent=1, ensure_ascii=False, default=str)))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def fail(message: str, kind: str, code: int, *, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Print the error, and each note on a line of its own. Return the exit code."""
    if as_json:
        print_json({"error": {"type": kind, "message": "\n".join((message, *notes))}})
    else:
        click.secho("brand: ", fg="red", nl=False, err=True)
        for line in (message, *notes):
            echo(line, err=True)
    return code


def duration(seconds: float) -> str:
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def chunk_run(first: int, last: int) -> str:
    """Format consecutive chunks for people: `chunks 313 to 625`."""
    return f"chunk {first:,}" if first == last else f"chunks {first:,} to {last:,}"


def new_table(title: str = "", *, header: bool = False) -> Table:
    """Return an empty table without lines; `header`: its columns have names."""
    from rich.table import Table
    from rich.text import Text  # no markup: a title may look like it

    shown = Text(title, "bold") if title else None
    return Table(box=None, show_header=header, padding=(0, 3 if header else 2, 0, 0), title=shown, title_justify="left")


@contextmanager
def meter(*, quiet: bool) -> Iterator[Meter]:
    """Yield a bar on a terminal, a line every ten seconds in a file, or a meter that shows nothing if `quiet`."""
    if quiet:
        yield _silent
    elif sys.stderr.isatty():
        with _Bars() as bars:
            yield bars
    else:
        yield _Lines()


def summed(show: Meter, stage: str) -> Callable[[int, int, int], None]:
    """Return a function that shows a pass over chunks: those done, those in all, and the sum of the bytes of each."""
    total = 0

    def on_chunk(done: int, chunks: int, count: int) -> None:
        nonlocal total
        total += count
        show(stage, done, chunks, total, None)

    return on_chunk


def _silent(*_: object) -> None:
    """Show nothing."""


class _Bars:
    """A bar for each stage. It draws when progress is reported: a thread would not survive the fork of workers."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:>6}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._tasks: dict[str, Any] = {}
        self._started: dict[str, float] = {}
        self._drawn = 0.0

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.refresh()
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int | None, size_done: int, total_size: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=None, count="", rate="")
            self._started[stage] = time.monotonic()
        seconds = time.monotonic() - self._started[stage]
        count = f"{done:,}" + (f" of {total:,}" if total is not None else "")
        rate = f"{size(size_done / seconds)}/s" if seconds > 0.2 else ""
        of = (total_size, size_done) if total_size else (total, done)
        self._progress.update(self._tasks[stage], total=of[0], completed=of[1], count=count, rate=rate)
        if time.monotonic() - self._drawn > BAR_EVERY_S:
            self._progress.refresh()
            self._drawn = time.monotonic()


class _Lines:
    """A line every ten seconds, and one when a stage is done."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._started: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None, size_done: int, _: int | None) -> None:
        now = time.monotonic()
        started = self._started.setdefault(stage, now)
        finished = total is not None and done >= total
        if finished and self._last.get(stage) == float("inf"):
            return
        if not finished and now - self._last.get(stage, started) < LINE_EVERY_S:
            return
        self._last[stage] = float("inf") if finished else now
        share = f" of {total:,} ({100 * done / total:.0f} %)" if total else ""
        rate = f", {size(size_done / (now - started))}/s" if now - started > 0.2 else ""
        click.echo(f"{stage}: {done:,}{share}" + (f", {size(size_done)}{rate}" if size_done else ""), err=True)


def empty_figure(plot: Path) -> Any:
    """Return an empty figure, made before the work begins, so that a missing package or folder is an error at once.

    Raises `UsageError`, `MissingExtraError`.
    """
    if plot.suffix.lower() not in _ENDINGS:
        raise UsageError(f"{plot}: the name of a drawing ends in {', '.join(_ENDINGS)}")
    if not plot.absolute().parent.is_dir():
        raise UsageError(f"{plot}: there is no folder {plot.parent}")
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    except ImportError as error:
        raise MissingExtraError("--plot needs the package matplotlib: pip install 'brand-data[tools]'") from error


def save_figure(figure: Any, plot: Path) -> None:
    """Write the figure. Raises `StorageError`."""
    from brand.formats.publish import (
        storage_errors,  # not above: `brand doctor` runs without the packages that it needs
    )

    with storage_errors(plot, "cannot write"):
        figure.savefig(plot)
