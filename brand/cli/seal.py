"""`brand seal DST`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.chunker.distributed import seal as run
from brand.chunker.plan.report import StageProgress
from brand.cli.convert import print_report
from brand.cli.dataset import FOLDER
from brand.cli.output import meter, print_json
from brand.errors import MissingChunksError


@click.command()
@click.argument("dst", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no progress.")
def seal(dst: Path, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Finalise the data set DST that tasks of `brand convert` made.

    Exit code 1 means that chunks are missing or damaged; the report lists the tasks that make them. A second run
    changes nothing.
    """
    with meter(quiet=as_json) as show:

        def on_progress(p: StageProgress) -> None:
            show(p.stage, p.samples, p.total, p.bytes, p.total_bytes)

        try:
            report = run(dst, on_progress)
        except MissingChunksError as error:
            if not as_json:
                raise
            print_json({"target": str(dst), "missing": list(error.chunks), "parts": error.parts})
            return 1
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)
    return 0
