"""How does a client get a sample by name that only another node's disk holds?

Its server asks the owners, and puts their answers together. A question that is not answered in time ends in an error
that names the node: the client is never left waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, ProtocolError, UnreachableError
from brand.node.counters import Counters
from brand.node.members import Owners
from brand.node.tasks import Rows

LIMIT_S: Final = 8.0
"""How long a question may take."""
LARGEST: Final = 1 << 30
"""Bytes that are fetched together, unless it is one sample."""
AT_A_TIME: Final = 8
"""Questions to one node that are not answered yet; others wait."""


@dataclass(slots=True)
class _Question:
    """Some places of one owner."""

    places: NDArray[np.int64]
    fetch: _Fetch
    size: int
    """Bytes of its answer if all samples are there."""
    data: bytearray = field(default_factory=bytearray)
    asked: bool = False


@dataclass(slots=True)
class _Fetch:
    """What a client wants."""

    client: int
    places: NDArray[np.int64]
    until_s: float
    open: dict[int, int] = field(default_factory=dict)
    """Questions that are not answered: their numbers and owners."""
    samples: dict[int, bytes] = field(default_factory=dict)


Outcome = tuple[int, bytes | BrandError]
"""A client, and what `pack_samples` makes of its samples, or why it cannot have them."""


class Fetches:
    """Questions under way. `address_of` names a node for people."""

    def __init__(self, index: Rows, owners: Owners, samples: int, counters: Counters) -> None:
        self._index, self._owners, self._samples, self._counters = index, owners, samples, counters
        self._questions: dict[int, _Question] = {}
        self._fetches: list[_Fetch] = []
        self._done: list[Outcome] = []
        self._last = 0

    def check(self, places: NDArray[np.int64], owner: int) -> None:
        """Raises `ProtocolError` where one asks `owner` for what it does not have, or for too much."""
        if places.min() < 0 or places.max() >= self._samples:
            raise ProtocolError("places that the data set does not have")
        if (self._owners.of(places) != owner).any():
            raise ProtocolError(f"places that node {owner} does not own")
        if len(places) > 1 and int(self._index.rows_at(places)["size"].sum(dtype=np.int64)) > LARGEST:
            raise ProtocolError(f"more than {LARGEST:,} bytes in one question")

    def want(self, client: int, places: NDArray[np.int64], now_s: float) -> None:
        """A client wants samples that are on other nodes. Raises `ProtocolError`."""
        if len(places) == 0 or places.min() < 0 or places.max() >= self._samples:
            raise ProtocolError("places that the data set does not have")
        if any(fetch.client == client for fetch in self._fetches):
            raise ProtocolError("a second fetch before the first is answered")
        fetch = _Fetch(client, places, now_s + LIMIT_S)
        self._fetches.append(fetch)
        owner = self._owners.of(places)
        for node in np.unique(owner).tolist():
            theirs = np.unique(places[owner == node])
            self.check(theirs, node)
            if node == self._owners.node:
                raise ProtocolError("places that this node has itself")
            self._last += 1
            size = len(theirs) + int(self._index.rows_at(theirs)["size"].sum(dtype=np.int64))
            self._questions[self._last] = _Question(theirs, fetch, size)
            fetch.open[self._last] = node
        self._counters.fetched += len(places)

    def questions(self, node: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """What to ask a node now."""
        mine = [(number, q) for number, q in self._questions.items() if q.fetch.open[number] == node]
        free = AT_A_TIME - sum(question.asked for _, question in mine)
        for number, question in [item for item in mine if not item[1].asked][: max(0, free)]:
            question.asked = True
            yield number, question.places

    def came(self, node: int, number: int, size: int, offset: int, part: memoryview) -> None:
        """A part of an answer has come. Raises `ProtocolError`."""
        question = self._questions.get(number)
        if question is None:  # given up
            return
        if question.fetch.open[number] != node or not question.asked:
            raise ProtocolError("an answer to a question that it was not asked")
        if size > question.size or offset != len(question.data):
            raise ProtocolError("an answer of another size than its samples")
        question.data += part
        if len(question.data) < size:
            return
        del self._questions[number]
        fetch = question.fetch
        del fetch.open[number]
        sizes = self._index.rows_at(question.places)["size"].astype(np.int64)
        present, samples = unpack_samples(memoryview(question.data), sizes)
        fetch.samples.update(zip(question.places[present].tolist(), samples, strict=True))
        if not fetch.open:
            self._fetches.remove(fetch)
            found = [fetch.samples.get(place) for place in fetch.places.tolist()]
            self._done.append((fetch.client, pack_samples(found)))

    def lost(self, node: int) -> None:
        """A node cannot be reached: what it was asked is asked again as soon as it can."""
        for number, question in self._questions.items():
            if question.fetch.open[number] == node:
                question.asked, question.data = False, bytearray()

    def left(self, client: int) -> None:
        """A client is gone."""
        for fetch in [fetch for fetch in self._fetches if fetch.client == client]:
            self._end(fetch)

    def give_up(self, now_s: float, reachable: Callable[[int], bool]) -> None:
        """End what took too long."""
        for fetch in [fetch for fetch in self._fetches if fetch.until_s < now_s]:
            number, node = next(iter(fetch.open.items()))
            question = self._questions[number]
            chunk = int(question.places[0]) // self._owners.chunk_size
            what = "does not answer" if reachable(node) else "cannot be reached"
            self._end(fetch)
            reason = f"node {node} {what}, and nobody else has chunk {chunk} (place {int(question.places[0])})"
            self._done.append((fetch.client, UnreachableError(reason)))

    def done(self) -> list[Outcome]:
        """What has ended since."""
        done, self._done = self._done, []
        return done

    @property
    def idle(self) -> bool:
        """Whether nobody waits."""
        return not self._fetches

    def _end(self, fetch: _Fetch) -> None:
        self._fetches.remove(fetch)
        for number in fetch.open:
            del self._questions[number]


def pack_samples(samples: list[bytes | None]) -> bytes:
    """A byte for each sample, 1 where it is there, and then the stored bytes of those."""
    return b"".join((bytes(sample is not None for sample in samples), *(s for s in samples if s is not None)))


def unpack_samples(data: memoryview, sizes: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[bytes]]:
    """Which samples are there, of all whose stored `sizes` are given, and their bytes. Raises `ProtocolError`."""
    if len(data) < len(sizes):
        raise ProtocolError("half an answer")
    flags = np.frombuffer(data[: len(sizes)], np.uint8)
    present = flags == 1
    ends = len(sizes) + np.cumsum(np.where(present, sizes, 0))
    if (flags > 1).any() or len(data) != ends[-1]:
        raise ProtocolError("an answer whose parts do not add up")
    starts = ends - sizes
    return present, [bytes(data[starts[k] : ends[k]]) for k in np.flatnonzero(present).tolist()]
