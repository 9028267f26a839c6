"""What another node is still to be sent: everything in the order of its draws, or what it asks for."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.node.decide.epochs.epochs import requests_of_ranks
from brand.node.decide.peers.sending import Outgoing
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import PeerRequests


def positions(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """As an array."""
    return np.array(values, np.int64)


def taken(outgoing: Outgoing) -> list[int]:
    """All of a queue, one after the other."""
    found = []
    while len(some := outgoing.next()):
        found.append(int(some[0]))
        outgoing.advance(1)
    return found


@pytest.mark.slow
@given(st.sets(st.integers(0, 60), max_size=40), st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=5))
def test_unasked_all_comes_once_and_what_is_waited_for_comes_first(queued: set[int], asked: list[list[int]]) -> None:
    """In the order of the questions, each in the order of draws; what was not queued is nobody's matter."""
    outgoing, expected, rest = Outgoing(positions(*sorted(queued)), None), list[int](), sorted(queued)
    assert outgoing.front(100) == min(queued, default=100)
    for some in asked:
        outgoing.ask(positions(*some))
        expected += [position for position in rest if position in some]
        rest = [position for position in rest if position not in some]
        assert outgoing.urgent == len(expected)
    outgoing.advance(0)
    assert taken(outgoing) == expected + rest
    assert outgoing.urgent == 0


def test_asked_for_answers_come_first_and_then_what_is_sent_along() -> None:
    """That which is drawn next first; what the plan does not foresee as a request comes alone."""
    table = PeerRequests(positions(3, 10), positions(7, 30, 5, 12), np.array([2, 4]))
    outgoing = Outgoing(positions(3, 4, 5, 7, 10, 12, 30), table)
    assert taken(outgoing) == []
    outgoing.ask(positions(3, 10))
    assert outgoing.urgent == 2
    assert taken(outgoing) == [3, 10, 5, 7, 12, 30]
    outgoing.ask(positions(4))
    assert taken(outgoing) == [4]


@pytest.mark.slow
@given(
    st.sets(st.integers(0, 60), max_size=40),
    st.lists(st.one_of(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 4)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_asked_for_no_position_comes_twice(known: set[int], steps: list[list[int] | int], rng: random.Random) -> None:
    """Whatever the node asks for, and whenever: what it has asked for comes, if it is known, and nothing else does."""
    foreseen = sorted(rng.sample(range(61), 20))
    along = rng.sample([position for position in range(61) if position not in foreseen], 40)
    table = PeerRequests(positions(*foreseen), positions(*along), np.arange(2, 42, 2))
    outgoing, sent, asked = Outgoing(positions(*sorted(known)), table), list[int](), set[int]()
    for step in steps:
        if isinstance(step, int):
            some = outgoing.next()[:step].tolist()
            outgoing.advance(len(some))
            sent += some
        else:
            outgoing.ask(positions(*step))
            asked |= known & set(step)
    urgent = outgoing.unanswered.tolist()
    sent += taken(outgoing)
    assert len(set(sent)) == len(sent)
    with_them = {p for number, first in enumerate(foreseen) if first in asked for p in table.sent_with(number).tolist()}
    assert set(sent) == asked | (with_them & known)
    assert set(urgent) <= asked


def test_a_plan_of_requests_is_followed_where_ranks_lie_as_it_foresees() -> None:
    """Those of a node side by side."""
    table = PeerRequests(positions(), positions(), np.array([], np.int64))
    zero, one = NodeNumber(0), NodeNumber(1)
    assert requests_of_ranks(table, {0: zero, 1: zero, 2: one, 3: one}, 2, 4) is table
    assert requests_of_ranks(table, {2: one}, 2, 4) is table
    assert requests_of_ranks(table, {0: zero, 1: one, 2: zero, 3: one}, 2, 4) is None
    assert requests_of_ranks(None, {0: zero}, 1, 1) is None
