"""How is a segment written again without some of its samples?

The remaining samples keep their stored bytes, their order on storage, and so their indices of the collection; the
places close up. Nothing is decompressed. The new data set's id follows from the old one and the left-out samples, so a
stopped rewrite that starts again makes equal bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.formats.chunk import front_size, pack_front, parse_preamble
from brand.formats.constants import chunk_name
from brand.formats.header import Header, canonical_json, pack_header
from brand.formats.index import IndexBuilder, seal
from brand.formats.publish import FolderTarget
from brand.formats.record import fixed_dtype
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.progress import OnChunk


def new_id(part: str, left_out: NDArray[np.integer[Any]]) -> str:
    """Return the id of a segment without the samples with these local indices, ascending."""
    digest = xxhash.xxh3_128_hexdigest(left_out.astype("<u8").tobytes())
    return xxhash.xxh3_128_hexdigest(canonical_json({"of": part, "without": digest}))


def rewrite(data: StoredDataSet, left_out: NDArray[np.int64], out: Path, work: Path, on_chunk: OnChunk) -> str:
    """Write a segment to `out` without the samples with these local indices, ascending. Returns its id.

    At least one sample remains. `work` is a folder for unfinished files. Raises `FormatError` if a sample that remains
    is damaged, OSError.
    """
    part, kept = new_id(data.id, left_out), _places_left(data, left_out)
    header = replace(data.header, samples=len(kept))
    columns = {name: data.column(name) for name, _ in header.schema.fixed}
    packed, dictionary = pack_header(header), data.dictionary
    (out / "chunks").mkdir(parents=True)
    builder, target = IndexBuilder(work / "built", header, out), FolderTarget(out)
    for number in range(header.chunks):
        rows = data.rows_at(kept[number * header.chunk_size :][: header.chunk_size])
        old = rows["index"].astype(np.int64)
        samples = data.stored_bytes(kept[number * header.chunk_size :][: header.chunk_size], raising=True)
        sizes = rows["size"].astype(np.uint64)
        rows["offset"] = front_size(len(packed), len(dictionary), len(rows)) + np.cumsum(sizes) - sizes
        rows["index"] = old - np.searchsorted(left_out, old)
        front = pack_front(packed, dictionary, rows, number=number, data_set_id=bytes.fromhex(part))
        with (work / "chunk").open("wb") as file:
            file.write(front)
            file.writelines(each for each in samples if each is not None)
        target.publish(work / "chunk", chunk_name(number))
        builder.add(number, rows, parse_preamble(front, out).checksum, _fixed(header, columns, old))
        on_chunk(number + 1, header.chunks, int(sizes.sum()))
    seal(
        target,
        builder,
        data_set_id=bytes.fromhex(part),
        dictionary_size=len(dictionary),
        companions={},
    )
    return part


def _places_left(data: StoredDataSet, left_out: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the samples that remain, ascending."""
    stays = np.ones(len(data), np.bool_)
    stays[data.places(left_out)] = False
    return np.flatnonzero(stays)


def _fixed(header: Header, columns: dict[str, NDArray[Any]], indices: NDArray[np.int64]) -> NDArray[np.void]:
    """Return the fixed fields of samples, one structured row each."""
    found = np.empty(len(indices), fixed_dtype(header.schema))
    for name, values in columns.items():
        found[name] = values[indices]
    return found
