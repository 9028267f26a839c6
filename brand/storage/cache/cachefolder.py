"""A cache folder: which samples of a data set are also on a local disk, and how are they written there?

A part file has the bytes of a chunk file at the same offsets, and holes elsewhere. So a read of the chunk can use the
part file directly if all samples of the read are held.

    store      compares each sample with its checksum, and writes those that match
    forget     clears the bits of samples; the next `publish` frees their blocks
    publish    flushes the part files, then writes `held.bits` under a temporary name and renames it; then punches holes

A bit on the disk proves that the bytes are there, even if the process or the machine is killed at any moment. One
server at a time writes a cache: the server that holds the LOCK. Other servers read the samples that `held.bits` listed
when they started. After construction, a `CacheFolder` is used by one thread. `fill` copies a data set into its cache
before a training, chunk after chunk, with a check of each sample.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, FormatError
from brand.formats.constants import SAMPLES_NAME
from brand.formats.contents import StoredSamples
from brand.formats.publish import storage_reason
from brand.formats.values import Buffer
from brand.reprs import Reprs
from brand.storage.cache.cachefiles import CacheFacts, PartFiles, disk_bytes
from brand.storage.cache.caches import CacheHome
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.device import IN_MEMORY, mount_of
from brand.storage.io.frontback import OnChunk, front_to_back
from brand.storage.io.ownfolder import refused

EVERY_S: Final = 60.0
EVERY_BYTES: Final = 1 << 30
"""Writes are published after this many seconds or bytes: a failure of the machine loses at most this much."""
GIVE_BACK_SHARE: Final = 64
"""If samples are replaced and space is short, `1 / GIVE_BACK_SHARE` of the limit is freed at a time."""
FULL: Final = "full"
"""Why writing has stopped: the limit, or the disk."""

_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)

FILL_BYTES: Final = 8 << 20
"""Approximate number of bytes of one read of `fill`."""
_log: Final = logging.getLogger("brand.storage")


class CacheFolder(Reprs, shows="_home held"):
    """The cache of `data` in `folder`.

    `sizes` are the stored sizes of all samples by place, shape (samples,). `limit` is the number of bytes that all
    caches in the folder may take together; None: the free space, less 5 % of the disk and 5 GB. Sizes are those of
    samples: the file system's blocks at the ends of each written range are added to them. With `moves`, samples are
    replaced: if there is no space, a sample is skipped and writing continues, and the added blocks count towards the
    limit.

    Raises `CacheError` if the folder cannot be made, or if other users could change its contents.
    """

    def __init__(
        self, folder: str, data: Catalogue, sizes: NDArray[np.uint32], limit: int | None, *, moves: bool = False
    ) -> None:
        folder = os.path.abspath(folder)
        header, digest = data.header, data.manifest.files[SAMPLES_NAME][1]
        file_sizes = data.chunk_rows["file_size"]
        self._data, self._sizes, self._chunk_size = data, sizes, header.chunk_size
        self._shrunk: set[int] = set()
        """Part files with blocks of samples that were forgotten since the last `publish`."""
        self._lost = False
        """Whether written bytes may have been lost."""
        self.stopped = ""
        """Why writing has stopped; empty while writing continues."""
        with ExitStack() as stack:
            self._home = CacheHome(folder, CacheFacts(data.id, header.samples, header.chunk_size, digest))
            stack.callback(self._home.close)
            self._parts = PartFiles(self._home.parts, self._home.parts_shown, file_sizes)
            try:
                self.held = self._read_held()
                """Which samples are held, shape (samples,)."""
                used = int(sizes[self.held].sum(dtype=np.int64))
                wanted = int(sizes.sum(dtype=np.int64))
                room = self._home.find_room(limit, wanted) if self.writes else used
                self._space = _Space(room, used, moves=moves)
                self._measure()
                if self._space.beyond > used // 8:  # bytes of a killed server, for which no bits were published
                    self._shrunk |= set(range(header.chunks))
            except OSError as error:
                raise refused(self._home.shown, error) from error
            stack.pop_all()
        _warn_of_kind(folder)

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes the cache."""
        return self._home.lock is not None

    @property
    def used(self) -> int:
        return self._space.used

    @property
    def limit(self) -> int:
        """Maximum bytes of the samples that are held."""
        return self._space.limit

    def part_file(self, number: int) -> str:
        """Return the path of a chunk's part file. It leads to the folder that was opened, even if renamed since."""
        return self._parts.path(number)

    def store(self, places: NDArray[Any], stored: StoredSamples) -> NDArray[np.bool_]:
        """Write samples, given in the order of their places. Return for each whether it is held now.

        Samples with a wrong checksum are skipped, and so are samples for which there is no space. An error of the disk
        ends all writing (`stopped`), and is logged.
        """
        here, pieces = np.zeros(len(places), np.bool_), stored.pieces()
        new = np.flatnonzero(stored.right() & ~self.held[places])
        sizes = stored.rows["size"].astype(np.int64)
        chunks, offsets = places // self._chunk_size, stored.rows["offset"].astype(np.int64)
        apart = (chunks[new[1:]] != chunks[new[:-1]]) | (offsets[new[1:]] != (offsets + sizes)[new[:-1]])
        for run in np.split(new, np.flatnonzero(apart) + 1) if len(new) else ():
            side_by_side = [pieces[at] for at in run.tolist()]
            if self.stopped or not self._write(int(chunks[run[0]]), int(offsets[run[0]]), side_by_side):
                break
            self.held[places[run]] = True
            here[run] = True
        here |= self.held[places]
        return here

    def publish(self) -> None:
        """Make all writes so far durable, so that they survive a failure of the machine.

        After an error nothing is written or published any more: the kernel may have lost the bytes that it could not
        write.
        """
        if self._lost:
            return
        try:
            self._parts.flush()
            self._home.publish_held(self.held)
        except OSError as error:
            self._lost = True
            self._stop(error)
            return
        self._free_blocks()

    def publish_if_due(self) -> None:
        """Publish if enough bytes were written, or if the oldest unpublished write is old enough."""
        size, since_s = self._parts.unflushed()
        if (self._parts.dirty or self._shrunk) and (size >= EVERY_BYTES or since_s >= EVERY_S):
            self.publish()

    def drop(self, places: NDArray[Any]) -> None:
        """Forget the part files with these samples, which cannot be read."""
        numbers = np.unique(places // self._chunk_size).tolist()
        for number in numbers:
            whole = np.arange(len(self.held))[number * self._chunk_size : (number + 1) * self._chunk_size]
            self._clear(whole, leaving=False)
            self._parts.discard(number)
        if self.writes and not self._lost:
            self.publish()  # first: a bit on the disk means that the bytes are there
            for number in numbers:
                with suppress(OSError):
                    self._parts.remove(number)

    def forget(self, places: NDArray[Any]) -> None:
        """Forget these samples, because their bytes have changed or their space is needed. They may be stored again."""
        self._clear(places, leaving=True)
        self._shrunk.update(np.unique(places // self._chunk_size).tolist() if self.writes else ())

    def close(self) -> None:
        """Release the folder, without publishing."""
        self._home.close()

    def _clear(self, places: NDArray[Any], *, leaving: bool) -> None:
        """Clear the bits of samples. `leaving`: their blocks still have to be freed."""
        places = places[self.held[places]]
        self._space.clear(int(self._sizes[places].sum(dtype=np.int64)), leaving=leaving)
        self.held[places] = False

    def _free_blocks(self) -> None:
        """Punch holes into the part files between the samples that are held. If that fails, the blocks still count."""
        for number in sorted(self._shrunk):
            here = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
            with suppress(OSError, FormatError):
                rows = self._data.rows(here.start, min(here.stop, len(self.held)))[self.held[here]]
                starts = rows["offset"].astype(np.int64)
                self._parts.free(number, starts, starts + rows["size"])
        if self._shrunk:
            self._measure()
        self._shrunk.clear()
        self._space.freed()

    def _measure(self) -> None:
        if self._space.moves and self.writes:
            self._space.measured(disk_bytes(self._home.parts))

    def _has_room(self, size: int) -> bool:
        """Return whether this many more bytes are within the limit. The blocks of forgotten samples are freed first.

        If samples are replaced, the blocks are freed only when there are enough of them to justify a flush of the part
        files.
        """
        if not self._space.fits(size) and self._space.is_worth_freeing():
            self.publish()
        return self._space.fits(size)

    def _write(self, number: int, offset: int, pieces: list[Buffer]) -> bool:
        """Write adjacent samples of a chunk. Return False if there is no space, or if all writing has ended."""
        size = sum(map(len, pieces))
        if not self._has_room(size):
            if not self._space.moves and not self.stopped:
                self.stopped = FULL
            return False
        try:
            self._parts.write(number, offset, pieces)
        except OSError as error:
            self._stop(error)
            return False
        self._space.hold(size)
        return True

    def _stop(self, error: OSError) -> None:
        full = error.errno in _FULL_ERRORS
        if self.stopped and (full or self.stopped != FULL):
            return
        self.stopped = FULL if full else f"failed: {storage_reason(error)}"
        _log.warning("no more samples are written to the cache %s: %s", self._home.shown, storage_reason(error))

    def _read_held(self) -> NDArray[np.bool_]:
        """Return which samples are held. A cache of other data is emptied. Raises `CacheError`, OSError."""
        held = self._home.read_held()
        if held is not None and (held.any() or not self.writes):
            return held
        if self.writes:
            self._home.remove_held()  # first: a bit on the disk means that the bytes are there
            self._parts.remove_all()
            self._home.publish_facts()
        return np.zeros(self._data.header.samples, np.bool_)


@dataclass(slots=True)
class _Space:
    """Byte counts of a cache: bytes taken by samples, and the limit."""

    limit: int
    used: int
    """Bytes of samples that are held."""
    moves: bool
    """Whether samples are replaced."""
    leaving: int = 0
    """Bytes of samples that were forgotten: they take space until their blocks are freed."""
    beyond: int = 0
    """Bytes that the part files take on the disk in addition to those of samples; 0 if samples are not replaced."""

    def fits(self, size: int) -> bool:
        return self.used + self.leaving + self.beyond + size <= self.limit

    def is_worth_freeing(self) -> bool:
        """Return whether the blocks of forgotten samples are enough to justify a flush of the part files."""
        return self.leaving > (self.limit // GIVE_BACK_SHARE if self.moves else 0)

    def hold(self, size: int) -> None:
        self.used += size

    def clear(self, size: int, *, leaving: bool) -> None:
        """Subtract samples that are no longer held; `leaving`: their blocks still have to be freed."""
        self.used -= size
        self.leaving += size if leaving else 0

    def freed(self) -> None:
        self.leaving = 0

    def measured(self, disk_bytes: int) -> None:
        self.beyond = max(0, disk_bytes - self.used)


def _warn_of_kind(folder: str) -> None:
    """Log a warning if a cache folder is not on a disk of this machine."""
    try:
        kind = mount_of(folder).type
    except BrandError:
        return
    if kind in IN_MEMORY:
        _log.warning("the cache folder %s is in memory (%s): give the data set more memory= instead", folder, kind)
    elif kind.startswith(("nfs", "cifs", "smb", "lustre", "ceph", "fuse.", "9p")):
        _log.warning("the cache folder %s is not a local disk (%s), and may be no faster than the data", folder, kind)


@dataclass(frozen=True, slots=True)
class Filled:
    """Counts of a completed fill."""

    samples: int
    bytes: int
    damaged: int
    """Samples that cannot be read from the storage, or whose checksums are wrong."""


def fill(data: StoredDataSet, folder: CacheFolder, on_chunk: OnChunk) -> Filled:
    """Copy the samples that the folder does not hold, until it accepts no more (`folder.stopped`), and publish them.

    Raises `FormatError` if the index cannot be read.
    """
    counts, chunks = np.zeros(3, np.int64), data.chunks_here
    drawn = data.drawn()
    wanted = ~folder.held if drawn is None else drawn & ~folder.held
    lacking = [number for number in chunks if wanted[_places(data, number)].any()]
    with front_to_back(data.location, lacking) as passing:
        source = StoredDataSet(passing)
        for done, number in enumerate(lacking, len(chunks) - len(lacking) + 1):
            before = int(counts[1])
            places = np.flatnonzero(wanted[_places(data, number)]) + _places(data, number).start
            ends = np.cumsum(data.rows_at(places)["size"], dtype=np.int64)
            for part in np.split(places, np.flatnonzero(np.diff(ends // FILL_BYTES)) + 1):
                if not folder.stopped:
                    counts += _copy(source, folder, part)
                    folder.publish_if_due()
            if folder.stopped:
                break
            on_chunk(done, len(chunks), int(counts[1]) - before)
    folder.publish()
    return Filled(*counts.tolist())


def _places(data: StoredDataSet, number: int) -> slice:
    return slice(number * data.header.chunk_size, min((number + 1) * data.header.chunk_size, data.header.samples))


def _copy(data: StoredDataSet, folder: CacheFolder, places: np.ndarray) -> tuple[int, int, int]:
    """Copy samples. Return the counts of `Filled`."""
    found = data.stored_bytes(places)
    right = np.array([each is not None for each in found])
    samples = [each for each in found if each is not None]
    lengths = np.array([len(each) for each in samples], np.int64)
    memory = np.frombuffer(b"".join(samples), np.uint8)
    held = folder.store(places[right], StoredSamples(memory, np.cumsum(lengths) - lengths, data.rows_at(places[right])))
    return int(held.sum()), int(lengths[held].sum()), len(found) - len(samples)
