"""Makes plans, reads and writes samples while the server's loop continues: in threads, and in decode workers.

The results are passed to the loop as stimuli (`tell`). `Scout` looks for chunks in the page cache ahead of the reads,
and `Storing` writes samples into a cache folder.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, FormatError, ServerError, UnreadableError
from brand.formats.contents import StoredSamples
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import (
    EndPreparer,
    Fill,
    Forget,
    MakePlan,
    MakeWindow,
    Prepare,
    Read,
    ReadFor,
    Rows,
    StartPreparer,
    Write,
)
from brand.node.decide.stimuli import KeptChosen, PlanMade, ReadEnded, ReadForEnded, Stimulus, WriteEnded
from brand.node.memory.arena import Arena
from brand.node.memory.pages import ROW_BYTES, PageCounts
from brand.node.serve.executor import Executor, Readers
from brand.node.serve.troubles import Troubles
from brand.node.wire.client_messages import pack_samples
from brand.node.wire.draw_messages import Held
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.orders.base.plan import EpochPlan
from brand.reprs import Reprs
from brand.storage.cache.cachefolder import EVERY_S, CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.pagecache import in_page_cache
from brand.timeline import Timeline

if TYPE_CHECKING:
    from brand.node.serve.decode_workers import DecodeWorkerProcesses

FEWEST: Final = 4
"""Number of chunks of a first look."""
MOST: Final = 64
"""Maximum number of chunks of one look. Each look delays the end of the thread's own read."""
END_LIMIT_S: Final = 30.0
"""Seconds that a server that ends waits for the disk of its cache."""

Written = Callable[[NDArray[np.bool_], str], object]
"""Receives which of a write's samples the folder holds, and why no further write can follow."""


@dataclass(frozen=True, slots=True)
class IsWanted:
    """Whether the planner's work is still needed."""

    plan: Callable[[MakePlan], bool]
    choice: Callable[[ChooseCached], bool]


@dataclass(frozen=True, slots=True)
class Workers:
    """The threads and processes of a server."""

    executor: Executor
    storing: tuple[Storing | None, ...]
    """Writes each cache folder, the fastest one first; None for a folder that is not used."""
    decode: DecodeWorkerProcesses | None
    """Decode samples; None if clients decode."""

    def close(self) -> None:
        if self.decode is not None:
            self.decode.close()
        self.executor.close()
        for storing in self.storing:
            if storing is not None:
                storing.close()


class BackgroundWork(Reprs, shows="_workers"):
    """Executes the instructions that take time.

    `wanted` returns whether a plan or a choice is still needed, `node` is the number of this node. `leaves`: whether
    clients themselves read the samples that the page cache holds, so that the server does not read them.
    """

    def __init__(
        self,
        data: StoredDataSet,
        pages_of: PageCounts,
        workers: Workers,
        wanted: IsWanted,
        tell: Callable[[Stimulus], object],
        troubles: Troubles,
        node: NodeNumber,
        *,
        leaves: bool,
    ) -> None:
        self._data, self._pages_of, self._workers, self._wanted, self._tell = data, pages_of, workers, wanted, tell
        self._troubles, self._node, self._leaves = troubles, node, leaves
        self._scout = Scout(lambda chunk: in_page_cache(data.location.chunk_file(chunk)))
        self._timeline: Timeline | None = None

    def close(self) -> None:
        self._workers.close()
        if self._timeline is not None:
            self._timeline.close()

    def trace(self, timeline: Timeline) -> None:
        """Write reads, and the waits of draws by cause, to a trace."""
        self._timeline = timeline

    def make_plan(self, wanted: MakePlan) -> None:
        """Make the plan of an epoch, if it is still needed when the planner begins it."""

        def make(_: object) -> PlanMade | None:
            if not self._wanted.plan(wanted):
                return None
            return make_plan(wanted)

        self._workers.executor.plan(make, self._made)

    def make_window(self, wanted: MakeWindow) -> None:
        """Make a window of the plan of an epoch."""
        self._workers.executor.window(lambda _: make_window(wanted), self._made)

    def choose(self, choice: ChooseCached) -> None:
        """Choose the samples to cache in memory, and those to cache in the cache folders.

        Long work is done in segments, each a job of its own, so that plans of running epochs are made in between.
        """

        def choose(_: object) -> KeptChosen | None:
            if choice.foresee():
                return None
            kept = choice.kept(self._pages_of)
            return KeptChosen(choice.number, kept, choice.cached(kept), choice.since, choice.whole_unit)

        def chosen(result: Any, error: BaseException | None) -> None:
            if result is None and error is None and self._wanted.choice(choice):
                self.choose(choice)
            else:
                self._made(result, error)

        self._workers.executor.plan(choose, chosen)

    def read(self, read: Read) -> None:
        """Read samples into memory. The pieces of a bundle are spread over the threads."""
        leaves = self._leaves and not read.plan.shares  # jobs share samples only by draws
        # A read of an object store may cost money, so it never replaces a read of a folder.
        measures = bool(self._workers.storing) and not self._data.location.in_store
        seconds = [0.0] * len(read.pieces) if measures else []
        left: list[int] = []
        chunks: set[int] = set()

        def job(readers: Readers, number: int) -> None:
            piece = read.pieces[number]
            folder = int(piece["folder"])
            if not folder:  # cached samples were checked before
                # Without `close`, each of many threads would hold some chunks open.
                self._data.check_tables(read.places_of(number).astype(np.int64), close=True)
            chunk, offset, size = int(piece["chunk"]), int(piece["offset"]), int(piece["size"])
            if leaves and in_page_cache(self._data.location.chunk_file(chunk), offset, size):
                left.append(number)
                if chunk not in chunks and self._scout.holds(chunk):
                    chunks.update([chunk, *self._scout.beyond(read.plan, chunk)])
                return
            start_s = time.monotonic()
            readers.of(folder).scatter(chunk, offset, size, read.vectors[number])
            if measures:
                seconds[number] = time.monotonic() - start_s
            if self._timeline is not None:
                facts = {"chunk": chunk, "offset": offset, "bytes": size, "cached": folder > 0}
                self._timeline.add(threading.current_thread().name, "read", start_s, time.monotonic(), facts)

        def done(errors: Mapping[int, BaseException]) -> None:
            for number, error in errors.items():
                path = self._data.location.chunk_file(int(read.pieces["chunk"][number]))
                file = f"the cached copy of {path}" if read.pieces["folder"][number] else path
                self._troubles.read_failed(file, error, time.monotonic())
            failed, aside, found = (tuple(sorted(numbers)) for numbers in (errors, left, chunks))
            self._tell(ReadEnded(read, failed, aside, found, tuple(seconds)))

        self._workers.executor.share(job, len(read.pieces), done)

    def answered(self, client: ClientNumber, held: Held) -> None:
        """Write the waits of a draw that has been answered to the trace."""
        if self._timeline is None:
            return
        end_s = time.monotonic()
        for cause, seconds in zip(Held._fields, held, strict=True):
            if seconds:
                self._timeline.add(f"client {client}", f"held for {cause}", end_s - seconds, end_s)
                end_s -= seconds

    def write(self, write: Write) -> None:
        self._storing(write.folder).write(write, lambda held, stopped: self._tell(WriteEnded(write, held, stopped)))

    def forget(self, forget: Forget) -> None:
        self._storing(forget.folder).forget(forget)

    def prepare(self, instruction: StartPreparer | EndPreparer | Prepare | Fill) -> None:
        assert self._workers.decode is not None
        self._workers.decode.do(instruction)

    def read_for(self, read: ReadFor) -> None:
        """Read samples directly, for another node or a client. For another node, unreadable samples are left out."""

        def done(data: Any, error: BaseException | None) -> None:
            if error is None:
                self._tell(ReadForEnded(read, data))
            elif own and isinstance(error, FormatError):
                self._tell(ReadForEnded(read, b"", self._told(error)))
            else:
                raise error  # a bug: unreadable samples are handled above

        own = read.node == self._node
        self._workers.executor.read(lambda _: pack_samples(self._data.stored_bytes(read.places, raising=own)), done)

    def _told(self, error: FormatError) -> BrandError:
        """Return the error that a client gets for a sample that this server could not read for it.

        A store that does not answer is no damage, so it is an error that no draw may skip.
        """
        outage = self._data.location.in_store and isinstance(error, UnreadableError)
        return ServerError(str(error)) if outage else error

    def _storing(self, folder: int) -> Storing:
        found = self._workers.storing[folder - 1]
        assert found is not None, "nothing is written to a folder that is not used"
        return found

    def _made(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error  # a bug, because plans are pure: end the server instead of serving a wrong order
        if result is not None:
            self._tell(result)


class Scout(Reprs, shows="_seen _order _most"):
    """Looks ahead. `holds` returns whether the page cache holds a chunk. Any thread may use it.

    If the page cache holds a chunk, it is likely to hold the next chunks. A look costs a tenth of a read that the loop
    decides, starts and ends. So the thread that has found a chunk in the page cache looks at the chunks that the plan
    reads next: a few, and twice as many with each look, until a chunk is missing. One thread looks at a time. Other
    threads continue with their reads, so the first draws do not wait for looks.
    """

    def __init__(self, holds: Callable[[int], bool]) -> None:
        self.holds = holds
        self._looking = threading.Lock()
        """Guards the attributes below."""
        self._reads: weakref.ref[NDArray[np.void]] | None = None
        """The reads of the plan of the last look. A weak reference, so that a plan that has ended is freed."""
        self._order: NDArray[np.int32] = np.arange(0, dtype=np.int32)
        """The chunks of that plan, by their first reads."""
        self._seen, self._most = 0, FEWEST
        """Number of these chunks that were read or looked at, and maximum number for the next look."""

    def beyond(self, plan: EpochPlan, chunk: int) -> list[int]:
        """Return the next chunks after `chunk` that the page cache holds, in the order of the plan's first reads.

        The list is empty if another thread looks, or if each sample is a read of its own.
        """
        if plan.reads is None or not self._looking.acquire(blocking=False):
            return []
        try:
            if self._reads is None or self._reads() is not plan.reads:
                chunks, firsts = np.unique(plan.reads["chunk"], return_index=True)
                self._reads, self._order = weakref.ref(plan.reads), chunks[np.argsort(firsts)]
                self._seen, self._most = 0, FEWEST
            self._seen = max(self._seen, int(np.flatnonzero(self._order == chunk)[0]) + 1)
            return self._look()
        finally:
            self._looking.release()

    def _look(self) -> list[int]:
        """Return the next chunks, up to the first that the page cache lacks."""
        held: list[int] = []
        for chunk in self._order[self._seen : self._seen + self._most].tolist():
            self._seen += 1
            if not self.holds(chunk):
                self._most = FEWEST
                return held
            held.append(chunk)
        self._most = min(MOST, 2 * self._most)
        return held


class Storing(Reprs, shows="_folder _jobs"):
    """The thread that writes to `folder`, for samples in the pages of `arena`. `post` has the loop call a function.

    The loop passes samples that stay in memory until the thread is done. The thread copies them, and the folder
    compares the checksum of each sample in the copy, so that no damaged sample is ever cached. The thread also
    publishes the samples in time.
    """

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
        act = self._folder.drop if forget.parts else self._folder.forget
        self._jobs.put(partial(act, forget.places))

    def close(self) -> None:
        """Publish the written samples, and end. A thread that is still blocked in the disk is left behind."""
        self._jobs.put(None)
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        try:
            while True:
                with suppress(Empty):
                    if (job := self._jobs.get(timeout=EVERY_S)) is None:
                        break
                    job()
                self._folder.publish_if_due()
            self._folder.publish()
        finally:
            self._folder.close()

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
            stored = StoredSamples(memory.reshape(-1), starts[fits], rows[fits])
            held[fits] = self._folder.store(write.places[fits], stored)
        except FormatError:  # the index cannot be read; direct reads raise the reason
            pass
        self._post(partial(written, held, self._folder.stopped))  # type: ignore[arg-type]
