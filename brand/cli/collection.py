"""`brand append`, `overlay`, `versions`, `delete`, `compact` and `redact`: add to a collection, and remove from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from brand import collect
from brand.chunker import Options, Report
from brand.chunker.plan.report import OnProgress
from brand.cli.convert import (
    IMPORTS,
    TABLE_FORM,
    TEXT_COLUMNS,
    TOKENS_HELP,
    TRANSCRIPTS,
    dialect_of,
    folder_verb,
    import_verb,
    names_of,
    table_options,
    token_verb,
)
from brand.cli.dataset import COLLECTION, DATA_SET_IN_FOLDER, options
from brand.cli.output import echo, meter, print_json, size
from brand.collect.changes import read_column
from brand.collect.compacting import Compacted, reminder
from brand.collect.home import unfinished
from brand.errors import UsageError, counted

_THEN: Final = "An append that was stopped goes on with the same command."
_COMPACT: Final = click.option(
    "--compact", is_flag=True, help="Merge small segments afterwards if it is time, as `brand compact` does."
)


@click.group()
def append() -> None:
    """Add a segment of samples to a collection.

    A collection is a data set that grows, and the first append makes it. The collection fixes the fields, the chunk
    size, the compression and the labels of its classes.
    """


@append.command(help=f"Add the image folder SRC to the collection DST, or begin it. {_THEN}")
@_COMPACT
@folder_verb
@table_options
def images(src: str, dst: str, chosen: Options, on_progress: OnProgress, **beside: Any) -> Report:
    return collect.append_images(src, dst, chosen, **beside, on_progress=on_progress)


@append.command(help=f"Add the audio folder SRC to the collection DST, or begin it. {_THEN}")
@TRANSCRIPTS
@TEXT_COLUMNS
@TABLE_FORM
@_COMPACT
@folder_verb
def audio(
    src: str,
    dst: str,
    chosen: Options,
    on_progress: OnProgress,
    transcripts: str | None,
    columns: str | None,
    *,
    compact: bool,
    **form: Any,
) -> Report:
    texts: dict[str, Any] = {
        "transcripts": transcripts,
        "columns": names_of(columns),
        "dialect": dialect_of(form),
        "compact": compact,
    }
    return collect.append_audio(src, dst, chosen, **texts, on_progress=on_progress)


for _kind, _help in IMPORTS.items():
    _said = f"{_help.replace('Convert', 'Add', 1)} They become samples of the collection DST. {_THEN}"
    append.command(_kind, help=_said)(_COMPACT(import_verb(_kind, collect.append_from)))

_said = f"{TOKENS_HELP.replace('Convert', 'Add', 1)} They become samples of the collection DST. {_THEN}"
append.command("tokens", help=_said)(_COMPACT(token_verb(collect.append_tokens)))


@append.command()
@click.argument("src", type=DATA_SET_IN_FOLDER)
@click.argument("dst", type=COLLECTION)
@click.option("--copy", is_flag=True, help="Copy the files, instead of making hard links where that is possible.")
@_COMPACT
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def dataset(src: Path, dst: Path, *, copy: bool, compact: bool, as_json: bool) -> None:
    """Add the finished data set SRC to the collection DST, or begin it.

    A hard link is a second name of a file. It takes no space, and SRC stays unchanged.
    """
    with meter(quiet=as_json) as show:
        version = collect.append_data_set(
            str(src),
            str(dst),
            copy=copy,
            compact=compact,
            on_chunk=lambda done, of, size: show("append", done, of, size, None),
        )
    new = version.parts[-1]
    if as_json:
        facts = {"path": str(dst), "version": version.number, "first": new.first, "end": new.end}
        print_json(facts | {"samples": version.samples})
        return
    echo(
        f"Version {version.number} of {dst} has {counted(version.samples, 'sample')}; the new ones are {new.first:,} to"
        f" {new.end - 1:,}"
    )
    if not compact and (due := reminder(version)) is not None:
        echo(due)


@click.command()
@click.argument("dst", type=COLLECTION)
@click.argument("column", metavar="NAME=FILE.npy")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def overlay(dst: Path, column: str, *, as_json: bool) -> None:
    """Add a column of numbers to the collection DST.

    FILE.npy holds one value for each index. The samples are not rewritten. `NAME=` removes the column.
    """
    name, equals, file = column.partition("=")
    if not equals:
        raise UsageError(f"{column!r}: write NAME=FILE.npy, or NAME= to remove the column")
    version = collect.overlay(str(dst), name, read_column(Path(file)) if file else None)
    if as_json:
        print_json({"path": str(dst), "version": version.number, "columns": list(version.overlays)})
        return
    told = f"has a column {name} for {counted(version.samples, 'sample')}" if file else f"has no column {name}"
    echo(f"Version {version.number} of {dst} {told}")


@click.command()
@click.argument("dst", type=COLLECTION)
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def versions(dst: Path, *, as_json: bool) -> None:
    """List the versions of the collection DST, the latest last.

    `DST@2` names version 2 wherever a data set is named.
    """
    found, begun = collect.versions(str(dst)), unfinished(str(dst))
    if as_json:
        print_json(
            {"path": str(dst), "versions": [line.to_json() for line in found], "unfinished": list(map(str, begun))}
        )
        return
    for line in found:
        gone = f", {line.samples - line.present:,} deleted" if line.samples > line.present else ""
        facts = f"{counted(line.present, 'sample')}{gone}, {size(line.stored_bytes)}"
        echo(f"{line.number:>4}  {facts:<36}  {line.note}")
    for place in begun:
        echo(f"An append was stopped: run it again, or remove {place}")


naming_options: Final = options(
    click.option("--key", "keys", multiple=True, help="A key; with / at its end, all keys that begin with it."),
    click.option("--key-file", type=click.Path(path_type=Path), help="A file of keys, one a line, in UTF-8."),
    click.option("--index", "indices", type=click.IntRange(0), multiple=True, help="An index."),
)


def wanted_of(keys: tuple[str, ...], key_file: Path | None, indices: tuple[int, ...]) -> collect.NamedSamples:
    """Return the samples that the options name. Raises `UsageError`."""
    lines: list[str] = []
    if key_file is not None:
        try:
            lines = [line for line in key_file.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"{key_file}: the keys cannot be read: {why}") from error
    if not (keys or lines or indices):
        raise UsageError("no sample is named: give --key, --key-file or --index")
    return collect.NamedSamples((*keys, *lines), indices)


@click.command()
@click.argument("dst", type=COLLECTION)
@naming_options
@click.option("--undo", is_flag=True, help="Take the deletion of these --index back, while their bytes are there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def delete(
    dst: Path, *, keys: tuple[str, ...], key_file: Path | None, indices: tuple[int, ...], undo: bool, as_json: bool
) -> None:
    """Delete samples from the next version of the collection DST.

    The bytes stay for older versions; `brand compact` and `brand redact` remove them. A search for keys reads all
    samples once.
    """
    wanted = wanted_of(keys, key_file, indices)
    if undo and (keys or key_file is not None):
        raise UsageError("--undo takes --index: deleted samples are not read, so they have no keys")
    if undo:
        version, deleted = collect.undelete(str(dst), list(indices)), sorted(set(indices))
    else:
        with meter(quiet=as_json) as show:
            version, found = collect.delete(
                str(dst), wanted, on_chunk=lambda done, of, _: show("search", done, of, 0, None)
            )
        deleted = found.indices.tolist()
    if as_json:
        facts = {"path": str(dst), "version": version.number, "undo": undo, "indices": deleted}
        print_json(facts | {"present": version.present})
        return
    is_or_are = counted(len(deleted), "sample is", "samples are")
    echo(
        f"{is_or_are} {'there again' if undo else 'deleted'}: version {version.number} of {dst} has"
        f" {counted(version.present, 'sample')}"
    )


@click.command()
@click.argument("dst", type=COLLECTION)
@click.option(
    "--above",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.2,
    show_default=True,
    help="Rewrite a segment if more than this fraction of it is deleted.",
)
@click.option("--forget", is_flag=True, help="Remove all older versions, and the files that only they need.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def compact(dst: Path, *, above: float, forget: bool, as_json: bool) -> None:
    """Merge small segments of the collection DST, and leave out deleted samples.

    Eight neighbouring segments of about one size become one. Indices do not change. Older versions need the old
    segments, so no space is freed without --forget. With --forget, loader states and running trainings of older
    versions cannot continue.
    """
    with meter(quiet=as_json) as show:
        done = collect.compact(
            str(dst), above=above, forget=forget, on_chunk=lambda at, of, count: show("compact", at, of, count, None)
        )
    if as_json:
        facts = (
            None
            if done is None
            else {
                "version": done.version.number,
                "segments": done.segments,
                "written": done.written,
                "samples": done.samples,
            }
        )
        print_json({"path": str(dst), "done": facts, "freed": 0 if done is None else done.freed})
        return
    if done is None:
        few = f"no segment of {dst} has more than {100 * above:g} % deleted samples"
        echo(f"Nothing to do: {few}, and there is nothing to merge")
        return
    if done.segments:
        echo(f"{_said_of(done)}: version {done.version.number} of {dst}")
    if forget:
        echo(f"All older versions are removed, and {size(done.freed)} are free again")
    else:
        echo("Older versions keep the old segments: `brand compact --forget` removes both")


def _said_of(done: Compacted) -> str:
    old, gone = counted(done.segments, "segment"), f"{counted(done.samples, 'deleted sample')} ({size(done.bytes)})"
    if done.written == done.segments:
        return f"{old} rewritten without {gone}"
    return f"{old} merged into {done.written:,}" + (f", without {gone}" if done.samples else "")


@click.command()
@click.argument("dst", type=COLLECTION)
@naming_options
@click.option("--report", required=True, type=click.Path(), help="The new file for the report, in JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, and no progress.")
def redact(
    dst: Path, *, keys: tuple[str, ...], key_file: Path | None, indices: tuple[int, ...], report: str, as_json: bool
) -> None:
    """Destroy the bytes of samples of the collection DST.

    Samples may have been deleted before. Segments that hold them are rewritten, and all versions that name the old
    segments are removed. Loader states and running trainings of these versions cannot continue. The report lists the
    samples that were destroyed and the work that remains for you.
    """
    with meter(quiet=as_json) as show:
        told = collect.redact(
            str(dst),
            wanted_of(keys, key_file, indices),
            report,
            on_chunk=lambda done, of, count: show("redact", done, of, count, None),
        )
    if as_json:
        print_json(told)
        return
    removed = told["versions_removed"]
    echo(
        f"{counted(len({each['index'] for each in told['samples']}), 'sample')} destroyed, with"
        f" {counted(len(told['files_destroyed']), 'file')} and {counted(len(removed), 'older version')}: version"
        f" {told['version']} of {dst} is the present one"
    )
    if told["same_bytes_elsewhere"]:
        alike = ", ".join(map(str, told["same_bytes_elsewhere"][:10]))
        echo(f"Other samples have the same bytes, and are still there: {alike}")
    place = report if Path(report).absolute() == Path(told["written_to"]) else told["written_to"]
    echo(f"{place} has the details. Brand cannot destroy these:")
    for each in told["remains_with_you"]:
        echo(f"  {each}")
