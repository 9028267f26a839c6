"""A cache folder: which samples of a data set lie on a local disk, too, and how do they get there?

A part has the bytes of a chunk file at the same offsets, and holes elsewhere. So a read of the chunk can go to the part
as it is, once all samples that it is for are held.

    store      checks the checksum of each sample, and writes those that are right
    forget     takes the bits of samples away; the next `publish` gives back their blocks
    publish    parts to the device, then `held.bits` under a temporary name, then its name; then holes in the parts

A bit on the disk means that the bytes are there, whenever the process or the machine ends. One server at a time writes
a cache, the one that has the LOCK; others read what `held.bits` said when they started. One thread uses a `CacheFolder`
after it is made.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, FormatError
from brand.formats.constants import SAMPLES_NAME
from brand.formats.publish import publish_bytes, storage_reason
from brand.formats.stored import Stored
from brand.formats.values import Buffer
from brand.storage.cachelayout import (
    FACTS_NAME,
    HELD_NAME,
    MOST_FACTS,
    PARTS_NAME,
    CacheFacts,
    held_bytes,
    pack_held,
    part_name,
    unpack_held,
)
from brand.storage.cacheroom import (
    disk_bytes,
    free_bytes,
    let_go,
    list_caches,
    make_room,
    opened_caches,
    read_small,
    take_lock,
)
from brand.storage.catalogue import Catalogue
from brand.storage.device import IN_MEMORY, mount_of
from brand.storage.holes import gaps, punch
from brand.storage.ownfolder import check_names, open_own_file, open_own_folder, refused

EVERY_S: Final = 60.0
EVERY_BYTES: Final = 1 << 30
"""What was written is published after so many seconds or bytes: this much is lost when the machine fails."""
GIVE_BACK_SHARE: Final = 64
"""Where samples move and room is short, `1 / GIVE_BACK_SHARE` of the limit is given back at a time."""
FULL: Final = "full"
"""Why nothing more is written: the limit, or the disk."""

_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
_VECTOR: Final = 1024
"""IOV_MAX of Linux."""

_log: Final = logging.getLogger("brand.storage")


class CacheFolder:
    """The cache of `data` in `folder`.

    `sizes` are the stored sizes of all samples by place, shape (samples,). `limit` is what all caches in the folder may
    take together, in bytes; None: what is free, less 5 % of the disk and 5 GB. Sizes are those of samples: the blocks
    of the file system at the ends of each written range come on top. With `moves`, samples come and go: where there is
    no room, a sample is left out and writing goes on, and blocks on top count.

    Raises `CacheError` where the folder cannot be made, or where other users could change what is in it.
    """

    def __init__(
        self, folder: str, data: Catalogue, sizes: NDArray[np.uint32], limit: int | None, *, moves: bool = False
    ) -> None:
        self.folder = os.path.abspath(folder)
        self._data, self._moves = data, moves
        self._sizes, self._chunk_size, self._file_sizes = sizes, data.header.chunk_size, data.chunk_rows["file_size"]
        digest = data.manifest.files[SAMPLES_NAME][1]
        self._facts = CacheFacts(data.id, data.header.samples, self._chunk_size, digest)
        self._dirty: set[int] = set()
        """Parts that were written since they were last published."""
        self._new = False
        """Whether parts were made since."""
        self._shrunk: set[int] = set()
        """Parts with blocks of samples that were forgotten since."""
        self._leaving = 0
        """Bytes of these samples: they take room until then."""
        self._beyond = 0
        """What the parts take on the disk beyond the bytes of samples; 0 where samples do not move."""
        self._unpublished, self._published_s = 0, time.monotonic()
        self._lost = False
        """Whether something that was written may be gone."""
        self.stopped = ""
        """Why nothing more is written; empty while it is."""
        with ExitStack() as stack:
            caches, shown = stack.enter_context(opened_caches(self.folder, make=True))
            self._shown = f"{shown}/{data.id}"
            self._home = open_own_folder(data.id, caches, self._shown)
            stack.callback(os.close, self._home)
            self._parts = open_own_folder(PARTS_NAME, self._home, f"{self._shown}/{PARTS_NAME}")
            stack.callback(os.close, self._parts)
            check_names(self._home, self._shown)
            check_names(self._parts, f"{self._shown}/{PARTS_NAME}")
            try:
                self._lock = take_lock(self._home, self._shown)
                if self._lock is not None:
                    stack.callback(let_go, self._lock)
                    os.utime(self._lock)
                self.held = self._read_held()
                """Which samples lie here, shape (samples,)."""
                self.used = int(sizes[self.held].sum(dtype=np.int64))
                """Bytes of these samples."""
                self.limit = self._find_room(caches, shown, limit)
                """Bytes that they may take."""
                self._look_beyond()
                if self._beyond > self.used // 8:  # bytes of a server that was killed, which no bit tells of
                    self._shrunk |= set(range(data.header.chunks))
            except OSError as error:
                raise refused(self._shown, error) from None
            self._closing = stack.pop_all()
        _warn_of_kind(self.folder)

    def __repr__(self) -> str:
        return f"CacheFolder({self._shown}, {np.count_nonzero(self.held)} of {len(self.held)} samples)"

    @property
    def writes(self) -> bool:
        """Whether this process writes the cache: no other one does."""
        return self._lock is not None

    def part_file(self, number: int) -> str:
        """The path of the part of a chunk. It leads to the folder that was opened, whatever its name is now."""
        return f"/proc/self/fd/{self._parts}/{part_name(number)}"

    def store(self, places: NDArray[Any], stored: Stored) -> NDArray[np.bool_]:
        """Write samples, which are in the order of their places. Returns which of them are here now.

        Samples with a wrong checksum are left out, and so are those for which there is no room. An error of the disk
        ends all writing (`stopped`), and the log has a line.
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
        """Have all that was written so far survive the end of the machine.

        An error ends all writing, and nothing is published any more: the kernel may have lost what it could not write.
        """
        if self._lost:
            return
        self._unpublished, self._published_s = 0, time.monotonic()
        try:
            for number in sorted(self._dirty):
                part = self._open(number, os.O_RDONLY)
                try:
                    os.fdatasync(part)
                    os.posix_fadvise(part, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(part)
            if self._new:
                os.fsync(self._parts)
            publish_bytes(self._home_path(HELD_NAME), pack_held(self.held))
        except OSError as error:
            self._lost = True
            self._stop(error)
            return
        self._dirty.clear()
        self._new = False
        self._give_back()

    def publish_if_due(self) -> None:
        """Publish once enough was written, or long enough ago."""
        if (self._dirty or self._shrunk) and (
            self._unpublished >= EVERY_BYTES or time.monotonic() - self._published_s >= EVERY_S
        ):
            self.publish()

    def drop(self, places: NDArray[Any]) -> None:
        """Forget the parts with these samples, which cannot be read."""
        numbers = np.unique(places // self._chunk_size).tolist()
        for number in numbers:
            self._clear(np.arange(len(self.held))[number * self._chunk_size : (number + 1) * self._chunk_size])
            self._dirty.discard(number)
        if self.writes and not self._lost:
            self.publish()  # first: a bit on the disk means that the bytes are there
            for number in numbers:
                with suppress(OSError):
                    os.unlink(part_name(number), dir_fd=self._parts)

    def forget(self, places: NDArray[Any]) -> None:
        """Forget these samples: their bytes have changed, or their room is wanted. They may be stored again."""
        self._leaving += self._clear(places)
        self._shrunk.update(np.unique(places // self._chunk_size).tolist() if self.writes else ())

    def close(self) -> None:
        """Let go of the folder, without publishing."""
        self._closing.close()

    def _clear(self, places: NDArray[Any]) -> int:
        """Take the bits of samples away. Returns the bytes of those that were held."""
        places = places[self.held[places]]
        size = int(self._sizes[places].sum(dtype=np.int64))
        self.used -= size
        self.held[places] = False
        return size

    def _give_back(self) -> None:
        """Make holes where nothing is held any more. Where that fails, the blocks stay, and count."""
        for number in sorted(self._shrunk):
            here = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
            with suppress(OSError, FormatError):
                rows = self._data.rows(here.start, min(here.stop, len(self.held)))[self.held[here]]
                starts = rows["offset"].astype(np.int64)
                part = self._open(number, os.O_WRONLY)
                try:
                    for first, end in gaps(starts, starts + rows["size"], int(self._file_sizes[number])).tolist():
                        punch(part, first, end)
                finally:
                    os.close(part)
        if self._shrunk:
            self._look_beyond()
        self._shrunk.clear()
        self._leaving = 0

    def _look_beyond(self) -> None:
        self._beyond = max(0, disk_bytes(self._parts) - self.used) if self._moves and self.writes else 0

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes more are within the limit. What was forgotten gives its blocks back first.

        Where samples move, that waits until it is worth flushing the parts.
        """
        taken = self.used + self._leaving + self._beyond + size
        if taken > self.limit and self._leaving > (self.limit // GIVE_BACK_SHARE if self._moves else 0):
            self.publish()
            taken = self.used + self._leaving + self._beyond + size
        return taken <= self.limit

    def _write(self, number: int, offset: int, pieces: list[Buffer]) -> bool:
        """Write samples that lie side by side in a chunk; False where there is no room, or all writing has ended."""
        size = sum(map(len, pieces))
        if not self._has_room(size):
            if not self._moves and not self.stopped:
                self.stopped = FULL
            return False
        try:
            part = self._open(number, os.O_WRONLY | os.O_CREAT)
            try:
                if not os.fstat(part).st_size:
                    # A read may reach beyond what is held, and must not meet the end of the file there.
                    os.ftruncate(part, int(self._file_sizes[number]))
                    self._new = True
                self._dirty.add(number)
                _write_all(part, pieces, offset)
            finally:
                os.close(part)
        except OSError as error:
            self._stop(error)
            return False
        self.used += size
        self._unpublished += size
        return True

    def _stop(self, error: OSError) -> None:
        full = error.errno in _FULL_ERRORS
        if self.stopped and (full or self.stopped != FULL):
            return
        self.stopped = FULL if full else f"failed: {storage_reason(error)}"
        _log.warning("nothing more is written to the cache %s: %s", self._shown, storage_reason(error))

    def _open(self, number: int, flags: int) -> int:
        """A descriptor of a part. Raises OSError."""
        name = part_name(number)
        try:
            return open_own_file(name, flags, self._parts, f"{self._shown}/{PARTS_NAME}/{name}")
        except BrandError as error:
            raise OSError(errno.EPERM, str(error)) from error

    def _read_held(self) -> NDArray[np.bool_]:
        """Which samples are held, by the file. A cache of anything else is emptied. Raises `CacheError`, OSError."""
        samples = self._facts.samples
        if CacheFacts.unpack(read_small(FACTS_NAME, self._home, self._shown, MOST_FACTS)) == self._facts:
            held = unpack_held(read_small(HELD_NAME, self._home, self._shown, held_bytes(samples)), samples)
            if held.any() or not self.writes:
                return held
        if self.writes:
            self._empty()
        return np.zeros(samples, np.bool_)

    def _empty(self) -> None:
        """Remove what is here, bits before bytes, and say what the cache is of from now on."""
        with suppress(FileNotFoundError):
            os.unlink(HELD_NAME, dir_fd=self._home)
        os.fsync(self._home)
        for name in os.listdir(self._parts):
            os.unlink(name, dir_fd=self._parts)
        publish_bytes(self._home_path(FACTS_NAME), self._facts.pack())

    def _find_room(self, caches: int, shown: str, limit: int | None) -> int:
        """Bytes that this cache may take. Raises OSError."""
        if not self.writes:
            return self.used
        if limit is None:
            limit = max(0, sum(cached.bytes for cached in list_caches(caches, shown)) + free_bytes(caches))
        wanted = min(limit, int(self._sizes.sum(dtype=np.int64)))
        return make_room(caches, shown, self._facts.data_set, limit, wanted)

    def _home_path(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._home}/{name}")


def _write_all(descriptor: int, views: list[Buffer], offset: int) -> None:
    """Write all of these, one after the other. Raises OSError."""
    at = 0
    while at < len(views):
        done = os.pwritev(descriptor, views[at : at + _VECTOR], offset)
        offset += done
        while at < len(views) and done >= len(views[at]):
            done -= len(views[at])
            at += 1
        if done:
            views[at] = views[at][done:]


def _warn_of_kind(folder: str) -> None:
    """A line in the log where a cache folder lies on no disk of this machine."""
    try:
        kind = mount_of(folder).type
    except BrandError:
        return
    if kind in IN_MEMORY:
        _log.warning("the cache folder %s is in memory (%s): give the data set more memory= instead", folder, kind)
    elif kind.startswith(("nfs", "cifs", "smb", "lustre", "ceph", "fuse.", "9p")):
        _log.warning("the cache folder %s is no local disk (%s), and may be no faster than the data", folder, kind)
