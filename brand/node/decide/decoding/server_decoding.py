"""Which samples do the decode workers of a node decode next, and which decoded samples does a draw get?

Samples that waiting draws lack come first, then the next ones of each rank (`DecodeAheadTable`), as far ahead as the
memory for decoded samples reaches. `DecodeQueue` chooses the rank for which a worker decodes. A worker gets the raw
pages of a batch and returns the decoded sizes. The server allocates pages, and copies the samples out of the worker's
memory.

A draw waits only for samples that will be decoded. Its client decodes a sample itself if no worker is left, memory is
full, the sample cannot be decoded, a worker has crashed on it, or too few runs want it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.decoding.ahead import Clearing, DecodeAheadTable, NextToDecode, Queue
from brand.node.decide.decoding.queues import Allots, DecodeQueue
from brand.node.decide.decoding.specs import DecodeSpecTable
from brand.node.decide.decoding.workers import DecodeWorkers, Strikes
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import Draw
from brand.node.decide.state.features import LEAST, NOTHING, DecodedSamples
from brand.node.decide.state.instructions import EndPreparer, Fill, Prepare, StartPreparer
from brand.node.memory.allocator import Allocator
from brand.node.memory.decoded import MADE, MAKING, RAW, PreparedMemory
from brand.node.memory.residents import Residents
from brand.node.wire.decoding import BATCH_S, ENOUGH, MOST_PAGES, UNTRIED, DecodeSpec, pages_of
from brand.node.wire.messages import Chains
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.reprs import Reprs

BATCH: Final = 16
"""Limit on the samples of a batch."""
BATCH_SHARE: Final = 16
"""A batch of more than one sample takes at most `1 / BATCH_SHARE` of the memory."""
GUESS: Final = 64
"""Assumed pages of a sample until one with its decode spec is known; less if memory is small."""

ToDo = StartPreparer | EndPreparer | Prepare | Fill


@dataclass(slots=True)
class _RankWork:
    """The work that was done for a rank of a job."""

    job: str
    decoded: int = 0
    seconds: float = 0.0
    """Seconds of decode workers."""

    def add(self, decoded: int, seconds: float) -> None:
        self.decoded, self.seconds = self.decoded + decoded, self.seconds + seconds


@dataclass(slots=True)
class _DecodeBatch:
    queue: Queue
    work: _RankWork
    want: int
    preparer: int
    places: NDArray[Any]
    pages: int
    """Expected pages of the decoded samples; 0 once they are allocated."""
    heads: NDArray[np.int32] | None = None
    """First pages of the samples, once the decode worker has reported their sizes."""
    counts: NDArray[Any] | None = None

    def set_pages(self, places: NDArray[Any], heads: NDArray[np.int32], counts: NDArray[Any]) -> None:
        self.places, self.heads, self.counts, self.pages = places, heads, counts, 0


class ServerDecoding(Reprs, shows="memory workers _batches specs"):
    """Decoding at one node by `workers` decode workers, for decode specs that at least `least_runs` runs have.

    `allotment`: how the workers are divided among ranks, `LEAST` or a name of `allotment.BY_NAME`.
    """

    def __init__(
        self,
        pages: Allocator,
        workers: int,
        residents: Residents,
        epochs: Epochs,
        least_runs: int,
        allotment: str = LEAST,
    ) -> None:
        self.memory, self.workers = PreparedMemory(pages, len(residents.pages_of)), DecodeWorkers(workers, BATCH_S)
        self._residents, self._epochs, self.allotment = residents, epochs, allotment
        self.specs = DecodeSpecTable(self._forget, least_runs)
        self._aheads = DecodeAheadTable(epochs, self.specs)
        self._clearing = Clearing(self.memory, self._aheads)
        self._choices = DecodeQueue(self._aheads, self.memory, residents, _allots(allotment))
        self._last = 0
        """Number of the last batch."""
        self._batches: dict[int, _DecodeBatch] = {}
        self._strikes = Strikes()
        self._full = False
        """Whether memory has no space for the next sample."""
        self._counts = Counter[str]()
        self._decoded: dict[int, tuple[int, int]] = {}
        """Pages and number of the decoded samples, by decode spec."""
        self._work: dict[Queue, _RankWork] = {}
        """For `facts`. The ranks of a job that has ended are forgotten when the next job registers."""

    # -- clients -----------------------------------------------------------------------------------------------------

    def register(self, client: ClientNumber, run: RunNumber, wants: tuple[DecodeSpec, ...]) -> tuple[int, ...] | None:
        """Register the decode specs of a client for a run. Return their numbers, or None if there are too many."""
        numbers = self.specs.register(client, run, wants)
        for number in numbers or ():
            if number not in self.memory:
                self.memory.add(number)
        self._work = {queue: work for queue, work in self._work.items() if self.specs.of_run(queue[0])}
        self.on_news()
        return numbers

    def on_news(self) -> None:
        """Search for samples to decode again, because samples may be new in memory, or epochs may have begun."""
        self._choices.on_news()

    def waits(self, client: ClientNumber, run: RunNumber, places: NDArray[Any]) -> bool:
        wants = self.specs.of(client, run)
        if not wants or not self.workers.hopeful:
            return False
        here = places[self._residents.present(places)]
        for want in self.specs.of_run(run).intersection(wants):
            state = self.memory[want].states(here)
            coming = (state == MAKING) | ((state == RAW) & (not self._full))
            if coming.any() and not self._strikes.has_strikes(want, here[coming]).all():
                return True
        return False

    def take(self, draw: Draw, epoch: Epoch, here: NDArray[Any]) -> DecodedSamples:
        """Answer a draw that found these samples in memory. Return the decoded samples that it gets."""
        self._aheads.remove(epoch, epoch.plan.sample_of[draw.positions])
        wants = self.specs.of(draw.client, draw.key[0])
        if not wants:
            return NOTHING
        prepared = np.logical_and.reduce([self.memory[want].states(here) == MADE for want in wants])
        made = here[prepared]
        self._counts.update(fetched_decoded=len(made), fetched_encoded=len(here) - len(made))
        if not len(made):
            return NOTHING
        found = [self.memory[want].lease(made) for want in wants]
        chains = Chains(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        return DecodedSamples(prepared, chains, tuple((want, made) for want in wants))

    # -- decode workers ----------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> Iterator[ToDo]:
        for late in self.workers.late(now_s):
            self.on_worker_end(late, now_s)
            yield EndPreparer(late)
        self._full = False
        if not self.specs.any:
            return
        yield from map(StartPreparer, self.workers.start(now_s))
        self._aheads.update()
        while (number := self.workers.idle()) is not None and (found := self._next(now_s)) is not None:
            if len(found.places):
                yield self._prepare(number, found, now_s)

    def on_sizes(self, preparer: int, number: int, sizes: NDArray[np.int64], now_s: float) -> Iterator[Fill]:
        """Allocate pages for a batch that a decode worker has decoded to samples of these sizes, and yield the copy."""
        batch, shelf = self._batches[number], self.memory[self._batches[number].want]
        places, pages, seconds = batch.places, pages_of(sizes), self.workers.busy_s(preparer, now_s)
        self._choices.record(batch.want, places[sizes != UNTRIED], seconds)
        batch.work.add(0, seconds)
        self._residents.mark_checked(places[sizes > 0])
        self._residents.let_go(places)
        before, samples = self._decoded.get(batch.want, (0, 0))
        self._decoded[batch.want] = before + int(pages.sum()), samples + int(np.count_nonzero(pages))
        never = (pages > self.memory.largest) | ((pages == 0) & (sizes != UNTRIED))
        fits = (pages > 0) & ~never
        # The batch may have become larger than expected, and its samples may have been drawn meanwhile.
        if int(pages[fits].sum()) > self.memory.allocator.free:
            fits &= self._aheads.leads(batch.want, places, self._aheads.active_runs(now_s)) < np.inf
            fits &= np.cumsum(np.where(fits, pages, 0)) <= self.memory.allocator.free
        shelf.stops(places[never], never=True)
        shelf.stops(places[~never & ~fits])
        if not (never | fits).all():
            self._aheads.rewind()
        if not fits.any():
            del self._batches[number]
            self.workers.mark_idle(preparer, now_s)
            return
        heads, target = self.memory.allocator.take(pages[fits])
        batch.set_pages(places[fits], heads, pages[fits])
        self.workers.mark_busy(preparer, number, now_s, done=True)
        yield Fill(preparer, number, np.flatnonzero(np.repeat(fits, pages)), target)

    def on_copied(self, number: int, now_s: float) -> None:
        """Note that the samples of a batch were copied into the memory of decoded samples."""
        batch = self._batches.pop(number)
        assert batch.heads is not None
        assert batch.counts is not None
        self.memory[batch.want].put(batch.places, batch.heads, batch.counts)
        self._counts["decoded"] += len(batch.places)
        batch.work.add(len(batch.places), 0.0)
        self.workers.on_copied(batch.preparer, number, now_s)

    def on_worker_end(self, preparer: int, now_s: float) -> None:
        """Give back the batch of a decode worker that has ended."""
        for number, batch in list(self._batches.items()):
            if batch.preparer == preparer and batch.heads is None:
                del self._batches[number]
                self._residents.let_go(batch.places)
                self.memory[batch.want].stops(batch.places)
                self.memory[batch.want].stops(self._strikes.add(batch.want, batch.places), never=True)
        self._aheads.rewind()
        self.on_news()
        if self.workers.on_end(preparer, now_s):
            goes_on = self.workers.hopeful
            left = "the other workers continue" if goes_on else "clients decode these samples themselves"
            why = "has ended too often, or did not start, and is not restarted"
            self._epochs.runs.notice(f"decode worker {preparer} {why}; {left}")

    def facts(self) -> dict[str, Any]:
        allocator, counts = self.memory.allocator, self._counts
        return {
            "limit": allocator.bytes,
            "used": (allocator.count - 1 - allocator.free) * allocator.page,
            "specs": len(self.specs),
            "decoded": counts["decoded"],
            "fetched_decoded": counts["fetched_decoded"],
            "fetched_encoded": counts["fetched_encoded"],
            "workers": self.workers.alive,
            "ended": self.workers.ended_in_all,
            "allotment": self.allotment,
            "ranks": [
                {"job": work.job, "rank": rank, "decoded": work.decoded, "worker_s": round(work.seconds, 4)}
                for (_, rank), work in sorted(self._work.items())
            ],
        }

    def _next(self, now_s: float) -> NextToDecode | None:
        """Return the samples to decode next, at most as many as memory has space for."""
        working = Counter(batch.queue for batch in self._batches.values() if batch.heads is None)
        waiting = list(self._lacking(self._epochs.lives.draws(), now_s))
        for found in self._choices.next(waiting, working, self.workers.alive, BATCH, now_s):
            places = self._with_room(found, now_s)
            self._full = not len(places)
            if not self._full:
                return replace(found, places=self._alike(found.want, places))
        return None

    def _with_room(self, found: NextToDecode, now_s: float) -> NDArray[Any]:
        """Return the first of these samples, at most as many as a batch holds and as memory has space for."""
        allocator = self.memory.allocator
        mean = self._mean_pages(found.want)
        most = min(ENOUGH // allocator.page, allocator.count // BATCH_SHARE)
        wanted = min(len(found.places), BATCH, max(1, most // mean))
        under_way = sum(batch.pages for batch in self._batches.values())
        runs = self._aheads.active_runs(now_s)
        lead = float(self._aheads.leads(found.want, found.places[:wanted], runs).max())
        self._clearing.make_room(under_way + mean * wanted, lead, runs, now_s)
        return found.places[: max(0, min(wanted, (allocator.free - under_way) // mean))]

    def _lacking(self, draws: Iterable[Draw], now_s: float) -> Iterator[NextToDecode]:
        """Yield for each rank the samples that its oldest waiting draw lacks, if any. They are late since it waits."""
        seen = set[Queue]()
        for draw in draws:
            live = self._epochs.get(draw.key)
            if live is None or not live.epoch.decides(draw.positions):
                continue
            for want in self.specs.of_run(draw.key[0]).intersection(self.specs.of(draw.client, draw.key[0])):
                places = live.epoch.plan.sample_of[np.unique(draw.positions)]
                places = places[self._residents.present(places)]
                places = places[self.memory[want].states(places) == RAW]
                places = places[~self._strikes.has_strikes(want, places)]
                queue = draw.key[0], live.epoch.division.rank_of(int(draw.positions[0]))
                if len(places) and queue not in seen:
                    seen.add(queue)
                    yield NextToDecode(queue, want, places[:BATCH], 0.0, draw.since_s - now_s)

    def _alike(self, want: int, places: NDArray[Any]) -> NDArray[Any]:
        """Return the first of these samples, and others to decode with it. A sample that ended a worker is alone.

        None if the first one is too large for a packet, and is never decoded.
        """
        struck = self._strikes.has_strikes(want, places)
        places = places[:1] if struck[0] else places[~struck]
        few = np.cumsum(self._residents.pages_of[places].astype(np.int64)) <= MOST_PAGES
        if not few[0]:
            self.memory[want].stops(places[:1], never=True)
        return places[few]

    def _prepare(self, preparer: int, found: NextToDecode, now_s: float) -> Prepare:
        self._last += 1
        number, places, pages = self._last, found.places, self._mean_pages(found.want) * len(found.places)
        work = self._work.setdefault(found.queue, _RankWork(self._epochs.runs[found.queue[0]].name))
        self._batches[number] = _DecodeBatch(found.queue, work, found.want, preparer, places, pages)
        self.memory[found.want].starts(places)
        self._residents.refer(places)
        self.workers.mark_busy(preparer, number, now_s)
        chains = Chains(*self._residents.chains(places))
        return Prepare(preparer, number, found.want, self.specs.spec_of(found.want), chains)

    def _mean_pages(self, want: int) -> int:
        """Return the mean pages of a decoded sample, rounded up; a guess if none is known."""
        pages, samples = self._decoded.get(want, (0, 0))
        return -(-pages // samples) if samples else min(GUESS, self.memory.largest)

    def _forget(self, want: int) -> bool:
        """Forget a decode spec that no client has, unless its samples are in use. Return whether it was forgotten."""
        if self.memory[want].used:
            return False
        self.memory.remove(want)
        self._strikes.forget(want)
        self._choices.forget(want)
        return True


def _allots(allotment: str) -> Allots | None:
    """Return the allotment of this name; None for `LEAST`, which needs none."""
    if allotment == LEAST:
        return None
    from brand.node.decide.decoding.allotment import BY_NAME, WorkerAllotment

    return WorkerAllotment(BY_NAME[allotment])
