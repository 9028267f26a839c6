"""`brand convert images|audio SRC DST`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import click

from brand.chunker import (
    Layout,
    Options,
    PartReport,
    Progress,
    Report,
    convert_audio,
    convert_images,
    plan_audio,
    plan_images,
)
from brand.chunker.report import OnProgress
from brand.cli.output import duration, echo, meter, print_json, size
from brand.cli.several import convert_together, print_part, several_machines
from brand.errors import counted

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SHOWN: Final = 10


class Bytes(click.ParamType[int]):
    """A number of bytes: `4MiB`, `10MB`, `65536`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of bytes; the error says what is allowed."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no size; write for example 4MiB, 10MB or 65536", param, ctx)
        return round(float(match[1]) * _UNITS[match[2] or ""])


def _common(command: Callable[..., Report | PartReport]) -> Callable[..., None]:
    """Add the options of every conversion. The command gets them as one `Options`."""

    @click.argument("src", type=click.Path())
    @click.argument("dst", type=click.Path())
    @click.option(
        "-j", "--jobs", type=click.IntRange(1), help="Processes (default: one a core). The result is the same for any."
    )
    @click.option("--seed", default=0, show_default=True, help="Seed of the shuffle.")
    @click.option(
        "--chunk-size", type=click.IntRange(1), help="Samples a chunk (default: 64, or as many as make 4 MiB)."
    )
    @click.option("--chunk-bytes", type=Bytes(), help="Target for the mean chunk instead, e.g. 8MiB.")
    @click.option("--compression", type=click.Choice(["auto", "zstd", "none"]), default="auto", show_default=True)
    @click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="Stop at a file that cannot be used, or leave it out and list it in skipped.tsv.",
    )
    @click.option(
        "--validate/--no-validate",
        default=None,
        help="Decode every file beforehand (default: with --on-error skip, as only decoding finds every bad file).",
    )
    @click.option("--no-labels", is_flag=True, help="Take all files, in any folder, without classes.")
    @click.option("--follow-links", is_flag=True, help="Follow symbolic links that lead out of SRC, or to folders.")
    @click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
    @click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no progress.")
    @functools.wraps(command)
    def wrapped(src: str, dst: str, *, as_json: bool, **given: Any) -> None:
        options = Options(
            seed=given.pop("seed"),
            layout=Layout(given.pop("chunk_size"), given.pop("chunk_bytes")),
            compression=given.pop("compression"),
            labels=not given.pop("no_labels"),
            jobs=given.pop("jobs"),
            skip_errors=given.pop("on_error") == "skip",
            validate=given.pop("validate"),
            follow_links=given.pop("follow_links"),
            dry_run=given.pop("dry_run"),
        )
        with meter(quiet=as_json) as show:

            def on_progress(p: Progress) -> None:
                show(p.stage, p.samples, p.total, p.bytes, p.total_bytes)

            report = command(src, dst, options, on_progress, **given)
        if as_json:
            print_json(report.to_json())
        elif isinstance(report, PartReport):
            print_part(report)
        else:
            print_report(report)

    return wrapped


@click.group()
def convert() -> None:
    """Convert a folder into a chunked data set."""


@convert.command()
@_common
@several_machines
def images(src: str, dst: str, options: Options, on_progress: OnProgress, **together: Any) -> Report | PartReport:
    """Convert the image folder SRC into the data set DST.

    Folders at the top of SRC are classes, in ImageFolder's order; without such folders the set has no labels. The files
    are kept as they are, and a file's kind is found from its contents. DST is a folder, or a URL as s3://bucket/name. A
    conversion that was stopped goes on with the same command.
    """
    plan = functools.partial(plan_images, src, dst, options)
    report = convert_together(plan, dst, options, on_progress, **together)
    return convert_images(src, dst, options, on_progress=on_progress) if report is None else report


@convert.command()
@click.option(
    "--transcripts",
    type=click.Path(),
    help="TSV or CSV of path and text (default: clip.txt or clip.lab beside clip.wav).",
)
@click.option("--columns", metavar="NAME,...", help="Other columns of that table to take, each as a field of text.")
@_common
@several_machines
def audio(
    src: str,
    dst: str,
    options: Options,
    on_progress: OnProgress,
    transcripts: str | None,
    columns: str | None,
    **together: Any,
) -> Report | PartReport:
    """Convert the audio folder SRC into the data set DST.

    Folders at the top of SRC are classes; without such folders the set has no labels. The files are kept as they are.
    DST is a folder, or a URL as s3://bucket/name. A conversion that was stopped goes on with the same command.
    """
    names = [name.strip() for name in (columns or "").split(",") if name.strip()]
    texts: dict[str, Any] = {"transcripts": transcripts, "columns": names}
    plan = functools.partial(plan_audio, src, dst, options, **texts)
    report = convert_together(plan, dst, options, on_progress, **together)
    return convert_audio(src, dst, options, **texts, on_progress=on_progress) if report is None else report


def print_report(report: Report) -> None:
    """Say what a conversion did, or would do."""
    would = "would become" if report.dry_run else "are now"
    classes = "" if report.classes is None else f" in {counted(len(report.classes), 'class', 'classes')}"
    packed = "not compressed"
    if report.compression == "zstd":
        share = 100 * report.stored_bytes / max(1, report.source_bytes)
        packed = f"compressed to {share:.0f} %" + (" with a dictionary" if report.dictionary_bytes else "")
    echo(
        f"{counted(report.samples, 'sample')}{classes} {would} {counted(report.chunks, 'chunk')}"
        f" of {report.chunk_size:,} in {report.target}"
    )
    if report.classes is None:
        echo("No labels: there are no class folders, or they were not asked for")
    else:
        more = "" if len(report.classes) <= _SHOWN else f" and {len(report.classes) - _SHOWN:,} more"
        echo(f"Classes: {', '.join(report.classes[:_SHOWN])}{more}")
    about = "about " if report.dry_run else ""
    echo(f"{size(report.source_bytes)} of samples, {about}{size(report.stored_bytes)} stored ({packed})")
    if report.chunks_found:
        echo(f"{counted(report.chunks_found, 'chunk')} found, from a run that was stopped")
    for note in report.notes:
        echo(note)
    if report.skipped:
        echo(
            f"{counted(len(report.skipped), 'file')} cannot be used"
            + ("" if report.dry_run else f"; all are listed in {report.target}/skipped.tsv")
            + ":"
        )
        for problem in report.skipped[:_SHOWN]:
            echo(f"  {problem.path}: {problem.reason}")
        if len(report.skipped) > _SHOWN:
            echo(f"  and {len(report.skipped) - _SHOWN:,} more")
    if report.dry_run:
        echo(f"It would take about {duration(report.seconds)}. Nothing was written.")
    else:
        echo(f"Done in {duration(report.seconds)}. `brand info {report.target}` shows what is in it.")
