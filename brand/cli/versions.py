"""`brand versions COLLECTION`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import FOLDER
from brand.cli.output import echo, print_json, size
from brand.collect.listing import unfinished
from brand.collect.listing import versions as run


@click.command()
@click.argument("dst", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def versions(dst: Path, *, as_json: bool) -> None:
    """List the versions of the collection DST, the latest last.

    `DST@2` names version 2 wherever a data set is named.
    """
    found, begun = run(str(dst)), unfinished(str(dst))
    if as_json:
        print_json(
            {"path": str(dst), "versions": [line.to_json() for line in found], "unfinished": list(map(str, begun))}
        )
        return
    for line in found:
        gone = f", {line.samples - line.present:,} deleted" if line.samples > line.present else ""
        facts = f"{line.present:,} samples{gone}, {size(line.stored_bytes)}"
        echo(f"{line.number:>4}  {facts:<36}  {line.note}")
    for place in begun:
        echo(f"An append was stopped: run it again, or remove {place}")
