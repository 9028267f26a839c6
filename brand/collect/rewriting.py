"""How are segments written again, one or several neighbours as one, without some of their samples?

The new segment is an ordinary data set. Stored bytes are copied, and nothing is decompressed, unless the dictionary
changes. Samples keep their indices of the collection; the places close up. The samples of one segment keep their order
on storage. Those of several are interleaved at random: each segment is a random order of its samples, so the result is
one of theirs, although every segment is read from front to back.

All of it happens below `staging/` and without a lock. Then one version names the new segments (`publish_rewritten`).
Older versions name the old ones, so these remain until the versions are removed. The new id follows from the old ones
and the left-out samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from brand.collect.companions import merge_companions
from brand.collect.home import Writer
from brand.collect.origins import merged_origins, origin_of
from brand.formats.chunk import front_size, pack_front, parse_preamble
from brand.formats.compression import Compression, Compressor, Decompressor, train
from brand.formats.constants import ROW, chunk_name, column_name
from brand.formats.contents import cut_blocks
from brand.formats.header import Header, canonical_json, pack_header
from brand.formats.index import IndexBuilder, open_array, seal
from brand.formats.noticed import COUNTED, Counts, added, has_media, look
from brand.formats.publish import FolderTarget
from brand.formats.record import Records, column_dtype
from brand.formats.values import Buffer, lengths
from brand.formats.version import Overlay, PartOf, Version
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.joined import joined_header
from brand.storage.dataset.segments import PartIndex, read_list
from brand.storage.io.files import most_open
from brand.storage.io.frontback import OnChunk

_TRAINING_SAMPLES: Final = 16_384
_TRAINING_BYTES: Final = 8 << 20
"""A dictionary is trained on at most this many samples, and on about this many bytes."""
_TOGETHER: Final = 64
"""Samples that are read together to train a dictionary."""
_MOST_SOURCES: Final = 64
"""Segments that are open at once while they become one, at the usual limit of open files: a quarter of it."""
_EXACT: Final = 10**9
"""NumPy draws from fewer elements than these without replacement."""


@dataclass(frozen=True)
class Rewrite:
    """Neighbouring segments that become one, without some samples."""

    old: tuple[PartOf, ...]
    held: tuple[PartIndex, ...]
    """Those of them that hold samples."""
    left_out: NDArray[np.int64]
    """Public indices, ascending, of samples that the old segments hold and the new one does not."""

    @property
    def samples(self) -> int:
        """Samples of the new segment."""
        return sum(part.samples for part in self.old) - len(self.left_out)

    @property
    def chunks(self) -> int:
        """Chunks of the new segment."""
        return -(-self.samples // self.held[0].header.chunk_size) if self.held else 0


@dataclass(frozen=True)
class Rewritten:
    """A segment that was written in place of old ones."""

    plan: Rewrite
    part: str | None
    """Its id; None if no sample is left."""
    staged: Path


def held_in(part: PartIndex, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some public indices, ascending, whose samples' bytes a segment holds."""
    run = indices[(indices >= part.part.first) & (indices < part.part.end)]
    return run[part.local(run) >= 0]


def rewrite_parts(
    todo: Sequence[Rewrite], folder: Path, work: Path, on_chunk: OnChunk, dictionary: bytes | None = None
) -> list[Rewritten]:
    """Write new segments of the collection in `folder` below `work`.

    `dictionary`: compress the samples again with this one; None keeps their stored bytes. Raises `FormatError`,
    OSError.
    """
    chunks, before, done = sum(plan.chunks for plan in todo), 0, []
    for number, plan in enumerate(todo):
        out, scratch = work / f"made-{number}", work / f"work-{number}"
        scratch.mkdir()
        made: str | None = None
        if plan.samples:
            first = before

            def tell(finished: int, _: int, count: int, first: int = first) -> None:
                on_chunk(first + finished, chunks, count)

            made = rewrite(plan, absent_of(folder, plan), out, scratch, tell, dictionary)
        before += plan.chunks
        done.append(Rewritten(plan, made, out))
    on_chunk(chunks, chunks, 0)
    return done


def absent_of(folder: Path, plan: Rewrite) -> NDArray[np.int64]:
    """Return the public indices, ascending, of the new run that have no sample in the new segment."""
    gone = [read_list(folder, part.absent, part.end) for part in plan.old]
    return np.union1d(np.concatenate(gone), plan.left_out)


def publish_rewritten(
    writer: Writer,
    done: Sequence[Rewritten],
    note: str,
    more_deleted: NDArray[np.int64] | None = None,
    overlays: Mapping[str, Overlay] | None = None,
) -> Version | None:
    """Publish a version with new segments in place of old ones. `overlays`: None keeps them.

    Returns None, and does nothing, if another command has changed the old segments meanwhile, or has restored a sample
    that was left out. Raises `StorageError`.
    """
    before = writer.present
    more = np.empty(0, np.int64) if more_deleted is None else more_deleted
    deleted = np.union1d(read_list(writer.folder, before.deleted, before.samples), more)
    old = {part for each in done for part in each.plan.old}
    restored = any(len(np.setdiff1d(each.plan.left_out, deleted)) for each in done)  # by `undelete`
    if restored or not old <= set(before.parts):
        return None
    new = {each.plan.old[0]: _publish_one(writer, each) for each in done}
    parts = [new.get(part, part) for part in before.parts if part in new or part not in old]
    overlays = before.overlays if overlays is None else overlays
    return writer.publish(note, parts, writer.put_indices(deleted), overlays)


def _publish_one(writer: Writer, done: Rewritten) -> PartOf:
    """Move a new segment to its place, and return its entry."""
    old = done.plan.old
    absent = writer.put_indices(absent_of(writer.folder, done.plan))
    origin, merged = old[0].origin, old[0].merged
    if len(old) > 1:
        merged = writer.put_indices(merged_origins(writer.folder, old))
        origin = origin if done.part is None else origin_of(StoredDataSet(done.staged))
    if done.part is not None:
        writer.take(done.staged, done.part)
    return PartOf(done.part, old[0].first, old[-1].end, done.plan.samples, origin, absent, merged)


def new_id(parts: Sequence[str], left_out: NDArray[np.integer[Any]], dictionary: bytes | None = None) -> str:
    """Return the id of a segment that is made of old ones.

    `left_out` are the left-out samples, ascending: local indices if there is one old segment, else public ones.
    """
    facts: dict[str, Any] = {"of": parts[0] if len(parts) == 1 else list(parts)}
    facts["without"] = xxhash.xxh3_128_hexdigest(left_out.astype("<u8").tobytes())
    if dictionary is not None:
        facts["dictionary"] = xxhash.xxh3_128_hexdigest(dictionary)
    return xxhash.xxh3_128_hexdigest(canonical_json(facts))


def rewrite(
    plan: Rewrite,
    absent: NDArray[np.int64],
    out: Path,
    work: Path,
    on_chunk: OnChunk,
    dictionary: bytes | None = None,
) -> str:
    """Write a new segment to `out`. Returns its id.

    At least one sample remains. `absent`: public indices, ascending, of the run that it does not hold. `work` is a
    folder for unfinished files. `dictionary`: compress the samples again with this one. Raises `FormatError` if a
    sample that remains is damaged, OSError.
    """
    single = len(plan.held) == 1
    ids = [str(part.part.id) for part in plan.held]
    part = new_id(ids, plan.held[0].local(plan.left_out) if single else plan.left_out, dictionary)
    opened = lru_cache(max(2, most_open(_MOST_SOURCES)))(lambda part: StoredDataSet(part.location))
    sources = [_Source(each, held_in(each, plan.left_out), opened) for each in plan.held]
    header = replace(joined_header(plan.held), samples=plan.samples)
    (out / "chunks").mkdir(parents=True)
    builder, target = IndexBuilder(work / "built", header, out), FolderTarget(out)
    repack = _Repacker(sources[0].data, header, dictionary)
    riffle = _Riffle([each.samples for each in sources], int(part, 16))
    packed, identity = pack_header(header), bytes.fromhex(part)
    for number in range(header.chunks):
        holders = riffle.next(header.chunk_samples(number))
        places, rows, columns = _next_of(sources, holders, column_dtype(header.schema))
        public = rows["index"].astype(np.int64)
        rows["index"] = public - plan.old[0].first - np.searchsorted(absent, public)
        counts = list[Counts]()
        start = front_size(len(packed), len(repack.dictionary), len(rows))
        with (work / "chunk").open("wb") as file:
            file.seek(start)
            for low, high in cut_blocks(rows["size"]):
                found = _stored(sources, holders[low:high], places[low:high])
                stored, some = repack(found, rows[low:high])
                counts.append(some)
                file.writelines(stored)
            sizes = rows["size"].astype(np.uint64)
            rows["offset"] = start + np.cumsum(sizes) - sizes
            front = pack_front(packed, repack.dictionary, rows, number=number, data_set_id=identity, minor=header.minor)
            file.seek(0)
            file.write(front)
        target.publish(work / "chunk", chunk_name(number))
        builder.add(number, rows, parse_preamble(front, out).checksum, columns, added(*counts))
        on_chunk(number + 1, header.chunks, int(sizes.sum()))
    # Files next to the samples, and facts about the source, may tell of left-out samples: names, or whole texts.
    whole = [each.part for each in sources if not each.left_out]
    companions = merge_companions([each.location.local for each in whole], target, work)
    noticed = [fact for each in whole for fact in each.manifest.noticed if fact.what not in COUNTED]
    size = len(repack.dictionary)
    seal(target, builder, data_set_id=identity, dictionary_size=size, companions=companions, noticed=noticed)
    return part


class _Source:
    """An old segment, read from front to back."""

    def __init__(self, part: PartIndex, left_out: NDArray[np.int64], opened: Callable[[PartIndex], StoredDataSet]):
        self.part, self.left_out = part, len(left_out)
        self.samples = part.header.samples - len(left_out)
        self._opened, self._at = opened, 0
        self._places: NDArray[np.int64] | None = None
        if len(left_out):
            stays = np.ones(part.header.samples, np.bool_)
            stays[self.data.places(part.local(left_out))] = False
            self._places = np.flatnonzero(stays)

    @property
    def data(self) -> StoredDataSet:
        """The segment as a data set, which stays open for a while."""
        return self._opened(self.part)

    def next(self, count: int) -> NDArray[np.int64]:
        """Return the places of the next samples that remain."""
        first, self._at = self._at, self._at + count
        if self._places is None:
            return np.arange(first, self._at)
        return self._places[first : self._at]

    def columns(self, local: NDArray[np.int64], into: NDArray[np.void], at: NDArray[np.bool_]) -> None:
        """Put the columns of samples into structured rows."""
        for name, _ in self.part.header.schema.columns:
            values = open_array(self.part.location.local, column_name(name), self.part.header)
            into[name][at] = values.take(local)

    def stored(self, places: NDArray[np.int64]) -> list[bytes]:
        """Return the stored bytes of samples. Raises `FormatError` if one is damaged."""
        data = self.data
        found = data.stored_bytes(places, raising=True)
        data.check_tables(places, close=True)  # of many sources, one has a chunk open
        return [each for each in found if each is not None]


class _Riffle:
    """A random interleaving of sequences of these lengths, each equally likely, from front to back."""

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        self._left = np.array(lengths, np.int64)
        self._random = Generator(Philox(key=np.array([seed & (2**64 - 1), seed >> 64], np.uint64)))

    def next(self, count: int) -> NDArray[np.intp]:
        """Return the number of the sequence that has each of the next `count` elements."""
        if len(self._left) == 1:
            return np.zeros(count, np.intp)
        while True:
            total = int(self._left.sum())
            if total < _EXACT:
                taken = self._random.multivariate_hypergeometric(self._left, count, method="marginals")
            else:  # from so many, with and without replacement are alike
                taken = self._random.multinomial(count, self._left / total)
            if (taken <= self._left).all():
                break
        self._left -= taken
        return self._random.permutation(np.repeat(np.arange(len(taken)), taken))


def _next_of(
    sources: Sequence[_Source], holders: NDArray[np.intp], dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[np.void], NDArray[np.void]]:
    """Return places (of the old segments), rows (with public indices) and columns of the next samples."""
    places, rows, columns = np.empty(len(holders), np.int64), np.empty(len(holders), ROW), np.empty(len(holders), dtype)
    for number in np.unique(holders).tolist():
        source, mine = sources[number], holders == number
        places[mine] = source.next(int(mine.sum()))
        found = source.data.rows_at(places[mine])
        local = found["index"].astype(np.int64)
        source.columns(local, columns, mine)
        found["index"] = source.part.public(local)
        rows[mine] = found
    return places, rows, columns


def _stored(sources: Sequence[_Source], holders: NDArray[np.intp], places: NDArray[np.int64]) -> list[bytes]:
    """Return the stored bytes of samples. Raises `FormatError` if one is damaged."""
    found = [b""] * len(holders)
    for number in np.unique(holders).tolist():
        mine = np.flatnonzero(holders == number)
        for at, stored in zip(mine.tolist(), sources[number].stored(places[mine]), strict=True):
            found[at] = stored
    return found


class _Repacker:
    """From the stored bytes of samples to those that are stored again, and to the counts of `look`."""

    def __init__(self, data: StoredDataSet, header: Header, dictionary: bytes | None) -> None:
        old = data.dictionary
        self.dictionary = old if dictionary is None else dictionary
        self._schema, self._unpack = header.schema, Decompressor(old)
        self._compressor = None if dictionary is None else Compressor(Compression("zstd", dictionary))

    def __call__(self, stored: Sequence[Buffer], rows: NDArray[np.void]) -> tuple[Sequence[Buffer], Counts]:
        """Return what is stored, and the counts; put sizes and checksums into the rows."""
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
