"""How many samples does a loader fetch ahead, how many with one request, and how many does a client draw at once?"""

from __future__ import annotations

from typing import Final

from brand.node.wire.messages import MAX_DRAW

AHEAD_BYTES: Final = 64 << 20
"""By default, the prefetched batches have at most about this many stored bytes,"""
AHEAD_PART: Final = 8
"""and at most `1 / AHEAD_PART` of the memory that the data set was given."""
MOST_AHEAD: Final = 64
REQUEST: Final = 4096
"""Samples of one request: if samples are small, this number makes the cost of a request small for each of them."""
LARGE_REQUEST: Final = 16384
"""Largest number of samples of one request, if they are few of those prefetched: threads wait less for others."""
PART_SHARE: Final = 32
"""Samples of one draw fill at most `1 / PART_SHARE` of the arena."""
LEAST_PART: Final = 8


def batches_ahead(memory_bytes: int | None, batch_bytes: float) -> int:
    """Return the default number of batches to prefetch. `memory_bytes`: the memory of the server, if it is known.

    If the data set has little memory, the number is small.
    """
    room = AHEAD_BYTES if memory_bytes is None else min(AHEAD_BYTES, memory_bytes // AHEAD_PART)
    return min(MOST_AHEAD, max(2, int(room / batch_bytes)))


def next_request(last: int, batch: int, ahead: int) -> int:
    """Return the batches of the next request: twice the last, up to `REQUEST` samples, or half of those ahead.

    Up to `LARGE_REQUEST` samples are allowed if they are at most an eighth of the batches ahead, because a request is
    copied several times. `batch`: samples of a batch.
    """
    most = max(1, min(REQUEST // batch, ahead // 2), min(LARGE_REQUEST // batch, ahead // 8))
    return min(2 * last, most)


def most_at_once(arena_bytes: float, mean_bytes: float) -> int:
    """Return how many samples of a mean size to draw at once: all of them must be in memory at the same time."""
    return min(MAX_DRAW, max(LEAST_PART, int(arena_bytes / mean_bytes / PART_SHARE)))
