"""`brand append FORMAT SRC COLLECTION`: add the samples of SRC as a segment of a collection."""

from __future__ import annotations

from pathlib import Path

import click

from brand.chunker import Options, Report
from brand.chunker.plan.report import OnProgress
from brand.cli.convert import IMPORTS, TEXT_COLUMNS, TRANSCRIPTS, folder_verb, import_verb, names_of
from brand.cli.dataset import FOLDER
from brand.cli.output import echo, meter, print_json
from brand.collect import append_audio, append_data_set, append_from, append_images
from brand.errors import counted

_THEN = "An append that was stopped goes on with the same command."


@click.group()
def append() -> None:
    """Add a segment of samples to a collection.

    A collection is a data set that grows, and the first append makes it. The collection fixes the fields, the chunk
    size, the compression and the labels of its classes.
    """


@append.command(help=f"Add the image folder SRC to the collection DST, or begin it. {_THEN}")
@folder_verb
def images(src: str, dst: str, options: Options, on_progress: OnProgress) -> Report:
    """See the help."""
    return append_images(src, dst, options, on_progress=on_progress)


@append.command(help=f"Add the audio folder SRC to the collection DST, or begin it. {_THEN}")
@TRANSCRIPTS
@TEXT_COLUMNS
@folder_verb
def audio(
    src: str, dst: str, options: Options, on_progress: OnProgress, transcripts: str | None, columns: str | None
) -> Report:
    """See the help."""
    names = names_of(columns)
    return append_audio(src, dst, options, transcripts=transcripts, columns=names, on_progress=on_progress)


for _kind, _help in IMPORTS.items():
    _said = f"{_help.replace('Convert', 'Add', 1)} They become samples of the collection DST. {_THEN}"
    append.command(_kind, help=_said)(import_verb(_kind, append_from))


@append.command()
@click.argument("src", type=FOLDER)
@click.argument("dst", type=FOLDER)
@click.option("--copy", is_flag=True, help="Copy the files, instead of making hard links where that is possible.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def dataset(src: Path, dst: Path, *, copy: bool, as_json: bool) -> None:
    """Add the finished data set SRC to the collection DST, or begin it.

    A hard link is a second name of a file. It takes no space, and SRC stays unchanged.
    """
    with meter(quiet=as_json) as show:
        version = append_data_set(
            str(src), str(dst), copy=copy, on_chunk=lambda done, of, size: show("append", done, of, size, None)
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
