"""`brand copy`, `unpack`, `verify`, `reindex` and `partition`: one pass over a whole data set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from brand.cli.dataset import DATA_SET, DATA_SET_IN_FOLDER, FOLDER
from brand.cli.output import chunk_run, duration, echo, meter, print_json, size, summed
from brand.errors import FormatError, UsageError, counted
from brand.formats.manifest import read_manifest
from brand.orders.base.owners import MAX_NODES, owner_of_chunk
from brand.storage.io.location import check_single, located
from brand.storage.maintenance.copies import WAYS
from brand.storage.maintenance.copying import copy as copy_data_set
from brand.storage.maintenance.partition import PartitionMade
from brand.storage.maintenance.partition import partition as divide
from brand.storage.maintenance.reindex import reindex as rebuild_index
from brand.storage.maintenance.unpack import unpack as unpack_data_set
from brand.storage.maintenance.verify import extent
from brand.storage.maintenance.verify import verify as verify_data_set


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
        copied = copy_data_set(src, dst, lambda done, chunks, held, total: show("copy", done, chunks, held, total))
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


@click.command()
@click.argument("dst", type=DATA_SET)
@click.argument("out", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def unpack(dst: Path | str, out: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the source folder of DST to OUT, bit for bit."""
    with meter(quiet=as_json) as show:
        files = unpack_data_set(dst, out, lambda done, chunks, _: show("unpack", done, chunks, 0, None))
    if as_json:
        print_json({"path": str(dst), "out": str(out), "files": files})
    else:
        echo(f"{counted(files, 'file is', 'files are')} in {out}, each as it was")


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
        for step in verify_data_set(location):
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
        part = "" if share is None else f"partition {share.node} of {share.nodes} and "
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


@click.command()
@click.argument("dst", type=DATA_SET_IN_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def reindex(dst: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Rebuild manifest, index and columns of DST from its chunks."""
    with meter(quiet=as_json) as show:
        header = rebuild_index(dst, summed(show, "reindex")).header
    if as_json:
        print_json({"path": str(dst), "samples": header.samples, "chunks": header.chunks})
    else:
        echo(f"The index of {counted(header.samples, 'sample')} in {counted(header.chunks, 'chunk')} is new")


_NODE: Final = "{node}"


@click.command()
@click.argument("dst", type=DATA_SET_IN_FOLDER)
@click.argument("out", type=FOLDER, nargs=-1, required=True)
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), metavar="K", required=True, help="How many partitions to make."
)
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
    folders = _folders(out, nodes)
    check_single(dst, "only a single data set is divided. Divide one of its segments,")
    header = read_manifest(dst).header
    group_chunks = min(group_chunks, header.chunks)
    owners = owner_of_chunk(header.chunks, group_chunks, nodes)
    with meter(quiet=as_json) as show:
        shares = divide(dst, folders, owners, group_chunks, copy=copy, on_chunk=summed(show, "partition"))
    if as_json:
        facts = [_facts(made) for made in shares]
        print_json({"path": str(dst), "nodes": nodes, "group_chunks": group_chunks, "partitions": facts})
    else:
        held = f"{counted(header.samples, 'sample')} in {counted(header.chunks, 'chunk')}"
        _print(f"{held} are now in {counted(nodes, 'partition')}", shares)


def _folders(out: tuple[Path, ...], nodes: int) -> list[Path]:
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
    echo(f"Copy each to its node, unless it is there; `brand verify {shares[0].path}` checks a partition")
