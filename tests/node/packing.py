"""Messages of clients as bytes, from plain numbers; and the pages that entries of the directory show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.directory import Entries, pages_of_runs, runs_of
from brand.node.wire import draw_messages
from brand.node.wire.client_messages import ClientBegins, ClientReleases, pack
from brand.node.wire.drawing import Announcement
from brand.node.wire.numbers import NO_CLIENT, RunNumber

_NO_PLACES = np.empty(0, np.int64)


def pack_begin(
    run: int, epoch: int, position: int, rank: int, replicas: int, batch: int = 0, processes: int = 1, front: int = 0
) -> bytes:
    """`BEGIN`."""
    announcement = Announcement(epoch, position, rank, replicas, batch, processes, front)
    return pack(ClientBegins(NO_CLIENT, RunNumber(run), announcement))


def pack_draw(run: int, epoch: int, positions: NDArray[np.int64]) -> bytes:
    """`DRAW`."""
    return draw_messages.pack_draw((RunNumber(run), epoch), positions)


def pack_release(number: int, *, checked: bool, wrong: NDArray[np.int64] = _NO_PLACES) -> bytes:
    """`RELEASE`."""
    return pack(ClientReleases(NO_CLIENT, number, checked, wrong))


def pages_of(entries: Entries) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """Return the number of pages of each sample that is shown, and all pages, sample by sample."""
    heads, counts = runs_of(entries)
    return counts, pages_of_runs(heads, counts)
