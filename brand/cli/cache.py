"""`brand cache list DIR`, `brand cache fill DST DIR` and `brand cache clear DIR`: the contents of a cache folder."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from brand.cli.dataset import CACHE_FOLDER, DATA_SET
from brand.cli.output import echo, meter, print_json, size, summed
from brand.cli.serve import check_cache
from brand.errors import CacheError, UsageError, counted
from brand.formats.publish import storage_errors
from brand.node.setup.caching import parse_cache
from brand.node.setup.measure import stored_sizes
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.cache.cachefolder import fill as run
from brand.storage.cache.caches import Cached, free_bytes, list_caches, opened_caches, remove_cache
from brand.storage.dataset.dataset import StoredDataSet


@click.group()
def cache() -> None:
    """List, fill or clear a cache folder of data servers."""


@cache.command("list")
@click.argument("folder", metavar="DIR", type=CACHE_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def list_(folder: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """List the data sets in the cache folder DIR.

    The data set that has been unused for longest is first.
    """
    with opened_caches(os.fspath(folder), make=False) as (caches, shown), storage_errors(folder, "cannot look at"):
        found, free = list_caches(caches, shown), max(0, free_bytes(caches))
    if as_json:
        print_json({"folder": str(folder), "free": free, "caches": [_facts(cached) for cached in found]})
        return
    taken = size(sum(cached.bytes for cached in found))
    echo(f"{counted(len(found), 'data set')} in {folder}, {taken} on the disk")
    for cached in found:
        held = counted(cached.held, "sample")
        if cached.facts is not None:
            held = f"{cached.held:,} of {counted(cached.facts.samples, 'sample')}"
        used = ", a server writes it" if cached.in_use else ""
        echo(f"  {cached.data_set}  {held}, {size(cached.bytes)}{used}")


@cache.command("fill")
@click.argument("dst", type=DATA_SET)
@click.argument("folder", metavar="DIR[:SIZE]", callback=check_cache)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def fill_(dst: Path | str, folder: str, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Copy the data set DST into the cache folder DIR.

    The copy ends when the folder is full. If a copy was stopped, the same command continues it.
    """
    data, wanted = StoredDataSet(dst), parse_cache(folder)
    where = os.fspath(wanted.folder)
    with closing(CacheFolder(where, data, stored_sizes(data), wanted.limit_bytes)) as opened:
        if not opened.writes:
            raise CacheError(f"a server writes the cache of {dst} in {where}: it fills it while it trains")
        with meter(quiet=as_json) as show:
            filled = run(data, opened, summed(show, "fill"))
        held, stopped = int(opened.held.sum()), opened.stopped
    if as_json:
        facts = {"path": str(dst), "folder": where, "held": held, "of": len(data), "stopped": stopped or None}
        print_json(facts | asdict(filled))
    else:
        echo(f"{held:,} of {counted(len(data), 'sample')} are in {where}, {size(filled.bytes)} of them new")
        if stopped:
            echo(f"Nothing more was written: {'there is no more room' if stopped == 'full' else stopped}")
        if filled.damaged:
            echo(f"{counted(filled.damaged, 'sample')} cannot be read: `brand verify {dst}` says why")
    return 1 if filled.damaged or stopped.startswith("failed") else 0


@cache.command("clear")
@click.argument("folder", metavar="DIR", type=CACHE_FOLDER)
@click.option("--data-set", metavar="ID", help="Only the cache of this data set.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def clear(folder: Path, data_set: str | None, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Remove the contents of the cache folder DIR.

    A cache that a running server is writing is not removed.
    """
    removed, in_use = list[Cached](), list[Cached]()
    with opened_caches(os.fspath(folder), make=False) as (caches, shown), storage_errors(folder, "cannot clear"):
        found = [cached for cached in list_caches(caches, shown) if data_set in (None, cached.data_set)]
        if data_set is not None and not found:
            raise UsageError(f"{folder} holds no data set {data_set}: `brand cache list {folder}` says which")
        for cached in found:
            (removed if remove_cache(cached.data_set, caches, shown) else in_use).append(cached)
    if as_json:
        print_json({"removed": [_facts(cached) for cached in removed], "in_use": [_facts(c) for c in in_use]})
    else:
        echo(f"{counted(len(removed), 'cache')} removed, {size(sum(cached.bytes for cached in removed))}")
        for cached in in_use:
            echo(f"  {cached.data_set} stays: a server writes it")
    return 1 if in_use else 0


def _facts(cached: Cached) -> dict[str, Any]:
    return {
        "data_set": cached.data_set,
        "held": cached.held,
        "of": None if cached.facts is None else cached.facts.samples,
        "bytes": cached.bytes,
        "in_use": cached.in_use,
        "used_s": cached.used_s,
    }
