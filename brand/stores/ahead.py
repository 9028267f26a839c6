"""How are objects read from front to back, one after the other, without a wait for each request?

Large ranges are requested in advance, several at once, including those of the next objects. They arrive in any order
and are used in the order of the objects. The ranges that are in flight or wait to be used are bounded: `AT_ONCE` ranges
of `RANGE_BYTES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from brand.reprs import Reprs
from brand.stores.store import Store, read_all

AT_ONCE: Final = 16
"""Ranges in flight."""
RANGE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class _Block:
    """A range that was requested."""

    object: int
    offset: int
    end: int
    data: Future[bytearray]


class ReadAhead(Reprs, shows="_store _window"):
    """Reads `objects`: for each a number, larger than the previous one, its name, and its expected size.

    Each read should be behind the previous one. Ranges that were passed over are not cached: they are read again, with
    a request of their own. For one thread. The caller must close it.
    """

    def __init__(self, store: Store, objects: Iterable[tuple[int, str, int]]) -> None:
        self._store = store
        self._todo = _cut(objects)
        self._window: deque[_Block] = deque()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read ahead")

    def read_into(self, number: int, name: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the object with this number and this name. Raises OSError."""
        done = 0
        while done < len(buffer):
            at = offset + done
            block = self._block(number, at)
            if block is None or self._is_cut(block, name):
                read_all(self._store, [(name, at, buffer[done:])])
                return
            part = memoryview(block.data.result())[at - block.offset :][: len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)

    def size(self, number: int, name: str) -> int | None:
        """Return the size of an object, reported with its first range; None if it is unknown. Raises OSError."""
        block = self._block(number, 0)
        error = None if block is None else block.data.exception()
        told = self._store.size(name)
        if error is not None and (told is None or isinstance(error, FileNotFoundError)):
            raise error
        return told

    def close(self) -> None:
        """Send no more requests. Ranges in flight are completed."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _block(self, number: int, at: int) -> _Block | None:
        """Return the range with byte `at` of an object; None if it is not planned, or was passed over."""
        while self._window and (self._window[0].object, self._window[0].end) <= (number, at):
            self._window.popleft().data.cancel()
        while len(self._window) < AT_ONCE:
            wanted = next((todo for todo in self._todo if (todo[0], todo[3]) > (number, at)), None)
            if wanted is None:
                break
            ordinal, name, offset, end = wanted
            self._window.append(_Block(ordinal, offset, end, self._pool.submit(self._read, name, offset, end)))
        first = self._window[0] if self._window else None
        return first if first is not None and first.object == number and first.offset <= at else None

    def _is_cut(self, block: _Block, name: str) -> bool:
        """Return whether the object ends within a range. The bytes before its end can still be read."""
        told = None if block.data.exception() is None else self._store.size(name)
        return told is not None and told < block.end

    def _read(self, name: str, offset: int, end: int) -> bytearray:
        data = bytearray(end - offset)
        read_all(self._store, [(name, offset, memoryview(data))])
        return data


def _cut(objects: Iterable[tuple[int, str, int]]) -> Iterator[tuple[int, str, int, int]]:
    """Yield number, name, begin and end of each range. An object with expected size 0 has one empty range."""
    for number, name, size in objects:
        for offset in range(0, max(1, size), RANGE_BYTES):
            yield number, name, offset, min(offset + RANGE_BYTES, size)
