"""`brand redact COLLECTION`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import FOLDER
from brand.cli.naming import naming_options, wanted_of
from brand.cli.output import echo, meter, print_json
from brand.collect import redact as run
from brand.errors import counted


@click.command()
@click.argument("dst", type=FOLDER)
@naming_options
@click.option("--report", required=True, type=click.Path(), help="The new file for the report, in JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, and no progress.")
def redact(
    dst: Path,
    *,
    keys: tuple[str, ...],
    key_file: Path | None,
    indices: tuple[int, ...],
    report: str,
    as_json: bool,
) -> None:
    """Destroy the bytes of samples of the collection DST.

    Samples may have been deleted before. Segments that hold them are rewritten, and all versions that name the old
    segments are removed. Loader states and running trainings of these versions cannot continue. The report lists the
    samples that were destroyed and the work that remains for you.
    """
    with meter(quiet=as_json) as show:
        told = run(
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
    echo(f"{report} has the details. What remains with you:")
    for each in told["remains_with_you"]:
        echo(f"  {each}")
