"""Writes samples from the server's memory into its cache folder: one thread, which also publishes them in time.

The loop passes samples that stay in memory until the thread is done (`Write`). The thread copies them, and the folder
compares the checksum of each sample in the copy, so that no damaged sample is ever cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.formats.stored import StoredSamples
from brand.node.decide.state.instructions import Forget, Rows, Write
from brand.node.memory.arena import Arena
from brand.node.memory.page_memory import ROW_BYTES
from brand.reprs import Reprs
from brand.storage.cache.cachefolder import EVERY_S, CacheFolder

Written = Callable[[NDArray[np.bool_], str], object]
"""Receives which of a write's samples the folder holds, and why no further write can follow."""

END_LIMIT_S: Final = 30.0
"""Seconds that a server that ends waits for the disk of its cache."""


class Storing(Reprs, shows="_folder _jobs"):
    """The thread that writes to `folder`, for samples in the pages of `arena`. `post` has the loop call a function."""

    def __init__(
        self, folder: CacheFolder, index: Rows, arena: Arena, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._folder, self._index, self._arena, self._post = folder, index, arena, post
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cache", daemon=True)
        self._thread.start()

    def write(self, write: Write, written: Written) -> None:
        """Write samples, then have the loop call `written`."""
        self._jobs.put(partial(self._write, write, written))

    def forget(self, forget: Forget) -> None:
        """Have the folder forget samples."""
        act = self._folder.drop if forget.parts else self._folder.forget
        self._jobs.put(partial(act, forget.places))

    def close(self) -> None:
        """Publish the written samples, and end. A thread that is still blocked in the disk is left behind."""
        self._jobs.put(None)
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
                self._folder.publish_if_due()
            self._folder.publish()
        finally:
            self._folder.close()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get(timeout=EVERY_S)
        except Empty:
            return self._nothing

    def _nothing(self) -> None:
        """Do nothing: there is nothing to write."""

    def _write(self, write: Write, written: Written) -> None:
        held: NDArray[Any] = np.zeros(len(write.places), np.bool_)
        try:
            rows = self._index.rows_at(write.places.astype(np.int64))
            memory = self._arena.pages[write.pages]
            page = memory.shape[1]
            counts = write.counts.astype(np.int64)
            starts = (np.cumsum(counts) - counts) * page + ROW_BYTES
            # Rows that were read again are validated again: a sample is in its own pages, or is left out.
            fits = rows["size"] <= counts * page - ROW_BYTES
            held[fits] = self._folder.store(
                write.places[fits], StoredSamples(memory.reshape(-1), starts[fits], rows[fits])
            )
        except FormatError:  # the index cannot be read; direct reads raise the reason
            pass
        self._post(partial(written, held, self._folder.stopped))  # type: ignore[arg-type]
