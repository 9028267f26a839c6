"""The pages of each cached sample: an entry of 8 bytes for each place, which clients read while the server writes.

    bit 63         its checksum was right
    bits 48 to 62  a stamp
    bits 32 to 47  number of its pages, which are contiguous
    bits 0 to 31   its first page; an entry of 0 shows nothing

The server shows a sample when its bytes are cached in memory, and hides it before its pages are used again. A client
reads an entry, copies the pages, and reads the entry again: if nothing but the first bit has changed, it has copied the
sample. Both sides call `fence` between an entry and the pages, because processors such as arm64 reorder accesses to
memory. The stamp distinguishes a sample from the same sample that was dropped and read again meanwhile.

The server's thread owns the entries. Clients map them read-only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.native import CORE
from brand.node.memory.pages import PageArray, Places
from brand.reprs import Reprs

CHECKED: Final = np.uint64(1 << 63)
MOST_PAGES: Final = (1 << 16) - 1
"""Pages of the largest sample that is shown."""
STAMPS: Final = 1 << 15
ENTRY_BYTES: Final = 8

Entries = NDArray[np.uint64]


def _fence_by_lock() -> None:
    """Do as the core's `fence` does. Two locks one after the other let no access pass."""
    lock = threading.Lock()  # a new one, because a fork could copy a shared one while another thread holds it
    for _ in range(2):
        lock.acquire()
        lock.release()


fence: Final[Callable[[], None]] = getattr(CORE, "fence", _fence_by_lock)
"""Let no access to memory before the call be done after one behind it."""


class Directory(Reprs, shows="_entries _stamp"):
    """The server's side of the directory. `entries` has 0 for each place, shape (samples,)."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._stamp = 0

    def show(self, places: Places, heads: NDArray[np.int32], counts: PageArray) -> None:
        """Show samples whose bytes are in memory, each in `counts` contiguous pages, from its head on."""
        self._stamp = (self._stamp + 1) % STAMPS
        fence()  # a client that finds an entry finds the bytes, too
        some = counts <= MOST_PAGES
        shown = heads[some].astype(np.uint64) | counts[some].astype(np.uint64) << np.uint64(32)
        self._entries[places[some]] = shown | np.uint64(self._stamp << 48)

    def hide(self, places: Places) -> None:
        self._entries[places] = 0
        fence()  # a client that copies what is written to the pages next finds the entry changed

    def mark_checked(self, places: Places) -> None:
        shown = places[self._entries[places] != 0]
        self._entries[shown] |= CHECKED

    def shows(self, places: Places, entries: Entries) -> NDArray[np.bool_]:
        """Return which samples are still those that a client found with these entries, shape (places,)."""
        same: NDArray[np.bool_] = unchanged(self._entries[places], entries) & (entries != 0)
        return same


def unchanged(now: Entries, before: Entries) -> NDArray[np.bool_]:
    """Return whether each entry shows the same sample as before, shape (entries,)."""
    same: NDArray[np.bool_] = (now ^ before) & ~CHECKED == 0
    return same


def are_checked(entries: Entries) -> NDArray[np.bool_]:
    """Return whether the checksum of each sample was right, shape (entries,)."""
    checked: NDArray[np.bool_] = entries & CHECKED != 0
    return checked


def runs_of(entries: Entries) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Return first page and number of pages of each sample that is shown."""
    # The casts to smaller integers drop the stamp and the checked bit.
    return entries.astype(np.uint32).view(np.int32), (entries >> np.uint64(32)).astype(np.uint16).astype(np.uint32)


def pages_of_runs(heads: NDArray[np.int32], counts: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return all pages of runs of `counts[i]` pages, run by run."""
    ends = np.cumsum(counts, dtype=np.int32)
    pages: NDArray[np.int32] = np.repeat(heads - (ends - counts.astype(np.int32)), counts)
    pages += np.arange(len(pages), dtype=np.int32)
    return pages
