"""Makes plans and reads samples while the server's loop continues: in the threads of `Executor`, and in decode workers.

The results are passed to the loop as stimuli (`tell`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from brand.errors import BrandError, FormatError, ServerError, UnreadableError
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import (
    DrawAnswer,
    EndPreparer,
    Fill,
    Forget,
    MakePlan,
    Prepare,
    Read,
    ReadFor,
    StartPreparer,
    Write,
)
from brand.node.decide.stimuli import KeptChosen, PlanMade, ReadEnded, ReadForEnded, Stimulus, WriteEnded
from brand.node.memory.pages import PageCounts
from brand.node.serve.executor import Executor, Readers
from brand.node.serve.scouting import Scout
from brand.node.serve.storing import Storing
from brand.node.serve.troubles import Troubles
from brand.node.wire.lease import Held
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.samples import pack_samples
from brand.orders.base.plan import read_of_sample
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.pagecache import in_page_cache
from brand.timeline import Timeline

if TYPE_CHECKING:
    from brand.node.serve.preparers import DecodeWorkerProcesses

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class IsWanted:
    """Whether the planner's work is still needed."""

    plan: Callable[[MakePlan], bool]
    choice: Callable[[ChooseCached], bool]


class BackgroundWork(Reprs, shows="_executor"):
    """Executes the instructions that take time.

    `wanted` tells whether a plan or a choice is still needed, `node` is the number of this node. `storing` writes the
    cache folder; None if there is none. `preparers` decode samples; None if clients decode. `leaves`: clients read
    samples that the page cache holds themselves, so the server does not read them.
    """

    def __init__(
        self,
        data: StoredDataSet,
        pages_of: PageCounts,
        executor: Executor,
        wanted: IsWanted,
        tell: Callable[[Stimulus], object],
        troubles: Troubles,
        node: NodeNumber,
        storing: Storing | None = None,
        preparers: DecodeWorkerProcesses | None = None,
        *,
        leaves: bool = False,
    ) -> None:
        self._data, self._pages_of, self._executor = data, pages_of, executor
        self._wanted, self._tell, self._troubles, self._storing = wanted, tell, troubles, storing
        self._node, self._preparers, self._leaves = node, preparers, leaves
        self._scout = Scout(lambda chunk: in_page_cache(data.location.chunk_file(chunk)))
        self._timeline: Timeline | None = None

    @property
    def wake(self) -> int:
        """A descriptor that is readable while there are results."""
        return self._executor.wake

    def finish(self) -> None:
        """Pass on the results of jobs that have ended since the last call."""
        self._executor.finish()

    def ask(self, what: Callable[[], _T], limit_s: float) -> _T:
        """Call `Executor.ask`."""
        return self._executor.ask(what, limit_s)

    def close(self) -> None:
        """End the threads and the processes."""
        if self._preparers is not None:
            self._preparers.close()
        self._executor.close()
        if self._timeline is not None:
            self._timeline.close()
        if self._storing is not None:
            self._storing.close()

    def trace(self, timeline: Timeline) -> None:
        """Write reads, and the waits of draws by cause, to a trace."""
        self._timeline = timeline

    def make_plan(self, wanted: MakePlan) -> None:
        """Make the plan of an epoch, if it is still needed when the planner begins it."""

        def make(_: object) -> PlanMade | None:
            if not self._wanted.plan(wanted):
                return None
            plan = wanted.order.plan(wanted.key[1], wanted.joins)
            return PlanMade(wanted.key, plan, read_of_sample(plan), wanted.joins)

        self._executor.plan(make, self._made)

    def choose(self, choice: ChooseCached) -> None:
        """Choose the samples to cache in memory, and those to cache in the cache folder.

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

        self._executor.plan(choose, chosen)

    def read(self, read: Read) -> None:
        """Read samples into memory. The pieces of a bundle are spread over the threads."""
        leaves = self._leaves and not read.plan.shares  # jobs share samples only by draws
        left: list[int] = []
        chunks: set[int] = set()

        def job(readers: Readers, number: int) -> None:
            piece = read.pieces[number]
            cached = bool(piece["cached"])
            if not cached:  # cached samples were checked before
                # Without `close`, each of many threads would hold some chunks open.
                self._data.check_tables(read.places_of(number).astype(np.int64), close=True)
            chunk, offset, size = int(piece["chunk"]), int(piece["offset"]), int(piece["size"])
            if leaves and in_page_cache(self._data.location.chunk_file(chunk), offset, size):
                left.append(number)
                if chunk not in chunks and self._scout.holds(chunk):
                    chunks.update([chunk, *self._scout.beyond(read.plan, chunk)])
                return
            start_s = time.monotonic()
            readers.of(cached=cached).scatter(chunk, offset, size, read.vectors[number])
            if self._timeline is not None:
                facts = {"chunk": chunk, "offset": offset, "bytes": size, "cached": cached}
                self._timeline.add(threading.current_thread().name, "read", start_s, time.monotonic(), facts)

        def done(errors: Mapping[int, BaseException]) -> None:
            for number, error in errors.items():
                path = self._data.location.chunk_file(int(read.pieces["chunk"][number]))
                file = f"the cached copy of {path}" if read.pieces["cached"][number] else path
                self._troubles.read_failed(file, error, time.monotonic())
            self._tell(ReadEnded(read, tuple(sorted(errors)), tuple(sorted(left)), tuple(sorted(chunks))))

        self._executor.share(job, len(read.pieces), done)

    def answered(self, answer: DrawAnswer) -> None:
        """Write the waits of a draw that has been answered to the trace."""
        if self._timeline is None:
            return
        end_s = time.monotonic()
        for cause, seconds in zip(Held._fields, answer.held, strict=True):
            if seconds:
                self._timeline.add(f"client {answer.client}", f"held for {cause}", end_s - seconds, end_s)
                end_s -= seconds

    def write(self, write: Write) -> None:
        """Write samples to the cache folder."""
        assert self._storing is not None
        self._storing.write(write, lambda held, stopped: self._tell(WriteEnded(write, held, stopped)))

    def forget(self, forget: Forget) -> None:
        """Have the cache folder forget samples."""
        assert self._storing is not None
        self._storing.forget(forget)

    def prepare(self, instruction: StartPreparer | EndPreparer | Prepare | Fill) -> None:
        """Pass an instruction to the decode workers."""
        assert self._preparers is not None
        self._preparers.do(instruction)

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
        self._executor.read(lambda _: pack_samples(self._data.stored_bytes(read.places, raising=own)), done)

    def _told(self, error: FormatError) -> BrandError:
        """Return the error that a client gets for a sample that this server could not read for it.

        A store that does not answer is no damage, so it is an error that no draw may skip.
        """
        outage = self._data.location.in_store and isinstance(error, UnreadableError)
        return ServerError(str(error)) if outage else error

    def _made(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error  # a bug, because plans are pure: end the server instead of serving a wrong order
        if result is not None:
            self._tell(result)
