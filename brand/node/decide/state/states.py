"""The state of each sample of an epoch: one byte for each sample, changed only by named transitions.

                  DUE       COMING    EARLY     HELD      UNWANTED  GONE      NO_READ   UNASKED
    expect        DUE       COMING    EARLY     HELD      COMING    DUE       DUE       DUE
    need_no_read  NO_READ
    do_not_ask    UNASKED   UNWANTED  UNWANTED  UNASKED   UNWANTED  GONE      UNASKED   UNASKED
    start         COMING              COMING                        UNWANTED
    start_early   EARLY
    mark_present  HELD
    mark_arrived  HELD      HELD      DUE                 GONE
    mark_failed   GONE      GONE      DUE                 GONE
    release       GONE      UNWANTED  UNWANTED  GONE      UNWANTED  GONE      GONE      GONE
    forget        GONE      GONE      EARLY     HELD      GONE      GONE      NO_READ   UNASKED
    requeue                                     DUE

- `expect`: a rank of any node will draw it. `need_no_read`: the same, and it needs no read, because it is cached in
  memory, left to the page cache, or larger than memory can hold. `do_not_ask`: no rank that is known will draw it.
- `start`: its read or request has begun. `start_early`: a read for another sample also reads it.
- `mark_present`: it is in memory already. `mark_arrived`: its bytes are in memory now. `mark_failed`: its bytes will
  not arrive this way. `forget`: its bytes were lost on their way.
- `release`: it is drawn, sent, or not awaited. `requeue`: its memory is freed, and it is read when it is due.

A client that asks for a GONE sample reads it directly. The bytes of an UNWANTED sample are on their way, but no rank
of this epoch waits for them. Those of an EARLY sample are on their way for the cache folder: the epoch does not hold
them when they arrive, unless the sample's own read begins meanwhile. An empty cell is a transition that cannot happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import PackedMask, index_dtype
from brand.orders.base.plan import EpochPlan
from brand.orders.base.random import blocks
from brand.reprs import Reprs

# DUE is 0, so that the table of an epoch in which all samples are due at first takes memory only where that changes.
DUE, COMING, EARLY, HELD, UNWANTED, GONE, NO_READ, UNASKED = range(8)
_NEVER: Final = 255

_EXPECT: Final = np.array([DUE, COMING, EARLY, HELD, COMING, DUE, DUE, DUE], np.uint8)
_NEED_NO_READ: Final = np.array([NO_READ, *[_NEVER] * 7], np.uint8)
_DO_NOT_ASK: Final = np.array([UNASKED, UNWANTED, UNWANTED, UNASKED, UNWANTED, GONE, UNASKED, UNASKED], np.uint8)
_START: Final = np.array([COMING, _NEVER, COMING, _NEVER, _NEVER, UNWANTED, _NEVER, _NEVER], np.uint8)
_START_EARLY: Final = np.array([EARLY, *[_NEVER] * 7], np.uint8)
_MARK_PRESENT: Final = np.array([HELD, *[_NEVER] * 7], np.uint8)
_MARK_ARRIVED: Final = np.array([HELD, HELD, DUE, _NEVER, GONE, _NEVER, _NEVER, _NEVER], np.uint8)
_MARK_FAILED: Final = np.array([GONE, GONE, DUE, _NEVER, GONE, _NEVER, _NEVER, _NEVER], np.uint8)
_RELEASE: Final = np.array([GONE, UNWANTED, UNWANTED, GONE, UNWANTED, GONE, GONE, GONE], np.uint8)
_FORGET: Final = np.array([GONE, GONE, EARLY, HELD, GONE, GONE, NO_READ, UNASKED], np.uint8)
_REQUEUE: Final = np.array([_NEVER, _NEVER, _NEVER, DUE, *[_NEVER] * 4], np.uint8)

Places = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]
FOUND: Final = 1 << 13
"""Reads that the queue scans at a time to find the next ones."""
PASSED: Final = 256
"""Reads that the queue scans at a time to find the next one that it does not skip."""


class SampleStates:
    """The states of the samples of one epoch, by place. Methods take arrays of places."""

    def __init__(self, samples: int, at_first: int = GONE) -> None:
        self._state = np.zeros(samples, np.uint8) if at_first == DUE else np.full(samples, at_first, np.uint8)

    def __repr__(self) -> str:
        due, coming, early, held, unwanted, gone, *others = np.bincount(self._state, minlength=8).tolist()
        counts = f"{gone} gone, {unwanted} unwanted, {held} held, {due} due, {coming + early} coming"
        return f"SampleStates({counts}, {sum(others)} not read)"

    # -- questions ---------------------------------------------------------------------------------------------------

    def waited_for(self, places: Places | slice) -> Mask:
        """Return a mask of the samples that have not arrived, for a rank that will draw them."""
        return np.less_equal(self._state[places], EARLY)

    def due(self, places: Places | slice) -> Mask:
        """Return a mask of the samples that have not arrived and are not on their way."""
        return np.equal(self._state[places], DUE)

    def on_the_way(self, places: Places) -> Mask:
        """Return a mask of the samples with bytes on their way, whether a rank still waits for them or not."""
        state = self._state[places]
        return np.equal(state, COMING) | np.equal(state, EARLY) | np.equal(state, UNWANTED)

    def are(self, state: int, places: Places | slice) -> Mask:
        return np.equal(self._state[places], state)

    def all(self, state: int) -> NDArray[np.intp]:
        parts = [part.start + np.flatnonzero(self.are(state, part)) for part in blocks(len(self._state))]
        return np.concatenate(parts)

    # -- transitions -------------------------------------------------------------------------------------------------

    def expect(self, places: Places) -> None:
        self._change(places, _EXPECT)

    def need_no_read(self, places: Places) -> None:
        self._change(places, _NEED_NO_READ)

    def do_not_ask(self, places: Places) -> Mask:
        """Note that no known rank will draw these samples. Return a mask of those that the epoch held."""
        return np.equal(self._change(places, _DO_NOT_ASK)[0], HELD)

    def start(self, places: Places) -> None:
        self._change(places, _START)

    def start_early(self, places: Places) -> None:
        self._change(places, _START_EARLY)

    def mark_present(self, places: Places) -> None:
        self._change(places, _MARK_PRESENT)

    def mark_arrived(self, places: Places) -> Mask:
        """Note that the bytes of these samples are in memory. Return a mask of those that the epoch holds now."""
        return np.equal(self._change(places, _MARK_ARRIVED)[1], HELD)

    def mark_failed(self, places: Places) -> None:
        self._change(places, _MARK_FAILED)

    def release(self, places: Places | slice) -> Mask:
        """Release samples that are drawn, sent, or no longer waited for. Return a mask of those that the epoch held."""
        return np.equal(self._change(places, _RELEASE)[0], HELD)

    def release_others(self, part: slice, mask: Mask) -> None:
        """Release the due samples of a part that a mask of it leaves out."""
        state = self._state[part]
        np.copyto(state, GONE, where=~mask & np.equal(state, DUE))

    def release_all(self) -> NDArray[Any]:
        """Release all samples of an epoch that ends, except that due ones may stay. Return those that it held."""
        dtype = index_dtype(len(self._state))
        held = [np.arange(0, dtype=dtype)]
        for part in blocks(len(self._state)):
            if self._state[part].any():  # a part in which nothing has happened has no memory
                held.append((part.start + np.flatnonzero(self.release(part))).astype(dtype))
        return np.concatenate(held)

    def forget(self, places: Places) -> None:
        self._change(places, _FORGET)

    def requeue(self, places: Places) -> None:
        self._change(places, _REQUEUE)

    def _change(self, places: Places | slice, to: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Make a transition. Return the states before and after it."""
        if isinstance(places, slice):  # for millions of samples, five times as fast as an index
            before = self._state[places].copy()
            after = np.frombuffer(before.tobytes().translate(to.tobytes().ljust(256)), np.uint8)
        else:
            before = self._state[places]
            after = to[before]
        assert after.max(initial=0) != _NEVER, "a sample makes a transition that cannot happen"
        self._state[places] = after
        return before, after


class ReadQueue(Reprs, shows="_at _end"):
    """The reads of a plan that have not started for an epoch, in the order of their deadlines.

    A plan may have a read for each sample: the queue stores one bit for each read, and numbers of the next reads only.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._soon: NDArray[Any] = np.arange(0, dtype=np.int32)
        """Numbers of the reads that start next, from entry `_at` on."""
        self._at = 0
        self._later, self._end = PackedMask(np.zeros(0, np.bool_)), 0
        """Whether each read is to start. Valid from read number `_end` on."""
        self._read_of: NDArray[Any] | None = None
        """The read of each place, if the plan's job shares."""
        self._passed: NDArray[np.bool_] | None = None
        """Whether the queue skips the reads of each chunk, shape (chunks,). None if it skips none."""

    @property
    def next(self) -> int | None:
        """Number of the next read. None if no read is left."""
        self._look(1)
        if self._passed is not None:
            self._go_on(self._passed)
        return int(self._soon[self._at]) if self._at < len(self._soon) else None

    @property
    def deadline(self) -> int:
        """Position before which the next read must be done. The end of the epoch if no read is left."""
        number = self.next
        return len(self._plan.sample_of) if number is None else self._plan.deadline(number)

    def rest(self) -> NDArray[Any]:
        """Return the numbers of all reads that have not started."""
        return np.concatenate((self._soon[self._at :], self._numbers(len(self._later))))

    def upcoming(self, most: int) -> NDArray[Any]:
        """Return the numbers of the next reads, at most `most`."""
        self._look(most)
        return self._soon[self._at : self._at + most]

    def filling(
        self, states: SampleStates, read_of: NDArray[Any], mine: Callable[[NDArray[Any]], Mask] | None
    ) -> Iterator[int]:
        """Replace the queue by the reads of samples that are due, in steps. Yield the number of samples of each step.

        `read_of` is `read_of_sample(plan)`. `mine` returns a mask of this node's places. None if it reads all.
        """
        wanted = np.zeros(self._plan.read_count, np.bool_)
        self._read_of = read_of if self._plan.shares else None
        for part in blocks(len(read_of)):
            due = states.due(part) | states.are(EARLY, part)
            if self._plan.shares:  # samples that other jobs have read or are reading may be freed
                due |= states.are(HELD, part) | states.waited_for(part)
            if mine is not None:
                due &= mine(np.arange(part.start, part.stop))
            wanted[read_of[part][due]] = True
            yield len(due)
        self._start(wanted)

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the deadline of the read of each place, in a plan whose job shares."""
        assert self._read_of is not None
        assert self._plan.reads is not None
        found: NDArray[Any] = self._plan.reads["deadline"][self._read_of[places]]
        return found

    def put_back(self, places: NDArray[Any]) -> None:
        """Queue the reads of these places again, even if they have started, in a plan whose job shares."""
        assert self._read_of is not None
        todo = np.zeros(self._plan.read_count, np.bool_)
        todo[self.rest()] = todo[self._read_of[places]] = True
        self._start(todo)

    def pass_over(self, chunks: NDArray[np.integer[Any]]) -> None:
        """Skip the reads of these chunks, as no sample in them is due. `filling` and `put_back` end this."""
        if self._plan.reads is not None:
            if self._passed is None:
                self._passed = np.zeros(self._plan.mapping.chunks, np.bool_)
            self._passed[chunks] = True

    def pop(self, count: int = 1) -> None:
        """Remove the next reads, which have started or are not needed."""
        self._at += count

    def _start(self, wanted: NDArray[np.bool_]) -> None:
        """Replace the queue by these reads, shape (reads,)."""
        self._later, self._end = PackedMask(wanted), 0
        self._soon, self._at, self._passed = self._soon[:0], 0, None

    def _go_on(self, passed: NDArray[np.bool_]) -> None:
        """Advance to the next read of a chunk that is not skipped."""
        reads = self._plan.reads
        assert reads is not None
        while self._at < len(self._soon):
            soon = self._soon[self._at : self._at + PASSED]
            needed = np.flatnonzero(~passed[reads["chunk"][soon]])
            self._at += int(needed[0]) if len(needed) else len(soon)
            if len(needed):
                return
            self._look(1)

    def _look(self, most: int) -> None:
        """Find the numbers of the next reads, at least `most` if there are that many."""
        while len(self._soon) - self._at < most and self._end < len(self._later):
            more = self._numbers(self._end + FOUND)
            self._soon, self._at = np.concatenate((self._soon[self._at :], more)), 0
            self._end += FOUND

    def _numbers(self, end: int) -> NDArray[Any]:
        """Return the numbers of the reads to start, from `_end` to `end` - 1."""
        numbers = np.flatnonzero(self._later.part(slice(self._end, end))) + self._end
        return numbers.astype(index_dtype(self._plan.read_count))
