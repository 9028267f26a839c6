"""How are many samples read at the speed of sequential reads, without a data server? In the order of the chunks.

    places, ascending -> batches of a few MB -> threads read, check and decode them -> samples, in order

Memory holds the batches of a few reads, however large the data set is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError
from brand.formats.contents import cut_blocks
from brand.formats.record import RecordDecoder
from brand.starting import ThreadPool
from brand.storage.dataset.catalogue import ROWS_AT_ONCE
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.selection import selected

OnScanned = Callable[[int, int, int], object]
"""Called with the samples that were delivered, the samples in all, and the bytes that were read for those delivered."""
READ_BYTES: Final = 4 << 20
"""Memory of a batch, unless its only sample is larger."""
OBJECT_BYTES: Final = 1024
"""Memory of the Python objects of a sample, in addition to its stored bytes: about that of ten fields."""
READERS: Final = 8
"""Threads that read. A storage with a high latency needs several reads in flight."""

_Samples = list[dict[str, Any]]


def scan(
    data: StoredDataSet, fields: Sequence[str] | None, subset: Any, on_progress: OnScanned | None
) -> Iterator[dict[str, Any]]:
    """See `Reader.scan`."""
    names = [*data.schema, "index"] if fields is None else list(fields)
    for name in names:
        if name not in data.schema and name != "index":
            raise SchemaError(f"no field {name!r}; this data set has {', '.join(sorted({*data.schema, 'index'}))}")
    if subset is not None:
        places: NDArray[np.int64] | None = np.flatnonzero(data.places_of(selected(data, subset)))
    else:
        drawn = data.drawn()
        places = None if drawn is None else np.flatnonzero(drawn)
    return _scanned(data, names, places, on_progress)


def _scanned(
    data: StoredDataSet, names: list[str], places: NDArray[np.int64] | None, on_progress: OnScanned | None
) -> Iterator[dict[str, Any]]:
    schema = data.header.schema
    read = partial(_read, data, RecordDecoder(schema, [name for name in names if name in schema.names]), names)
    done, done_bytes, of = 0, 0, data.header.samples if places is None else len(places)
    pool, pending = ThreadPool(READERS, "brand-scan"), deque[tuple[int, Future[_Samples]]]()
    try:
        batches = _batches(data, places)
        while True:
            while len(pending) <= READERS and (batch := next(batches, None)) is not None:
                pending.append((int(batch[1]["size"].sum(dtype=np.int64)), pool.submit(read, *batch)))
            if not pending:
                return
            size, future = pending.popleft()
            samples = future.result()
            yield from samples
            done, done_bytes = done + len(samples), done_bytes + size
            if on_progress is not None:
                on_progress(done, of, done_bytes)
            del samples, future  # not in memory while the next batch is waited for
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # it may run in the garbage collector, which must not wait


def _batches(
    data: StoredDataSet, places: NDArray[np.int64] | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
    """Yield the places and the rows of each batch. `places`: ascending; None: all."""
    count = data.header.samples if places is None else len(places)
    for first in range(0, count, ROWS_AT_ONCE):
        end = min(count, first + ROWS_AT_ONCE)
        some = np.arange(first, end) if places is None else places[first:end]
        rows = data.rows(first, end) if places is None else data.rows_at(some)
        for begin, stop in cut_blocks(rows["size"].astype(np.int64) + OBJECT_BYTES, READ_BYTES):
            yield some[begin:stop], rows[begin:stop]


def _read(
    data: StoredDataSet,
    decode: RecordDecoder,
    names: list[str],
    places: NDArray[np.int64],
    rows: NDArray[np.void],
) -> _Samples:
    """Read, check and decode a batch. Raises `FormatError`, `ElsewhereError`."""
    stored = data.stored_at(places, rows)
    indices = rows["index"].astype(np.int64)
    columns = dict(zip(decode.names, data.columns(stored, decode), strict=True))
    columns |= {"index": indices} | data.overlaid(indices, names)
    lists = [column if isinstance(column, list) else column.tolist() for column in map(columns.__getitem__, names)]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
