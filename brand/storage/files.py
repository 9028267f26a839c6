"""Many small or large ranges of many files: how are they read with few open files and, when cold, all at once?

`RangeReader.read` first asks for each range with RWF_NOWAIT: what the page cache holds costs one system call. The
ranges that would wait are then all announced to the kernel (POSIX_FADV_WILLNEED), so that the device sees a deep queue
from one thread, and read one after the other. Open descriptors are kept, least recently used first out. Not
thread-safe; each process opens its own.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

OPEN_FILES: Final = 256
"""Descriptors kept open: a quarter of the usual limit of 1,024."""

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_WILLNEED: Final = getattr(os, "POSIX_FADV_WILLNEED", None)


class Range(NamedTuple):
    """One contiguous read."""

    path: str
    offset: int
    size: int


class RangeReader:
    """Reads ranges; a range past the end of a file comes back short, which is the caller's to judge."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._nowait = _NOWAIT

    def read(self, ranges: Sequence[Range]) -> list[bytes | bytearray]:
        """The bytes of each range, in the order asked. Raises OSError (FileNotFoundError for a missing file)."""
        results: list[bytes | bytearray] = [b""] * len(ranges)
        late = []
        for position, (path, offset, size) in enumerate(ranges):
            data = self._read_cached(self._descriptor(path), offset, size)
            if data is None:
                late.append(position)
            else:
                results[position] = data
        if len(late) > 1 and _WILLNEED is not None:
            for position in late:
                path, offset, size = ranges[position]
                os.posix_fadvise(self._descriptor(path), offset, size, _WILLNEED)
        for position in late:
            path, offset, size = ranges[position]
            results[position] = _read_fully(self._descriptor(path), offset, size)
        return results

    def close(self) -> None:
        """Close every file. The reader may be used again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._open[path] = descriptor
            if len(self._open) > OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return descriptor

    def _read_cached(self, descriptor: int, offset: int, size: int) -> bytearray | None:
        """The range if the page cache holds all of it."""
        if not self._nowait:
            return None
        buffer = bytearray(size)
        try:
            if os.preadv(descriptor, [buffer], offset, self._nowait) == size:
                return buffer
        except BlockingIOError:
            pass
        except OSError:  # this file system does not know RWF_NOWAIT
            self._nowait = 0
        return None


def _read_fully(descriptor: int, offset: int, size: int) -> bytes:
    """pread until `size` bytes or the end of the file."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
