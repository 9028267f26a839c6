"""Direct hits: samples that a client copies from the server's cache without a request.

    positions -> places       the server sends many positions at once; the client remembers the last blocks
    places -> entries         the directory, in shared memory (`brand.node.memory.directory`)
    entries -> samples        copied out of the pages; the entries are compared again afterwards

If the page cache holds a sample that is not shown yet (`brand.storage.dataset.cached`), the client reads it from there
before the server does. If one sample of a draw is found in neither, has changed meanwhile, or is damaged, the client
asks the server for all of them, as if it had not looked.

The client reports its direct hits to the server, in the order of its draws and before it asks for more. Some draws are
reported together, because each message wakes the server; near the end of an epoch, each is reported at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError, ProtocolError
from brand.formats.constants import ROW
from brand.formats.contents import StoredSamples
from brand.node.client.memories import Pages
from brand.node.memory.directory import Entries, are_checked, fence, runs_of, unchanged
from brand.node.memory.pages import are_of
from brand.node.wire.client_messages import AskPlaces, Places, pack, unpack
from brand.node.wire.draw_messages import MOST_TAKEN, pack_taken, repeat
from brand.node.wire.messages import MOST_PLACES, Kind
from brand.node.wire.numbers import RunNumber
from brand.reprs import Reprs
from brand.storage.dataset.cached import CachedSamples
from brand.storage.io.crew import Crew

REMEMBERED: Final = 4
"""Number of blocks of `MOST_PLACES` positions that a client remembers."""
TOLD_TOGETHER: Final = 2048
"""Number of samples that the client reports to the server together."""
MOST_CACHED_BYTES: Final = 256 << 20
"""A draw with more bytes that are not shown is sent to the server: no allocation relies on an unchecked index."""
LONGEST_PAUSE: Final = 63
"""Maximum number of draws between two that ask the page cache."""
TOLD_AFTER_S: Final = 0.2
"""Direct hits that are older than this many seconds are reported with the next draw."""

Request = Callable[[bytes, Kind], memoryview]
Send = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Files:
    """Readers and checks of the data set's files that need no server. Picklable."""

    are_at: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]] | None = None
    """Returns which of some indices the index puts at these places, shape (places,). None if that is not compared."""
    cached: Callable[[Crew], CachedSamples] | None = None
    """Returns a reader of the page cache's contents, for each connection; None if the page cache is of no use."""

    def right(self, stored: StoredSamples, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which samples from memory are those at these places, and undamaged; no client has checked them."""
        right = stored.right() & are_of(stored.rows, places)
        return right if self.are_at is None else right & self.are_at(stored.rows["index"].astype(np.int64), places)


NO_FILES: Final = Files()


class DirectHitReader(Reprs, shows="_entries _at _blocks"):
    """Reads samples directly on one connection, which `request` and `send` use. `entries` are those of the directory.

    `workers` share the positions of the training process.
    """

    def __init__(
        self, pages: Pages, entries: Entries, request: Request, send: Send, workers: int = 1, files: Files = NO_FILES
    ) -> None:
        self._pages, self._entries, self._request, self._right = pages, entries, request, files.right
        self._cached = None if files.cached is None else files.cached(pages.crew)
        self._untold = _Untold(send, workers)
        self._missed = self._pause = 0
        """Draws in a row that the page cache did not have, up to `LONGEST_PAUSE`, and draws until it is asked again."""
        self._at: tuple[int, int] | None = None
        """Run and epoch of the last draw that the server has answered."""
        self._never = False
        """Whether all samples of this epoch have to be requested from the server."""
        self._blocks: dict[int, NDArray[np.int32]] = {}
        """Places at positions of that epoch, by block, in the order of the last use."""

    def may(self, run: int, epoch: int) -> bool:
        return self._at == (run, epoch)

    def answered(self, run: int, epoch: int) -> None:
        """Allow direct hits of an epoch: the server has answered a draw, so the epoch has begun."""
        if self._at != (run, epoch):
            self._at, self._never = (run, epoch), False
            self._blocks.clear()

    def take(
        self, run: int, epoch: int, positions: NDArray[np.int64], draws: int
    ) -> tuple[NDArray[np.int64], StoredSamples] | None:
        """Return the places and the samples at positions of an epoch of `draws` draws; None if the client has to ask.

        Raises `ProtocolError`.
        """
        if self._never or self._at != (run, epoch) or len(positions) > MOST_TAKEN or repeat(positions):
            return None
        places = self._places(run, epoch, positions)
        if places is None:
            return None
        entries = self._entries[places]
        fence()
        stored = self._shown(entries) if entries.all() else self._with_cached(places, entries)
        fence()
        # The server may have reused pages during the copy: compare the entries again.
        if stored is None or not unchanged(self._entries[places], entries)[entries != 0].all():
            return None
        news = (entries != 0) & ~are_checked(entries)  # samples from the page cache are checked already
        if news.any() and not self._right(stored.part(news), places[news]).all():
            return None
        self._untold.add(pack_taken(run, epoch, positions, entries if news.any() else entries[:0]), positions, draws)
        return places, stored

    def tell(self) -> None:
        self._untold.tell()

    def _shown(self, entries: Entries, more: int = 0) -> StoredSamples:
        """Return a copy of the samples that these entries show, with `more` spare bytes behind them."""
        heads, counts = runs_of(entries)
        return self._pages.stored(self._pages.copy_runs(heads, counts, more), counts)

    def _with_cached(self, places: NDArray[np.int64], entries: Entries) -> StoredSamples | None:
        """Return a copy of samples some of which are not shown; None if the page cache lacks these.

        If it lacked some, the server is reading them into memory: the page cache is asked less and less often.
        """
        if self._cached is None or self._pause:
            self._pause -= self._pause > 0
            return None
        shown = entries != 0
        try:
            rows = self._cached.rows(places[~shown])
        except FormatError:  # a direct read raises the error of the index
            return None
        sizes = rows["size"].astype(np.int64)
        if int(sizes.sum()) > MOST_CACHED_BYTES:
            return None
        stored = self._shown(entries[shown], int(sizes.sum()))
        memory = stored.memory
        starts, every = np.empty(len(places), np.int64), np.empty(len(places), ROW)
        starts[shown], every[shown] = stored.starts, stored.rows
        starts[~shown], every[~shown] = len(memory) - int(sizes.sum()) + np.cumsum(sizes) - sizes, rows
        if self._cached.copy(places[~shown], rows, memory.data, starts[~shown]):
            self._missed = 0
            return StoredSamples(memory, starts, every)
        self._missed = min(LONGEST_PAUSE, 2 * self._missed + 1)
        self._pause = self._missed
        return None

    def _places(self, run: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the samples at positions; None if the server does not tell them."""
        highest = int(positions.max())
        first, last = int(positions.min()) // MOST_PLACES, highest // MOST_PLACES
        if last - first >= REMEMBERED:  # more blocks than are remembered would have to be requested for each draw
            return None
        for number in range(first, last + 1):
            block, needed = self._blocks.pop(number, None), min(MOST_PLACES, highest + 1 - number * MOST_PLACES)
            if block is None or len(block) < needed:
                question = AskPlaces((RunNumber(run), epoch), number * MOST_PLACES)
                block = unpack(Places, self._request(pack(question), Kind.PLACES)).places.copy()
                if not len(block):
                    self._never = not self._blocks  # otherwise the server does not know the order so far ahead yet
                    return None
                if not 0 <= block.min() <= block.max() < len(self._entries):
                    raise ProtocolError("places that the data set does not have")
                if len(self._blocks) == REMEMBERED:
                    del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
            if len(block) < needed:
                return None
        if first == last:
            found = self._blocks[first]
        else:
            found = np.concatenate([self._blocks[number] for number in range(first, last + 1)])
        places: NDArray[np.int64] = found[positions - first * MOST_PLACES].astype(np.int64)
        return places


class _Untold:
    """Direct hits that are not reported to the server yet. `send` reports them; `workers` as for `DirectHitReader`."""

    def __init__(self, send: Send, workers: int) -> None:
        self._send, self._workers = send, workers
        self._messages: list[bytes] = []
        self._samples = 0
        """Number of samples in the messages."""
        self._since_s = 0.0
        """Time of the first of these direct hits."""

    def add(self, message: bytes, positions: NDArray[np.int64], draws: int) -> None:
        """Add direct hits at these positions of an epoch of `draws` draws; `message` reports them to the server."""
        now_s = time.monotonic()
        if not self._messages:
            self._since_s = now_s
        self._messages.append(message)
        self._samples += len(positions)
        lowest, highest = int(positions.min()), int(positions.max())
        # The positions that are left to this process, estimated from the distance of its positions in this draw.
        step = self._workers * max(1, (highest - lowest) // max(1, len(positions) - 1))
        left = (draws - 1 - highest) // step
        if left < TOLD_TOGETHER or self._samples >= TOLD_TOGETHER or now_s - self._since_s > TOLD_AFTER_S:
            self.tell()

    def tell(self) -> None:
        if self._messages:
            message = b"".join(self._messages)
            self._messages.clear()
            self._samples = 0
            self._send(message)
