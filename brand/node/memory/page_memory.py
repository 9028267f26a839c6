"""The interface of decisions to the memory behind the pages: a few methods. `Arena` has bytes, `NoMemory` has none.

The first page of a sample's chain begins with the sample's row of the index (`ROW_BYTES`), so a client can check and
unpack the sample with nothing but its pages.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW

ROW_BYTES: Final = ROW.itemsize
SINK: Final = 0
"""The page for samples that no epoch needs."""

IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, in the layout of readv(2)."""


class PageMemory(Protocol):
    """The bytes of pages. An `Allocator` assigns pages to samples."""

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Write each sample's row to the beginning of its chain."""
        ...

    def vector(
        self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return pieces of memory (`IOVEC`) for samples of these sizes, which are contiguous in a file.

        Held samples are written behind the rows of their chains (`pages`, chain by chain), all other samples into the
        sink. Also returns the number of pieces up to the end of each sample.
        """
        ...

    def take_out(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return a copy of pages, shape (pages, page size)."""
        ...

    def put_in(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill pages with `data`, shape (pages, page size)."""
        ...


class NoMemory:
    """Memory without bytes, for decisions whose samples do not matter: simulations and replays."""

    def __init__(self, page: int) -> None:
        self._page = page

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Store nothing."""

    def vector(
        self,
        sizes: NDArray[Any],
        held: NDArray[np.bool_],  # noqa: ARG002
        pages: NDArray[np.int32],  # noqa: ARG002
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        return np.empty(0, IOVEC), np.zeros(len(sizes), np.int64)

    def take_out(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return zeros, which take no memory."""
        return np.broadcast_to(np.uint8(0), (len(pages), self._page))

    def put_in(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Store nothing."""
