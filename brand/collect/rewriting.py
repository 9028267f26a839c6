"""How is a segment written again without some of its samples? `compact` leaves deleted samples out.

Each segment with enough deleted samples is written again without them, below `staging/` and without a lock. The
remaining samples keep their order on storage, and so their indices of the collection; the places close up. `compact`
keeps their stored bytes and decompresses nothing. The new data set's id follows from the old one and the left-out
samples, so a stopped rewrite that starts again makes equal bytes.

Then one version names all new segments. Older versions name the old ones, so these remain, and so does their disk
space, until `forget` removes the versions. Indices do not change: deleted ones remain deleted for ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.collect.home import (
    Writer,
    collection_folder,
    forget_before,
    joined,
    staged,
    writing,
)
from brand.errors import StorageError, UsageError, counted
from brand.formats.chunk import front_size, pack_front, parse_preamble
from brand.formats.compression import Compression, Compressor, Decompressor, train
from brand.formats.constants import chunk_name
from brand.formats.contents import cut_blocks
from brand.formats.header import Header, canonical_json, pack_header
from brand.formats.index import IndexBuilder, seal
from brand.formats.noticed import COUNTED, Counts, added, has_media, look
from brand.formats.publish import FolderTarget, storage_errors
from brand.formats.record import Records, column_dtype
from brand.formats.values import Buffer, lengths
from brand.formats.version import Overlay, PartOf, Version
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.segments import PartIndex, read_list
from brand.storage.io.frontback import OnChunk, silent

_TRAINING_SAMPLES: Final = 16_384
_TRAINING_BYTES: Final = 8 << 20
"""A dictionary is trained on at most this many samples, and on about this many bytes."""
_TOGETHER: Final = 64
"""Samples that are read together to train a dictionary."""


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
        done = rewrite_parts([(part, held_in(part, index.deleted)) for part in todo], work, on_chunk)
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
    todo: Sequence[tuple[PartIndex, NDArray[np.int64]]], work: Path, on_chunk: OnChunk, dictionary: bytes | None = None
) -> list[Rewritten]:
    """Write segments again below `work`, each without the samples with some public indices, ascending.

    `dictionary`: compress the samples again with this one; None keeps their stored bytes. Raises `FormatError`,
    OSError.
    """
    chunks, before, done = sum(part.header.chunks for part, _ in todo), 0, []
    for number, (part, gone) in enumerate(todo):
        out, scratch = work / f"made-{number}", work / f"work-{number}"
        scratch.mkdir()
        made: str | None = None
        if len(gone) < part.header.samples:
            first = before

            def tell(finished: int, _: int, count: int, first: int = first) -> None:
                on_chunk(first + finished, chunks, count)

            made = rewrite(StoredDataSet(part.location), part.local(gone), out, scratch, tell, dictionary)
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


def new_id(part: str, left_out: NDArray[np.integer[Any]], dictionary: bytes | None = None) -> str:
    """Return the id of a segment without the samples with these local indices, ascending, and with a new dictionary."""
    facts = {"of": part, "without": xxhash.xxh3_128_hexdigest(left_out.astype("<u8").tobytes())}
    if dictionary is not None:
        facts["dictionary"] = xxhash.xxh3_128_hexdigest(dictionary)
    return xxhash.xxh3_128_hexdigest(canonical_json(facts))


def rewrite(
    data: StoredDataSet,
    left_out: NDArray[np.int64],
    out: Path,
    work: Path,
    on_chunk: OnChunk,
    dictionary: bytes | None = None,
) -> str:
    """Write a segment to `out` without the samples with these local indices, ascending. Returns its id.

    At least one sample remains. `work` is a folder for unfinished files. `dictionary`: compress the samples again with
    this one. Raises `FormatError` if a sample that remains is damaged, OSError.
    """
    part, kept = new_id(data.id, left_out, dictionary), _places_left(data, left_out)
    header = replace(data.header, samples=len(kept))
    columns = {name: data.stored_column(name) for name, _ in header.schema.columns}
    (out / "chunks").mkdir(parents=True)
    builder, target = IndexBuilder(work / "built", header, out), FolderTarget(out)
    repack = _Repacker(data, header, dictionary)
    packed, identity = pack_header(header), bytes.fromhex(part)
    for number in range(header.chunks):
        places = kept[number * header.chunk_size :][: header.chunk_size]
        rows = data.rows_at(places)
        old, counts = rows["index"].astype(np.int64), list[Counts]()
        rows["index"] = old - np.searchsorted(left_out, old)
        start = front_size(len(packed), len(repack.dictionary), len(rows))
        with (work / "chunk").open("wb") as file:
            file.seek(start)
            for low, high in cut_blocks(rows["size"]):
                stored, some = repack(data.stored_bytes(places[low:high], raising=True), rows[low:high])
                counts.append(some)
                file.writelines(stored)
            sizes = rows["size"].astype(np.uint64)
            rows["offset"] = start + np.cumsum(sizes) - sizes
            front = pack_front(packed, repack.dictionary, rows, number=number, data_set_id=identity, minor=header.minor)
            file.seek(0)
            file.write(front)
        target.publish(work / "chunk", chunk_name(number))
        checksum = parse_preamble(front, out).checksum
        builder.add(number, rows, checksum, _columns(header, columns, old), added(*counts))
        on_chunk(number + 1, header.chunks, int(sizes.sum()))
    # Files next to the samples, and facts about the source, may tell of left-out samples: names, or whole texts.
    companions = {} if len(left_out) else data.manifest.companions
    for name in companions:
        shutil.copyfile(data.location.local / name, work / "companion")
        target.publish(work / "companion", name)
    noticed = [fact for fact in data.manifest.noticed if not len(left_out) and fact.what not in COUNTED]
    size = len(repack.dictionary)
    seal(target, builder, data_set_id=identity, dictionary_size=size, companions=companions, noticed=noticed)
    return part


class _Repacker:
    """From the stored bytes of samples to those that are stored again, and to the counts of `look`."""

    def __init__(self, data: StoredDataSet, header: Header, dictionary: bytes | None) -> None:
        old = data.dictionary
        self.dictionary = old if dictionary is None else dictionary
        self._schema, self._unpack = header.schema, Decompressor(old)
        self._compressor = None if dictionary is None else Compressor(Compression("zstd", dictionary))

    def __call__(self, samples: Sequence[bytes | None], rows: NDArray[np.void]) -> tuple[Sequence[Buffer], Counts]:
        """Return what is stored, and the counts; put sizes and checksums into the rows."""
        stored: list[Buffer] = [sample for sample in samples if sample is not None]
        media = has_media(self._schema)
        if not media and self._compressor is None:
            return stored, {}
        records = self._unpack.unpack_all(Records.of(stored), rows["raw_size"].astype(np.int64))
        counts = look(self._schema, records, rows["index"]) if media else {}
        if self._compressor is not None:
            stored = self._compressor.pack(records)
            rows["size"] = lengths(stored)
            rows["checksum"] = Records.of(stored).checksums()
        return stored, counts


def trained_without(data: StoredDataSet, deleted: NDArray[np.int64]) -> bytes:
    """Return a zstd dictionary for a collection that was trained on some of its other samples.

    It is empty if they are too few. Raises `FormatError`.
    """
    left = np.setdiff1d(data.present(), deleted)
    mean = data.manifest.raw_bytes / max(1, data.header.samples)
    count = min(len(left), _TRAINING_SAMPLES, 1 + int(_TRAINING_BYTES / max(1.0, mean)))
    chosen = data.places(left[np.linspace(0, len(left) - 1, count).astype(np.int64)])
    unpack, records = Decompressor(data.dictionary), list[bytes]()
    for places in np.array_split(chosen, -(-count // _TOGETHER)):
        sizes = data.rows_at(places)["raw_size"].tolist()
        for sample, size in zip(data.stored_bytes(places, raising=True), sizes, strict=True):
            assert sample is not None
            records.append(bytes(unpack.unpack(sample, size)))
    return train(records)


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
