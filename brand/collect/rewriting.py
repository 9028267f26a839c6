"""How are the bytes of samples left out: those of deleted ones by `compact`, and those of others for good by `redact`?

Each segment with enough deleted samples is written again without them, below `staging/` and without a lock. The
remaining samples keep their stored bytes, their order on storage, and so their indices of the collection; the places
close up. Nothing is decompressed. The new data set's id follows from the old one and the left-out samples, so a stopped
rewrite that starts again makes equal bytes.

Then one version names all new segments. Older versions name the old ones, so these remain, and so does their disk
space, until `forget` removes the versions. Indices do not change: deleted ones remain deleted for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.collect.changes import FoundSamples, NamedSamples, find
from brand.collect.home import (
    Writer,
    collection_folder,
    finish_destroying,
    forget_before,
    joined,
    staged,
    write_intent,
    writing,
)
from brand.errors import StorageError, UsageError, counted
from brand.formats.chunk import front_size, pack_front, parse_preamble
from brand.formats.compression import Decompressor
from brand.formats.constants import chunk_name
from brand.formats.contents import cut_blocks
from brand.formats.header import Header, canonical_json, pack_header
from brand.formats.index import IndexBuilder, seal
from brand.formats.noticed import Counts, added, has_media, look
from brand.formats.publish import FolderTarget, file_digest, storage_errors
from brand.formats.record import Records, column_dtype
from brand.formats.version import Overlay, PartOf, Version, part_name, read_version
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.dataset.segments import NOTHING, PartIndex, read_list, read_values
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


@dataclass(frozen=True)
class Rewritten:
    """A segment that was written again."""

    old: PartOf
    part: str | None
    """Its new id; None if no sample is left."""
    left_out: NDArray[np.int64]
    """Public indices of the samples that the old segment holds and the new one does not."""
    staged: Path


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    version: Version
    segments: int
    """Segments that were written again."""
    samples: int
    """Deleted samples that they no longer hold."""
    bytes: int
    """Stored bytes of these samples."""
    freed: int
    """Bytes that were freed, because versions were forgotten."""


def compact(
    collection: Target, *, above: float = 0.0, forget: bool = False, on_chunk: OnChunk = silent
) -> Compacted | None:
    """Write segments again without their deleted samples, if these are more than the fraction `above` of a segment.

    `forget` removes all older versions, with the files that only they need; a training that has one of them open, and a
    loader state of one, cannot continue then. Returns None if there was nothing to do. Raises `UsageError`,
    `FormatError`, `StorageError`.
    """
    if not 0 <= above < 1:
        raise UsageError(f"above={above}: a fraction from 0 to 1 is needed, for example 0.2")
    folder = collection_folder(collection)
    index = joined(folder)
    version = index.version
    counts = [(part, len(held_in(part, index.deleted))) for part in index.parts]
    todo = [part for part, gone in counts if gone and gone > above * part.header.samples]
    if not todo and not (forget and version.number > 1):
        return None
    with ExitStack() as stack:
        stack.enter_context(storage_errors(folder, "cannot write to"))
        work = stack.enter_context(staged(folder, "compact"))
        done = rewrite_parts(todo, index.deleted, work, on_chunk)
        places = [index.place.take(each.left_out) for each in done]
        stored = sum(int(index.rows.take(some)["size"].sum(dtype=np.int64)) for some in places)
        writer = stack.enter_context(writing(folder))
        if done:
            samples = sum(len(each.left_out) for each in done)
            note = f"compact {counted(len(done), 'segment')}, {counted(samples, 'deleted sample')}"
            version = publish_rewritten(writer, done, note)
        freed = forget_before(folder, version) if forget else 0
    return Compacted(version, len(done), sum(len(each.left_out) for each in done), stored, freed)


def held_in(part: PartIndex, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some public indices, ascending, whose samples' bytes a segment holds."""
    run = indices[(indices >= part.part.first) & (indices < part.part.end)]
    return run[part.local(run) >= 0]


def rewrite_parts(
    todo: Sequence[PartIndex], deleted: NDArray[np.int64], work: Path, on_chunk: OnChunk
) -> list[Rewritten]:
    """Write segments again below `work`, each without the samples with the public indices `deleted`, ascending.

    Raises `FormatError`, OSError.
    """
    chunks, before, done = sum(part.header.chunks for part in todo), 0, []
    for number, part in enumerate(todo):
        gone = held_in(part, deleted)
        out, scratch = work / f"made-{number}", work / f"work-{number}"
        scratch.mkdir()
        made: str | None = None
        if len(gone) < part.header.samples:
            first = before

            def tell(finished: int, _: int, count: int, first: int = first) -> None:
                on_chunk(first + finished, chunks, count)

            made = rewrite(StoredDataSet(part.location), part.local(gone), out, scratch, tell)
            assert made == new_id(str(part.part.id), part.local(gone))
        before += part.header.chunks
        done.append(Rewritten(part.part, made, gone, out))
    on_chunk(chunks, chunks, 0)
    return done


def publish_rewritten(
    writer: Writer,
    done: Sequence[Rewritten],
    note: str,
    more_deleted: NDArray[np.int64] | None = None,
    overlays: Mapping[str, Overlay] | None = None,
) -> Version:
    """Publish a version with new segments in place of old ones. `overlays`: None keeps them. Raises `StorageError`."""
    before, by_id = writer.present, {each.old.id: each for each in done}
    if not set(by_id) <= {part.id for part in before.parts}:
        raise StorageError(f"{writer.folder}: another command has changed these segments meanwhile. Run it again")
    parts = []
    for part in before.parts:
        if (new := by_id.get(part.id)) is None or part.id is None:
            parts.append(part)
            continue
        absent = np.union1d(read_list(writer.folder, part.absent, part.end), new.left_out)
        if new.part is not None:
            writer.take(new.staged, new.part)
        left = part.samples - len(new.left_out)
        parts.append(replace(part, id=new.part, samples=left, absent=writer.put_indices(absent)))
    deleted = read_list(writer.folder, before.deleted, before.samples)
    overlays = before.overlays if overlays is None else overlays
    more = np.empty(0, np.int64) if more_deleted is None else more_deleted
    return writer.publish(note, parts, writer.put_indices(np.union1d(deleted, more)), overlays)


def new_id(part: str, left_out: NDArray[np.integer[Any]]) -> str:
    """Return the id of a segment without the samples with these local indices, ascending."""
    digest = xxhash.xxh3_128_hexdigest(left_out.astype("<u8").tobytes())
    return xxhash.xxh3_128_hexdigest(canonical_json({"of": part, "without": digest}))


def rewrite(data: StoredDataSet, left_out: NDArray[np.int64], out: Path, work: Path, on_chunk: OnChunk) -> str:
    """Write a segment to `out` without the samples with these local indices, ascending. Returns its id.

    At least one sample remains. `work` is a folder for unfinished files. Raises `FormatError` if a sample that remains
    is damaged, OSError.
    """
    part, kept = new_id(data.id, left_out), _places_left(data, left_out)
    header = replace(data.header, samples=len(kept))
    columns = {name: data.stored_column(name) for name, _ in header.schema.columns}
    packed, dictionary = pack_header(header), data.dictionary
    (out / "chunks").mkdir(parents=True)
    builder, target = IndexBuilder(work / "built", header, out), FolderTarget(out)
    unpack = Decompressor(dictionary)
    for number in range(header.chunks):
        places = kept[number * header.chunk_size :][: header.chunk_size]
        rows = data.rows_at(places)
        old = rows["index"].astype(np.int64)
        sizes = rows["size"].astype(np.uint64)
        rows["offset"] = front_size(len(packed), len(dictionary), len(rows)) + np.cumsum(sizes) - sizes
        rows["index"] = old - np.searchsorted(left_out, old)
        identity = bytes.fromhex(part)
        front = pack_front(packed, dictionary, rows, number=number, data_set_id=identity, minor=header.minor)
        with (work / "chunk").open("wb") as file:
            file.write(front)
            for low, high in cut_blocks(sizes):
                samples = data.stored_bytes(places[low:high], raising=True)
                file.writelines(each for each in samples if each is not None)
        target.publish(work / "chunk", chunk_name(number))
        counts = _counts(header, unpack, samples, rows)
        builder.add(number, rows, parse_preamble(front, out).checksum, _columns(header, columns, old), counts)
        on_chunk(number + 1, header.chunks, int(sizes.sum()))
    seal(target, builder, data_set_id=bytes.fromhex(part), dictionary_size=len(dictionary), companions={})
    return part


def _counts(header: Header, unpack: Decompressor, samples: Sequence[bytes | None], rows: NDArray[np.void]) -> Counts:
    """Return the counts of `look` over stored samples; only those of images are unpacked."""
    if not has_media(header.schema):
        return {}
    counts = list[Counts]()
    for sample, row in zip(samples, rows, strict=True):
        assert sample is not None
        record = unpack.unpack(memoryview(sample), int(row["raw_size"]))
        counts.append(look(header.schema, Records.of([record]), row["index"][None]))
    return added(*counts)


def _places_left(data: StoredDataSet, left_out: NDArray[np.int64]) -> NDArray[np.int64]:
    stays = np.ones(len(data), np.bool_)
    stays[data.places(left_out)] = False
    return np.flatnonzero(stays)


def _columns(header: Header, columns: dict[str, NDArray[Any]], indices: NDArray[np.int64]) -> NDArray[np.void]:
    """Return the columns of samples, one structured row each."""
    found = np.empty(len(indices), column_dtype(header.schema))
    for name, values in columns.items():
        found[name] = values[indices]
    return found


def redact(collection: Target, wanted: NamedSamples, report: Target, *, on_chunk: OnChunk = silent) -> dict[str, Any]:
    """Destroy samples: no file of the collection holds their bytes afterwards. Writes the report to a new file.

    Every version that names a segment with one of the samples is removed. A training that has such a version open fails
    at its next read. Returns the report.

    Raises:
        UsageError: A key or an index names no sample, no sample would be left, or the report exists.
        FormatError: A sample that remains is damaged; nothing was done.
        StorageError: The storage refused a read or a write.
    """
    # The steps:
    #   find                 the samples, deleted ones included, and every segment of any version that holds one of them
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
    remains = [_other_names(linked)] if linked else []
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
        "same_bytes_elsewhere": _alike(index, found.indices, checksums),
        "remains_with_you": [*remains, *REMAINS],
    }


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
