"""The rows that the index needs of a chunk that this process has not made.

When a chunk is at its place, in a store or made by another machine, its rows and its columns are stored in a file of
the work folder. So a chunk that was made need not be read again. The file is used if its checksum is right, and if the
chunk has the size that the rows state.

    magic (8 bytes), identity of the data set (16), checksum of the chunk's front (8), rows, columns
    XXH3-64 of all that (8)
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.work.chunks import Written
from brand.formats.constants import ROW
from brand.formats.record import fixed_dtype

KEPT_NAME: Final = "kept"
_HEAD: Final = struct.Struct("<8s16sQ")
_DIGEST: Final = struct.Struct("<Q")
_MAGIC: Final = b"\x89BRKEPT\n"


@dataclass(frozen=True)
class KeptChunks:
    """The chunks whose rows are stored in `folder`; `sizes` has the size of each chunk that is at its place."""

    folder: Path
    sizes: Mapping[int, int]

    def find(self, plan: ChunkPlan, number: int) -> Written | None:
        """Return a chunk, as `Earlier.find` does."""
        if number not in self.sizes:
            return None
        count, dtype = plan.header.chunk_samples(number), fixed_dtype(plan.header.schema)
        table = count * ROW.itemsize
        size = _HEAD.size + table + count * dtype.itemsize + _DIGEST.size
        try:
            with (self.folder / str(number)).open("rb") as file:
                data = file.read(size + 1)
        except FileNotFoundError:
            return None
        if len(data) != size:
            return None
        magic, data_set_id, checksum = _HEAD.unpack_from(data)
        told = data[: -_DIGEST.size]
        if (magic, data_set_id, _digest(told)) != (_MAGIC, plan.data_set_id, data[-_DIGEST.size :]):
            return None
        rows = np.frombuffer(told, ROW, count, _HEAD.size)
        columns = np.frombuffer(told, dtype, count, _HEAD.size + table) if dtype.itemsize else np.empty(count, dtype)
        if int(rows["offset"][-1]) + int(rows["size"][-1]) != self.sizes[number]:
            return None
        return Written(rows, checksum, columns, found=True)


def keep_chunk(folder: Path, data_set_id: bytes, number: int, chunk: Written) -> None:
    """Store the rows that the index needs of a chunk at its place. Several machines may do so at once.

    Raises OSError.
    """
    data = _HEAD.pack(_MAGIC, data_set_id, chunk.checksum) + chunk.rows.tobytes() + chunk.columns.tobytes()
    temporary = folder / f"{number}-{uuid.uuid4().hex}.tmp"
    temporary.write_bytes(data + _digest(data))
    temporary.replace(folder / str(number))


def _digest(data: bytes) -> bytes:
    return _DIGEST.pack(xxhash.xxh3_64_intdigest(data))
