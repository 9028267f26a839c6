"""Credit between two nodes: what one sends, the other has room for, whatever is on its way."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brand.errors import ProtocolError
from brand.node.decide.peers.peers import Peer, PeerTable, Reach
from brand.node.wire.numbers import NodeNumber
from tests.rounds import examples

ZERO, ONE, TWO = map(NodeNumber, range(3))


class CreditMachine(RuleBasedStateMachine):
    """A node that draws tells its owner of room; the owner sends; messages take any time and keep their order."""

    @initialize(window=st.integers(0, 100))
    def start(self, window: int) -> None:
        self.window = window
        self.owner, self.drawer = Peer(ZERO), Peer(ONE)
        self.rooms, self.pushes = deque[int](), deque[int]()
        """What is on its way to the owner, and from it."""
        self.held = 0
        """Pages in memory that the owner has sent."""
        self.greet()

    def greet(self) -> None:
        self.owner.mark_open(0.0)
        self.drawer.on_stream_open()
        self.rooms.clear()
        self.pushes.clear()
        self.asked = self.received = 0
        """Pages that the owner was asked for, and pages that have come, since the stream was opened."""

    @rule()
    def cut(self) -> None:
        """The stream ends, and is opened again: all that is on its way is lost."""
        self.owner.mark_lost()
        self.drawer.on_stream_end()
        self.greet()

    @rule(now=st.booleans())
    def tell(self, now: bool) -> None:
        room = self.owner.grant(self.window, self.held, now=now)
        assert room is not None or not now
        if room is not None:
            assert room <= self.window + self.asked + self.received, "more than memory has room for"
            self.rooms.append(room)

    @rule(pages=st.integers(0, 30))
    def ask(self, pages: int) -> None:
        self.owner.add_requested(pages)
        self.asked += pages

    @precondition(lambda self: self.rooms)
    @rule()
    def room_arrives(self) -> None:
        self.drawer.allow(self.rooms.popleft())

    @precondition(lambda self: self.drawer.may_send > 0)
    @rule(part=st.floats(0, 1))
    def send(self, part: float) -> None:
        pages = max(1, int(part * self.drawer.may_send))
        self.drawer.add_sent(pages)
        self.pushes.append(pages)

    @precondition(lambda self: self.pushes)
    @rule(answered=st.booleans())
    def push_arrives(self, answered: bool) -> None:
        """An honest owner never sends more than it is allowed: otherwise `add_received` raises."""
        pages = self.pushes.popleft()
        self.owner.add_received(pages, 1.0)
        self.held += pages
        self.received += pages
        if answered:
            self.owner.add_answered(pages)

    @precondition(lambda self: self.held)
    @rule(pages=st.integers(1, 50))
    def free(self, pages: int) -> None:
        self.held -= min(self.held, pages)

    @invariant()
    def the_owner_has_what_it_may_send(self) -> None:
        if hasattr(self, "drawer"):
            assert self.drawer.may_send >= 0


CreditMachine.TestCase.settings = examples(60, stateful_step_count=40)
TestCredit = CreditMachine.TestCase


def test_more_than_there_is_room_for_is_refused() -> None:
    """By one page."""
    peer = Peer(ONE)
    peer.mark_open(0.0)
    assert peer.grant(10, 0, now=True) == 10
    peer.add_received(10, 1.0)
    with pytest.raises(ProtocolError, match="more pages than it was allowed to send"):
        peer.add_received(1, 1.0)


def test_room_is_told_when_it_is_worth_it_and_never_falls() -> None:
    """A sixteenth of the window more, or at once; held samples take room, and what was told stays."""
    peer = Peer(ONE)
    peer.mark_open(0.0)
    assert peer.grant(160, 0, now=False) == 160
    peer.add_received(20, 1.0)
    assert peer.grant(160, 20, now=False) is None
    assert peer.grant(160, 11, now=False) is None
    assert peer.grant(160, 10, now=False) == 170
    assert peer.grant(160, 160, now=True) == 170


def test_a_node_is_reached_lost_or_given_up() -> None:
    """Only one that was reached is lost; one that is given up may come all the same."""
    peers = PeerTable([ONE, TWO])
    assert (peers.unreachable(), peers.any_lost, peers.complete) == ([], False, False)
    peers[ONE].mark_lost()
    assert (peers[ONE].reach, peers.unreachable(), peers.any_lost) == (Reach.GIVEN_UP, [1], False)
    for peer in peers:
        peer.mark_open(0.0)
        peer.on_stream_open()
    assert peers.complete
    assert peers.any_asks
    peers[TWO].on_stream_end()
    assert (peers.unreachable(), peers.any_lost) == ([], True)
    peers[TWO].mark_lost()
    assert (peers.unreachable(), peers.any_lost, peers.complete, peers.is_reachable(ONE)) == ([2], True, True, True)
    peers[ONE].on_stream_end()
    assert not peers.any_asks
