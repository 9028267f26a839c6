"""One array in a file: how are its elements read so that damage to the file never ends the process?

The file is mapped, and this process never touches the mapping: `take` lets the kernel copy the elements out of it
(`brand.formats.landing`). Where a page is missing, it reads the elements one by one from the descriptor, which tells
what is wrong. `run` reads neighbouring elements from the descriptor at once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import TruncatedError, UnreadableError
from brand.formats.landing import landing


class ArrayFile:
    """An array of `length` elements that begins at byte `start` of an open file.

    It is read-only, and any number of threads may use it at once. It duplicates the descriptor. Errors name `path`, and
    tell with `hint` what to do about a damaged file. Raises OSError or ValueError where the file cannot be mapped.
    """

    def __init__(self, file: int, path: Path, dtype: np.dtype[Any], start: int, length: int, hint: str = "") -> None:
        self.path, self.dtype, self._start, self._length, self._hint = path, dtype, start, length, hint
        self._file = -1  # for `__del__`, where the next line fails
        self._file = os.dup(file)
        self._mapping = mmap.mmap(self._file, start + length * dtype.itemsize, prot=mmap.PROT_READ)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data + start

    def __len__(self) -> int:
        return self._length

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is gone when the interpreter ends
        if self._file >= 0:
            close(self._file)

    def run(self, first: int, end: int) -> NDArray[Any]:
        """The elements `first` to `end` - 1, or as many of them as there are. Raises `FormatError`."""
        first, end, _ = slice(first, end).indices(self._length)
        found = np.empty(max(0, end - first), self.dtype)
        self._fill(found.view(np.uint8), first)
        return found

    def all(self) -> NDArray[Any]:
        """All elements. Raises `FormatError`."""
        return self.run(0, self._length)

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """The elements with these numbers, in that order. Raises `FormatError`, IndexError.

        The kernel fills the last page of a shortened file with zeros, so an element that can be read may be wrong.
        """
        wanted = numbers.astype(np.uint64)  # a negative number becomes too large
        if len(wanted) and int(wanted.max()) >= self._length:
            raise IndexError(f"{self.path} has {self._length:,} elements: a number is out of range")
        found = np.empty(len(wanted), self.dtype)
        memory, size = found.view(np.uint8), self.dtype.itemsize
        there, sizes = landing(), np.full(len(wanted), size)
        addresses = wanted * np.uint64(size) + np.uint64(self._address)
        if there is None or not there.copy(addresses, sizes, memory):
            for at, number in enumerate(wanted.tolist()):
                self._fill(memory[at * size : (at + 1) * size], number)
        return found

    def _fill(self, memory: NDArray[np.uint8], first: int) -> None:
        """Fill `memory` with neighbouring elements, from element `first` on. Raises `FormatError`."""
        done, at = 0, self._start + first * self.dtype.itemsize
        while done < len(memory):
            try:
                count = os.preadv(self._file, (memory[done:].data,), at + done)
            except OSError as error:
                what = f"cannot be read: {error.strerror}"
                raise UnreadableError(what, path=self.path, hint=self._hint) from error
            if count == 0:
                whole = self._start + self._length * self.dtype.itemsize
                raise TruncatedError(
                    "the file was cut short while it was in use",
                    path=self.path,
                    expected=f"{whole} bytes",
                    found=os.fstat(self._file).st_size,
                    hint=self._hint,
                )
            done += count
