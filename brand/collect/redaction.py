"""How are samples destroyed for good, and what does the report of `redact` say?

A zstd dictionary holds texts of the samples that it was trained on, and all segments of a collection have the same one.
So `redact` trains a dictionary on samples that remain, and compresses every segment again with it (`rewriting`). The
versions that name an old segment are removed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.collect.changes import FoundSamples, NamedSamples, find
from brand.collect.home import (
    STAGING,
    Writer,
    collection_folder,
    finish_destroying,
    joined,
    staged,
    unfinished,
    write_intent,
    writing,
)
from brand.collect.rewriting import Rewrite, Rewritten, held_in, publish_rewritten, rewrite_parts, trained_without
from brand.errors import StorageError, UsageError, counted
from brand.formats.constants import NOTHING, chunk_name
from brand.formats.index import companions_in
from brand.formats.publish import file_digest, storage_errors
from brand.formats.version import Overlay, part_name, read_version
from brand.printable import printable
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.dataset.segments import PartIndex, read_values
from brand.storage.io.frontback import OnChunk, silent
from brand.storage.io.location import Collected
from brand.storage.io.present import numbers

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
    at its next read. If the collection is compressed with a dictionary, all segments are written again with a
    dictionary that was trained on samples that remain, and all older versions are removed. Returns the report.

    Raises:
        UsageError: A key or an index names no sample, no sample would be left, or the report exists.
        FormatError: A sample that remains is damaged; nothing was done.
        StorageError: The storage refused a read or a write.
    """
    # The steps:
    #   find                 the samples, deleted ones included, and every segment of any version that holds one of them
    #   train                a dictionary without deleted samples, if there is one: then all segments are rewritten
    #   rewrite              those segments of the present version without them, and without all other deleted samples
    #   intent, publish      the list of files to destroy; then the new version
    #   destroy, report      the versions that name an old segment, the old segments, the old values in columns
    # A kill before the new version changes nothing. After it, the next command that changes the collection finishes the
    # rest (`finish_destroying`).
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
    nothing = np.empty(0, np.int64)
    dictionary = None
    if index.manifest.dictionary_size:
        dictionary = trained_without(StoredDataSet(Collected(folder, index.version)), deleted)
    with ExitStack() as stack:
        stack.enter_context(storage_errors(folder, "cannot write to"))
        work = stack.enter_context(staged(folder, "redact"))
        touched = [(part, bool(len(held_in(part, found.indices)))) for part in index.parts]
        todo = [
            Rewrite((part.part,), (part,), held_in(part, deleted) if held else nothing)
            for part, held in touched
            if held or dictionary is not None
        ]
        done = rewrite_parts(todo, folder, work, on_chunk, dictionary)
        writer = stack.enter_context(writing(folder, sweep=True))
        if writer.present.id != index.version.id:
            raise StorageError(f"{folder}: another command has changed the collection meanwhile. Run it again")
        old, versions = _old_parts(folder, found.indices)
        told = _report(index, found, old, done, versions, dictionary)
        write_intent(folder, told, versions, to)
        note = f"redact {counted(len(found.indices), 'sample')}"
        published = publish_rewritten(writer, done, note, found.indices, _without(writer, found.indices))
        assert published is not None  # the version is that of the index
        destroyed = finish_destroying(folder)
        assert destroyed is not None
    return destroyed


def _old_parts(folder: Path, indices: NDArray[np.int64]) -> tuple[dict[str, PartIndex], list[int]]:
    """Return every segment of any version that may hold bytes of the samples, by id, and the versions to remove.

    A segment may have them in its dictionary, even if it has none of the samples. The versions are those that name one
    of the segments, or a column with a value for a sample.
    """
    parts: dict[str, PartIndex] = {}
    named: list[tuple[int, set[str], bool]] = []
    for number in numbers(folder):
        version = read_version(folder, number)
        here = {str(p.part.id): p for p in JoinedIndex(Collected(folder, version), version).parts}
        new = {key: part for key, part in here.items() if key not in parts}
        parts |= {key: p for key, p in new.items() if p.manifest.dictionary_size or len(held_in(p, indices))}
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
    index: JoinedIndex,
    found: FoundSamples,
    old: dict[str, PartIndex],
    done: Sequence[Rewritten],
    versions: list[int],
    dictionary: bytes | None,
) -> dict[str, Any]:
    new = {str(each.plan.old[0].id): each.part for each in done}
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
    remains = [_other_names(linked)] if linked else []
    if stopped := unfinished(index.folder):
        names = ", ".join(f"{STAGING}/{path.name}" for path in stopped)
        remains.append(f"conversions of new data that were stopped: if their source has the samples, remove {names}")
    if empty := _without_samples(index, found.indices, old):
        remains.append(f"names of classes that have no sample any more, in every chunk: {', '.join(empty)}")
    kept = [
        (each.staged, part_name(each.part)) for each in done if each.part is not None and not len(each.plan.left_out)
    ]
    kept += [(p.location.local, p.part.name) for p in index.parts if str(p.part.id) not in new]
    if beside := [f"{name}/{file}" for place, name in kept for file in companions_in(place)]:
        remains.append(f"other files of the sources of segments that had none of the samples: {', '.join(beside)}")
    return {
        "collection": str(index.folder),
        "id": index.version.collection,
        "version": index.version.number + 1,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "samples": samples,
        "segments": [{"destroyed": part, "in_its_place": new.get(part)} for part in old],
        "files_destroyed": files,
        "files_written": [
            file for each in done if each.part is not None for file in _files(each.staged, part_name(each.part))
        ],
        "versions_removed": versions,
        "checked": _checked(index, old, dictionary),
        "same_bytes_elsewhere": _alike(index, found.indices, checksums),
        "remains_with_you": [*remains, *REMAINS],
    }


def _checked(index: JoinedIndex, old: Mapping[str, PartIndex], dictionary: bytes | None) -> dict[str, str]:
    """Return for each place in a collection that may hold bytes of a sample what was done about it."""
    if dictionary is None:
        told = "the collection has none"
    elif dictionary:
        told = f"{len(dictionary):,} bytes, trained again on samples that remain; all segments are compressed with it"
    else:
        told = "removed: too few samples remain to train one"
    return {
        "samples": f"{counted(len(old), 'segment')} of all versions held them, or their texts, and are destroyed",
        "dictionary": told,
        "columns": f"{counted(len(index.version.overlays), 'column')}: the samples have no value any more",
        "noticed": "counts and examples of the rewritten segments come from the samples that they still hold",
        "companions": "extras.zip and skipped.tsv of the segments that held them are destroyed",
        "staging": f"{counted(len(unfinished(index.folder)), 'stopped conversion')}",
    }


def _without_samples(index: JoinedIndex, indices: NDArray[np.int64], old: Mapping[str, PartIndex]) -> list[str]:
    """Return the names of classes of the samples of which no other sample is left. Headers keep them."""
    header, others = index.manifest.header, np.ones(index.samples, np.bool_)
    others[np.union1d(indices, index.deleted)] = False
    classes = {**header.field_classes, **({} if header.classes is None else {"label": header.classes})}
    found = []
    for field, names in classes.items():
        values = [np.empty(0, np.int64)]
        for part in old.values():
            values.append(part.column(field, "int")[held_in(part, indices) - part.part.first])
        gone = np.setdiff1d(np.concatenate(values), index.column(field)[others])
        found += [printable(names[each]) for each in gone.tolist() if 0 <= each < len(names)]
    return found


def _other_names(files: int) -> str:
    return (
        f"{counted(files, 'destroyed file has', 'destroyed files have')} other names (hard links), so the bytes are"
        " still on the disk: remove these names, too. `brand append dataset` links to the files of the data set that it"
        " adds; in the report, `other_names` counts the names of each file"
    )


def _alike(index: JoinedIndex, indices: NDArray[np.int64], checksums: set[int]) -> list[int]:
    """Return other samples of the version with the same stored bytes: a record that was appended twice."""
    wanted, found = np.array(sorted(checksums), np.uint64), [np.empty(0, np.int64)]
    for part in index.parts:
        rows = part.own.rows.all()
        found.append(part.public(rows["index"][np.isin(rows["checksum"], wanted)]))
    return [int(each) for each in np.setdiff1d(np.concatenate(found), np.union1d(indices, index.deleted))]
