"""Which samples does an owner read exactly for other nodes, and how do they travel?

Another node asks for samples by name. Its question waits, the owner reads the samples, and sends them in parts as the
asking node's stream takes them. Three bounds hold for each asking node. It has few open questions at a time. The owner
reads little more before the node has taken earlier answers. An answer goes only to the stream on which its question
came. Reads for other nodes count towards the reads of the owner (`depth`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from brand.errors import ProtocolError
from brand.node.decide.state.tasks import ReadFor
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import Fetch, FetchReply

MAX_QUESTIONS: Final = 64
"""The most questions that one node may have open at a time."""
MAX_READ: Final = 16 << 20
"""An owner reads nothing more for a node that has not taken so many bytes of its answers."""
PART: Final = 1 << 20
"""Largest part of an answer, in bytes."""


@dataclass(slots=True)
class _AskingNode:
    """One node that asks."""

    opening: int = 0
    questions: deque[tuple[Fetch, int]] = field(default_factory=deque)
    """Questions whose samples are still to be read, and the bytes of their answers."""
    reading: int = 0
    """Questions of this opening whose samples are being read."""
    unsent: int = 0
    """Bytes of answers that are being read, or wait to be sent."""
    answers: deque[FetchReply] = field(default_factory=deque)

    def starts(self) -> tuple[Fetch, int]:
        """The read for the next question starts. Returns the question, and the bytes of its answer."""
        fetch, size = self.questions.popleft()
        self.reading += 1
        self.unsent += size
        return fetch, size

    def has_read(self, number: int, data: bytes, size: int) -> None:
        """The read for a question has ended. Its answer was expected to have `size` bytes."""
        view = memoryview(data)
        self.reading -= 1
        self.unsent += len(view) - size
        for start in range(0, max(1, len(view)), PART):
            self.answers.append(FetchReply(number, len(view), start, view[start : start + PART]))

    def leaves(self) -> FetchReply:
        """The next part of an answer leaves."""
        part = self.answers.popleft()
        self.unsent -= len(part.part)
        return part

    @property
    def open(self) -> int:
        """How many questions have answers that have not left as a whole."""
        return len(self.questions) + self.reading + len({part.number for part in self.answers})


class FetchAnswers:
    """Questions of other nodes, from the moment they come until their answers have left."""

    def __init__(self, nodes: list[NodeNumber], depth: int) -> None:
        self._asking = {node: _AskingNode() for node in nodes}
        self._most = max(1, depth // 2)
        """The most reads at a time for all other nodes; the rest is for this node's clients."""
        self.on_the_way = 0
        """Reads that have not ended."""

    def __repr__(self) -> str:
        state = {node: (asking.open, asking.unsent) for node, asking in self._asking.items()}
        return f"FetchAnswers({self.on_the_way} reads; questions and unsent bytes by node: {state})"

    def opened(self, node: NodeNumber, opening: int) -> None:
        """A node can ask, for the first time or again. Its earlier questions get no answer."""
        self._asking[node] = _AskingNode(opening)

    def ask(self, node: NodeNumber, fetch: Fetch, size: int) -> None:
        """A node asks for samples of `size` stored bytes. Raises `ProtocolError` where it asks too much at a time."""
        asking = self._asking[node]
        if asking.open >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} questions at a time")
        asking.questions.append((fetch, size))

    def reads(self, free: int) -> Iterator[ReadFor]:
        """Reads to start now, at most `free`; nodes take turns."""
        free = min(free, self._most - self.on_the_way)
        ready = deque(node for node, asking in self._asking.items() if asking.questions)
        while ready and free > 0:
            node = ready.popleft()
            asking = self._asking[node]
            if asking.unsent >= MAX_READ:
                continue
            fetch, size = asking.starts()
            self.on_the_way += 1
            free -= 1
            yield ReadFor(node, fetch.number, asking.opening, fetch.places, size)
            if asking.questions:
                ready.append(node)

    def have_read(self, read: ReadFor, data: bytes) -> None:
        """A read has ended. `data` is the result of `pack_samples`."""
        self.on_the_way -= 1
        asking = self._asking[read.node]
        if read.opening == asking.opening:  # else the stream on which the question came has ended
            asking.has_read(read.number, data, read.size)

    def next_part(self, node: NodeNumber) -> FetchReply | None:
        """The part of an answer that leaves for a node now; None: there is none."""
        asking = self._asking[node]
        return asking.leaves() if asking.answers else None
