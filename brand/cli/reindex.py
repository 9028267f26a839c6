"""`brand reindex DST`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import DATA_SET_IN_FOLDER
from brand.cli.output import echo, meter, print_json
from brand.errors import counted
from brand.storage.maintenance.reindex import reindex as run


@click.command()
@click.argument("dst", type=DATA_SET_IN_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def reindex(dst: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Rebuild manifest, index and columns of DST from its chunks.

    Raises `UsageError`.
    """
    total = 0
    with meter(quiet=as_json) as show:

        def on_chunk(done: int, chunks: int, size: int) -> None:
            nonlocal total
            total += size
            show("reindex", done, chunks, total, None)

        header = run(dst, on_chunk).header
    if as_json:
        print_json({"path": str(dst), "samples": header.samples, "chunks": header.chunks})
    else:
        echo(f"The index of {counted(header.samples, 'sample')} in {counted(header.chunks, 'chunk')} is new")
