"""The state of each sample of an epoch: one byte for each sample, changed only by named transitions.

                   GONE      UNWANTED  HELD   DUE      COMING      EARLY
    expect         DUE       COMING    HELD   DUE      COMING      EARLY       a rank of any node will draw it
    start                                     COMING               COMING      its read or request has begun
    start_early                               EARLY                            a read for another sample also reads it
    mark_present                              HELD                             it is in memory already
    mark_arrived             GONE             HELD     HELD        DUE         its bytes are in memory now
    mark_failed              GONE             GONE     GONE        DUE         its bytes will not arrive this way
    release        GONE      UNWANTED  GONE   GONE     UNWANTED    UNWANTED    it is drawn, sent, or not awaited
    forget         GONE      GONE      HELD   GONE     GONE        EARLY       its bytes were lost on their way
    requeue                            DUE                                     its memory is freed, it is read when due

A client that asks for a GONE sample reads it directly. The bytes of an UNWANTED sample are on their way, but no rank
waits for them. Those of an EARLY sample are on their way for the cache folder: the epoch does not hold them when they
arrive, unless the sample's own read begins meanwhile. An empty cell is a transition that cannot happen.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GONE, UNWANTED, HELD, DUE, COMING, EARLY = range(6)
_NEVER: Final = 255

_EXPECT: Final = np.array([DUE, COMING, HELD, DUE, COMING, EARLY], np.uint8)
_START: Final = np.array([_NEVER, _NEVER, _NEVER, COMING, _NEVER, COMING], np.uint8)
_START_EARLY: Final = np.array([_NEVER, _NEVER, _NEVER, EARLY, _NEVER, _NEVER], np.uint8)
_MARK_PRESENT: Final = np.array([_NEVER, _NEVER, _NEVER, HELD, _NEVER, _NEVER], np.uint8)
_MARK_ARRIVED: Final = np.array([_NEVER, GONE, _NEVER, HELD, HELD, DUE], np.uint8)
_MARK_FAILED: Final = np.array([_NEVER, GONE, _NEVER, GONE, GONE, DUE], np.uint8)
_RELEASE: Final = np.array([GONE, UNWANTED, GONE, GONE, UNWANTED, UNWANTED], np.uint8)
_FORGET: Final = np.array([GONE, GONE, HELD, GONE, GONE, EARLY], np.uint8)
_REQUEUE: Final = np.array([_NEVER, _NEVER, DUE, _NEVER, _NEVER, _NEVER], np.uint8)

Places = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]


class SampleStates:
    """The states of the samples of one epoch, by place. Methods take arrays of places."""

    def __init__(self, samples: int) -> None:
        self._state = np.full(samples, GONE, np.uint8)

    def __repr__(self) -> str:
        gone, unwanted, held, due, *coming = np.bincount(self._state, minlength=6).tolist()
        return f"SampleStates({gone} gone, {unwanted} unwanted, {held} held, {due} due, {sum(coming)} coming)"

    # -- questions ---------------------------------------------------------------------------------------------------

    def waited_for(self, places: Places | slice) -> Mask:
        """Return a mask of the samples that have not arrived, for a rank that will draw them."""
        return np.greater_equal(self._state[places], DUE)

    def due(self, places: Places | slice) -> Mask:
        """Return a mask of the samples that have not arrived and are not on their way."""
        return np.equal(self._state[places], DUE)

    def on_the_way(self, places: Places) -> Mask:
        """Return a mask of the samples with bytes on their way, whether a rank still waits for them or not."""
        state = self._state[places]
        return np.greater_equal(state, COMING) | np.equal(state, UNWANTED)

    def are(self, state: int, places: Places | slice) -> Mask:
        """Return a mask of the samples in a state."""
        return np.equal(self._state[places], state)

    def all(self, state: int) -> NDArray[np.intp]:
        """Return all places in a state, ascending."""
        return np.flatnonzero(self._state == state)

    # -- transitions -------------------------------------------------------------------------------------------------

    def expect(self, places: Places) -> None:
        """Expect these samples, since a rank will draw them."""
        self._change(places, _EXPECT)

    def start(self, places: Places) -> None:
        """Note that the reads of these samples have begun, or that their owner was asked for them."""
        self._change(places, _START)

    def start_early(self, places: Places) -> None:
        """Note that a read for other samples has begun that also reads these."""
        self._change(places, _START_EARLY)

    def mark_present(self, places: Places) -> None:
        """Note that these samples are in memory already."""
        self._change(places, _MARK_PRESENT)

    def mark_arrived(self, places: Places) -> Mask:
        """Note that the bytes of these samples are in memory. Return a mask of those that the epoch holds now."""
        return np.equal(self._change(places, _MARK_ARRIVED)[1], HELD)

    def mark_failed(self, places: Places) -> None:
        """Note that the bytes of these samples will not arrive this way."""
        self._change(places, _MARK_FAILED)

    def release(self, places: Places | slice) -> Mask:
        """Release samples that are drawn, sent, or no longer waited for. Return a mask of those that the epoch held."""
        return np.equal(self._change(places, _RELEASE)[0], HELD)

    def forget(self, places: Places) -> None:
        """Stop waiting for samples whose bytes were lost on their way."""
        self._change(places, _FORGET)

    def requeue(self, places: Places) -> None:
        """Free the memory of these samples, and read them again when they are due."""
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
