"""`brand compact COLLECTION`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import FOLDER
from brand.cli.output import echo, meter, print_json, size
from brand.collect import compact as run
from brand.errors import counted


@click.command()
@click.argument("dst", type=FOLDER)
@click.option(
    "--above",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.2,
    show_default=True,
    help="The share of a part that has to be deleted, for the part to be written again.",
)
@click.option("--forget", is_flag=True, help="Remove all older versions, and the files that only they need.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def compact(dst: Path, *, above: float, forget: bool, as_json: bool) -> None:
    """Rewrite segments of the collection DST without deleted samples.

    Indices do not change. Older versions need the old segments, so no space is freed without --forget. With --forget,
    loader states and running trainings of older versions cannot continue.
    """
    with meter(quiet=as_json) as show:
        done = run(
            str(dst), above=above, forget=forget, on_chunk=lambda at, of, count: show("compact", at, of, count, None)
        )
    if as_json:
        facts = None if done is None else {"version": done.version.number, "parts": done.parts, "samples": done.samples}
        print_json({"path": str(dst), "done": facts, "freed": 0 if done is None else done.freed})
        return
    if done is None:
        echo(f"Nothing to do: no part of {dst} has more than {100 * above:g} % deleted samples")
        return
    if done.parts:
        echo(
            f"{counted(done.parts, 'part')} written again without {counted(done.samples, 'deleted sample')}"
            f" ({size(done.bytes)}): version {done.version.number} of {dst}"
        )
    if forget:
        echo(f"All older versions are removed, and {size(done.freed)} are free again")
    else:
        echo("Older versions keep the old parts: `brand compact --forget` removes both")
