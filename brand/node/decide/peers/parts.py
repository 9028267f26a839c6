"""How does a sample cross the network that is larger than a message? In parts, one after the other, in whole pages.

The home node sends all parts of a sample before it sends another sample to the same node, so at most one sample of each
stream is incomplete. The receiver reserves the pages of the whole sample when the first part arrives, and writes each
part where it belongs. The pages of an incomplete sample are freed when its stream ends, and after `PART_S` without a
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import PushPart
from brand.reprs import Reprs

MESSAGE_BYTES: Final = 1 << 20
"""Most bytes of samples in one message to another node. A larger sample is sent in parts."""
PART_S: Final = 30.0
"""Seconds without a part after which a receiver frees the pages of an incomplete sample, and drops its other parts."""


def message_pages(page: int) -> int:
    """Return the most pages of one message."""
    return max(1, MESSAGE_BYTES // page)


@dataclass(slots=True)
class _Departing:
    number: int
    """Number that the receiving node gave the epoch."""
    place: int
    sent: int = 0
    """Pages that were sent."""

    def advance(self, end: int) -> None:
        """Note that the pages before `end` were sent."""
        self.sent = end


class DepartingSamples(Reprs, shows="_samples"):
    """The samples that this node sends in parts: at most one to each node. Each has a reference until it is sent."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._samples: dict[NodeNumber, _Departing] = {}

    def begin(self, node: NodeNumber, number: int, place: int) -> None:
        """Send a sample to a node that is sent no other one in parts. Takes over a reference of the caller."""
        self._samples[node] = _Departing(number, place)

    def next(self, node: NodeNumber) -> PushPart | None:
        """Return the next part for a node, or None if no sample is under way to it."""
        sample = self._samples.get(node)
        if sample is None:
            return None
        first, pages = sample.sent, int(self._residents.pages_of[sample.place])
        end = min(pages, first + message_pages(self._residents.pool.allocator.page))
        part = PushPart(sample.number, sample.place, first, self._residents.part(sample.place, first, end))
        sample.advance(end)
        if end == pages:
            self.drop(node)
        return part

    def drop(self, node: NodeNumber) -> None:
        """Send no further parts to a node, and release the reference to its sample."""
        sample = self._samples.pop(node, None)
        if sample is not None:
            self._residents.let_go(np.array([sample.place]))


@dataclass(slots=True)
class _Arriving:
    number: int
    place: int
    heads: NDArray[np.int32]
    """The first of the reserved pages, shape (1,); shape (0,) if the parts are dropped."""
    pages: NDArray[np.int32]
    """The reserved pages."""
    heard_s: float
    received: int = 0
    """Pages that have arrived."""

    @property
    def places(self) -> NDArray[np.int64]:
        """The place, shape (1,)."""
        return np.array([self.place], np.int64)

    def advance(self, end: int, now_s: float) -> None:
        """Note that the pages before `end` have arrived."""
        self.received, self.heard_s = end, now_s

    def forget_pages(self) -> None:
        """Drop the other parts."""
        self.heads = self.pages = self.pages[:0]


class ArrivingSamples(Reprs, shows="_samples"):
    """The incomplete samples that other nodes send in parts: at most one of each node."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._samples: dict[NodeNumber, _Arriving] = {}

    def check(self, node: NodeNumber, part: PushPart, largest: int) -> None:
        """Raise `ProtocolError` if a part does not follow the one before it, or its sample is too large.

        `largest`: pages of the largest sample that the node may send. The place is one of the data set.
        """
        pages, sample = int(self._residents.pages_of[part.place]), self._samples.get(node)
        if pages > largest:
            raise ProtocolError("a part of a sample that is too large to be sent")
        if part.first + len(part.data) > pages:
            raise ProtocolError("a part beyond the end of its sample")
        follows = None if sample is None else (sample.number, sample.place, sample.received)
        if (part.number, part.place, part.first) != follows and (sample is not None or part.first):
            raise ProtocolError("a part that does not follow the one before it")

    def check_none(self, node: NodeNumber) -> None:
        """Raise `ProtocolError` if a sample of a node is incomplete."""
        if node in self._samples:
            raise ProtocolError("samples between the parts of a sample")

    def begin(self, node: NodeNumber, part: PushPart, now_s: float, *, holds: bool) -> None:
        """Reserve the pages of a sample whose first part has arrived, if memory `holds` it and has space for it."""
        pages, places = int(self._residents.pages_of[part.place]), np.array([part.place])
        heads = reserved = np.empty(0, np.int32)
        if holds and pages <= self._residents.pool.allocator.free:
            heads, reserved = self._residents.pool.take(places)
            self._residents.reserve(node, pages)
        self._samples[node] = _Arriving(part.number, part.place, heads, reserved, now_s)

    def add(self, node: NodeNumber, part: PushPart, now_s: float) -> bool:
        """Write a part to its pages. Return whether its sample is complete."""
        sample, end = self._samples[node], part.first + len(part.data)
        if len(sample.heads):
            self._residents.pool.fill(sample.pages[part.first : end], part.data)
        sample.advance(end, now_s)
        return end == int(self._residents.pages_of[sample.place])

    def finish(self, node: NodeNumber) -> NDArray[Any]:
        """Hand over a complete sample. Return its head, shape (1,), or shape (0,) if its parts were dropped."""
        sample = self._samples.pop(node)
        self._residents.reserve(node, -len(sample.pages))
        return sample.heads

    def drop(self, node: NodeNumber) -> None:
        """Free the pages of a node's incomplete sample, whose other parts will not arrive."""
        if node in self._samples:
            self._free(node)
            del self._samples[node]

    def expire(self, now_s: float) -> None:
        """Free the pages of samples of which no part has arrived for `PART_S`."""
        for node, sample in self._samples.items():
            if now_s - sample.heard_s > PART_S:
                self._free(node)

    def _free(self, node: NodeNumber) -> None:
        sample = self._samples[node]
        if len(sample.heads):
            self._residents.pool.give_back(sample.places, sample.heads)
            self._residents.reserve(node, -len(sample.pages))
            sample.forget_pages()
