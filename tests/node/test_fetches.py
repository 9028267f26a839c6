"""Samples by name from other nodes: whole answers, refused ones, and an end to all waiting."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.errors import ProtocolError, UnreachableError
from brand.node.decide.draws import fetches
from brand.node.decide.draws.fetches import Fetches
from brand.node.decide.state.counters import NodeCounters
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.members import Members
from brand.node.wire.client_messages import Deliver, pack_samples, unpack_samples
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.node.wire.peer_messages import FetchReply
from brand.orders.base.mapping import Mapping
from tests.node.world import Index

CLIENT = ClientNumber(5)
ZERO, ONE, TWO = map(NodeNumber, range(3))
MAPPING = Mapping(40, 4, 1)
SIZES = [7 * place % 30 for place in range(40)]


def made() -> Fetches:
    """Node 1 of three: it owns the places 16 to 27."""
    return Fetches(Index(SIZES, 4), Members(ONE, 3).owners(MAPPING), 40, NodeCounters())


def array(*places: int) -> Any:
    """As an array."""
    return np.array(places, np.int64)


def answer(*places: int) -> memoryview:
    """What an owner would say."""
    return memoryview(pack_samples([bytes([place]) * SIZES[place] for place in places]))


@pytest.mark.slow
@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=10))
def test_samples_there_and_back(samples: list[bytes | None]) -> None:
    """Those that are there, and which they are; anything shorter or longer is refused."""
    sizes = np.array([5 if sample is None else len(sample) for sample in samples])
    data = pack_samples(samples)
    present, found = unpack_samples(memoryview(data), sizes)
    assert present.tolist() == [sample is not None for sample in samples]
    assert found == [sample for sample in samples if sample is not None]
    for wrong in (data + b"x", data[:-1], bytes([2]) + data[1:]):
        with pytest.raises(ProtocolError):
            unpack_samples(memoryview(wrong), sizes)


def test_two_owners_answer_in_parts() -> None:
    """The client gets all samples in the order that it asked for, one twice."""
    some = made()
    some.want(CLIENT, array(39, 2, 39, 1), 0.0)
    (zero,), (two,) = some.questions(ZERO), some.questions(TWO)
    assert (zero.places.tolist(), two.places.tolist()) == ([1, 2], [39])
    assert not list(some.questions(ZERO))
    data = answer(1, 2)
    some.on_reply(ZERO, FetchReply(zero.number, len(data), 0, data[:3]))
    some.on_reply(TWO, FetchReply(two.number, len(answer(39)), 0, answer(39)))
    assert some.done() == []
    some.on_reply(ZERO, FetchReply(zero.number, len(data), 3, data[3:]))
    expected = pack_samples([bytes([place]) * SIZES[place] for place in (39, 2, 39, 1)])
    assert some.done() == [Deliver(CLIENT, expected)]
    assert some.idle


def test_what_no_owner_should_say() -> None:
    """An answer by another node, out of turn, or of a size that its samples do not have."""
    some = made()
    some.want(CLIENT, array(1, 2), 0.0)
    [question] = some.questions(ZERO)
    number = question.number
    data = answer(1, 2)
    for node, size, offset in ((TWO, len(data), 0), (ZERO, len(data), 1), (ZERO, 1 << 40, 0)):
        with pytest.raises(ProtocolError):
            some.on_reply(node, FetchReply(number, size, offset, data))
    some.on_reply(ZERO, FetchReply(number + 1, len(data), 0, data))
    some.on_reply(ZERO, FetchReply(number, len(data), 0, data))
    assert len(some.done()) == 1


@pytest.mark.parametrize("places", [[], [40], [-1], [16], [1, 17]])
def test_what_no_client_should_want(places: list[int]) -> None:
    """Nothing, what is not there, or what this node has itself."""
    with pytest.raises(ProtocolError):
        made().want(CLIENT, array(*places), 0.0)


def test_a_node_that_does_not_answer() -> None:
    """The client is told which, and why; a stream that ended meanwhile is asked again when it is back."""
    some = made()
    some.want(CLIENT, array(1), 0.0)
    assert len(list(some.questions(ZERO))) == 1
    some.on_node_lost(ZERO)
    assert len(list(some.questions(ZERO))) == 1
    some.give_up(fetches.LIMIT_S - 1, lambda node: True)
    assert some.done() == []
    some.give_up(fetches.LIMIT_S + 1, lambda node: False)
    [refused] = some.done()
    assert isinstance(refused, Refuse)
    assert refused.client == CLIENT
    assert isinstance(refused.error, UnreachableError)
    assert str(refused.error) == "node 0 cannot be reached, and no other node has chunk 0 (place 1)"
    some.want(ClientNumber(6), array(1), 0.0)
    some.on_client_gone(ClientNumber(6))
    assert some.idle
    assert not list(some.questions(ZERO))


@pytest.mark.parametrize("wrong", [b"", b"\1", b"\2" * 16, b"\1\1" + bytes(20), bytes(3)])
def test_an_answer_whose_parts_do_not_add_up_can_be_asked_for_again(wrong: bytes) -> None:
    """The stream is ended, and what was asked is not forgotten: it is answered later, or the client is told."""
    for later in (True, False):
        some = made()
        some.want(CLIENT, array(1, 2), 0.0)
        [question] = some.questions(ZERO)
        with pytest.raises(ProtocolError):
            some.on_reply(ZERO, FetchReply(question.number, len(wrong), 0, memoryview(wrong)))
        some.on_node_lost(ZERO)
        [again] = some.questions(ZERO)
        if later:
            some.on_reply(ZERO, FetchReply(again.number, len(answer(1, 2)), 0, answer(1, 2)))
            assert isinstance(some.done()[0], Deliver)
        some.give_up(fetches.LIMIT_S + 1, lambda node: False)
        assert [type(each) for each in some.done()] == ([] if later else [Refuse])
        assert some.idle
