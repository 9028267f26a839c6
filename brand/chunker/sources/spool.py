"""How are the samples of a source that can be read only once, in its own order, read in shuffled order?

They are first written to disk, as one part for each stretch of the source (`sortedparts`). `SpoolSource` then finds any
record. `spool` writes an iterable, which is one stretch; `exchange` writes a source of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.plan.report import OnProgress, StageProgress
from brand.chunker.sources.shuffle import SortKeys
from brand.chunker.sources.sortedparts import PARTS_NAME, SPAN, PartWriter, SortedPart, part_files
from brand.chunker.sources.source import Indices
from brand.errors import SourceError
from brand.formats.arrays import gather, map_array, release
from brand.formats.header import Schema
from brand.formats.publish import storage_errors
from brand.formats.record import Records, encode_records

SAMPLES_A_STEP: Final = 1024
_SPANS_A_STEP: Final = 1 << 18


class SpoolSource:
    """Spooled samples. Picklable; each process opens the files for itself.

    A record has an address: the files of records share one address space, with a gap between them.
    """

    file_field = ""

    def __init__(self, folder: Path, schema: Schema, parts: Sequence[SortedPart]) -> None:
        self.folder, self.schema = folder, schema
        self.stretches = tuple(part.samples for part in parts)
        self.raw_bytes = sum(part.raw_bytes for part in parts)
        digests = [part.digest for part in parts]
        self._digest = digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest("".join(digests).encode())
        room = np.array([part.file_bytes + 1 for part in parts], np.int64)
        self._bases: NDArray[np.int64] = np.cumsum(room) - room

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_spans"}

    def __len__(self) -> int:
        return sum(self.stretches)

    def sizes(self, indices: Indices) -> NDArray[np.int64]:
        """Return the exact sizes."""
        sizes: NDArray[np.int64] = gather(self._spans, indices)["size"].astype(np.int64)
        return sizes

    def records(self, indices: Indices) -> Records:
        """Read records; adjacent records are read at once.

        Raises `SourceError` if a record is not the one that was read from the source.
        """
        spans = gather(self._spans, indices)
        order = np.argsort(spans["offset"], kind="stable")
        begins, sizes = spans["offset"].astype(np.int64), spans["size"].astype(np.int64)
        gaps = begins[order[1:]] - (begins + sizes)[order[:-1]]
        first = np.concatenate(([0], 1 + np.flatnonzero(gaps)))
        last = np.concatenate((first[1:], [len(order)])) - 1
        heads, tails = begins[order[first]], (begins + sizes)[order[last]]
        ends = np.cumsum(tails - heads)
        memory = np.empty(int(ends[-1]), np.uint8)
        self._read(heads, ends - tails + heads, ends, memory.data)
        moved = np.repeat(ends - tails, last + 1 - first)
        starts = np.empty(len(order), np.int64)
        starts[order] = begins[order] + moved
        records = Records(memory, starts, sizes)
        wrong = np.flatnonzero(records.checksums() != spans["checksum"])
        if len(wrong):
            part = int(np.searchsorted(self._bases, begins[wrong[0]], "right")) - 1
            path, _ = part_files(self.folder / PARTS_NAME, part)
            what = f"sample {int(indices[wrong[0]])} differs from that of the source: the file is damaged"
            raise SourceError(str(path), what, hint="Convert again: damaged samples are read from the source again")
        return records

    def _read(
        self, heads: NDArray[np.int64], lows: NDArray[np.int64], highs: NDArray[np.int64], memory: memoryview
    ) -> None:
        """Read the pieces that begin at the addresses `heads`, which ascend, to the places `lows` to `highs`."""
        parts = np.searchsorted(self._bases, heads, "right") - 1
        offsets = heads - self._bases[parts]
        cuts = np.concatenate(([0], 1 + np.flatnonzero(np.diff(parts)), [len(parts)])).tolist()
        for low, high in pairwise(cuts):
            path, _ = part_files(self.folder / PARTS_NAME, int(parts[low]))
            with path.open("rb", buffering=0) as file:
                pieces = (column[low:high].tolist() for column in (offsets, lows, highs))
                for offset, begin, end in zip(*pieces, strict=True):
                    file.seek(offset)
                    _read_whole(file, memory[begin:end], path)

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - spooled records have no dates
        """Return the checksum of all records."""
        return self._digest

    def release(self) -> None:
        """Release mapped pages."""
        release(self._spans)

    @cached_property
    def _spans(self) -> NDArray[np.void]:
        return map_array(self.folder / "spans.bin", SPAN)


def _read_whole(file: Any, memory: memoryview, path: Path) -> None:
    while memory:
        count = file.readinto(memory)
        if not count:
            raise SourceError(str(path), "the file was truncated while it was in use")
        memory = memory[count:]


def joined(folder: Path, schema: Schema, parts: Sequence[SortedPart]) -> SpoolSource:
    """Return the source of finished parts, one after the other. Writes the spans of all of them to one file.

    Raises `StorageError`.
    """
    source, path = SpoolSource(folder, schema, parts), folder / "spans.bin"
    with storage_errors(path, "cannot write"), path.open("wb") as file:
        for number, base in enumerate(source._bases.tolist()):
            _, spans = part_files(folder / PARTS_NAME, number)
            for rows in _rows_of(spans):
                rows["offset"] += np.uint64(base)
                file.write(rows.tobytes())
    return source


def _rows_of(path: Path) -> Iterator[NDArray[np.void]]:
    with path.open("rb") as file:
        while data := file.read(_SPANS_A_STEP * SPAN.itemsize):
            yield np.frombuffer(bytearray(data), SPAN)


def spool(
    samples: Iterable[Mapping[str, Any]],
    schema: Schema,
    seed: int,
    folder: Path,
    *,
    total: int | None,
    on_progress: OnProgress,
) -> SpoolSource:
    """Encode an iterable into `folder`.

    Raises `SchemaError`, which names the sample at fault, and `SourceError` if the iterable is empty.
    """
    return spool_records(_encoded(samples, schema), schema, seed, folder, total=total, on_progress=on_progress)


def spool_records(
    records: Iterable[Records],
    schema: Schema,
    seed: int,
    folder: Path,
    *,
    total: int | None,
    on_progress: OnProgress,
) -> SpoolSource:
    """Write records, which fill their memories, into `folder`. Raises `SourceError` if there are none."""
    with storage_errors(folder, "cannot write"):
        (folder / PARTS_NAME).mkdir(exist_ok=True)
    records_path, spans_path = part_files(folder / PARTS_NAME, 0)
    with (
        records_path.open("wb") as data,
        spans_path.open("wb") as spans,
        PartWriter(data, spans, SortKeys(seed)) as writer,
    ):
        for some in records:
            if writer.add(some):
                on_progress(StageProgress("spool", writer.samples, total, writer.raw_bytes, None))
        part = writer.finish()
    if not part.samples:
        raise SourceError("samples", "there are none: the iterable is empty")
    on_progress(StageProgress("spool", part.samples, part.samples, part.raw_bytes, part.raw_bytes))
    return joined(folder, schema, [part])


def _encoded(samples: Iterable[Mapping[str, Any]], schema: Schema) -> Iterator[Records]:
    iterator, first = iter(samples), 0
    while block := list(islice(iterator, SAMPLES_A_STEP)):
        yield encode_records(schema, block, range(first, first + len(block)))
        first += len(block)
