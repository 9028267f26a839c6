"""How are samples removed from a collection for good, with a report?

    find                 the samples, deleted ones included, and every segment of any version that holds one of them
    rewrite              those segments of the present version without them, and without all other deleted samples
    intent, publish      the list of files to destroy; then the new version
    destroy, report      the versions that name an old segment, the old segments, the old values in columns

A kill before the version changes nothing. After it, the next command that changes the collection finishes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.collect.changes import FoundSamples, NamedSamples, find
from brand.collect.compact import Rewritten, held_in, publish_rewritten, rewrite_parts
from brand.collect.home import Writer, collection_folder, finish_destroying, joined, staged, write_intent, writing
from brand.errors import StorageError, UsageError, counted
from brand.formats.constants import chunk_name
from brand.formats.publish import file_digest, storage_errors
from brand.formats.version import Overlay, part_name, read_version
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.dataset.segments import NOTHING, PartIndex, read_values
from brand.storage.io.frontback import OnChunk, silent
from brand.storage.io.location import Collected, numbers

REMAINS: Final = (
    "the source that the samples were converted from, and data sets that were appended from a folder of their own",
    "copies of the collection, backups and snapshots of its file system",
    "cache folders of data servers (`brand cache`), and data servers that still run",
    "blocks of the device until it reuses them, where the device is not encrypted",
    "models, features and checkpoints that were made from the samples",
)
"""Data that Brand cannot destroy."""


def redact(collection: Target, wanted: NamedSamples, report: Target, *, on_chunk: OnChunk = silent) -> dict[str, Any]:
    """Destroy samples: no file of the collection holds their bytes afterwards. Writes the report to a new file.

    Every version that names a segment with one of the samples is removed. A training that has such a version open fails
    at its next read. Returns the report.

    Raises:
        UsageError: A key or an index names no sample, no sample would be left, or the report exists.
        FormatError: A sample that remains is damaged; nothing was done.
        StorageError: The storage refused a read or a write.
    """
    folder, to = collection_folder(collection), Path(report).absolute()
    if to.exists() or not to.parent.is_dir():
        raise UsageError(f"{report}: give a new file in an existing folder")
    if to.is_relative_to(folder):
        raise UsageError(f"{report}: the report names the samples, so give a file outside of the collection")
    index = joined(folder)
    found = find(index, wanted, on_chunk, deleted=True)
    deleted = np.union1d(index.deleted, found.indices)
    if len(deleted) == index.samples:
        raise UsageError("no sample would be left: nothing was done. Remove the folder of the collection instead")
    todo = [part for part in index.parts if len(held_in(part, found.indices))]
    with ExitStack() as stack:
        stack.enter_context(storage_errors(folder, "cannot write to"))
        work = stack.enter_context(staged(folder, "redact"))
        done = rewrite_parts(todo, deleted, work, on_chunk)
        writer = stack.enter_context(writing(folder))
        if writer.present.id != index.version.id:
            raise StorageError(f"{folder}: another command has changed the collection meanwhile. Run it again")
        old, versions = _old_parts(folder, found.indices)
        told = _report(index, found, old, done, versions)
        write_intent(folder, told, versions, to)
        note = f"redact {counted(len(found.indices), 'sample')}"
        publish_rewritten(writer, done, note, found.indices, _without(writer, found.indices))
        destroyed = finish_destroying(folder)
        assert destroyed is not None
    return destroyed


def _old_parts(folder: Path, indices: NDArray[np.int64]) -> tuple[dict[str, PartIndex], list[int]]:
    """Return every segment of any version that holds one of the samples, by id, and the versions to remove.

    These are the versions that name one of the segments, or a column with a value for a sample.
    """
    parts: dict[str, PartIndex] = {}
    named: list[tuple[int, set[str], bool]] = []
    for number in numbers(folder):
        version = read_version(folder, number)
        here = {str(p.part.id): p for p in JoinedIndex(Collected(folder, version), version).parts}
        parts |= {key: part for key, part in here.items() if key not in parts and len(held_in(part, indices))}
        valued = any(each.values.count > int(indices[0]) for each in version.overlays.values())
        named.append((number, set(here), valued))
    return parts, [number for number, here, valued in named if valued or here & set(parts)]


def _without(writer: Writer, indices: NDArray[np.int64]) -> dict[str, Overlay]:
    overlays = {}
    for name, each in writer.present.overlays.items():
        values = read_values(writer.folder, each.values, each.dtype).copy()
        values[indices[indices < len(values)]] = NOTHING[each.codec]
        listed = writer.put(values)
        assert listed is not None
        overlays[name] = replace(each, values=listed)
    return overlays


def _files(part: Path, name: str) -> list[dict[str, Any]]:
    """Return all files of a segment; `name` is its path in the collection."""
    found = []
    for path in sorted(path for path in part.rglob("*") if path.is_file()):
        size, digest = file_digest(path)
        facts = {"bytes": size, "xxh3_128": digest, "other_names": path.stat().st_nlink - 1}
        found.append({"file": f"{name}/{path.relative_to(part)}"} | facts)
    return found


def _report(
    index: JoinedIndex, found: FoundSamples, old: dict[str, PartIndex], done: Sequence[Rewritten], versions: list[int]
) -> dict[str, Any]:
    new = {str(each.old.id): each.part for each in done}
    samples, files = [], []
    checksums: set[int] = set()
    for part in old.values():
        held = held_in(part, found.indices)
        places = part.own.place.take(part.local(held)).astype(np.int64)
        rows = part.own.rows.take(places)
        checksums |= set(rows["checksum"].tolist())
        for number, place, row in zip(held.tolist(), places.tolist(), rows, strict=True):
            chunk = f"{part.part.name}/{chunk_name(place // part.header.chunk_size)}"
            facts = {"bytes": int(row["size"]), "xxh3_64": f"{int(row['checksum']):016x}"}
            samples.append({"index": number, "key": found.keys.get(number), "chunk": chunk} | facts)
        files += _files(part.location.local, part.part.name)
    linked = sum(each["other_names"] > 0 for each in files)
    remains = [f"{counted(linked, 'file')} below has another name: remove it there, too"] if linked else []
    return {
        "collection": str(index.folder),
        "id": index.version.collection,
        "version": index.version.number + 1,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "samples": samples,
        "parts": [{"destroyed": part, "in_its_place": new.get(part)} for part in old],
        "files_destroyed": files,
        "files_written": [
            file for each in done if each.part is not None for file in _files(each.staged, part_name(each.part))
        ],
        "versions_removed": versions,
        "same_bytes_elsewhere": _alike(index, found.indices, checksums),
        "remains_with_you": [*remains, *REMAINS],
    }


def _alike(index: JoinedIndex, indices: NDArray[np.int64], checksums: set[int]) -> list[int]:
    """Return other samples of the version with the same stored bytes: a record that was appended twice."""
    wanted, found = np.array(sorted(checksums), np.uint64), [np.empty(0, np.int64)]
    for part in index.parts:
        rows = part.own.rows.all()
        found.append(part.public(rows["index"][np.isin(rows["checksum"], wanted)]))
    return [int(each) for each in np.setdiff1d(np.concatenate(found), np.union1d(indices, index.deleted))]
