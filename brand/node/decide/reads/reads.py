"""Which read starts next, and how are its samples used?

Reads start in the order in which draws will need them, as far ahead as memory allows. At the end of an epoch, reads for
the next one use the memory that the last draws free.

The loop needs about the same time for a read of one sample as of many. If each sample is a read of its own, the next 32
therefore start as one bundle. If the storage is faster than the loop, a few stripes start together. Otherwise each
stripe starts and ends alone, so that no sample waits for the slowest of four operations, and no thread is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.cache.caching import Caching
from brand.node.decide.epochs.epochs import Epochs, draws_before
from brand.node.decide.reads.operations import (
    StoredChunks,
    Stripe,
    UnitReads,
    around_misses,
    leave_chunks,
    operations_of,
    pieces_of,
    span_of,
    units_of,
)
from brand.node.decide.state.counters import Counters
from brand.node.decide.state.epoch import Epoch, reached, to_read
from brand.node.decide.state.features import EarlyReads
from brand.node.decide.state.instructions import PIECE, Read, rows_of, rows_of_each
from brand.node.decide.state.states import EARLY, GONE
from brand.node.decide.stimuli import ReadEnded
from brand.node.memory.residents import Residents
from brand.reprs import Reprs

if TYPE_CHECKING:
    from brand.node.decide.reads.sources import MeasuredSources

Wait = tuple[Epoch, NDArray[Any]]
"""An epoch, and the places that it waits for."""
BUNDLE: Final = 32
"""The most samples of a bundle."""
ROOM_SHARE: Final = 32
"""If samples that jobs hold early are freed for a read, `1 / ROOM_SHARE` of memory becomes free at once."""
BUNDLE_BYTES: Final = 2 << 20
"""The most memory that a bundle of more than one sample takes."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The epochs that wait for a read that has not ended."""

    epoch: Epoch
    others: Sequence[Wait]
    """Other epochs that wait for samples of the read."""

    def of(self, places: NDArray[Any]) -> Waits:
        """Return the epochs that wait for these places, which are some of the read's."""
        others = [(epoch, waited[np.isin(waited, places)]) for epoch, waited in self.others]
        return Waits(self.epoch, others)


class Reads(Reprs, shows="under_way no_room"):
    """Large reads of one node."""

    def __init__(
        self,
        data: StoredChunks,
        residents: Residents,
        epochs: Epochs,
        caching: Caching,
        counters: Counters,
        remote_pages: int,
    ) -> None:
        self._index, self._gap_bytes = data.index, data.storage.gap_bytes
        self._residents, self._epochs = residents, epochs
        self._caching, self._counters, self._remote_pages = caching, counters, remote_pages
        self._early: EarlyReads | None = None
        """Lets one read serve several jobs. None if no job shares."""
        self._sources: MeasuredSources | None = None
        """Chooses between a cache folder and the storage. None if there is no folder."""
        if caching.start is not None:
            from brand.node.decide.reads.sources import MeasuredSources

            self._sources = MeasuredSources(counters.cache)
        self._numbers = count(1)
        self._again: deque[Read] = deque()
        """Reads that have failed in the cache folder, and are repeated from the storage; or the reverse."""
        self.waits: dict[int, Waits] = {}
        """The epochs that wait for each read that has not ended, by number."""
        self.under_way = 0
        """Number of reads that have not ended. A bundle counts as one, stripes that start together count as many."""
        self._ended = 0
        """Reads that have ended since the last call of `together`, counted in the same way."""
        self.no_room = False
        """Whether memory had no space for the next read."""

    def share(self, early: EarlyReads) -> None:
        """Let one read serve several jobs from now on."""
        self._early = early

    @property
    def stuck(self) -> bool:
        """Whether memory is full, and no read is under way."""
        return self.no_room and not self.under_way

    def together(self) -> int:
        """Return the number of reads that may start as one: one less than have ended since the last call.

        If the storage is faster than the loop, several have ended. If it is slower, they end one by one, so that fewer
        start together each time, until each starts alone: samples are available when all of their read is in memory.
        """
        ended, self._ended = self._ended, 0
        return max(1, ended - 1)

    def next(self, now_s: float, most: int) -> Read | None:
        """Return the read to start now, which counts as at most `most` reads. None if there is none or no space for it.

        Samples that jobs hold early, and draw later than those of the read, are freed for it.
        """
        self.no_room = False
        if self._again:
            again = self._again.popleft()
            again.pieces["folder"] = np.where(again.pieces["folder"] > 0, self._held(again), np.int8(0))
            return self._begin(again)
        while (found := self._most_urgent(now_s)) is not None:
            epoch, _ = found
            read = self._bundle(epoch, now_s) if epoch.plan.reads is None else self._stripes(epoch, most, now_s)
            if read is not None:
                return read
            early = self._early
            if self.no_room and (early is None or not early.may_give_back or not self.make_room(now_s)):
                return None
            self.no_room = False
        return None

    def make_room(self, now_s: float) -> bool:
        """Free samples that jobs hold early and draw later than those of the next read. Return whether any were."""
        found = self._most_urgent(now_s)
        if found is None or self._early is None or not found[0].plan.shares:
            return False
        share = self._residents.pool.allocator.count // ROOM_SHARE
        return self._early.give_back(share, now_s, beyond=found[1])

    def on_read_ended(self, ended: ReadEnded, now_s: float) -> None:
        """Take the samples of a read that has ended. Pieces that failed in a cache folder are read from the storage.

        Pieces that failed in the storage are read from the folder that holds them. If none does, clients read them, as
        they do those that were left in the page cache.
        """
        read, failed, left, chunks = ended.read, ended.failed, ended.left, ended.chunks
        if self._sources is not None:
            self._sources.on_ended(read, ended.seconds, failed, now_s)
        waits = self.waits.pop(read.number)
        self.under_way -= read.count
        self._ended += read.count
        self._caching.writing.reserve(-read.reserved)
        residents, states = self._residents, waits.epoch.states
        places, heads, rows, lost = read.places, read.heads, read.rows, read.places[:0]
        whole = read.of_pieces(read.pieces["samples"] > 1) if read.reserved else np.zeros(len(places), np.bool_)
        if failed or left:
            fails, cached = np.isin(np.arange(len(read.pieces)), failed + left), read.pieces["folder"] > 0
            spare = self._spare(read, failed)
            repeated = fails & (cached | (spare > 0))
            self._counters.reads.add_started(read.pieces[list(left)], -1)  # the page cache holds them
            residents.left.leave(places[read.of_pieces(np.isin(np.arange(len(read.pieces)), left))])
            if repeated.any():
                again = read.part(next(self._numbers), repeated)
                self.waits[again.number] = waits.of(again.places)
                if (fails & cached).any():
                    wrong = read.of_pieces(fails & cached)
                    self._caching.on_read_failed(
                        places[wrong], np.repeat(read.pieces["folder"], read.pieces["samples"])[wrong]
                    )
                again.pieces["folder"] = spare[repeated]
                self._again.append(again)
            if (fails & ~cached).any():
                self._counters.reads.add_failed(int((fails & ~cached).sum()) - len(left))
                failing = read.of_pieces(fails & ~repeated)
                lost = places[failing]
                residents.pool.give_back(lost, heads[failing])
                states.mark_failed(lost)
            brought = read.of_pieces(~fails)
            read = read.part(read.number, ~repeated)
            waits = waits.of(read.places)
            places, heads, rows, whole = places[brought], heads[brought], rows[brought], whole[brought]
        residents.pool.came(places, heads, rows)
        twice = residents.present(places)  # another epoch's read was faster
        residents.put(places[~twice], heads[~twice])
        if twice.any():
            residents.pool.give_back(places[twice], heads[twice])
            residents.refer(places[twice])
        self._caching.on_samples(places[whole], reserved=True)
        self._caching.on_samples(places[~whole])
        for key, live in self._epochs.lives.live():
            if live.epoch is waits.epoch:
                self._epochs.runs[key[0]].add_loaded(len(read.places) - len(lost))
        if self._early is not None:
            self._early.on_read(read, waits.others, lost)
        gone = places[~states.mark_arrived(places)]
        if len(gone):
            residents.let_go(gone)
        if chunks:
            leave_chunks(residents, waits.epoch, chunks)

    def waits_for_plan(self, now_s: float) -> bool:
        """Return whether no read starts before the planner has answered, however much memory is free."""
        found = self._first(now_s)
        return found is not None and found[0].reads.next is None

    def _most_urgent(self, now_s: float) -> tuple[Epoch, float] | None:
        """Return the epoch whose next read is needed in the fewest draws, and their number.

        Returns None if that read is not known yet: reads of later epochs must not take its memory.
        """
        found = self._first(now_s)
        return None if found is None or found[0].reads.next is None else found

    def _first(self, now_s: float) -> tuple[Epoch, float] | None:
        """Return the epoch with the most urgent read, whether that read is known or not, and the draws before it."""
        best: tuple[Epoch, float] | None = None
        for key, live in self._epochs.lives.live():
            epoch, early = live.epoch, self._early
            if epoch.reads.next is not None or epoch.waits_for_plan:
                deadline = epoch.known.stop if epoch.reads.next is None else epoch.reads.deadline
                if early is None or not epoch.plan.shares:
                    lead = draws_before(self._epochs, key, live) + deadline - reached(epoch)
                else:
                    lead = early.lead(key, live, deadline, now_s)
                if best is None or lead < best[1]:
                    best = epoch, lead
        return best

    def _stripes(self, epoch: Epoch, most: int, now_s: float) -> Read | None:
        """Start the next reads of an epoch as one, at most `most`, if it needs them and memory has space for them.

        Returns None if none is needed, or if memory has no space for the first one (`no_room`).
        """
        plan, residents = epoch.plan, self._residents
        numbers = epoch.reads.upcoming(1 if plan.shares else most).tolist()
        held_by = [plan.places_held(number) for number in numbers]
        held, ends = np.concatenate(held_by), np.cumsum([len(places) for places in held_by])
        due, present = to_read(epoch, held), residents.present(held)
        absent = due & ~present
        needed = np.cumsum(np.where(absent, residents.pages_of[held], 0), dtype=np.int64)[ends - 1]
        fitting = int(np.searchsorted(needed, self._free_pages, side="right"))
        end = int(ends[max(0, fitting - 1)])
        self._hold_present(epoch, held[:end][(due & present)[:end]])
        if not fitting:
            if self._will_have_room(int(needed[0])):
                return None
            unfit = held[:end][absent[:end]]
            epoch.states.release(unfit)  # they never fit: direct reads report the reason
            epoch.progress.add_unbuffered(len(unfit))
        epoch.reads.pop(max(1, fitting))
        found, left = list[Stripe](), self._free_pages - int(needed[fitting - 1])
        for number, start, end in zip(numbers[:fitting], [0, *ends.tolist()], ends.tolist(), strict=False):
            missing = held[start:end][absent[start:end]]
            if len(missing):
                first, last = span_of(plan, number, missing)
                rows = rows_of(self._index, first, last, residents.pages_of, residents.pool.allocator.page)
                if rows is None:
                    self._counters.reads.add_failed(1)
                    epoch.states.release(missing)  # direct reads report the error of the index
                else:
                    passed = self._passed(epoch, first, last, left, now_s)
                    left -= int(residents.pages_of[passed].sum(dtype=np.int64))
                    found.append(Stripe(first, rows, missing, passed))
        return self._start_stripes(epoch, found, now_s) if found else None

    def _bundle(self, epoch: Epoch, now_s: float) -> Read | None:
        """Start the next reads of single samples of an epoch, as many as a bundle and memory have space for.

        Returns None if none is needed, or if memory has no space for the first one (`no_room`).
        """
        residents, page = self._residents, self._residents.pool.allocator.page
        places = epoch.plan.sample_of[epoch.reads.upcoming(BUNDLE)]
        due, present = to_read(epoch, places), residents.present(places)
        misses = due & ~present
        unit_reads = self._unit_reads(epoch, places[misses])
        needed = np.where(misses, residents.pages_of[places], 0).astype(np.int64)
        if unit_reads is not None:
            needed[misses] = unit_reads.pages_at(places[misses], residents.pages_of)
        filled = np.cumsum(needed)
        most = min(self._free_pages, max(BUNDLE_BYTES // page, int(filled[filled > 0][:1].sum())))
        fitting = int(np.searchsorted(filled, most, side="right"))
        if not fitting:
            if self._will_have_room(int(needed[0])):
                return None
            epoch.states.release(places[:1])  # it never fits
            epoch.progress.add_unbuffered(1)
            fitting, due = 1, np.zeros_like(due)
        epoch.reads.pop(fitting)
        places, due, present = places[:fitting], due[:fitting], present[:fitting]
        self._hold_present(epoch, places[due & present])
        early = epoch.states.are(EARLY, places)
        epoch.states.start(places[early])  # another read loads them
        absent = places[due & ~present]
        if not len(absent):
            return None
        brought, starts = pieces_of(absent, None if unit_reads is None else unit_reads.upto(len(absent)))
        rows, known = rows_of_each(self._index, brought, residents.pages_of, page)
        if not known.all():  # each sample is read alone: direct reads report why a row is missing
            brought = np.sort(absent)
            rows, known = rows_of_each(self._index, brought, residents.pages_of, page)
            self._counters.reads.add_failed(int((~known).sum()))
            epoch.states.release(brought[~known])
            absent = brought = brought[known]
            starts = np.arange(len(brought))
        return self._start_bundle(epoch, absent, brought, starts, rows, now_s) if len(brought) else None

    def _unit_reads(self, epoch: Epoch, misses: NDArray[np.intp]) -> UnitReads | None:
        """Return the reads of whole units for these misses. None if there are none."""
        unit = self._caching.whole_unit
        if unit == 1 or not len(misses):
            return None
        caching, residents = self._caching, self._residents
        units = units_of(misses, caching.wanted(misses), unit, epoch.plan.mapping.chunk_size, len(residents.pages_of))
        free = epoch.states.due(units.places) & ~residents.present(units.places)
        free &= caching.wanted(units.places) | residents.to_keep(units.places) | np.isin(units.places, misses)
        found = around_misses(units, misses, free)
        fits = np.cumsum(found.pages(residents.pages_of)) <= caching.writing.room
        return found.of(fits) if fits.any() else None

    @property
    def _free_pages(self) -> int:
        return max(0, self._residents.pool.allocator.free - reserved(self._residents, self._remote_pages))

    def _hold_present(self, epoch: Epoch, places: NDArray[np.intp]) -> None:
        if len(places):
            self._residents.refer(places)
            epoch.states.mark_present(places)

    def _will_have_room(self, pages: int) -> bool:
        """Return whether a read that does not fit now can fit later. Sets `no_room` in that case."""
        self.no_room = pages < self._residents.pool.allocator.count - self._remote_pages
        return self.no_room

    def _passed(self, epoch: Epoch, first: int, last: int, most: int, now_s: float) -> NDArray[np.intp]:
        """Return places from `first` to `last` that others will draw, but not this epoch: at most `most` pages.

        A subset's read passes them. If it left them out, the jobs that need them would read the stripe again; so would
        the other orders of a sampler with weights, most of whose samples are cached.
        """
        shares = self._early is not None and epoch.plan.shares
        if not (shares or (epoch.plan.narrows and self._epochs.runs.have_weights)):
            return np.arange(0)
        places = np.arange(first, last)
        places = places[epoch.states.are(GONE, places) & ~self._residents.present(places)]
        if shares and self._early is not None:
            places = places[self._early.awaited(places, epoch, now_s)]
        else:
            places = places[self._residents.to_keep(places)]
        return places[np.cumsum(self._residents.pages_of[places], dtype=np.int64) <= most]

    def _start_stripes(self, epoch: Epoch, stripes: list[Stripe], now_s: float) -> Read:
        """Start one read of the absent samples of each stripe, in as few operations as are worth it (`cut_at_gaps`)."""
        residents = self._residents
        gap_bytes = self._gap_bytes if epoch.plan.narrows else None
        found = operations_of(stripes, epoch.plan.mapping.chunk_size, gap_bytes)
        heads, pages = residents.pool.take(found.places)
        held = folder_of_each(self._caching.holds(found.places), found.firsts)
        found.pieces["folder"] = self._choose(found.pieces, held, now_s)
        vector, upto = residents.pool.vector(found.rows["size"].astype(np.int64), found.held, pages)
        vectors = np.split(vector, upto[found.ends[:-1] - 1])
        number, rows = next(self._numbers), found.rows[found.held]
        read = Read(number, found.pieces, vectors, found.places, heads, rows, epoch.plan, count=len(stripes))
        return self._start(epoch, read, found.places, held)

    def _start_bundle(
        self,
        epoch: Epoch,
        due: NDArray[np.intp],
        places: NDArray[np.int64],
        starts: NDArray[np.intp],
        rows: NDArray[np.void],
        now_s: float,
    ) -> Read:
        """Start the reads of these pieces. Samples that are not due are read for the folder or the memory cache."""
        residents, caching = self._residents, self._caching
        heads, pages = residents.pool.take(places)
        sizes, every = rows["size"].astype(np.int64), np.ones(len(places), np.bool_)
        pieces = np.empty(len(starts), PIECE)
        pieces["chunk"], pieces["offset"] = places[starts] // epoch.plan.mapping.chunk_size, rows["offset"][starts]
        pieces["size"], pieces["span"] = np.add.reduceat(sizes, starts), np.diff(starts, append=len(places))
        pieces["samples"] = pieces["span"]
        held = folder_of_each(caching.holds(places), starts)
        pieces["folder"] = self._choose(pieces, held, now_s)
        vector, upto = residents.pool.vector(sizes, every, pages)
        ends = upto[np.append(starts[1:], len(places)) - 1].tolist()
        vectors = [vector[first:end] for first, end in zip([0, *ends], ends, strict=False)]
        reserved = 0
        if len(places) > len(due):
            epoch.states.start_early(np.setdiff1d(places, due, assume_unique=True))
            whole = np.repeat(pieces["samples"] > 1, pieces["samples"])
            reserved = int(residents.pages_of[places[whole]].sum(dtype=np.int64))
            caching.writing.reserve(reserved)
        read = Read(next(self._numbers), pieces, vectors, places, heads, rows, epoch.plan, reserved)
        return self._start(epoch, read, due, held)

    def _choose(self, pieces: NDArray[np.void], held: NDArray[np.int8], now_s: float) -> NDArray[np.int8]:
        """Return the source of each piece: the folder that holds it, or the storage if draws wait for a slow one."""
        if self._sources is None:
            return held
        if self._epochs.lives.draws():
            self._sources.on_draw_waits(now_s)
        return self._sources.choose(pieces["size"], held, now_s)

    def _spare(self, read: Read, failed: tuple[int, ...]) -> NDArray[np.int8]:
        """Return the folder that holds each piece of a read that has failed in the storage; 0 if none does."""
        failing = np.isin(np.arange(len(read.pieces)), failed) & (read.pieces["folder"] == 0)
        return np.where(failing, self._held(read), np.int8(0))

    def _held(self, read: Read) -> NDArray[np.int8]:
        """Return the folder that holds each piece of a read; 0 if none does."""
        samples = read.pieces["samples"].astype(np.int64)
        return folder_of_each(self._caching.holds(read.places), np.cumsum(samples) - samples)

    def _start(self, epoch: Epoch, read: Read, due: NDArray[Any], held: NDArray[np.int8]) -> Read:
        """Start a read that loads the `due` samples of an epoch, and perhaps others.

        `held`: the folder that holds each piece, 0 if none does.
        """
        self._caching.on_read_started(epoch.number, self._epochs.lives)
        epoch.states.start(due)
        others = self._early.start(read.places, epoch) if self._early is not None and epoch.plan.shares else []
        self.waits[read.number] = Waits(epoch, others)
        return self._begin(read, held)

    def _begin(self, read: Read, held: NDArray[np.int8] | None = None) -> Read:
        self.under_way += read.count
        if self._sources is not None:
            self._sources.on_started(read, read.pieces["folder"] if held is None else held)
        folders = read.pieces["folder"]
        if folders.any():
            for number, counters in enumerate(self._counters.cache, 1):
                counters.add_started(read.pieces[folders == number])
        if not folders.all():
            self._counters.reads.add_started(read.pieces[folders == 0])
        return read


def folder_of_each(held: NDArray[np.int8], firsts: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    """Return the cache folder that holds all samples of each piece; 0 if none does. Shape (pieces,).

    `held`: the folder that holds each sample, 0 if none does. `firsts`: index of the first sample of each piece.
    """
    least = np.minimum.reduceat(held, firsts)
    return np.where(np.maximum.reduceat(held, firsts) == least, least, np.int8(0))


def reserved(residents: Residents, remote_pages: int) -> int:
    """Return the pages that remain free for samples of other nodes, which may fill `remote_pages`."""
    return max(0, remote_pages - int(residents.sent_pages.sum())) if remote_pages else 0
