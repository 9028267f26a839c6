"""How are many ranges of many numbered files read with few open files and, if they are not cached, all at once?

`RangeReader.read_into` first asks for each range with RWF_NOWAIT, so a range in the page cache costs one system call.
Then it announces all other ranges to the kernel (POSIX_FADV_WILLNEED), so that the device has a deep queue from one
thread, and reads them one after the other. Bytes are read directly into the caller's buffers. Descriptors stay open;
the least recently used one is closed first. Not thread-safe: each thread has its own reader.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

Range = tuple[int, int, memoryview]
"""One contiguous read: number of the file, offset, and the buffer to fill."""
PathOf = Callable[[int], str]
"""Returns the path of a numbered file."""

OPEN_FILES: Final = 256
"""Maximum descriptors that stay open: a quarter of the usual limit."""
MOST_OPEN: Final = 16384
"""Maximum descriptors that stay open if the limit is high."""
USUAL_LIMIT: Final = 1024
"""Usual limit of descriptors of a process. If the limit is lower (`ulimit -n`), fewer stay open."""

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_WILLNEED: Final = getattr(os, "POSIX_FADV_WILLNEED", None)


def most_open(most: int) -> int:
    """Return how many descriptors may stay open, if the usual limit would allow `most`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit == resource.RLIM_INFINITY else max(1, most * min(limit, USUAL_LIMIT) // USUAL_LIMIT)


def plenty_open() -> int:
    """Return how many descriptors may stay open for small reads, for which opening the file costs as much as the read.

    It is more than `OPEN_FILES` if the limit allows it, up to a quarter of the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(OPEN_FILES, min(MOST_OPEN, limit // 4))


def no_descriptor_left(error: OSError) -> str:
    """Return the message for an error caused by the limit of open files; empty for any other error."""
    if error.errno != errno.EMFILE:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have no more than {limit} open files: raise the limit, `ulimit -n {USUAL_LIMIT}`"


class ChunkReader(Protocol):
    """Fills buffers from ranges of numbered files, for one thread."""

    def read_into(self, ranges: Sequence[Range]) -> None:
        """Fill each range's buffer, past the end of a file with zeros. The caller judges whether zeros are right.

        Raises OSError, whose `filename` is the file's name (FileNotFoundError for a missing file).
        """

    def close(self) -> None:
        """Close all files. The reader may be used again."""


class OpenFiles:
    """Descriptors of files that are read, at most `most` of them at the usual limit of open files.

    The least recently used one is closed first.
    """

    def __init__(self, most: int, path_of: PathOf, flags: int = 0) -> None:
        self.path_of = path_of
        self._most, self._flags = most_open(most), os.O_RDONLY | os.O_CLOEXEC | flags
        self._open: OrderedDict[int, int] = OrderedDict()

    def keep_open(self, most: int) -> None:
        """Keep at most `most` files open from now on, at the usual limit."""
        self._most = most_open(most)

    def descriptor(self, number: int) -> int:
        """Return a descriptor of a file, valid until the next call. Raises OSError."""
        descriptor = self._open.get(number)
        if descriptor is None:
            descriptor = self._opened(self.path_of(number))
            self._open[number] = descriptor
            if len(self._open) > self._most:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(number)
        return descriptor

    def together(self, numbers: Sequence[int]) -> list[int] | None:
        """Return descriptors of files, all valid until the next call; None if fewer can be open. Raises OSError."""
        if len(numbers) > self._most:
            return None
        for number in numbers:
            self.descriptor(number)
        # If the process runs out of descriptors, opening one file closes the others.
        found = [self._open[number] for number in numbers if number in self._open]
        return found if len(found) == len(numbers) else None

    def _opened(self, path: str) -> int:
        """Open a file. If the process has no descriptors left, close all other files of this object first."""
        try:
            return os.open(path, self._flags)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self.close()
        try:
            return os.open(path, self._flags)
        except OSError as error:
            why = no_descriptor_left(error)
            raise (OSError(error.errno, why, path) if why else error) from None

    def close(self, close: Callable[[int], None] = os.close) -> None:  # `os` is gone when the interpreter ends
        """Close every file. The object may be used again."""
        while self._open:
            close(self._open.popitem()[1])

    __del__ = close


class RangeReader:
    """A `ChunkReader` of files; `path_of` names them. About `most` of them stay open; None: `OPEN_FILES`."""

    def __init__(self, path_of: PathOf, most: int | None = None) -> None:
        self._files = OpenFiles(most or OPEN_FILES, path_of)
        self._nowait = _NOWAIT

    def read_into(self, ranges: Sequence[Range]) -> None:
        late = [r for r in ranges if not self.filled_from_cache(r)]
        # A single read needs no announcement: it follows at once.
        if len(late) > 1 and _WILLNEED is not None:
            for number, offset, buffer in late:
                with suppress(OSError):  # the read will raise the error
                    os.posix_fadvise(self._files.descriptor(number), offset, len(buffer), _WILLNEED)
        for number, offset, buffer in late:
            try:
                _fill(self._files.descriptor(number), offset, buffer)
            except OSError as error:
                error.filename = self._files.path_of(number)  # the error of a read has only the descriptor
                raise

    def close(self) -> None:
        self._files.close()

    def descriptors(self, numbers: Sequence[int]) -> list[int] | None:
        return self._files.together(numbers)

    def filled_from_cache(self, wanted: Range) -> bool:
        """Fill a range from the page cache. Return whether the cache held all of it. Raises OSError."""
        if not self._nowait:
            return False
        number, offset, buffer = wanted
        descriptor = self._files.descriptor(number)
        try:
            return os.preadv(descriptor, (buffer,), offset, self._nowait) == len(buffer)
        except BlockingIOError:
            return False
        except OSError:  # this file system does not support RWF_NOWAIT
            self._nowait = 0
            return False


def _fill(descriptor: int, offset: int, buffer: memoryview) -> None:
    """Read until the buffer is full or the file ends. The rest of the buffer becomes zeros, never older bytes."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, (buffer[done:],), offset + done)
        if count == 0:
            buffer[done:] = bytes(len(buffer) - done)
            return
        done += count
