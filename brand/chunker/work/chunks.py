"""The chunks of a source: decided from a probe, made from records, and found again after an earlier run.

A chunk is written to a temporary file, unless an earlier run has made it. When a chunk is at its place, in a store or
made by another machine, its rows and its columns are stored in a file of the work folder (`KeptChunks`). So a chunk
that was made need not be read again. The file is used if its checksum is right, and if the chunk has the size that the
rows state.

    magic (8 bytes), identity of the data set (16), checksum of the chunk's front (8), rows, columns, counts (JSON)
    XXH3-64 of all that (8)
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.plan.plan import NO_DEFAULTS, ChunkPlan, Layout, Options, make_plan
from brand.chunker.sources.shuffle import open_order
from brand.chunker.sources.source import Indices, Source
from brand.errors import FormatError, SchemaError, counted
from brand.formats.arrays import release
from brand.formats.chunk import front_size, pack_front, parse_preamble, read_front
from brand.formats.compression import Compression, Compressor, Mode
from brand.formats.constants import ROW, chunk_name
from brand.formats.contents import read_facts
from brand.formats.header import NO_LABEL, DecodeDefault, Header
from brand.formats.noticed import Counts, added, look
from brand.formats.publish import storage_errors
from brand.formats.record import Records, column_dtype, stored_columns
from brand.formats.values import LARGE, Buffer, lengths

_PROBE_SAMPLES: Final = 16_384
_PROBE_BYTES: Final = 8 << 20
_MOST_PROBE_BYTES: Final = 32 << 20

KEPT_NAME: Final = "kept"
_HEAD: Final = struct.Struct("<8s16sQ")
_DIGEST: Final = struct.Struct("<Q")
_MAGIC: Final = b"\x89BRKEP2\n"
_MOST_COUNTS: Final = 16 << 20
"""Maximum bytes of the counts of a chunk."""


def decide(
    source: Source,
    kind: str,
    classes: tuple[str, ...] | None,
    options: Options,
    order_path: Path,
    decode: Mapping[str, DecodeDefault] = NO_DEFAULTS,
) -> tuple[ChunkPlan, float]:
    """Return the plan of a conversion, and the speed of reading and compression in bytes per second.

    Writes the order of the samples. `kind` is the name of the source in the header. `decode` are the decode defaults of
    its fields; those of a collection are kept. Raises `SourceError`,
    `SchemaError`, `StorageError`.
    """
    compression: Mode | Compression = options.compression
    layout, like = options.layout, options.like
    if like is not None:
        like.check(source.schema, classes, source.field_classes)
        compression, layout = like.compression, Layout(like.chunk_size)
    with storage_errors(order_path, "cannot write"):
        source.write_order(order_path, options.seed)
        first = open_order(order_path, len(source))[:_PROBE_SAMPLES]
    started = time.monotonic()
    probe = _probe(source, first)
    plan = make_plan(
        samples=len(source),
        raw_bytes=source.raw_bytes,
        probe=probe,
        compression=compression,
        layout=layout,
        schema=source.schema,
        names=source.field_classes if classes is None else {"label": classes, **source.field_classes},
        seed=options.seed,
        source={"kind": kind} | ({"file_field": source.file_field} if source.file_field else {}),
        fingerprint=source.fingerprint(times=False),
        decode=decode if like is None else like.decode,
    )
    return plan, sum(map(len, probe)) / max(1e-3, time.monotonic() - started)


def _probe(source: Source, indices: Indices) -> list[bytes]:
    """Return records of random samples, those of the first places, with these indices: up to 8 MiB.

    If the sizes are not known, it is up to 32 MiB, and the block in which they are reached.
    """
    sizes = source.sizes(indices, 0)
    if sizes is not None:
        return list(source.records(indices[: 1 + int(np.searchsorted(np.cumsum(sizes), _PROBE_BYTES))], 0))
    probe: list[bytes] = []
    while len(probe) < len(indices) and sum(map(len, probe)) < _PROBE_BYTES:
        for records in source.blocks(indices[len(probe) : 2 * len(probe) + 16], len(probe)):  # twice as many each time
            probe += records
            if sum(map(len, probe)) >= _MOST_PROBE_BYTES:
                return probe
    return probe


@dataclass(frozen=True)
class Written:
    """The facts of one chunk that the index needs."""

    rows: NDArray[np.void]
    checksum: int
    columns: NDArray[np.void]
    """The fixed fields, one structured row per sample."""
    counts: Counts
    """The counts of `look` over the samples."""
    found: bool
    """Whether an earlier run had made the chunk."""


class Earlier(Protocol):
    """The chunks that earlier runs have made. Picklable."""

    def find(self, plan: ChunkPlan, number: int) -> Written | None:
        """Return a chunk if it exists, is whole, and belongs to this plan; else None."""


@dataclass(frozen=True)
class ChunksInFolder:
    """The chunks in the folder of the data set."""

    place: Path

    def find(self, plan: ChunkPlan, number: int) -> Written | None:
        """Return a chunk, as `Earlier.find` does."""
        path = self.place / chunk_name(number)
        try:
            with path.open("rb") as file:
                front = read_front(file, path)
                if front.preamble.data_set_id != plan.data_set_id or front.preamble.number != number:
                    return None
                columns, counts = read_facts(file, front, path)
        except (FileNotFoundError, FormatError):
            return None
        return Written(front.rows, front.preamble.checksum, columns, counts, found=True)


@dataclass(frozen=True)
class Packer:
    """The facts that a worker needs to make any chunk of a data set."""

    plan: ChunkPlan
    source: Source
    earlier: Earlier
    work: Path

    @cached_property
    def order(self) -> NDArray[np.uint64]:
        """The index at each place."""
        return open_order(self.work / "order.bin", self.plan.header.samples)

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor of this worker."""
        return Compressor(self.plan.compression)

    def release(self) -> None:
        """Release mapped pages, so that a worker's memory does not grow with the chunks that it makes."""
        release(self.order)
        self.source.release()

    def temporary(self, number: int) -> Path:
        """Return the path at which a chunk is written before it gets its final name."""
        return self.work / f"{number:08d}.tmp"


def pack_chunk(packer: Packer, number: int) -> Written:
    """Make one chunk under its temporary name, unless an earlier run has made it.

    Raises `SourceError`, `SchemaError`, `StorageError`.
    """
    found = packer.earlier.find(packer.plan, number)
    return make_chunk(packer, number, packer.temporary(number)) if found is None else found


def make_chunk(packer: Packer, number: int, path: Path) -> Written:
    """Make one chunk at `path`. Raises as `pack_chunk` does."""
    header = packer.plan.header
    first = number * header.chunk_size
    indices = packer.order[first : first + header.chunk_samples(number)]
    dictionary = packer.plan.compression.dictionary
    start = front_size(len(packer.plan.packed_header), len(dictionary), len(indices))
    rows = np.empty(len(indices), ROW)
    rows["index"] = indices
    columns, counts = [], list[Counts]()
    with _create(path) as file:
        file.seek(start)
        low = 0
        for records in packer.source.blocks(indices, first):
            some = slice(low, low + len(records))
            low += len(records)
            rows["raw_size"][some] = records.sizes
            columns.append(stored_columns(header.schema, records))
            _check_labels(header, indices[some], columns[-1])
            counts.append(look(header.schema, records, indices[some]))
            _write_block(file, packer.compressor.pack(records), rows[some], path)
        sizes = rows["size"].astype(np.uint64)
        rows["offset"] = start + np.cumsum(sizes) - sizes
        front = pack_front(
            packer.plan.packed_header,
            dictionary,
            rows,
            number=number,
            data_set_id=packer.plan.data_set_id,
            minor=header.minor,
        )
        file.seek(0)
        _write_all(file, front, path)
    checksum = parse_preamble(front, path).checksum
    packer.release()
    return Written(rows, checksum, np.concatenate(columns), added(*counts), found=False)


def _write_block(file: BinaryIO, stored: Sequence[Buffer], rows: NDArray[np.void], path: Path) -> None:
    """Write the stored bytes of some samples; put their sizes and checksums into the rows."""
    rows["size"] = lengths(stored)
    if rows["size"].mean() >= LARGE:  # not worth another copy
        rows["checksum"] = list(map(xxhash.xxh3_64_intdigest, stored))
        for piece in stored:
            _write_all(file, piece, path)
        return
    together = Records.of(stored)
    rows["checksum"] = together.checksums()
    _write_all(file, together.memory.data, path)


def _create(path: Path) -> BinaryIO:
    with storage_errors(path, "cannot write"):
        return path.open("wb", buffering=0)


def _write_all(file: BinaryIO, data: Buffer, path: Path) -> None:
    view = memoryview(data)
    with storage_errors(path, "cannot write"):
        while view:
            view = view[file.write(view) :]


def _check_labels(header: Header, indices: Indices, columns: NDArray[np.void]) -> None:
    if header.classes is None:
        return
    labels = columns["label"]
    wrong = np.flatnonzero((labels < NO_LABEL) | (labels >= len(header.classes)))
    if len(wrong):
        sample, label = int(indices[wrong[0]]), int(labels[wrong[0]])
        raise SchemaError(
            f"sample {sample}: label {label} is not one of {counted(len(header.classes), 'class', 'classes')}, whose "
            f"labels are 0 to {len(header.classes) - 1}; {NO_LABEL} is no label"
        )


@dataclass(frozen=True)
class KeptChunks:
    """The chunks whose rows are stored in `folder`; `sizes` has the size of each chunk that is at its place."""

    folder: Path
    sizes: Mapping[int, int]

    def find(self, plan: ChunkPlan, number: int) -> Written | None:
        """Return a chunk, as `Earlier.find` does."""
        if number not in self.sizes:
            return None
        count, dtype = plan.header.chunk_samples(number), column_dtype(plan.header.schema)
        table = count * ROW.itemsize
        size = _HEAD.size + table + count * dtype.itemsize + _DIGEST.size
        try:
            with (self.folder / str(number)).open("rb") as file:
                data = file.read(size + _MOST_COUNTS + 1)
        except FileNotFoundError:
            return None
        if not size < len(data) <= size + _MOST_COUNTS:
            return None
        magic, data_set_id, checksum = _HEAD.unpack_from(data)
        told = data[: -_DIGEST.size]
        if (magic, data_set_id, _digest(told)) != (_MAGIC, plan.data_set_id, data[-_DIGEST.size :]):
            return None
        rows = np.frombuffer(told, ROW, count, _HEAD.size)
        columns = np.frombuffer(told, dtype, count, _HEAD.size + table) if dtype.itemsize else np.empty(count, dtype)
        if int(rows["offset"][-1]) + int(rows["size"][-1]) != self.sizes[number]:
            return None
        counts = {(field, trait): (n, index, key) for field, trait, n, index, key in json.loads(told[size - 8 :])}
        return Written(rows, checksum, columns, counts, found=True)


def keep_chunk(folder: Path, data_set_id: bytes, number: int, chunk: Written) -> None:
    """Store a chunk's rows for the index at its place. Several machines may do so at once. Raises OSError."""
    counts = json.dumps([[*which, *facts] for which, facts in chunk.counts.items()]).encode()
    data = _HEAD.pack(_MAGIC, data_set_id, chunk.checksum) + chunk.rows.tobytes() + chunk.columns.tobytes() + counts
    temporary = folder / f"{number}-{uuid.uuid4().hex}.tmp"
    temporary.write_bytes(data + _digest(data))
    temporary.replace(folder / str(number))


def _digest(data: bytes) -> bytes:
    return _DIGEST.pack(xxhash.xxh3_64_intdigest(data))
