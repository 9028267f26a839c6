"""An iterable gives each sample once, in its own order: how is it stored in random order with bounded memory?

An external sort does it. Records collect up to `RUN_BYTES`; such a run is written to the file *sorted by the samples'
shuffle keys*. A chunk is a range of keys, so each run holds its part of the chunk as one contiguous piece. Reading a
chunk takes one read for each run instead of one for each sample.
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
from brand.chunker.shuffle import Keys
from brand.chunker.source import Indices
from brand.errors import SourceError
from brand.formats.mapped import gather, map_array, release
from brand.formats.publish import storage_errors
from brand.formats.record import encode_records
from brand.formats.schema import Schema

RUN_BYTES: Final = 32 << 20
SAMPLES_A_STEP: Final = 1024
_OBJECT_BYTES: Final = 64
"""Bytes that Python needs for each record beside its contents."""
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

    def records(self, indices: Indices) -> list[bytes]:
        """Read records; one read takes all that lie side by side."""
        spans = gather(self._spans, indices)
        order = np.argsort(spans["offset"], kind="stable")
        starts, sizes = spans["offset"][order].astype(np.int64), spans["size"][order].astype(np.int64)
        ends = starts + sizes
        first = np.flatnonzero(np.concatenate(([True], starts[1:] != ends[:-1])))
        last = np.concatenate((first[1:], [len(order)])) - 1
        records: list[bytes] = [b""] * len(order)
        positions, begins, lengths = order.tolist(), starts.tolist(), sizes.tolist()
        with (self.folder / "spool.bin").open("rb", buffering=0) as file:
            for head, tail in zip(first.tolist(), last.tolist(), strict=True):
                base = begins[head]
                file.seek(base)
                block = file.read(int(ends[tail]) - base)
                for k in range(head, tail + 1):
                    at = begins[k] - base
                    records[positions[k]] = block[at : at + lengths[k]]
        return records

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
    count = written = held = 0
    run: list[bytes] = []
    iterator = iter(samples)
    with (folder / "spool.bin").open("wb") as data, (folder / "spans.bin").open("wb") as spans:
        while block := list(islice(iterator, SAMPLES_A_STEP)):
            records = encode_records(schema, block, range(count, count + len(block)))
            blob = b"".join(records)
            digest.update(blob)
            run += records
            count += len(block)
            held += len(blob) + _OBJECT_BYTES * len(block)
            if held >= RUN_BYTES:
                written += _write_run(run, keys, data, spans, written)
                run, held = [], 0
                on_progress(Progress("spool", count, total, written, None))
        written += _write_run(run, keys, data, spans, written)
    if not count:
        raise SourceError("samples", "there are none: the iterable is empty")
    digest.update(count.to_bytes(8, "little"))
    on_progress(Progress("spool", count, count, written, written))
    return SpoolSource(folder, schema, digest.hexdigest(), written)


def _write_run(records: Sequence[bytes], keys: Keys, data: Any, spans: Any, at: int) -> int:
    """Write the records of one run sorted by key, and their spans in source order. Returns the bytes of the run."""
    if not records:
        return 0
    order = np.argsort(keys.next(len(records)), kind="stable")
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    sorted_sizes = sizes[order]
    rows = np.empty(len(records), _SPAN)
    rows["offset"][order] = at + np.cumsum(sorted_sizes) - sorted_sizes
    rows["size"] = sizes
    with storage_errors(Path(data.name), "cannot write"):
        data.write(b"".join([records[i] for i in order.tolist()]))
        spans.write(rows.tobytes())
    return int(sizes.sum())
