"""How are the records of one stretch of a source written, so that they can be read in shuffled order?

An external sort does it. Records are collected up to `RUN_BYTES`; such a run is written *sorted by the samples' shuffle
keys*. A chunk is a range of keys, so each run holds its records of the chunk in one piece. Reading a chunk takes one
read for each run instead of one for each sample.

    NUMBER.records   the runs, one after the other
    NUMBER.spans     offset, size and checksum of each record, in the order of the source
    NUMBER.json      the facts of the part, written last: a part without it does not exist

The files are not flushed to the device. A run that finds a part of an earlier run compares its checksum first. A
record gets its checksum before it is sorted, and every later reader compares it (`SpoolSource.records`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

import numpy as np
import xxhash

from brand.chunker.plan.report import Problem
from brand.chunker.sources.shuffle import SortKeys, sorted_places
from brand.formats.contents import cut_blocks
from brand.formats.publish import publish_bytes, storage_errors
from brand.formats.record import Records

PARTS_NAME: Final = "parts"
"""Folder of the parts in a work folder."""
RUN_BYTES: Final = 32 << 20
SPAN: Final = np.dtype([("offset", "<u8"), ("size", "<u8"), ("checksum", "<u8")])
_OBJECT_BYTES: Final = 64
"""Bytes that Python needs for each record in addition to its contents."""
_COPIED_BYTES: Final = 4 << 20
"""Bytes that are copied in one call."""
_READ_BYTES: Final = 4 << 20


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


class PartWriter:
    """Writes one part. The caller opens the two files, and publishes the part that `finish` returns.

    A thread sorts and writes a run while the caller makes the records of the next one. While it writes, it owns the
    files, their checksums and the count of written samples. It ends with the `with` block.
    """

    def __init__(self, records: BinaryIO, spans: BinaryIO, keys: SortKeys) -> None:
        self._records, self._spans, self._keys = records, spans, keys
        self.samples = self.raw_bytes = self._written = self._held = 0
        self._run: list[Records] = []
        self._digest, self._of_records, self._of_spans = (xxhash.xxh3_128() for _ in range(3))
        self._thread = ThreadPoolExecutor(1, "part")
        self._writing: Future[None] | None = None

    def __repr__(self) -> str:
        return f"PartWriter({self._records.name}, {self.samples} samples, {self._held} bytes held)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

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

    def finish(self, problems: Sequence[Problem] = ()) -> SortedPart:
        """Write the collected records, and return the facts of the part. Raises `StorageError`."""
        self._hand_over()
        self._await_run()
        with storage_errors(Path(self._records.name), "cannot write"):
            self._records.flush()
            self._spans.flush()
        self._digest.update(self.samples.to_bytes(8, "little"))
        files = self._of_records.hexdigest() + self._of_spans.hexdigest()
        return SortedPart(self.samples, self._written, self.raw_bytes, self._digest.hexdigest(), files, tuple(problems))

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
        together = Records.side_by_side(b"".join([records.memory.data for records in run]), sizes)
        ordered = together[order]
        rows = np.empty(len(sizes), SPAN)
        rows["offset"][order] = self._written + np.cumsum(ordered.sizes) - ordered.sizes
        rows["size"] = sizes
        rows["checksum"] = together.checksums()
        with storage_errors(Path(self._records.name), "cannot write"):
            for low, high in cut_blocks(ordered.sizes, _COPIED_BYTES):
                copied = ordered[low:high].joined()
                self._of_records.update(copied)
                self._records.write(copied)
            self._of_spans.update(rows.tobytes())
            self._spans.write(rows.tobytes())
        self._written += len(together.memory)


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
        part = SortedPart(**facts | {"problems": tuple(Problem(**problem) for problem in facts["problems"])})
        found = "".join(map(_digest_of, part_files(folder, number)))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return part if found == part.files_digest else None


def has_parts(folder: Path) -> bool:
    """Return whether any part is finished in this folder."""
    return folder.is_dir() and any(folder.glob("*.json"))


def _digest_of(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
