"""Which samples does an owner read for other nodes by index, and how are the answers sent?

Another node asks for samples by place. The owner queues the question, reads the samples, and sends them in pieces, as
fast as the asking node's stream takes them. Three limits hold for each asking node: the number of its open questions,
the bytes of its unsent answers (no read starts above that limit), and the stream, because an answer is sent only on
the stream of its question. Reads for other nodes count towards the reads of the owner (`depth`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from brand.errors import ProtocolError
from brand.node.decide.state.instructions import ReadFor
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import Fetch, FetchReply

MAX_QUESTIONS: Final = 64
"""Limit on the open questions of one node."""
MAX_READ: Final = 16 << 20
"""An owner starts no read for a node that has not taken this many bytes of its answers."""
PART: Final = 1 << 20
"""Largest piece of an answer, in bytes."""


@dataclass(slots=True)
class _AskingNode:
    """The questions of one other node."""

    opening: int = 0
    questions: deque[tuple[Fetch, int]] = field(default_factory=deque)
    """Questions whose samples are not read yet, each with the bytes of its answer."""
    reading: int = 0
    """Number of questions of this opening whose samples are being read."""
    unsent: int = 0
    """Bytes of answers that are being read or wait to be sent."""
    answers: deque[FetchReply] = field(default_factory=deque)

    def start_next(self) -> tuple[Fetch, int]:
        """Start the read for the next question. Return the question and the bytes of its answer."""
        fetch, size = self.questions.popleft()
        self.reading += 1
        self.unsent += size
        return fetch, size

    def add_answer(self, number: int, data: bytes, size: int) -> None:
        """Queue the answer to a question whose read has ended. The answer was expected to have `size` bytes."""
        view = memoryview(data)
        self.reading -= 1
        self.unsent += len(view) - size
        for start in range(0, max(1, len(view)), PART):
            self.answers.append(FetchReply(number, len(view), start, view[start : start + PART]))

    def pop_part(self) -> FetchReply:
        """Return the next piece of an answer, and remove it from the queue."""
        part = self.answers.popleft()
        self.unsent -= len(part.part)
        return part

    @property
    def open_questions(self) -> int:
        """Number of questions whose answers were not sent completely."""
        return len(self.questions) + self.reading + len({part.number for part in self.answers})


class FetchAnswers:
    """Questions of other nodes, from their arrival until their answers are sent."""

    def __init__(self, nodes: list[NodeNumber], depth: int) -> None:
        self._asking = {node: _AskingNode() for node in nodes}
        self._most = max(1, depth // 2)
        """Limit on simultaneous reads for all other nodes. The rest of `depth` is for this node's clients."""
        self.on_the_way = 0
        """Number of reads under way."""

    def __repr__(self) -> str:
        state = {node: (asking.open_questions, asking.unsent) for node, asking in self._asking.items()}
        return f"FetchAnswers({self.on_the_way} reads; questions and unsent bytes by node: {state})"

    def reset(self, node: NodeNumber, opening: int) -> None:
        """Forget the earlier questions of a node after it has opened a stream: they get no answer."""
        self._asking[node] = _AskingNode(opening)

    def ask(self, node: NodeNumber, fetch: Fetch, size: int) -> None:
        """Queue a node's question for samples of `size` stored bytes. Raises `ProtocolError` if it has too many open
        questions.
        """
        asking = self._asking[node]
        if asking.open_questions >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} open questions")
        asking.questions.append((fetch, size))

    def start_reads(self, free: int) -> Iterator[ReadFor]:
        """Start up to `free` reads, and yield them. Nodes take turns."""
        free = min(free, self._most - self.on_the_way)
        ready = deque(node for node, asking in self._asking.items() if asking.questions)
        while ready and free > 0:
            node = ready.popleft()
            asking = self._asking[node]
            if asking.unsent >= MAX_READ:
                continue
            fetch, size = asking.start_next()
            self.on_the_way += 1
            free -= 1
            yield ReadFor(node, fetch.number, asking.opening, fetch.places, size)
            if asking.questions:
                ready.append(node)

    def on_read(self, read: ReadFor, data: bytes) -> None:
        """Take the result of a read that has ended. `data` is the result of `pack_samples`."""
        self.on_the_way -= 1
        asking = self._asking[read.node]
        if read.opening == asking.opening:  # if not, the stream of the question has ended
            asking.add_answer(read.number, data, read.size)

    def pop_part(self, node: NodeNumber) -> FetchReply | None:
        """Return the piece of an answer to send to a node now, or None if there is none."""
        asking = self._asking[node]
        return asking.pop_part() if asking.answers else None
