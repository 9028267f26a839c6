"""A data set divided over the disks of several nodes: each node gets a folder with the index and its run of chunks.

`share.json` is written first and the manifest last. So an unfinished partition is recognised, does not open as a data
set, and the same call finishes it. Its folder `.brand-partition` holds the file that is being copied, and a lock, which
ends with its process and excludes a second call.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import TargetExistsError, UsageError, counted
from brand.formats.constants import MANIFEST_NAME, SHARE_NAME, SHARE_WORK_NAME
from brand.formats.manifest import Share, pack_share
from brand.formats.publish import publish_file, storage_errors, sync_folder
from brand.formats.version import check_target_name
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.frontback import OnChunk, silent
from brand.storage.maintenance.copies import Way, place_files
from brand.storage.maintenance.endpoints import locked
from brand.storage.maintenance.verify import check_file


@dataclass(frozen=True)
class PartitionMade:
    """One partition that was written."""

    path: Path
    share: Share
    samples: int
    bytes: int
    """Bytes of the partition's chunks."""
    ways: Counter[Way]
    """How many chunks were linked, were copied, and existed already."""


def partition(
    path: Path,
    outs: Sequence[Path],
    owners: NDArray[np.integer[Any]],
    group_chunks: int,
    *,
    copy: bool = False,
    on_chunk: OnChunk = silent,
) -> list[PartitionMade]:
    """Write the partition of node `k` to `outs[k]`; `owners` is the node of each chunk, ascending, shape (chunks,).

    Owners change only between groups of `group_chunks` chunks. Files are hard links if that is possible, unless `copy`.
    Files of an earlier call with the same arguments are reused. `on_chunk(done, of, bytes copied)` reports progress.

    Raises:
        UsageError: The data set is a partition itself, there are more nodes than groups, or a folder is in another one.
        TargetExistsError: A folder holds other files; nothing has been written then.
        FormatError: The data set lacks a file, or a file is damaged.
        StorageError: The storage refused a write; the same call continues at this point.
    """
    data_set = StoredDataSet(path)
    shares = _shares(path, data_set, len(outs), owners, group_chunks)
    _check_apart(path, outs)
    for out, share in zip(outs, shares, strict=True):
        with storage_errors(out, "cannot read"):
            _check_target(out, pack_share(share))
    manifest, done, made = data_set.manifest, 0, []
    for name, facts in {**manifest.files, **manifest.companions}.items():
        if error := check_file(data_set.location, name, facts):
            raise error

    def count(copied: int) -> None:
        nonlocal done
        done += 1
        on_chunk(done, manifest.header.chunks, copied)

    for out, share in zip(outs, shares, strict=True):
        with storage_errors(out, "cannot write the partition to"), _claimed(out, pack_share(share)) as work:
            made.append(_fill(data_set, out, share, work / "copy", copy=copy, count=count))
    return made


def _shares(
    path: Path, data_set: StoredDataSet, nodes: int, owners: NDArray[np.integer[Any]], group_chunks: int
) -> list[Share]:
    if (share := data_set.share) is not None:
        raise UsageError(
            f"{path} is already partition {share.node} of {share.nodes} of a data set. Partition the undivided data set"
        )
    chunks = data_set.header.chunks
    groups = -(-chunks // group_chunks)
    if nodes > groups:
        grouped = f" in {counted(groups, 'group')} of {group_chunks:,}" if group_chunks > 1 else ""
        raise UsageError(
            f"{path} has {counted(chunks, 'chunk')}{grouped}, so it can be divided over at most"
            f" {counted(groups, 'node')}, not over {nodes:,}"
        )
    cuts = tuple(np.searchsorted(owners, np.arange(nodes + 1)).tolist())
    return [Share(data_set.manifest.data_set_id, node, group_chunks, cuts) for node in range(nodes)]


def _check_apart(path: Path, outs: Sequence[Path]) -> None:
    """Raise `UsageError` if two partitions have one folder, or a folder is inside another one or the data set."""
    known: dict[Path, Path] = {}
    for out in outs:
        if (place := Path(os.path.realpath(out))) in known:
            raise UsageError(f"{out} is named twice: each node needs a folder of its own")
        known[place] = out
    known.setdefault(Path(os.path.realpath(path)), path)
    for place, folder in known.items():
        if around := next((known[parent] for parent in place.parents if parent in known), None):
            raise UsageError(f"{folder} is inside {around}: choose a folder outside of it")


def _check_target(out: Path, description: bytes) -> None:
    """Raise `TargetExistsError` unless `out` is new, empty, or this same partition, finished or not."""
    check_target_name(out)
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise TargetExistsError(f"{out} exists and is not a folder. Choose another target, or remove it")
    names = set(os.listdir(out)) - {SHARE_WORK_NAME}
    if SHARE_NAME in names:
        with (out / SHARE_NAME).open("rb") as file:
            found = file.read(len(description) + 1)
        if found != description:
            raise TargetExistsError(
                f"{out} holds the partition of another node or data set. Choose another target, or remove it"
            )
    elif MANIFEST_NAME in names:
        raise TargetExistsError(f"{out} is a finished data set already. Choose another target, or remove it")
    elif names:
        raise TargetExistsError(f"{out} is not empty. Choose another target, or remove what is in it")


@contextmanager
def _claimed(out: Path, description: bytes) -> Iterator[Path]:
    """Claim the work folder of a partition for this process alone. It is removed if no error occurs."""
    work = out / SHARE_WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    with locked(work, out, "partition"):
        _check_target(out, description)
        # Inside the work folder, because a half-written file next to it would make `out` look used.
        (work / "share").write_bytes(description)
        publish_file(work / "share", out / SHARE_NAME)
        sync_folder(out)
        yield work
        shutil.rmtree(work)


def _fill(
    data_set: StoredDataSet, out: Path, share: Share, spare: Path, *, copy: bool, count: Callable[[int], None]
) -> PartitionMade:
    ways, sizes = Counter[Way](), data_set.chunk_rows["file_size"]

    def on_placed(number: int, way: Way) -> None:
        ways[way] += 1
        count(int(sizes[number]) if way == "copied" else 0)

    place_files(data_set, out, share.chunks, spare, copy=copy, on_placed=on_placed)
    held = int(sizes[share.chunks.start : share.chunks.stop].sum())
    return PartitionMade(out, share, share.samples(data_set.header), held, ways)
