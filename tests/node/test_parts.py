"""Samples in parts: the pages of one are those that were sent, whatever the parts are, and none is left reserved."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.errors import ProtocolError
from brand.formats.constants import ROW
from brand.node.decide.peers import parts
from brand.node.decide.peers.parts import PART_S, ArrivingSamples, DepartingSamples
from brand.node.memory.allocator import Allocator
from brand.node.memory.arena import Arena
from brand.node.memory.pages import ROW_BYTES, PagePool
from brand.node.memory.residents import Residents
from brand.node.wire import peer_messages as wire
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import PushPart

PAGE = 128
HOME, THIRD = NodeNumber(1), NodeNumber(2)
PAGES_OF = np.array([7, 1, 5, 40], np.uint8)


def memory(pages: int = 100) -> Residents:
    """The memory of one of three nodes."""
    allocator = Allocator(pages * PAGE, PAGE)
    return Residents(PagePool(allocator, Arena(pages, PAGE), PAGES_OF), 3)


def content(place: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The pages of a sample, all of them different."""
    return np.random.default_rng(place).integers(0, 256, (int(PAGES_OF[place]), PAGE), np.uint8)


def part(place: int, first: int, end: int, number: int = 9) -> PushPart:
    """Some pages of a sample."""
    return PushPart(number, place, first, content(place)[first:end])


def receive(arriving: ArrivingSamples, one: PushPart, node: NodeNumber = HOME, *, holds: bool = True) -> bool:
    """As `Receiving` does; whether the sample is complete."""
    arriving.check(node, one, 50)
    if not one.first:
        arriving.begin(node, one, 0.0, holds=holds)
    return arriving.add(node, one, 0.0)


@pytest.mark.parametrize("message_pages", [1, 2, 3, 7, 39, 40])
def test_a_sample_arrives_as_it_was_sent(message_pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole pages, in order, over the wire. The home node frees its pages with the last part."""
    monkeypatch.setattr(parts, "MESSAGE_BYTES", message_pages * PAGE + 1)
    home, here = memory(), memory()
    heads, pages = home.pool.take(np.array([3]))
    home.pool.fill(pages, content(3))
    home.put(np.array([3]), heads)
    departing, arriving = DepartingSamples(home), ArrivingSamples(here)
    departing.begin(THIRD, 9, 3)
    sizes, complete = [], False
    while (one := departing.next(THIRD)) is not None:
        assert not complete
        sizes.append(len(one.data))
        got = wire.unpack_reply(wire.pack(one), PAGE)
        assert isinstance(got, PushPart)
        assert (got.number, got.place) == (9, 3)
        complete = receive(arriving, got)
        assert here.sent_pages[HOME] == 40
    assert complete
    assert sizes == [message_pages] * (40 // message_pages) + [40 % message_pages] * bool(40 % message_pages)
    assert home.pool.allocator.free == 99, "the last part frees the sample"
    heads = arriving.finish(HOME)
    here.pool.came(np.array([3]), heads, np.zeros(1, ROW))
    here.put(np.array([3]), heads, HOME)
    found = here.contents(np.array([3]))
    found[0, :ROW_BYTES] = content(3)[0, :ROW_BYTES]  # the row is the receiver's own
    assert (found == content(3)).all()
    assert (here.sent_pages[HOME], here.pool.allocator.free) == (40, 59)


@given(st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 11), st.data())
def test_a_part_that_does_not_follow_is_refused(place: int, sizes: list[int], wrong: int, data: st.DataObject) -> None:
    """Whatever differs: the place, the epoch, what has arrived before, the end. Pages are free when the stream ends."""
    here = memory()
    arriving, first = ArrivingSamples(here), 0
    pages = int(PAGES_OF[place])
    for number, size in enumerate(sizes):
        end = min(pages, first + size)
        one = part(place, first, end)
        if number == wrong:
            lies = [
                replace(one, first=first + 1),
                replace(one, first=first + 1, data=one.data[:0]),
                replace(one, data=np.zeros((pages - first + 1, PAGE), np.uint8)),
            ]
            if first:
                lies += [
                    replace(one, number=8),
                    part((place + 1) % 4, first, first + 1),
                    part((place + 1) % 4, 0, 1),
                    part(place, 0, 1),
                    part(place, first - 1, first),
                ]
            with pytest.raises(ProtocolError):
                receive(arriving, data.draw(st.sampled_from(lies)))
            break
        if receive(arriving, one):
            here.pool.give_back(np.array([place]), arriving.finish(HOME))
            break
        first = end
        with pytest.raises(ProtocolError, match="between the parts"):
            arriving.check_none(HOME)
    arriving.drop(HOME)
    arriving.check_none(HOME)
    assert (here.pool.allocator.free, here.sent_pages.tolist()) == (99, [0, 0, 0])


def test_a_sample_that_is_too_large_to_be_sent_reserves_nothing() -> None:
    """However small its first part is."""
    here = memory()
    with pytest.raises(ProtocolError, match="too large"):
        ArrivingSamples(here).check(HOME, part(3, 0, 1), 39)
    assert here.pool.allocator.free == 99


def test_each_node_has_one_incomplete_sample() -> None:
    """That of one node is no matter of another node's."""
    here = memory()
    arriving = ArrivingSamples(here)
    assert not receive(arriving, part(0, 0, 3))
    assert not receive(arriving, part(2, 0, 4), THIRD)
    assert receive(arriving, part(2, 4, 5), THIRD)
    assert here.sent_pages.tolist() == [0, 7, 5]
    arriving.drop(HOME)
    assert here.sent_pages.tolist() == [0, 0, 5]
    assert len(arriving.finish(THIRD)) == 1


@pytest.mark.parametrize(("pages", "holds"), [(40, True), (100, False)])
def test_a_sample_without_space_or_use_is_taken_and_dropped(pages: int, holds: bool) -> None:
    """Its node has done nothing wrong: all parts are taken, and no page is."""
    here = memory(pages)
    arriving = ArrivingSamples(here)
    assert [receive(arriving, part(3, first, first + 8), holds=holds) for first in range(0, 40, 8)] == [False] * 4 + [
        True
    ]
    assert (here.pool.allocator.free, here.sent_pages[HOME]) == (pages - 1, 0)
    assert len(arriving.finish(HOME)) == 0


def test_pages_are_free_when_no_part_arrives_any_more() -> None:
    """After `PART_S`; parts that arrive later are dropped, and the next sample is held again."""
    here = memory()
    arriving = ArrivingSamples(here)
    receive(arriving, part(0, 0, 3))
    arriving.expire(PART_S)
    assert here.pool.allocator.free == 92
    for later_s in (PART_S + 0.1, PART_S + 9):
        arriving.expire(later_s)
        assert (here.pool.allocator.free, here.sent_pages[HOME]) == (99, 0)
    assert receive(arriving, part(0, 3, 7))
    assert len(arriving.finish(HOME)) == 0
    receive(arriving, part(2, 0, 3))
    assert here.pool.allocator.free == 94


def test_a_stream_that_ends_releases_the_sample_under_way() -> None:
    """Nothing more is sent of it, and its pages are free, also if nobody else holds it."""
    home = memory()
    heads, pages = home.pool.take(np.array([3]))
    home.pool.fill(pages, content(3))
    home.put(np.array([3]), heads)
    departing = DepartingSamples(home)
    departing.begin(HOME, 9, 3)
    departing.drop(HOME)
    departing.drop(HOME)
    assert departing.next(HOME) is None
    assert home.pool.allocator.free == 99
