"""How does a client get a sample by index that it cannot read itself?

If only another node's disk has the sample, the server asks the owners, and joins their answers. If an owner does not
answer in time, the client gets an error that names the node, so that it never waits for ever. If each node has all
samples (`reads_here`), the server reads them itself: this serves samples of an object store, which only servers access.

`Divisions` answers another question of clients: which positions of an epoch are a rank's own, with `locality`?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, ProtocolError, UnreachableError, UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.counters import NodeCounters
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.instructions import ReadFor, Refuse, Rows
from brand.node.decide.state.members import Owners
from brand.node.wire.client_messages import Deliver, PositionsDivided, pack_samples, unpack_samples
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.node.wire.peer_messages import Fetch, FetchReply
from brand.reprs import Reprs

LIMIT_S: Final = 8.0
"""Seconds that a fetch may take."""
LARGEST: Final = 1 << 30
"""Largest answer to a question of several samples, in bytes. One sample may be larger."""
AT_A_TIME: Final = 8
"""The most unanswered questions to one node. Further questions wait."""
RANKS_LIMIT_S: Final = 60.0
"""Seconds that ranks wait for each other to begin."""


@dataclass(slots=True)
class _Question:
    """Some places of one owner."""

    places: NDArray[np.int64]
    fetch: _Fetch
    size: int
    """Bytes of the answer if the owner has all samples."""
    data: bytearray = field(default_factory=bytearray)
    asked: bool = False

    def ask(self) -> None:
        self.asked = True

    def take(self, part: memoryview) -> None:
        self.data += part

    def reset(self) -> None:
        self.asked, self.data = False, bytearray()


@dataclass(slots=True)
class _Fetch:
    """Samples that a client has requested."""

    client: ClientNumber
    places: NDArray[np.int64]
    until_s: float
    open: dict[int, NodeNumber] = field(default_factory=dict)
    """Owners of the unanswered questions, by number of the question."""
    samples: dict[int, bytes] = field(default_factory=dict)


class Fetches:
    """Fetches of this node's clients that are under way."""

    def __init__(
        self, index: Rows, owners: Owners, samples: int, counters: NodeCounters, *, reads_here: bool = False
    ) -> None:
        self._index, self._owners, self._samples, self._counters = index, owners, samples, counters
        self._reads_here = reads_here
        self.on_the_way = 0
        """Reads of this node that have not ended."""
        self._questions: dict[int, _Question] = {}
        self._fetches: list[_Fetch] = []
        self._done: list[Deliver | Refuse] = []
        self._last = 0

    def check(self, places: NDArray[np.int64], owner: NodeNumber) -> int:
        """Return the stored bytes of samples. Raises `ProtocolError` if `owner` lacks one, or if they are too many."""
        if places.min() < 0 or places.max() >= self._samples:
            raise ProtocolError("places that the data set does not have")
        if (self._owners.of(places) != owner).any():
            raise ProtocolError(f"places that node {owner} does not own")
        return self._size(places)

    def _size(self, places: NDArray[np.int64]) -> int:
        """Return the stored bytes of samples. Raises `ProtocolError` if they are too many."""
        size = int(self._index.rows_at(places)["size"].sum(dtype=np.int64))
        if len(places) > 1 and size > LARGEST:
            raise ProtocolError(f"the samples of one question have more than {LARGEST:,} bytes")
        return size

    def want(self, client: ClientNumber, places: NDArray[np.int64], now_s: float) -> None:
        """Add a fetch: a client requests samples that it cannot read. Raises `ProtocolError`."""
        if len(places) == 0 or places.min() < 0 or places.max() >= self._samples:
            raise ProtocolError("places that the data set does not have")
        if any(fetch.client == client for fetch in self._fetches):
            raise ProtocolError("this client already waits for a fetch")
        here = self._owners.node
        fetch = _Fetch(client, places, math.inf if self._reads_here else now_s + LIMIT_S)
        owner = np.full(len(places), here) if self._reads_here else self._owners.of(places)
        if (owner == here).any() and not self._reads_here:
            raise ProtocolError("places that this node stores itself")
        questions = {}
        for node in map(NodeNumber, np.unique(owner).tolist()):
            theirs = np.unique(places[owner == node])
            size = len(theirs) + self._size(theirs)  # one byte for each sample: whether it is present
            self._last += 1
            questions[self._last] = _Question(theirs, fetch, size)
            fetch.open[self._last] = node
        self._questions |= questions
        self._fetches.append(fetch)
        self._counters.add_fetched(len(places))

    def questions(self, node: NodeNumber) -> Iterator[Fetch]:
        """Yield questions to ask a node now."""
        mine = [(number, q) for number, q in self._questions.items() if q.fetch.open[number] == node]
        free = AT_A_TIME - sum(question.asked for _, question in mine)
        for number, question in [item for item in mine if not item[1].asked][: max(0, free)]:
            question.ask()
            yield Fetch(number, question.places)

    def reads(self, free: int) -> Iterator[ReadFor]:
        """Yield reads to start now for clients of this node, at most `free`."""
        if self._reads_here:
            mine = [(number, question) for number, question in self._questions.items() if not question.asked]
            for number, question in mine[: max(0, free)]:
                question.ask()
                self.on_the_way += 1
                yield ReadFor(self._owners.node, number, 0, question.places, question.size)

    def on_read_ended(self, read: ReadFor, data: bytes, error: BrandError | None) -> None:
        """Take the samples of a read for a client of this node, or its error."""
        self.on_the_way -= 1
        question = self._questions.get(read.number)
        if question is None:  # the client has disconnected
            return
        if error is not None:
            self._end(question.fetch)
            self._done.append(Refuse(question.fetch.client, error))
        else:
            self.on_reply(read.node, FetchReply(read.number, len(data), 0, memoryview(data)))

    def on_reply(self, node: NodeNumber, fetched: FetchReply) -> None:
        """Take a part of an answer. Raises `ProtocolError`."""
        number = fetched.number
        question = self._questions.get(number)
        if question is None:  # the fetch was given up
            return
        if question.fetch.open[number] != node or not question.asked:
            raise ProtocolError("an answer from a node that was not asked")
        if fetched.size > question.size or fetched.offset != len(question.data):
            raise ProtocolError("an answer whose size is not that of its samples")
        question.take(fetched.part)
        if len(question.data) < fetched.size:
            return
        sizes = self._index.rows_at(question.places)["size"].astype(np.int64)
        # Before the question is removed: after a wrong answer, it is asked again.
        present, samples = unpack_samples(memoryview(question.data), sizes)
        del self._questions[number]
        fetch = question.fetch
        del fetch.open[number]
        fetch.samples.update(zip(question.places[present].tolist(), samples, strict=True))
        if not fetch.open:
            self._fetches.remove(fetch)
            found = [fetch.samples.get(place) for place in fetch.places.tolist()]
            self._done.append(Deliver(fetch.client, pack_samples(found)))

    def on_node_lost(self, node: NodeNumber) -> None:
        """Reset the questions to an unreachable node, so that it is asked again once it is reachable."""
        for number, question in self._questions.items():
            if question.fetch.open[number] == node:
                question.reset()

    def on_client_gone(self, client: ClientNumber) -> None:
        for fetch in [fetch for fetch in self._fetches if fetch.client == client]:
            self._end(fetch)

    def give_up(self, now_s: float, reachable: Callable[[NodeNumber], bool]) -> None:
        """End fetches that take too long. `reachable` returns whether a node can be asked."""
        for fetch in [fetch for fetch in self._fetches if fetch.until_s < now_s]:
            number, node = next(iter(fetch.open.items()))
            question = self._questions[number]
            chunk = int(question.places[0]) // self._owners.chunk_size
            what = "does not answer" if reachable(node) else "cannot be reached"
            self._end(fetch)
            reason = f"node {node} {what}, and no other node has chunk {chunk} (place {int(question.places[0])})"
            self._done.append(Refuse(fetch.client, UnreachableError(reason)))

    def done(self) -> list[Deliver | Refuse]:
        """Return the fetches that have ended since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def idle(self) -> bool:
        return not self._fetches

    def _end(self, fetch: _Fetch) -> None:
        self._fetches.remove(fetch)
        for number in fetch.open:
            del self._questions[number]


class Divisions(Reprs, shows="_asked"):
    """Clients that have asked which positions are a rank's own, with `locality`. All ranks have to begin first."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._asked: dict[ClientNumber, tuple[Key, int, float]] = {}
        """The epoch and the rank that each client has asked for, and the time."""

    @property
    def idle(self) -> bool:
        return not self._asked

    def ask(self, client: ClientNumber, key: Key, rank: int, now_s: float) -> None:
        """Record that a client asks for a rank's own positions of an epoch. Raises `UsageError` if it already waits."""
        if client in self._asked:
            raise UsageError("this client already waits for its positions")
        self._asked[client] = key, rank, now_s

    def on_client_gone(self, client: ClientNumber) -> None:
        self._asked.pop(client, None)

    def answers(self, now_s: float) -> Iterator[PositionsDivided | Refuse]:
        for client, (key, rank, since_s) in list(self._asked.items()):
            live = self._epochs.get(key)
            if live is not None and self._epochs.features.is_committed(key):
                del self._asked[client]
                yield PositionsDivided(client, live.epoch.division.positions(rank))
            elif now_s - since_s > RANKS_LIMIT_S:
                del self._asked[client]
                missing = ", ".join(map(str, self._missing_ranks(key)))
                reason = f"ranks {missing} have not begun epoch {key[1]} within {RANKS_LIMIT_S:.0f} s"
                yield Refuse(client, UsageError(reason))

    def _missing_ranks(self, key: Key) -> list[int]:
        """Return the ranks that have not begun an epoch. Until a rank has begun it, the number of ranks counts as 1."""
        entry = self._epochs.lives.get(key)
        begin = None if entry is None else entry.begin
        replicas = 1 if begin is None else begin.division.replicas  # with `locality`, which has no groups
        return sorted(set(range(replicas)) - self._epochs.runs[key[0]].seats(replicas).keys())
