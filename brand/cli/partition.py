"""`brand partition DST --nodes K OUT...`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from brand.cli.dataset import DATA_SET_IN_FOLDER, FOLDER
from brand.cli.output import chunk_run, echo, meter, print_json, size
from brand.errors import UsageError, counted
from brand.formats.manifest import read_manifest
from brand.orders.base.owners import MAX_NODES, owner_of_chunk
from brand.storage.maintenance.copies import WAYS
from brand.storage.maintenance.partition import PartitionMade
from brand.storage.maintenance.partition import partition as run

_NODE: Final = "{node}"


@click.command()
@click.argument("dst", type=DATA_SET_IN_FOLDER)
@click.argument("out", type=FOLDER, nargs=-1, required=True)
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), metavar="K", required=True, help="How many shares to make.")
@click.option(
    "--group-chunks",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Keep each N consecutive chunks together on a node.",
)
@click.option("--copy", is_flag=True, help="Copy the files. Default: hard links where OUT is on DST's file system.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def partition(dst: Path, out: tuple[Path, ...], *, nodes: int, group_chunks: int, copy: bool, as_json: bool) -> None:
    """Divide the data set DST over K nodes, into a folder OUT each.

    Give K folders, or one with {node} in its name, which stands for 0 to K-1. A partition holds the whole index and the
    consecutive chunks of its node. If the command was stopped, the same command continues it.
    """
    folders, total = _folders(out, nodes), 0
    header = read_manifest(dst).header
    group_chunks = min(group_chunks, header.chunks)
    owners = owner_of_chunk(header.chunks, group_chunks, nodes)
    with meter(quiet=as_json) as show:

        def on_chunk(done: int, chunks: int, copied: int) -> None:
            nonlocal total
            total += copied
            show("partition", done, chunks, total, None)

        shares = run(dst, folders, owners, group_chunks, copy=copy, on_chunk=on_chunk)
    if as_json:
        facts = [_facts(made) for made in shares]
        print_json({"path": str(dst), "nodes": nodes, "group_chunks": group_chunks, "shares": facts})
    else:
        held = f"{counted(header.samples, 'sample')} in {counted(header.chunks, 'chunk')}"
        _print(f"{held} are now in {counted(nodes, 'share')}", shares)


def _folders(out: tuple[Path, ...], nodes: int) -> list[Path]:
    """Return the folder of each node."""
    if len(out) == 1 and _NODE in str(out[0]):
        return [Path(str(out[0]).replace(_NODE, str(node))) for node in range(nodes)]
    if len(out) != nodes:
        raise UsageError(
            f"{counted(nodes, 'node')} and {counted(len(out), 'folder')} OUT: give one for each node,"
            f" or one with {_NODE} in its name, which stands for 0 to {nodes - 1}"
        )
    return list(out)


def _facts(made: PartitionMade) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "node": made.share.node,
        "first_chunk": made.share.chunks[0],
        "last_chunk": made.share.chunks[-1],
        "samples": made.samples,
        "bytes": made.bytes,
        **{way: made.ways[way] for way in WAYS},
    }


def _print(head: str, shares: list[PartitionMade]) -> None:
    echo(head)
    for made in shares:
        chunks = chunk_run(made.share.chunks[0], made.share.chunks[-1])
        ways = [(way, made.ways[way]) for way in WAYS if made.ways[way]]
        done = ways[0][0] if len(ways) == 1 else ", ".join(f"{count:,} {way}" for way, count in ways)
        held = f"{counted(made.samples, 'sample')}, {size(made.bytes)}"
        echo(f"  node {made.share.node}: {chunks} ({held}) in {made.path}, {done}")
    if any(made.ways["linked"] for made in shares):
        echo("A linked chunk is a second name of the same file and takes no more space")
    echo(f"Copy each to its node, unless it is there; `brand verify {shares[0].path}` checks a share")
