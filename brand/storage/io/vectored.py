"""How does one large contiguous read of a file fill many pieces of memory, one for each sample?

One call takes a vector of pieces that numpy made, as readv(2) has it: thousands of pieces cost no Python object each.

    LocalFiles    through the page cache, which helps if it has space for the data: the kernel fills the pieces
    DirectFiles   past the page cache (O_DIRECT), into a buffer that is reused, and from there into the pieces: half
                  the processor time for data that no cache could hold
    CopiedReads   the bytes of any `ChunkReader`, through such a buffer: for files that the kernel does not have

The caller is responsible for the addresses of a vector: `Arena.vector` makes them of pages that exist.

Not thread-safe: each thread has its own.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.native import CORE
from brand.storage.io.files import ChunkReader, OpenFiles, PathOf

OPEN_FILES: Final = 32
"""Maximum descriptors kept open by each thread that reads."""
_PIECES: Final = 1024
"""IOV_MAX of Linux."""
_ALIGNMENT: Final = 4096
"""Alignment of offsets, sizes and memory of direct reads, in bytes: every file system accepts this one."""
_BOUNCE_BYTES: Final = 4 << 20
"""Maximum bytes of one direct read."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_libc: Final = ctypes.CDLL(None, use_errno=True)
_preadv: Any = _libc.preadv64
_preadv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_preadv.restype = ctypes.c_ssize_t
_copy: Any = _libc.process_vm_readv
_copy.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
_copy.restype = ctypes.c_ssize_t


class VectorReader(Protocol):
    """Reads ranges of numbered files into many pieces of memory, for one thread."""

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        """Fill the pieces of `vector` (address and length, in the layout of readv(2); `size` bytes in all) from a file.

        Raises OSError; EOFError if the file is too short.
        """

    def close(self) -> None:
        """Close all files."""


class LocalFiles:
    """A `VectorReader` of files that the kernel reads; `path_of` names them.

    The reader first announces the range to the kernel (POSIX_FADV_WILLNEED). A plain read would be split into pieces of
    the size of the read-ahead, often 128 KiB, and each piece would be a separate operation. `forget`: the page cache
    has no space for the data, and drops it after the read.
    """

    def __init__(self, path_of: PathOf, *, forget: bool = False) -> None:
        self._files, self._forget = OpenFiles(OPEN_FILES, path_of), forget

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        descriptor = self._files.descriptor(number)
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        _fill(self._files.path_of(number), descriptor, offset, size, np.array(vector, order="C"))
        if self._forget:
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def keep_open(self, most: int) -> None:
        """Keep at most `most` files open."""
        self._files.keep_open(most)

    def close(self) -> None:
        self._files.close()


class DirectFiles:
    """A `VectorReader` past the page cache, or through it if the file system does not support direct reads.

    `path_of` names the files. The page cache keeps nothing in either case.
    """

    def __init__(self, path_of: PathOf) -> None:
        self._files = OpenFiles(OPEN_FILES, path_of, flags=_DIRECT)
        self._cached = LocalFiles(path_of, forget=True)
        self._able = bool(_DIRECT)
        self._bounce = _Bounce()

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        if self._able:
            try:
                self._directly(number, offset, size, np.array(vector, order="C"))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._able = False
            else:
                return
        self._cached.scatter(number, offset, size, vector)

    def keep_open(self, most: int) -> None:
        """Keep at most `most` files open."""
        self._files.keep_open(most)
        self._cached.keep_open(most)

    def close(self) -> None:
        self._files.close()
        self._cached.close()
        self._bounce.close()

    def _directly(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        descriptor, end = self._files.descriptor(number), offset + size
        # Begin and end of the read are rounded outwards to the alignment.
        room = self._bounce.room(size + 2 * _ALIGNMENT)
        at = 0
        while offset < end:
            start = offset // _ALIGNMENT * _ALIGNMENT
            wanted = min(len(room), -(-(end - start) // _ALIGNMENT) * _ALIGNMENT)
            brought = min(end, start + os.preadv(descriptor, (room[:wanted].data,), start)) - offset
            if brought <= 0:
                raise EOFError(self._files.path_of(number))
            at = scatter_memory(room[offset - start : offset - start + brought], vector, at)
            offset += brought


class CopiedReads:
    """A `VectorReader` that copies the bytes of `reader`.

    A `ChunkReader` gives zeros past the end of a file. So this class does not detect a file that is too short; the
    checksums of its samples do.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader, self._bounce = reader, _Bounce()

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        # A copy of the vector, because `scatter_memory` cuts partly filled pieces in place.
        room, vector = self._bounce.room(size), np.array(vector, order="C")
        at = done = 0
        while done < size:
            brought = min(len(room), size - done)
            self._reader.read_into([(number, offset + done, room[:brought].data)])
            at = scatter_memory(room[:brought], vector, at)
            done += brought

    def close(self) -> None:
        self._reader.close()
        self._bounce.close()


class _Bounce:
    """Memory to read into and then scatter from. It begins at a page."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def room(self, wanted: int) -> NDArray[np.uint8]:
        """Return memory for `wanted` bytes, or for `_BOUNCE_BYTES` if that is less."""
        size = min(_BOUNCE_BYTES, wanted)
        if len(self._memory) < size:
            size = min(_BOUNCE_BYTES, 1 << (size - 1).bit_length())
            self._memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        return self._memory

    def close(self) -> None:
        self._memory = np.empty(0, np.uint8)


def _fill(path: str, descriptor: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
    """Read `size` bytes into the pieces; a partly filled piece is cut. Raises OSError, EOFError."""
    at = done = 0
    while done < size:
        pieces = vector[at : at + _PIECES]
        count = _preadv(descriptor, pieces.ctypes.data, len(pieces), offset + done)
        if count < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        if count == 0:
            raise EOFError(path)
        count = min(count, size - done)
        done += count
        at = _advance(vector, at, count)


def scatter_memory(source: NDArray[np.uint8], vector: NDArray[np.void], at: int) -> int:
    """Copy all of `source` into the pieces from number `at` on. Return the number of the next piece to fill.

    A partly filled piece is cut. Without the core, process_vm_readv(2) copies, from this process to
    itself: one call for a thousand pieces. If a container forbids that call, the pieces are copied one by one.
    """
    if CORE is not None:
        reached: int = CORE.scatter(source, vector, at)
        return reached
    done, rest = 0, np.empty(1, vector.dtype)
    while done < len(source):
        pieces = vector[at : at + _PIECES]
        rest["base"], rest["length"] = source.ctypes.data + done, len(source) - done
        count = _copy(os.getpid(), pieces.ctypes.data, len(pieces), rest.ctypes.data, 1, 0)
        if count <= 0:
            count = _copy_each(source[done:], pieces)
        at = _advance(vector, at, count)
        done += count
    return at


def _copy_each(source: NDArray[np.uint8], pieces: NDArray[np.void]) -> int:
    """Fill the pieces one by one, as far as `source` reaches. Return the number of bytes copied."""
    done = 0
    for base, length in pieces.tolist():
        count = min(length, len(source) - done)
        ctypes.memmove(base, source.ctypes.data + done, count)
        done += count
    return done


def _advance(vector: NDArray[np.void], at: int, count: int) -> int:
    """Return the number of the next piece to fill after `count` bytes. A partly filled piece is cut."""
    lengths = np.cumsum(vector["length"][at : at + _PIECES])
    full = int(np.searchsorted(lengths, count, side="right"))
    rest = count - (int(lengths[full - 1]) if full else 0)
    if rest:
        vector["base"][at + full] += np.uint64(rest)
        vector["length"][at + full] -= np.uint64(rest)
    return at + full
