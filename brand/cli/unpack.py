"""`brand unpack DST OUT`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import DATA_SET, FOLDER
from brand.cli.output import echo, meter, print_json
from brand.errors import counted
from brand.storage.maintenance.unpack import unpack as run


@click.command()
@click.argument("dst", type=DATA_SET)
@click.argument("out", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def unpack(dst: Path | str, out: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the source folder of DST to OUT, bit for bit."""
    with meter(quiet=as_json) as show:
        files = run(dst, out, lambda done, chunks, _: show("unpack", done, chunks, 0, None))
    if as_json:
        print_json({"path": str(dst), "out": str(out), "files": files})
    else:
        echo(f"{counted(files, 'file is', 'files are')} in {out}, each as it was")
