"""Does a chunk, given piece after piece while it is copied, match the index? Pure, except for the chunk's name in
messages.

The index has the checksum of the chunk's front, and place, size and checksum of each sample. So the first piece that
differs is an error that names the sample, and no part of the chunk has to be held in memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, FormatError, LayoutError, TruncatedError
from brand.formats.chunk import parse_preamble
from brand.formats.constants import PREAMBLE_CHECKSUM_AT, PREAMBLE_SIZE


class PassingChunk:
    """Compares the bytes of one chunk with `row`, its row of `chunks.npy`, and `rows`, those of its samples.

    `path` names the chunk. The constructor raises `LayoutError` if the index contradicts itself.
    """

    def __init__(self, path: str, number: int, row: np.void, rows: NDArray[np.void]) -> None:
        self._path, self._number = path, number
        self._size, self._checksum = int(row["file_size"]), int(row["checksum"])
        offsets, sizes = rows["offset"].astype(np.uint64), rows["size"].astype(np.uint64)
        ends = offsets + sizes
        if int(offsets[0]) < PREAMBLE_SIZE or (offsets[1:] != ends[:-1]).any() or int(ends[-1]) != self._size:
            raise LayoutError("the index contradicts itself about this chunk", path=path, chunk=number)
        self._indices, self._checksums, self._ends = (
            values.tolist() for values in (rows["index"], rows["checksum"], ends)
        )
        self._ends.insert(0, int(offsets[0]))
        self._head = b""
        self._at, self._part, self._digest = 0, 0, xxhash.xxh3_64()
        """Bytes fed; the section that they end in (0: the front, then the samples); its digest so far."""

    def feed(self, piece: memoryview) -> None:
        """Check the next bytes. Raises `ChecksumError` for a section that differs, `LayoutError` for surplus bytes."""
        if self._at + len(piece) > self._size:
            raise LayoutError("more bytes than the index records", path=self._path, chunk=self._number)
        if len(self._head) < PREAMBLE_SIZE:
            piece = self._take_head(piece)
        done = 0
        while done < len(piece):
            step = min(len(piece) - done, self._ends[self._part] - self._at)
            self._digest.update(piece[done : done + step])
            done, self._at = done + step, self._at + step
            self._close_parts()

    def finish(self) -> None:
        """Check that all bytes were fed. Raises `TruncatedError` if some are missing."""
        if self._at < self._size:
            what, expected = "the chunk is shorter than recorded", f"{self._size} bytes"
            raise TruncatedError(what, path=self._path, chunk=self._number, expected=expected, found=self._at)

    def _take_head(self, piece: memoryview) -> memoryview:
        """Consume the first 64 bytes, which their own checksum excludes. Return the bytes after them."""
        taken = bytes(piece[: PREAMBLE_SIZE - len(self._head)])
        self._head += taken
        self._at += len(taken)
        if len(self._head) == PREAMBLE_SIZE:
            self._digest.update(self._head[:PREAMBLE_CHECKSUM_AT])
            told = int.from_bytes(self._head[PREAMBLE_CHECKSUM_AT:], "little")
            if told != self._checksum:
                raise self._changed_front(told)
            self._close_parts()
        return piece[len(taken) :]

    def _close_parts(self) -> None:
        """Compare the section that ends here, and samples of no bytes behind it."""
        while self._part < len(self._ends) and self._ends[self._part] == self._at:
            found, self._part = self._digest.intdigest(), self._part + 1
            self._digest.reset()
            if self._part == 1 and found != self._checksum:
                raise self._changed_front(found)
            if self._part > 1 and found != self._checksums[self._part - 2]:
                raise self._changed_sample(self._part - 2, found)

    def _changed_front(self, found: int) -> ChecksumError:
        return ChecksumError(
            "header and table are damaged, or of another conversion",
            path=self._path,
            chunk=self._number,
            expected=f"{self._checksum:016x}",
            found=f"{found:016x}",
        )

    def _changed_sample(self, slot: int, found: int) -> ChecksumError:
        return ChecksumError(
            "the sample's bytes have changed",
            path=self._path,
            chunk=self._number,
            sample=self._indices[slot],
            expected=f"{self._checksums[slot]:016x}",
            found=f"{found:016x}",
        )


def is_chunk(head: bytes, data_set_id: bytes, number: int, row: np.void) -> bool:
    """Return whether a file that begins with these 64 bytes was written as this chunk: the checksum covers all."""
    try:
        told = parse_preamble(head, Path())
    except FormatError:
        return False
    wanted = data_set_id, number, int(row["file_size"]), int(row["checksum"])
    return (told.data_set_id, told.number, told.file_size, told.checksum) == wanted
