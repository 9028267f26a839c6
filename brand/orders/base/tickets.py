"""An int that means "draw position p of epoch e" and passes through any sampler, queue and array unchanged.

    bit 62      set: a ticket; a plain index is smaller
    bits 48-61  tag: the order, and so the data set
    bits 32-47  epoch
    bits 0-31   position

So a ticket is an ordinary int, fits int64 and costs nothing to pickle. It is far out of range as an index, so a ticket
that is used as an index by mistake raises an error.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TICKET: Final = 1 << 62
TAGS: Final = (1 << 14) - 1
MAX_POSITIONS: Final = 1 << 32
TICKETS_END: Final = TICKET + (TAGS << 48)
"""Every ticket is smaller. This number and all larger ones are indices out of range."""
_TAG_AT: Final = 48
_EPOCH_AT: Final = 32
_EPOCH_MASK: Final = (1 << (_TAG_AT - _EPOCH_AT)) - 1


def tickets(tag: int, epoch: int, positions: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return tickets for positions of one epoch, int64, same shape."""
    return positions.astype(np.int64) | np.int64(TICKET | tag << _TAG_AT | epoch << _EPOCH_AT)


def tickets_of(tags: NDArray[np.int64], epochs: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return tickets of several orders and epochs, int64; all shapes are the same."""
    return np.int64(TICKET) | tags << _TAG_AT | epochs << _EPOCH_AT | positions


def tag_and_epoch(ticket: int) -> tuple[int, int]:
    return ticket - TICKET >> _TAG_AT, ticket >> _EPOCH_AT & _EPOCH_MASK


def positions_of(asked: NDArray[np.int64]) -> NDArray[np.int64]:
    return asked & np.int64(MAX_POSITIONS - 1)
