"""`brand overlay COLLECTION NAME=FILE.npy`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import FOLDER
from brand.cli.output import echo, print_json
from brand.collect import overlay as run
from brand.collect.overlaying import read_column
from brand.errors import UsageError, counted


@click.command()
@click.argument("dst", type=FOLDER)
@click.argument("column", metavar="NAME=FILE.npy")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def overlay(dst: Path, column: str, *, as_json: bool) -> None:
    """Add a column of numbers to the collection DST.

    FILE.npy holds one value for each index. The samples are not rewritten. `NAME=` removes the column.
    """
    name, equals, file = column.partition("=")
    if not equals:
        raise UsageError(f"{column!r}: write NAME=FILE.npy, or NAME= to remove the column")
    version = run(str(dst), name, read_column(Path(file)) if file else None)
    if as_json:
        print_json({"path": str(dst), "version": version.number, "columns": list(version.overlays)})
        return
    told = f"has a column {name} for {counted(version.samples, 'sample')}" if file else f"has no column {name}"
    echo(f"Version {version.number} of {dst} {told}")
