"""How are the samples of a source that is read only once, in its own order, read in shuffled order?

An external sort does it. Each stretch of the source becomes a *part*. Its records are collected up to `RUN_BYTES`; such
a run is written *sorted by the samples' shuffle keys*. A chunk is a range of keys, so each run holds its records of the
chunk in one piece. Reading a chunk takes one read for each run instead of one for each sample.

    NUMBER.records   the runs, one after the other
    NUMBER.spans     offset, size and checksum of each record, in the order of the source
    NUMBER.json      the facts of the part, written last: a part without it does not exist

The files are not flushed to the device. A run that finds a part of an earlier run compares its checksum first. A
record gets its checksum before it is sorted, and `SpoolSource`, which finds any record, compares it. `spool` writes an
iterable, which is one stretch; `exchange` (`shards`) writes a source of many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.shuffle import Along, SortKeys, sorted_places, write_order
from brand.chunker.sources.source import Indices, Source
from brand.errors import SourceError
from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.noticed import Noticed, from_json, merged
from brand.formats.publish import file_digest, publish_bytes, storage_errors
from brand.formats.record import Records
from brand.formats.values import LARGE, Buffer
from brand.reprs import Reprs

PARTS_NAME: Final = "parts"
"""Folder of the parts in a work folder."""
RUN_BYTES: Final = 32 << 20
SPAN: Final = np.dtype([("offset", "<u8"), ("size", "<u8"), ("checksum", "<u8")])
_OBJECT_BYTES: Final = 64
"""Bytes that Python needs for each record in addition to its contents."""
_COPIED_BYTES: Final = 4 << 20
"""Bytes that are copied in one call."""

_RANDOM: Final = getattr(os, "POSIX_FADV_RANDOM", None)
"""Advice against read-ahead: behind a large piece are pieces of chunks that come much later."""


@dataclass(frozen=True)
class SortedPart:
    """The facts of a finished part."""

    samples: int
    file_bytes: int
    """Size of the file of records."""
    raw_bytes: int
    """Bytes of all records together."""
    digest: str
    """Checksum of the records in the order of the source, and of their number."""
    files_digest: str
    """Checksums of the two files as they were written."""
    problems: tuple[Problem, ...] = ()
    """Samples that were left out."""
    noticed: tuple[Noticed, ...] = ()
    """Facts that the reader of the source has told."""


class PartWriter(Reprs, shows="_records.name samples _held"):
    """Writes the two files of one part. The caller publishes the part that `finish` returns.

    A thread sorts and writes a run while the caller makes the records of the next one. While it writes, it owns the
    files, their checksums and the count of written samples. It ends with the `with` block.
    """

    def __init__(self, folder: Path, number: int, keys: SortKeys) -> None:
        self._records, self._spans = (path.open("wb") for path in part_files(folder, number))
        self._keys = keys
        self.samples = self.raw_bytes = self._written = self._held = 0
        self._run: list[Records] = []
        self._digest, self._of_records, self._of_spans = (xxhash.xxh3_128() for _ in range(3))
        self._thread = ThreadPoolExecutor(1, "part")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._records.close()
        self._spans.close()

    def add(self, records: Records) -> bool:
        """Add the next records, which fill their memory. Return whether a run is full. Raises `StorageError`."""
        self._digest.update(records.memory.data)
        self._run.append(records)
        self.samples += len(records)
        self.raw_bytes += len(records.memory)
        self._held += len(records.memory) + _OBJECT_BYTES * len(records)
        if self._held < RUN_BYTES:
            return False
        self._hand_over()
        return True

    def finish(self, problems: Sequence[Problem] = (), noticed: Sequence[Noticed] = ()) -> SortedPart:
        """Write the collected records, and return the facts of the part. Raises `StorageError`."""
        self._hand_over()
        self._await_run()
        with storage_errors(Path(self._records.name), "cannot write"):
            self._records.flush()
            self._spans.flush()
        self._digest.update(self.samples.to_bytes(8, "little"))
        files = self._of_records.hexdigest() + self._of_spans.hexdigest()
        digest = self._digest.hexdigest()
        return SortedPart(self.samples, self._written, self.raw_bytes, digest, files, tuple(problems), merged(noticed))

    def _hand_over(self) -> None:
        """Pass the collected records to the thread, which writes one run at a time."""
        self._await_run()
        if self._run:
            self._writing = self._thread.submit(self._write_run, self._run)
        self._run, self._held = [], 0

    def _await_run(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_run(self, run: Sequence[Records]) -> None:
        """Write the records of one run sorted by key, and their spans in the order of the source."""
        sizes = np.concatenate([records.sizes for records in run])
        order = sorted_places(self._keys.next(len(sizes)))
        rows = np.empty(len(sizes), SPAN)
        rows["offset"][order] = self._written + np.cumsum(sizes[order]) - sizes[order]
        rows["size"] = sizes
        rows["checksum"] = np.concatenate([records.checksums() for records in run])
        with storage_errors(Path(self._records.name), "cannot write"):
            for piece in _in_order(run, sizes, order):
                self._of_records.update(piece)
                self._records.write(piece)
            self._of_spans.update(rows.tobytes())
            self._spans.write(rows.tobytes())
        self._written += int(sizes.sum())


def _in_order(run: Sequence[Records], sizes: NDArray[np.int64], order: NDArray[np.intp]) -> Iterator[Buffer]:
    """Yield the bytes of the records of a run in this order. Large records are not copied."""
    if sizes.mean() >= LARGE:
        views = [records.view(number) for records in run for number in range(len(records))]
        yield from (views[number] for number in order.tolist())
        return
    ordered = Records.side_by_side(b"".join([records.memory.data for records in run]), sizes)[order]
    for low, high in cut_blocks(ordered.sizes, _COPIED_BYTES):
        yield ordered[low:high].joined()


def part_files(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the paths of the records and the spans of a part."""
    return folder / f"{number:06d}.records", folder / f"{number:06d}.spans"


def publish_part(folder: Path, number: int, identity: str, part: SortedPart) -> None:
    """Mark a part as finished. `identity` is that of its contents, as far as the source knows it before reading."""
    path = folder / f"{number:06d}.json"
    with storage_errors(path, "cannot write"):
        publish_bytes(path, json.dumps({"identity": identity, "part": asdict(part)}).encode())


def find_part(folder: Path, number: int, identity: str) -> SortedPart | None:
    """Return the sorted part with this identity that an earlier run finished, if its files are unchanged."""
    try:
        told = json.loads((folder / f"{number:06d}.json").read_bytes())
        if told["identity"] != identity:
            return None
        facts = told["part"]
        listed = {"problems": tuple(Problem(**problem) for problem in facts["problems"])}
        part = SortedPart(**facts | listed | {"noticed": from_json(facts["noticed"])})
        found = "".join(file_digest(path)[1] for path in part_files(folder, number))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return part if found == part.files_digest else None


def has_parts(folder: Path) -> bool:
    """Return whether any part is finished in this folder."""
    return folder.is_dir() and any(folder.glob("*.json"))


class SpoolSource(Source):
    """Spooled samples. Picklable; each process opens the files for itself.

    A record has an address: the files of records share one address space, with a gap between them.
    """

    def __init__(
        self, folder: Path, schema: Schema, parts: Sequence[SortedPart], noticed: Sequence[Noticed] = ()
    ) -> None:
        """`noticed` are facts that were known before the parts were made."""
        self.folder, self.schema = folder, schema
        self.noticed = merged([*noticed, *(fact for part in parts for fact in part.noticed)])
        self.stretches = tuple(part.samples for part in parts)
        self._raw_bytes = sum(part.raw_bytes for part in parts)
        digests = [part.digest for part in parts]
        self._digest = digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest("".join(digests).encode())
        room = np.array([part.file_bytes + 1 for part in parts], np.int64)
        self._bases: NDArray[np.int64] = np.cumsum(room) - room

    @property
    def raw_bytes(self) -> int:
        """Bytes of all records together."""
        return self._raw_bytes

    def write_order(self, path: Path, seed: int) -> None:
        """Write the storage order, and the spans of the samples in that order."""
        write_order(path, self.stretches, seed, Along(SPAN, self._spans_in_part, self._spans_path))

    def sizes(self, indices: Indices, place: int, /) -> NDArray[np.int64]:
        """Return the exact sizes."""
        sizes: NDArray[np.int64] = self._spans(place, len(indices))["size"].astype(np.int64)
        return sizes

    def records(self, indices: Indices, place: int, /) -> Records:
        """Read records; adjacent records are read at once.

        Raises `SourceError` if a record is not the one that was read from the source.
        """
        spans = self._spans(place, len(indices))
        order = np.argsort(spans["offset"])  # not the stable sort, which takes six times as long
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
                if _RANDOM is not None and highs[low] - lows[low] >= LARGE:
                    os.posix_fadvise(file.fileno(), 0, 0, _RANDOM)
                pieces = (column[low:high].tolist() for column in (offsets, lows, highs))
                for offset, begin, end in zip(*pieces, strict=True):
                    file.seek(offset)
                    _read_whole(file, memory[begin:end], path)

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - spooled records have no dates
        """Return the checksum of all records."""
        return self._digest

    @property
    def _spans_path(self) -> Path:
        return self.folder / "spans.bin"

    def _spans(self, first: int, count: int) -> NDArray[np.void]:
        """Return the spans of the samples at `count` places, from place `first` on, with addresses as offsets."""
        return _read_spans(self._spans_path, first, count)

    def _spans_in_part(self, part: int, first: int, count: int) -> NDArray[np.void]:
        """Return the spans of samples of a part, in the order of the source, with addresses as offsets."""
        spans = _read_spans(part_files(self.folder / PARTS_NAME, part)[1], first, count)
        spans["offset"] += np.uint64(self._bases[part])
        return spans


def _read_spans(path: Path, first: int, count: int) -> NDArray[np.void]:
    spans = np.empty(count, SPAN)
    with path.open("rb", buffering=0) as file:
        file.seek(first * SPAN.itemsize)
        _read_whole(file, spans.view(np.uint8).data, path)
    return spans


def _read_whole(file: Any, memory: memoryview, path: Path) -> None:
    while memory:
        count = file.readinto(memory)
        if not count:
            raise SourceError(str(path), "the file was truncated while it was in use")
        memory = memory[count:]


def spool(
    records: Iterable[Records],
    schema: Schema,
    seed: int,
    folder: Path,
    *,
    total: int | None,
    on_progress: OnProgress,
    noticed: Callable[[], Sequence[Noticed]] = tuple,
) -> SpoolSource:
    """Write records, which fill their memories, into `folder`. Raises `SourceError` if there are none.

    `noticed` returns facts about the samples, after all are read.
    """
    with storage_errors(folder, "cannot write"):
        (folder / PARTS_NAME).mkdir(exist_ok=True)
    with PartWriter(folder / PARTS_NAME, 0, SortKeys(seed)) as writer:
        for some in records:
            if writer.add(some):
                on_progress(StageProgress("spool", writer.samples, total, writer.raw_bytes, None))
        part = writer.finish((), noticed())
    if not part.samples:
        raise SourceError("samples", "there are none: the iterable is empty")
    on_progress(StageProgress("spool", part.samples, part.samples, part.raw_bytes, part.raw_bytes))
    return SpoolSource(folder, schema, [part])
