"""An iterable gives each sample once, in its own order: how is it stored in random order with bounded memory?

An external sort does it. Records collect up to `RUN_BYTES`; such a run is written to the file *sorted by the samples'
shuffle keys*. A chunk is a range of keys, so each run holds its part of the chunk as one piece. Reading a chunk takes
one read for each run instead of one for each sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.report import OnProgress, Progress
from brand.chunker.shuffle import Keys, sorted_places
from brand.chunker.source import Indices
from brand.errors import SourceError
from brand.formats.contents import cut_blocks
from brand.formats.mapped import gather, map_array, release
from brand.formats.publish import storage_errors
from brand.formats.record import encode_records
from brand.formats.records import SMALL, Records, windows
from brand.formats.schema import Schema
from brand.formats.values import Buffer

RUN_BYTES: Final = 32 << 20
SAMPLES_A_STEP: Final = 1024
_OBJECT_BYTES: Final = 64
"""Bytes that Python needs for each record beside its contents."""
WORD: Final = 16
"""Bytes of the words in which small records are copied."""
_COPIED_BYTES: Final = 4 << 20
"""Bytes that are copied in one call."""
_SPAN: Final = np.dtype([("offset", "<u8"), ("size", "<u8")])


class SpoolSource:
    """A spooled iterable. Picklable; opens its files anew in each process."""

    file_field = ""

    def __init__(self, folder: Path, schema: Schema, digest: str, raw_bytes: int) -> None:
        self.folder, self.schema, self._digest, self.raw_bytes = folder, schema, digest, raw_bytes

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "schema": self.schema, "_digest": self._digest, "raw_bytes": self.raw_bytes}

    def __len__(self) -> int:
        return len(self._spans)

    def sizes(self, indices: Indices) -> NDArray[np.int64]:
        """Exact."""
        sizes: NDArray[np.int64] = gather(self._spans, indices)["size"].astype(np.int64)
        return sizes

    def records(self, indices: Indices) -> Records:
        """Read records; one read takes all that lie side by side."""
        spans = gather(self._spans, indices)
        order = np.argsort(spans["offset"], kind="stable")
        begins, sizes = spans["offset"].astype(np.int64), spans["size"].astype(np.int64)
        gaps = begins[order[1:]] - (begins + sizes)[order[:-1]]
        first = np.concatenate(([0], 1 + np.flatnonzero((gaps < 0) | (gaps >= WORD))))
        last = np.concatenate((first[1:], [len(order)])) - 1
        heads, tails = begins[order[first]], (begins + sizes)[order[last]]
        ends = np.cumsum(tails - heads)
        memory = np.empty(int(ends[-1]), np.uint8)
        with (self.folder / "spool.bin").open("rb") as file:
            for head, low, high in zip(heads.tolist(), (ends - tails + heads).tolist(), ends.tolist(), strict=True):
                file.seek(head)
                file.readinto(memory.data[low:high])
        moved = np.repeat(ends - tails, last + 1 - first)
        starts = np.empty(len(order), np.int64)
        starts[order] = begins[order] + moved
        return Records(memory, starts, sizes)

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - an iterable has no dates
        """Checksum of all records."""
        return self._digest

    def release(self) -> None:
        """Give mapped pages back."""
        release(self._spans)

    @cached_property
    def _spans(self) -> NDArray[np.void]:
        return map_array(self.folder / "spans.bin", _SPAN)


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

    Raises `SchemaError`, which names the sample at fault, and `SourceError` where the iterable is empty.
    """
    keys, digest = Keys(seed), xxhash.xxh3_128()
    count = raw_bytes = written = held = 0
    run: list[Records] = []
    iterator = iter(samples)
    with (folder / "spool.bin").open("wb") as data, (folder / "spans.bin").open("wb") as spans:
        while block := list(islice(iterator, SAMPLES_A_STEP)):
            records = encode_records(schema, block, range(count, count + len(block)))
            digest.update(records.memory.data)
            run.append(records)
            count += len(block)
            raw_bytes += len(records.memory)
            held += len(records.memory) + _OBJECT_BYTES * len(block)
            if held >= RUN_BYTES:
                written += _write_run(run, keys, data, spans, written)
                run, held = [], 0
                on_progress(Progress("spool", count, total, raw_bytes, None))
        written += _write_run(run, keys, data, spans, written)
    if not count:
        raise SourceError("samples", "there are none: the iterable is empty")
    digest.update(count.to_bytes(8, "little"))
    on_progress(Progress("spool", count, count, raw_bytes, raw_bytes))
    return SpoolSource(folder, schema, digest.hexdigest(), raw_bytes)


def _write_run(run: Sequence[Records], keys: Keys, data: Any, spans: Any, at: int) -> int:
    """Write the records of one run sorted by key, and their spans in source order. Returns how much longer `data` is.

    Records are copied in whole words, so that one call copies many small ones. Bytes of any value fill the last word.
    """
    if not run:
        return 0
    sizes = np.concatenate([records.sizes for records in run])
    order = sorted_places(keys.next(len(sizes)))
    memory = np.frombuffer(b"".join([*(records.memory.data for records in run), bytes(WORD)]), np.uint8)
    begins, ordered = (np.cumsum(sizes) - sizes)[order], sizes[order]
    room = -(-ordered // WORD) * WORD
    rows = np.empty(len(sizes), _SPAN)
    rows["offset"][order] = at + np.cumsum(room) - room
    rows["size"] = sizes
    with storage_errors(Path(data.name), "cannot write"):
        for low, high in cut_blocks(room, _COPIED_BYTES):
            data.write(_copied(memory, begins[low:high], room[low:high]))
        spans.write(rows.tobytes())
    return int(room.sum())


def _copied(memory: NDArray[np.uint8], begins: NDArray[np.int64], room: NDArray[np.int64]) -> Buffer:
    """Pieces of a memory, one after the other; `room` holds their sizes, which are whole words."""
    if int(room.mean()) >= SMALL:
        return b"".join(Records(memory, begins, room).pieces())
    words = room // WORD
    at = np.repeat(begins - WORD * (np.cumsum(words) - words), words)
    at += np.arange(0, WORD * len(at), WORD)
    copied: Buffer = windows(memory, WORD)[at].data
    return copied
