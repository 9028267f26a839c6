"""What a node reads for others: bounded in number and bytes, and never for a stream that has ended."""

from __future__ import annotations

import numpy as np
import pytest

from brand.errors import ProtocolError
from brand.node.decide.peers.sending import MAX_QUESTIONS, MAX_READ, PART, FetchAnswers
from brand.node.decide.state.instructions import ReadFor
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import Fetch, FetchReply

ONE, TWO = NodeNumber(1), NodeNumber(2)


def fetch(number: int) -> Fetch:
    """A question for one sample."""
    return Fetch(number, np.array([number]))


def opened(*nodes: NodeNumber, depth: int = 8) -> FetchAnswers:
    """Each node has a stream on which it asks."""
    answering = FetchAnswers(list(nodes), depth)
    for node in nodes:
        answering.reset(node, 1)
    return answering


def parts(answering: FetchAnswers, node: NodeNumber) -> list[FetchReply]:
    """All that can leave now."""
    found = []
    while (part := answering.pop_part(node)) is not None:
        found.append(part)
    return found


def test_an_answer_travels_in_parts() -> None:
    """As long as the answer is; an empty one is one part."""
    answering = opened(ONE)
    for number, size in ((1, 2 * PART + 7), (2, 0)):
        answering.ask(ONE, fetch(number), size)
    for read, size in zip(list(answering.start_reads(8)), (2 * PART + 7, 0), strict=True):
        answering.on_read(read, bytes(size))
    found = parts(answering, ONE)
    assert [(p.number, p.size, p.offset, len(p.part)) for p in found] == [
        (1, 2 * PART + 7, 0, PART),
        (1, 2 * PART + 7, PART, PART),
        (1, 2 * PART + 7, 2 * PART, 7),
        (2, 0, 0, 0),
    ]


def test_a_node_has_few_questions_open_until_their_answers_have_left() -> None:
    """A question counts while it waits, while it is read, and while its answer is sent: else the backlog had no end."""
    answering = opened(ONE)
    for number in range(MAX_QUESTIONS):
        answering.ask(ONE, fetch(number), 10)
    with pytest.raises(ProtocolError, match="64 open questions"):
        answering.ask(ONE, fetch(99), 10)
    for _ in range(MAX_QUESTIONS):
        for read in list(answering.start_reads(8)):
            answering.on_read(read, bytes(10))
    with pytest.raises(ProtocolError, match="64 open questions"):
        answering.ask(ONE, fetch(99), 10)
    assert answering.pop_part(ONE) is not None
    answering.ask(ONE, fetch(99), 10)


def test_little_is_read_for_a_node_that_takes_nothing() -> None:
    """A question more than the bound at the most; when it has taken its answers, the rest is read."""
    answering = opened(ONE, depth=100)
    for number in range(8):
        answering.ask(ONE, fetch(number), MAX_READ // 2)
    first = list(answering.start_reads(100))
    assert len(first) == 2
    for read in first:
        answering.on_read(read, bytes(MAX_READ // 2))
    assert list(answering.start_reads(100)) == []
    assert len(parts(answering, ONE)) > 0
    assert len(list(answering.start_reads(100))) == 2


def test_nodes_take_turns_and_leave_reads_for_clients() -> None:
    """Half of the reads at the most, at least one, and no more than are free."""
    answering = opened(ONE, TWO, depth=8)
    for node in (ONE, TWO):
        for number in range(5):
            answering.ask(node, fetch(number), 10)
    reads = list(answering.start_reads(100))
    assert [read.node for read in reads] == [1, 2, 1, 2]
    assert list(answering.start_reads(100)) == []
    answering.on_read(reads[0], bytes(10))
    assert list(answering.start_reads(0)) == []
    assert len(list(answering.start_reads(1))) == 1
    alone = opened(ONE, depth=1)
    alone.ask(ONE, fetch(1), 10)
    assert len(list(alone.start_reads(1))) == 1


@pytest.mark.parametrize("before", ["it is read", "its answer leaves"])
def test_what_was_asked_on_a_stream_that_has_ended_is_not_answered(before: str) -> None:
    """The node asks anew by the same number: an old answer would look like a second one to it."""
    answering = opened(ONE)
    answering.ask(ONE, fetch(7), 10)
    [old] = answering.start_reads(8)
    if before == "its answer leaves":
        answering.on_read(old, b"old answer")
    answering.reset(ONE, 2)
    answering.ask(ONE, fetch(7), 10)
    [new] = answering.start_reads(8)
    if before == "it is read":
        answering.on_read(old, b"old answer")
    answering.on_read(new, b"new answer")
    assert [bytes(part.part) for part in parts(answering, ONE)] == [b"new answer"]
    assert answering.on_the_way == 0


def test_a_read_says_whose_it_is() -> None:
    """Node, question, opening, places and bytes."""
    answering = opened(TWO)
    answering.ask(TWO, fetch(5), 10)
    [read] = answering.start_reads(1)
    assert isinstance(read, ReadFor)
    assert (read.node, read.number, read.opening, read.places.tolist(), read.size) == (TWO, 5, 1, [5], 10)
