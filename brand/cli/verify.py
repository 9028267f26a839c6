"""`brand verify DST`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import DATA_SET
from brand.cli.output import echo, meter, print_json, size
from brand.errors import FormatError, counted
from brand.storage.io.location import located
from brand.storage.maintenance.verify import extent
from brand.storage.maintenance.verify import verify as run

_SHOWN = 100


@click.command()
@click.argument("dst", type=DATA_SET)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def verify(dst: Path | str, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Check every byte of the data set DST.

    Exit code 1 means that something is wrong; the report names chunk and sample.
    """
    location = located(dst)
    whole, chunks, share = extent(location)
    samples = total = 0
    errors: list[FormatError] = []
    with meter(quiet=as_json) as show:
        for step in run(location):
            samples, total = samples + step.samples, total + step.bytes
            errors += step.errors
            show("verify", samples, whole, total, None)
    if as_json:
        listed = [
            {"type": type(e).__name__, "file": str(e.path), "chunk": e.chunk, "sample": e.sample, "message": str(e)}
            for e in errors
        ]
        print_json({"path": str(dst), "samples": samples, "bytes": total, "errors": listed})
    elif not errors:
        part = "" if share is None else f"share {share.node} of {share.nodes} and "
        echo(
            f"{dst} is {part}whole: {counted(samples, 'sample')} in {counted(chunks, 'chunk')}, {size(total)},"
            " every checksum right"
        )
    else:
        for error in errors[:_SHOWN]:
            echo(str(error))
        more = f" (the first {_SHOWN} are shown)" if len(errors) > _SHOWN else ""
        echo(f"{dst}: {counted(len(errors), 'error')}{more}", err=True)
    return 1 if errors else 0
