"""One chunk: the records of its samples -> a finished temporary file, unless an earlier run has made the chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.sources.shuffle import open_order
from brand.chunker.sources.source import Indices, Source
from brand.errors import FormatError, SchemaError
from brand.formats.arrays import release
from brand.formats.chunk import front_size, pack_front, parse_preamble, read_front
from brand.formats.compression import Compressor
from brand.formats.constants import ROW, chunk_name
from brand.formats.contents import cut_blocks, read_fixed
from brand.formats.header import Header
from brand.formats.publish import storage_errors
from brand.formats.record import Records, fixed_columns
from brand.formats.values import Buffer

_OBJECT_BYTES: Final = 128
"""Bytes that Python needs for each record in addition to its contents."""


@dataclass(frozen=True)
class Written:
    """The facts of one chunk that the index needs."""

    rows: NDArray[np.void]
    checksum: int
    columns: NDArray[np.void]
    """The fixed fields, one structured row per sample."""
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
                columns = read_fixed(file, front, path)
        except (FileNotFoundError, FormatError):
            return None
        return Written(front.rows, front.preamble.checksum, columns, found=True)


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
    columns = []
    with _create(path) as file:
        file.seek(start)
        for low, high in _blocks(packer, indices):
            records = packer.source.records(indices[low:high])
            stored = Records.of(packer.compressor.pack(records))
            rows["raw_size"][low:high] = records.sizes
            rows["size"][low:high] = stored.sizes
            rows["checksum"][low:high] = stored.checksums()
            columns.append(fixed_columns(header.schema, records))
            _check_labels(header, indices[low:high], columns[-1])
            _write_all(file, stored.memory.data, path)
        sizes = rows["size"].astype(np.uint64)
        rows["offset"] = start + np.cumsum(sizes) - sizes
        front = pack_front(
            packer.plan.packed_header, dictionary, rows, number=number, data_set_id=packer.plan.data_set_id
        )
        file.seek(0)
        _write_all(file, front, path)
    checksum = parse_preamble(front, path).checksum
    packer.release()
    return Written(rows, checksum, np.concatenate(columns), found=False)


def _blocks(packer: Packer, indices: Indices) -> list[tuple[int, int]]:
    sizes = packer.source.sizes(indices)
    if sizes is None:  # only the probe's mean is known: allow for samples four times as large
        mean = packer.plan.raw_bytes // packer.plan.header.samples
        return cut_blocks(np.full(len(indices), 4 * (mean + _OBJECT_BYTES)))
    return cut_blocks(sizes + _OBJECT_BYTES)


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
    wrong = np.flatnonzero((labels < 0) | (labels >= len(header.classes)))
    if len(wrong):
        sample, label = int(indices[wrong[0]]), int(labels[wrong[0]])
        raise SchemaError(f"sample {sample}: label {label} is not one of the {len(header.classes)} classes")
