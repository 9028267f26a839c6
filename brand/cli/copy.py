"""`brand copy SRC DST`."""

from __future__ import annotations

from dataclasses import asdict

import click

from brand.cli.output import duration, echo, meter, print_json, size
from brand.errors import counted
from brand.storage.maintenance.copying import copy as run


@click.command()
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def copy(src: str, dst: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Copy the data set SRC to DST, each a folder or a URL.

    A URL has the form s3://bucket/name. Each sample is compared with its checksum during the copy, and the manifest is
    written last. If a copy was stopped, the same command continues it.
    """
    with meter(quiet=as_json) as show:
        copied = run(src, dst, lambda done, chunks, held, total: show("copy", done, chunks, held, total))
    if as_json:
        print_json(asdict(copied))
        return
    echo(
        f"{counted(copied.samples, 'sample')} in {counted(copied.chunks, 'chunk')}, {size(copied.bytes)}, are now in"
        f" {copied.target}"
    )
    if copied.chunks_found:
        echo(f"{copied.chunks_found:,} of these chunks were there already")
    echo(f"Done in {duration(copied.seconds)}. Each sample that was copied is as its checksum says.")
