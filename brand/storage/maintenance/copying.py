"""How is a data set copied from one place to another, folders or stores, so that the copy is complete and equal?

    manifest       lists all files, with size and checksum; the source is not listed
    index          to the work folder, compared with the manifest; it describes every chunk
    chunks         several at a time: read once, each sample compared with its checksum while it passes, to a file of
                   the work folder, and then whole to its place
    companions, index, and the manifest, last

A copy that was stopped can be continued: an existing chunk counts if its size and its first 64 bytes are right. They
hold the identity of the data set, and a checksum of the table with the checksums of all samples; and no file gets its
name before it is whole. The index in the work folder is compared again. The index has the checksum of the chunk's
front, and place, size and checksum of each sample. So the first piece that differs is an error that names the sample,
and no part of the chunk has to be held in memory.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, FormatError, LayoutError, TruncatedError, UsageError
from brand.formats.arrays import ArrayFile
from brand.formats.chunk import parse_preamble
from brand.formats.constants import (
    CHUNKS_NAME,
    MANIFEST_NAME,
    PREAMBLE_CHECKSUM_AT,
    PREAMBLE_SIZE,
    SAMPLES_NAME,
    SHARE_NAME,
    chunk_name,
)
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, parse_manifest
from brand.formats.publish import file_digest, storage_errors
from brand.storage.io.location import place
from brand.storage.maintenance.endpoints import Destination, Origin, claimed, open_origin

_AT_ONCE: Final = 12
"""Chunks that are copied at the same time."""
_LEAST_AT_ONCE: Final = 2
_MEMORY: Final = 768 << 20
"""Memory for chunks on their way to a store, in bytes: of large chunks, fewer are copied at a time."""
_PART: Final = 128 << 20
"""Larger objects are never in memory as a whole."""
_FILES: Final = "files"

OnCopied = Callable[[int, int, int, int], None]
"""Called at intervals with (chunks done, chunks in all, bytes of these, bytes of all chunks)."""


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
                raise self._changed(told)
            self._close_parts()
        return piece[len(taken) :]

    def _close_parts(self) -> None:
        """Compare the section that ends here, and samples of no bytes behind it."""
        while self._part < len(self._ends) and self._ends[self._part] == self._at:
            found, self._part = self._digest.intdigest(), self._part + 1
            self._digest.reset()
            if self._part == 1 and found != self._checksum:
                raise self._changed(found)
            if self._part > 1 and found != self._checksums[self._part - 2]:
                raise self._changed(found, self._part - 2)

    def _changed(self, found: int, slot: int | None = None) -> ChecksumError:
        """Return the error for a sample with another checksum; None: for the front of the chunk."""
        what, sample, checksum = "header and table are damaged, or of another conversion", None, self._checksum
        if slot is not None:
            what, sample, checksum = "the sample's bytes have changed", self._indices[slot], self._checksums[slot]
        facts = {"expected": f"{checksum:016x}", "found": f"{found:016x}"}
        return ChecksumError(what, path=self._path, chunk=self._number, sample=sample, **facts)


def is_chunk(head: bytes, data_set_id: bytes, number: int, row: np.void) -> bool:
    """Return whether a file that begins with these 64 bytes was written as this chunk: the checksum covers all."""
    try:
        told = parse_preamble(head, Path())
    except FormatError:
        return False
    wanted = data_set_id, number, int(row["file_size"]), int(row["checksum"])
    return (told.data_set_id, told.number, told.file_size, told.checksum) == wanted


@dataclass(frozen=True)
class Copied:
    """Counts of a completed copy."""

    source: str
    target: str
    samples: int
    chunks: int
    bytes: int
    """Bytes of all files."""
    chunks_found: int
    """Chunks that existed already, from a copy that was stopped."""
    seconds: float


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str], on_copied: OnCopied) -> Copied:
    """Copy a data set, or continue a copy that was stopped. Both are paths or URLs.

    Raises:
        UsageError: The source is a partition, or source and target are one place.
        TargetExistsError: The target is not a copy of this data set.
        FormatError: The source is not a data set, or is damaged; the error names chunk and sample.
        StorageError: The target refused a write; the same call continues at this point.
    """
    started, origin, to = time.monotonic(), open_origin(place(os.fspath(source))), place(os.fspath(target))
    data = origin.manifest()
    manifest = parse_manifest(data, Path(origin.name))
    if origin.has(SHARE_NAME):
        raise UsageError(
            f"{origin.name} is the partition of one node, and has only some of the chunks: copy the undivided data set,"
            " and divide the copy with `brand partition`"
        )
    _check_apart(origin.name, to)
    with storage_errors(str(to), "cannot write"), claimed(to, data, manifest.data_set_id) as destination:
        files = destination.work / _FILES
        for name, facts in {**manifest.files, **manifest.companions}.items():
            _fetch(origin, name, facts, files / name)
        chunks = _CopiedChunks(origin, destination, manifest, files)
        found = chunks.copy(on_copied)
        for name in {**manifest.companions, **manifest.files}:
            destination.target.publish(files / name, name)
        destination.target.finish(MANIFEST_NAME, data)
    others = len(data) + sum(size for size, _ in {**manifest.files, **manifest.companions}.values())
    return Copied(
        source=origin.name,
        target=destination.name,
        samples=manifest.header.samples,
        chunks=manifest.header.chunks,
        bytes=others + chunks.total,
        chunks_found=found,
        seconds=time.monotonic() - started,
    )


class _CopiedChunks:
    def __init__(self, origin: Origin, to: Destination, manifest: Manifest, files: Path) -> None:
        self._origin, self._to, self._manifest = origin, to, manifest
        self._rows: ArrayFile = open_array(files, SAMPLES_NAME, manifest.header)
        self._chunks: NDArray[np.void] = open_array(files, CHUNKS_NAME, manifest.header).all()
        self._sizes = to.sizes()
        self.total = int(self._chunks["file_size"].sum(dtype=np.uint64))

    def copy(self, on_copied: OnCopied) -> int:
        """Copy all chunks that do not exist. Return how many existed."""
        done = size = found = 0
        for number, there in self._each():
            done, size, found = done + 1, size + int(self._chunks[number]["file_size"]), found + there
            on_copied(done, len(self._chunks), size, self.total)
        return found

    def _each(self) -> Iterator[tuple[int, bool]]:
        """Yield the number of each chunk when it is in its place, and whether it was there before."""
        largest = min(_PART, max(1, int(self._chunks["file_size"].max())))
        at_once = max(_LEAST_AT_ONCE, min(_AT_ONCE, _MEMORY // largest))
        with ThreadPoolExecutor(at_once) as pool:
            running: deque[tuple[int, Future[bool]]] = deque()
            try:
                for number in range(len(self._chunks)):
                    running.append((number, pool.submit(self._copy, number)))
                    if len(running) >= 2 * at_once:
                        first, future = running.popleft()
                        yield first, future.result()
                while running:
                    first, future = running.popleft()
                    yield first, future.result()
            finally:
                for _, future in running:
                    future.cancel()

    def _copy(self, number: int) -> bool:
        name, row = chunk_name(number), self._chunks[number]
        size = int(row["file_size"])
        if self._sizes.get(name) == size and is_chunk(self._to.head(name), self._manifest.data_set_id, number, row):
            return True
        first = number * self._manifest.header.chunk_size
        rows = self._rows.run(first, first + self._manifest.header.chunk_samples(number))
        passing = PassingChunk(f"{self._origin.name}/{name}", number, row, rows)
        temporary = self._to.work / f"{number}.tmp"
        with temporary.open("wb", buffering=0) as file:
            for piece in self._origin.pieces(name, size, number):
                passing.feed(piece)
                _write(file.fileno(), piece)
        passing.finish()
        self._to.target.publish(temporary, name)
        return False


def _fetch(origin: Origin, name: str, facts: tuple[int, str], path: Path) -> None:
    """Copy a file of the index, or a companion, to the work folder, unless it is there."""
    if path.exists() and file_digest(path) == tuple(facts):
        return
    size, expected = facts
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = xxhash.xxh3_128()
    with path.open("wb", buffering=0) as file:
        for piece in origin.pieces(name, size):
            digest.update(piece)
            _write(file.fileno(), piece)
    if digest.hexdigest() != expected:
        what, where = "checksum of the file", f"{origin.name}/{name}"
        hint = "`brand reindex` rebuilds it from the chunks" if name.endswith(".npy") else ""
        raise ChecksumError(what, path=where, expected=expected, found=digest.hexdigest(), hint=hint)


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _check_apart(source: str, target: str | Path) -> None:
    """Raise `UsageError` if one place is the other one, or inside of it."""
    first, second = (os.path.realpath(place) if "://" not in str(place) else str(place) for place in (source, target))
    if first == second or first.startswith(f"{second}/") or second.startswith(f"{first}/"):
        raise UsageError(f"{target} is {source}, or one is inside the other: choose a target outside of it")
