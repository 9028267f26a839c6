"""`brand delete COLLECTION`."""

from __future__ import annotations

from pathlib import Path

import click

from brand.cli.dataset import FOLDER
from brand.cli.naming import naming_options, wanted_of
from brand.cli.output import echo, meter, print_json
from brand.collect import delete as run
from brand.collect import undelete
from brand.errors import UsageError, counted


@click.command()
@click.argument("dst", type=FOLDER)
@naming_options
@click.option("--undo", is_flag=True, help="Take the deletion of these --index back, while their bytes are there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def delete(
    dst: Path, *, keys: tuple[str, ...], key_file: Path | None, indices: tuple[int, ...], undo: bool, as_json: bool
) -> None:
    """Delete samples from the next version of the collection DST.

    The bytes stay for older versions; `brand compact` and `brand redact` remove them. A search for keys reads all
    samples once.
    """
    wanted = wanted_of(keys, key_file, indices)
    if undo and (keys or key_file is not None):
        raise UsageError("--undo takes --index: deleted samples are not read, so they have no keys")
    if undo:
        version, deleted = undelete(str(dst), list(indices)), sorted(set(indices))
    else:
        with meter(quiet=as_json) as show:
            version, found = run(str(dst), wanted, on_chunk=lambda done, of, _: show("search", done, of, 0, None))
        deleted = found.indices.tolist()
    if as_json:
        facts = {"path": str(dst), "version": version.number, "undo": undo, "indices": deleted}
        print_json(facts | {"present": version.present})
        return
    is_or_are = counted(len(deleted), "sample is", "samples are")
    echo(
        f"{is_or_are} {'there again' if undo else 'deleted'}: version {version.number} of {dst} has"
        f" {counted(version.present, 'sample')}"
    )
