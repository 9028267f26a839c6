"""Which files does a cache folder have, what is their format, and how are part files written and freed?

    DIR/brand-cache/<id of the data set>/
        LOCK                    the one server that writes holds a lock on it (flock)
        cache.json              the identity of the cached data
        chunks/00000017.part    pieces of chunk file 17, at the offsets that they have there
        held.bits               the samples that the part files hold, as bits

A file that is damaged, of another version or of another data set counts as missing. A cache may always be empty. A part
file has the size of its chunk file, and holes at all offsets at which nothing is stored. Freed blocks become holes
(fallocate(2)).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import BrandError
from brand.formats.values import Buffer
from brand.reprs import Reprs
from brand.storage.io.ownfolder import open_own_file

CACHES_NAME: Final = "brand-cache"
"""The folder, below the one that the user gives, with one cache for each data set."""
LOCK_NAME: Final = "LOCK"
FACTS_NAME: Final = "cache.json"
HELD_NAME: Final = "held.bits"
PARTS_NAME: Final = "chunks"
MOST_FACTS: Final = 1 << 12
"""Maximum bytes of a `cache.json`."""

_FORMAT: Final = "brand cache"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 8
_CACHE: Final = re.compile(r"[0-9a-f]{32}")

BLOCK: Final = 4096
"""File systems allocate space in blocks of this size, or of a fraction of it."""

_VECTOR: Final = 1024
"""IOV_MAX of Linux."""
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux."""
_STAT_BLOCK: Final = 512
"""Bytes of a block as stat(2) counts them."""


def part_name(number: int) -> str:
    """Return the name of the file with pieces of this chunk."""
    return f"{number:08d}.part"


def is_cache_name(name: str) -> bool:
    """Return whether a folder's name is the id of a data set."""
    return _CACHE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Identity of the cached data. If any field differs, the cached bytes are useless."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    digest: str
    """Digest of the index, which gives the position of each sample in the chunks."""

    def pack(self) -> bytes:
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> CacheFacts | None:
        """Parse the bytes of `cache.json`. Return None for any other bytes."""
        try:
            value = json.loads(data)
            if (value.pop("format"), value.pop("version")) != (_FORMAT, _VERSION):
                return None
            found = cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        texts, numbers = (found.data_set, found.digest), (found.samples, found.chunk_size)
        right = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers)
        return found if right else None


def pack_held(held: NDArray[np.bool_]) -> bytes:
    """Return the bytes of `held.bits`: a bit for each sample, then their checksum."""
    bits = np.packbits(held).tobytes()
    return bits + xxhash.xxh3_64_digest(bits)


def unpack_held(data: bytes, samples: int) -> NDArray[np.bool_]:
    """Return which samples are held, shape (samples,); none if these bytes were not made by `pack_held`."""
    bits, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(bits) != held_bytes(samples) - _DIGEST_BYTES or xxhash.xxh3_64_digest(bits) != digest:
        return np.zeros(samples, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=samples).astype(np.bool_)


def held_bytes(samples: int) -> int:
    return -(-samples // 8) + _DIGEST_BYTES


class PartFiles(Reprs, shows="_shown _dirty"):
    """The part files in `folder`, a descriptor that the caller closes; `shown` is its path, for messages.

    `sizes` are the sizes of the chunk files. Methods raise OSError.
    """

    def __init__(self, folder: int, shown: str, sizes: NDArray[np.integer[Any]]) -> None:
        self._folder, self._shown, self._sizes = folder, shown, sizes
        self._dirty: set[int] = set()
        """Part files that were written since the last `flush`."""
        self._new = False
        """Whether part files were made since the last `flush`."""
        self._unflushed, self._flushed_s = 0, time.monotonic()

    @property
    def dirty(self) -> bool:
        """Whether part files were written since the last `flush`."""
        return bool(self._dirty)

    def unflushed(self) -> tuple[int, float]:
        """Return the bytes that were written since the last `flush`, and the seconds since then."""
        return self._unflushed, time.monotonic() - self._flushed_s

    def path(self, number: int) -> str:
        """Return the path of a part file. It leads to the folder that was opened, even if that was renamed since."""
        return f"/proc/self/fd/{self._folder}/{part_name(number)}"

    def write(self, number: int, offset: int, pieces: list[Buffer]) -> None:
        """Write adjacent pieces of a chunk."""
        size = sum(map(len, pieces))  # computed before the write, because a short write shortens a piece
        part = self._open(number, os.O_WRONLY | os.O_CREAT)
        try:
            if not os.fstat(part).st_size:
                # A read may extend past the last sample that is held, and must not reach the end of the file there.
                os.ftruncate(part, int(self._sizes[number]))
                self._new = True
            self._dirty.add(number)
            _write_all(part, pieces, offset)
            self._unflushed += size
        finally:
            os.close(part)

    def flush(self) -> None:
        """Write all bytes since the last `flush` to the device."""
        self._unflushed, self._flushed_s = 0, time.monotonic()
        for number in sorted(self._dirty):
            part = self._open(number, os.O_RDONLY)
            try:
                os.fdatasync(part)
                os.posix_fadvise(part, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(part)
        if self._new:
            os.fsync(self._folder)
        self._dirty.clear()
        self._new = False

    def discard(self, number: int) -> None:
        """Exclude a part file from the next flush, because it will be removed."""
        self._dirty.discard(number)

    def remove(self, number: int) -> None:
        os.unlink(part_name(number), dir_fd=self._folder)

    def remove_all(self) -> None:
        for name in os.listdir(self._folder):
            os.unlink(name, dir_fd=self._folder)

    def free(self, number: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Free all blocks of a part file outside of these ranges, which are in order."""
        part = self._open(number, os.O_WRONLY)
        try:
            for first, end in gaps(starts, ends, int(self._sizes[number])).tolist():
                punch(part, first, end)
        finally:
            os.close(part)

    def _open(self, number: int, flags: int) -> int:
        name = part_name(number)
        try:
            return open_own_file(name, flags, self._folder, f"{self._shown}/{name}")
        except BrandError as error:
            raise OSError(errno.EPERM, str(error)) from error


def gaps(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the whole blocks of a file that none of these ranges touches: first and end of each gap, shape (gaps, 2).

    The ranges are in order, and no two overlap. The block at the end of the file counts as whole.
    """
    first = -(-np.concatenate(([0], ends)) // BLOCK) * BLOCK
    end = np.concatenate((starts // BLOCK * BLOCK, [-(-size // BLOCK) * BLOCK]))
    found = np.stack((first, end), axis=1).astype(np.int64)
    return found[found[:, 0] < found[:, 1]]


def punch(descriptor: int, first: int, end: int) -> None:
    """Free the blocks of a range of a file, which then reads as zeros. Raises OSError, also if not supported."""
    if _fallocate()(descriptor, _KEEP_SIZE | _PUNCH_HOLE, first, end - first):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def disk_bytes(parts: int) -> int:
    """Return the bytes that the files of a folder take on the disk. Raises OSError."""
    with os.scandir(parts) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks for entry in entries) * _STAT_BLOCK


@cache
def _fallocate() -> Any:
    function: Any = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


def _write_all(descriptor: int, views: list[Buffer], offset: int) -> None:
    at = 0
    while at < len(views):
        done = os.pwritev(descriptor, views[at : at + _VECTOR], offset)
        offset += done
        while at < len(views) and done >= len(views[at]):
            done -= len(views[at])
            at += 1
        if done:
            views[at] = views[at][done:]
