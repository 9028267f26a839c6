"""The order of a job whose order is decided while it draws.

The order of an epoch is a permutation of the places of a subset. Its first `decided` positions are final; the others
are open: the places there now may still move. To decide more is to swap the chosen places to the next positions.
Pure; one thread owns a `Growing`, and other threads may only read the decided positions.

A state lists the samples that a job has drawn before a position, because no plan contains them: a bit for each place,
compressed, as a text for JSON. A reader checks it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.reprs import Reprs


class Growing(Reprs, shows="decided sample_of"):
    """The order of one epoch, as far as it is decided."""

    def __init__(self, sample_of: NDArray[Any], samples: int, position_of: NDArray[Any] | None = None) -> None:
        """Begin an order in which nothing is decided.

        `sample_of` has the places of the subset in any order, of a data set of `samples`. `position_of` is the inverse,
        if the caller has it, because it takes long to make.
        """
        self.sample_of: NDArray[np.int32] = sample_of.astype(np.int32)
        """The place at each position, shape (draws,); from `decided` on, only the set matters, not the order."""
        if position_of is None:
            position_of = np.full(samples, -1, np.int32)
            position_of[self.sample_of] = np.arange(len(self.sample_of), dtype=np.int32)
        self.position_of: NDArray[np.int32] = position_of.astype(np.int32)
        """The inverse, shape (samples,); -1 for places outside the subset."""
        self.decided = 0
        """Positions before this one are final."""

    @classmethod
    def of(cls, mapping: Mapping, part: Subset | None) -> Growing:
        """Return an order of a subset (None: all samples) in which nothing is decided."""
        return cls(np.arange(mapping.samples) if part is None else np.flatnonzero(part.mask), mapping.samples)

    @property
    def complete(self) -> bool:
        return self.decided == len(self.sample_of)

    def open(self) -> NDArray[np.bool_]:
        """Return a mask of the places that have no position yet, shape (samples,)."""
        return self.position_of >= self.decided

    def positions(self, places: NDArray[Any]) -> NDArray[np.float64]:
        """Return the position at which each place will be drawn, same shape; infinity if that is open."""
        found = self.position_of[places]
        return np.where(found < self.decided, found, np.inf)

    def decide(self, places: NDArray[Any]) -> None:
        """Give the next positions to these places, which are open and all different."""
        first, end = self.decided, self.decided + len(places)
        at = self.position_of[places]
        stays = np.zeros(len(places), np.bool_)
        stays[at[at < end] - first] = True
        leaving, free = self.sample_of[first:end][~stays], at[at >= end]
        self.sample_of[free], self.position_of[leaving] = leaving, free
        self.sample_of[first:end] = places
        self.position_of[places] = np.arange(first, end, dtype=np.int32)
        self.decided = end

    def skip_to(self, position: int) -> None:
        """Close the open positions before this one with the places that are there; they are never drawn."""
        self.decided = max(self.decided, position)

    def restart(self) -> None:
        self.decided = 0

    def agree(self, first: int, places: NDArray[Any]) -> int:
        """Adopt an order in which positions from `first` on, which is not beyond `decided`, have these places.

        Open positions are decided accordingly, as far as possible. Returns the position before which both orders agree.
        """
        known = self.sample_of[first : min(self.decided, first + len(places))]
        differs = np.flatnonzero(known != places[: len(known)])
        if len(differs):
            return first + int(differs[0])
        more = places[len(known) :]
        unfit = np.ones(len(more), np.bool_)
        unfit[np.unique(more, return_index=True)[1]] = False  # a place that is named twice
        unfit |= self.position_of[more] < self.decided
        self.decide(more[: int(unfit.argmax()) if unfit.any() else len(more)])
        return max(first, min(self.decided, first + len(places)))


def pack_drawn(places: NDArray[np.integer[Any]], samples: int) -> str:
    """Return these places of a data set of `samples` as a text."""
    mask = np.zeros(samples, np.bool_)
    mask[places] = True
    return base64.b64encode(zlib.compress(np.packbits(mask, bitorder="little").tobytes())).decode()


def unpack_drawn(text: Any, samples: int) -> NDArray[np.int32]:
    """Read the output of `pack_drawn`, ascending. Raises ValueError if it is invalid."""
    if not isinstance(text, str):
        raise ValueError(f"the fetched samples are {text!r:.20}, not a text")
    size = -(-samples // 8)
    unpacker = zlib.decompressobj()
    try:
        bits = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(f"the fetched samples cannot be unpacked: {error}") from None
    if len(bits) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"the fetched samples do not have one bit for each of {samples:,} samples")
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    if mask[samples:].any():
        raise ValueError(f"there are more than {samples:,} fetched samples")
    return np.flatnonzero(mask).astype(np.int32)
