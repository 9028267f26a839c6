"""What nodes say to each other: each is what was packed; whatever else comes is refused, and the server goes on."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.decide.reads.reads import reserved
from brand.node.decide.state.epoch_table import Key
from brand.node.memory.pages import ROW_BYTES
from brand.node.memory.residents import Residents
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import Member, ServerSpec
from brand.node.wire import peer_messages as wire
from brand.node.wire.client_messages import ClientBegins
from brand.node.wire.drawing import Announcement, Begin, Drawing
from brand.node.wire.messages import MAX_REASON, PeerKind
from brand.node.wire.network import Closed, Event, Opened, PeerStream, Received
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.node.wire.peer_messages import JoinVote, LeadingOffset, Vote
from brand.orders.base.joins import Join, alone
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.orders.policies.other_systems import JoaderPolicy
from brand.orders.policies.shared_policy import SharedPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import random_address
from tests.made_orders import order_of
from tests.rounds import examples
from tests.support import wait_until

CLIENT = ClientNumber(1)
ZERO, ONE, THREE = NodeNumber(0), NodeNumber(1), NodeNumber(3)
PAGE = 128
ORDER = Order("0" * 32, 1000, 16, 7, SlotPolicy(4, nodes=2, ranks=2, window=10, remote=10))
PLACES = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20)


def array(values: list[int]) -> Any:
    """As places and positions are."""
    return np.array(values, np.int64)


@pytest.mark.slow
@given(st.data())
def test_drawing(data: Any) -> None:
    """`DRAWING` there and back."""
    replicas = data.draw(st.integers(1, 50))
    ranks = data.draw(st.sets(st.integers(0, replicas - 1), min_size=1))
    numbers = st.integers(0, 1000)
    begin = Begin(data.draw(numbers), replicas, tuple(ranks), data.draw(numbers), THREE, data.draw(numbers))
    begin = replace(begin, front=data.draw(numbers), largest=17)
    drawing = Drawing("run", data.draw(st.none() | numbers), ORDER, data.draw(numbers), begin, data.draw(numbers))
    told = wire.EpochAnnounced(drawing, data.draw(st.booleans()))
    assert wire.unpack_question(wire.pack(told), THREE) == told


@pytest.mark.slow
@given(st.integers(0, (1 << 32) - 1), st.integers(0, wire.MAX_ROOM), PLACES)
def test_rooms_requests_and_fetches(number: int, room: int, places: list[int]) -> None:
    """There and back, whatever the positions are."""
    assert wire.unpack_question(wire.pack(wire.PeerCapacity(room)), ONE) == wire.PeerCapacity(room)
    request = wire.unpack_question(wire.pack(wire.SampleRequest(number, room, array(places))), ONE)
    assert isinstance(request, wire.SampleRequest)
    assert (request.number, request.room, request.positions.tolist()) == (number, room, places)
    fetch = wire.unpack_question(wire.pack(wire.Fetch(number, array(places))), ONE)
    assert isinstance(fetch, wire.Fetch)
    assert (fetch.number, fetch.places.tolist()) == (number, places)
    with pytest.raises(ProtocolError, match="pages"):
        wire.unpack_question(wire.pack(wire.PeerCapacity(wire.MAX_ROOM + 1)), ONE)


@given(st.none() | st.integers(0, 1000), st.text(max_size=2 * MAX_REASON))
def test_what_is_forgotten_or_refused(epoch: int | None, reason: str) -> None:
    """There and back; a reason has a longest length."""
    about = wire.EpochReleased("run", ORDER, epoch)
    assert wire.unpack_question(wire.pack(about), ONE) == about
    refused = wire.Refused(about, reason[:MAX_REASON])
    assert wire.unpack_reply(wire.pack(wire.Refused(about, reason)), PAGE) == refused


@given(st.integers(0, (1 << 32) - 1), PLACES, st.integers(0, 5), st.integers(0, 4))
def test_pushes(number: int, places: list[int], missed: int, pages: int) -> None:
    """There and back; the pages are one array."""
    data = np.arange(pages * PAGE).astype(np.uint8).reshape(pages, PAGE)
    some, others = array(places), array(places[:missed])
    found = wire.unpack_reply(wire.pack(wire.Push(number, some, others, data)), PAGE)
    assert isinstance(found, wire.Push)
    assert (found.number, found.places.tolist(), found.missed.tolist()) == (number, places, places[:missed])
    assert found.data.tolist() == data.tolist()


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(1, 4), st.integers(1, PAGE - 1))
def test_parts_of_a_sample(number: int, place: int, pages: int, more: int) -> None:
    """There and back, in whole pages, and at least one."""
    data = np.arange(pages * PAGE).astype(np.uint8).reshape(pages, PAGE)
    packed = wire.pack(wire.PushPart(number, place, number, data))
    found = wire.unpack_reply(packed, PAGE)
    assert isinstance(found, wire.PushPart)
    assert (found.number, found.place, found.first, found.data.tolist()) == (number, place, number, data.tolist())
    for wrong in (packed[: -pages * PAGE], packed[:-more], packed + bytes(more), packed[: 4 + more % 16]):
        with pytest.raises(ProtocolError, match="a part that has no pages"):
            wire.unpack_reply(wrong, PAGE)


@pytest.mark.slow
@given(st.binary(max_size=100), st.integers(0, 50))
def test_parts_of_an_answer(data: bytes, offset: int) -> None:
    """There and back; a part beyond the end of its answer is refused."""
    view = memoryview(data)
    found = wire.unpack_reply(wire.pack(wire.FetchReply(9, len(data) + offset, offset, view)), PAGE)
    assert isinstance(found, wire.FetchReply)
    assert (found.number, found.size, found.offset, found.part) == (9, len(data) + offset, offset, view)
    if data:
        with pytest.raises(ProtocolError, match="end"):
            wire.unpack_reply(wire.pack(wire.FetchReply(9, len(data) + offset - 1, offset, view)), PAGE)


SHARED = Order("0" * 32, 1000, 16, 7, SharedPolicy(4, 4), Subset.of(np.arange(1000) % 3 == 0))
JOINS = st.builds(Join, st.just(0), st.integers(0, 99), st.integers(0, 999), st.just(0) | st.integers(16, 4096))


@given(st.booleans(), st.booleans(), st.none() | JOINS, st.integers(-1, 99), st.booleans(), st.booleans())
def test_joins_and_fronts(stands: bool, leads: bool, join: Join | None, lap: int, asks: bool, draws: bool) -> None:
    """There and back, with the bits of a part; joins that are decided are some."""
    said = Vote(stands, leads, () if join is None else (join,))
    joining = JoinVote("run", SHARED, 5, said, lap, asks, draws)
    packed = wire.pack(joining)
    if join is None and (stands or leads):
        with pytest.raises(ProtocolError, match="decided"):
            wire.unpack_question(packed, ONE)
    else:
        assert wire.unpack_question(packed, ONE) == joining
    front = LeadingOffset(7, lap + 1, 1 << 40)
    assert wire.unpack_question(wire.pack(front), ONE) == front


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("joins", [[0, 0, 1000, 0]], "beyond a lap"),
        ("joins", [[1, 0, 0, 0]], "the first at position 0"),
        ("joins", [[0, 0, 0, 1]], "the pace of a join"),
        ("joins", "all", "rows of four"),
        ("lap", 1 << 16, "laps are"),
        ("stands", 1, "not true or false"),
        ("epoch", None, "epoch is None"),
        ("order", ORDER.to_json(), "order that has none"),
        ("order", {**SHARED.to_json(), "part": "0" * 32}, "an invalid order"),
        ("bits", "", "an invalid order"),
    ],
)
def test_joins_that_cannot_be_are_refused(field: str, value: Any, said: str) -> None:
    """Each field is checked before it is used."""
    packed = wire.pack(JoinVote("run", SHARED, 5, Vote(rows=alone(3)), 3, asks=True, draws=True))
    facts = json.loads(packed[4:]) | {field: value}
    if value == ORDER.to_json():
        del facts["bits"]
    with pytest.raises(ProtocolError, match=said):
        wire.unpack_question(packed[:4] + json.dumps(facts).encode(), ONE)
    with pytest.raises(ProtocolError, match="a LeadingOffset of 3 bytes"):
        wire.unpack_question(wire.pack(LeadingOffset(1, 2, 3))[:7], ONE)


def test_a_message_on_the_wrong_stream() -> None:
    """A question is no reply, and the other way round."""
    with pytest.raises(ProtocolError, match="a home node does not send ROOM"):
        wire.unpack_reply(wire.pack(wire.PeerCapacity(1)), PAGE)
    with pytest.raises(ProtocolError, match="an asking node does not send REFUSED"):
        wire.unpack_question(wire.pack(wire.Refused(wire.EpochReleased("run", ORDER, None), "because")), ONE)


class Wire:
    """A network on which a test says what comes."""

    def __init__(self) -> None:
        self.wake, self.address = os.eventfd(0), "127.0.0.1:1"
        self.coming: list[Event] = []
        self.sent: list[tuple[PeerStream, bytes]] = []
        self.hung_up: list[PeerStream] = []

    def connect(self, addresses: dict[int, str]) -> None:
        """Nobody is there."""

    def events(self) -> list[Event]:
        """What the test has put there."""
        coming, self.coming = self.coming, []
        return coming

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Kept for the test."""
        self.sent.append((stream, message))

    def unsent(self, stream: PeerStream) -> int:
        """All is taken."""
        return 0

    def hang_up(self, stream: PeerStream, reason: str) -> None:
        """The stream is open again at once, so that the test goes on."""
        self.hung_up.append(stream)
        self.coming += [Closed(stream, reason), Opened(stream)]

    def close(self) -> None:
        """Nothing to let go of but the descriptor."""
        os.close(self.wake)


@pytest.fixture(scope="module")
def served(texts: Path) -> Iterator[tuple[NodeServer, Wire]]:
    """Node 0 of two, which no thread runs, and the network between them."""
    with serving(texts) as found:
        yield found


@contextmanager
def serving(texts: Path) -> Iterator[tuple[NodeServer, Wire]]:
    """The same for the length of a block."""
    made = Wire()
    server = NodeServer(
        ServerSpec(texts, random_address(), memory=0.5, member=Member(0, 2, "token")), lambda data, page: made
    )
    for asks in (True, False):
        made.coming.append(Opened(PeerStream(1, asks)))
    yield server, made
    server.stop()
    server.run()


def int32(places: list[int]) -> NDArray[np.int32]:
    """Places as online orders have them."""
    return np.array(places, np.int32)


@given(st.integers(0, 99), st.booleans(), st.integers(0, (1 << 32) - 1), st.lists(st.integers(0, 999), max_size=9))
def test_orders_that_are_followed(epoch: int, draws: bool, number: int, places: list[int]) -> None:
    """There and back; nobody follows an order that does not grow."""
    followed = wire.OrderFollowed("run", replace(SHARED, policy=JoaderPolicy(4)), epoch, number, draws)
    assert wire.unpack_question(wire.pack(followed), ONE) == followed
    with pytest.raises(ProtocolError, match="does not grow"):
        wire.unpack_question(wire.pack(replace(followed, order=SHARED)), ONE)
    known = wire.unpack_question(wire.pack(wire.OrderKnown(number, epoch, 1 << 40, 7, int32(places))), ONE)
    assert isinstance(known, wire.OrderKnown)
    assert (known.number, known.first, known.most, known.largest) == (number, epoch, 1 << 40, 7)
    grown = wire.unpack_reply(wire.pack(wire.OrderGrown(number, epoch, int32(places))), PAGE)
    assert isinstance(grown, wire.OrderGrown)
    assert (grown.number, grown.first) == (number, epoch)
    assert known.places.tolist() == grown.places.tolist() == places
    left = wire.OrderLeft(number)
    assert wire.unpack_question(wire.pack(left), ONE) == wire.unpack_reply(wire.pack(left), PAGE) == left


def residents_of(server: NodeServer) -> Residents:
    """What it has in memory."""
    return server._state.core.residents


def turn(server: NodeServer) -> None:
    """What the loop does after something has come."""
    assert server._exchange is not None
    server._exchange.take_events()
    server._executor.finish()
    server._step()


def planned(server: NodeServer, key: Key) -> bool:
    """Whether an epoch is there after another turn."""
    turn(server)
    return server._state.core.epochs.get(key) is not None


@st.composite
def messages(draw: Any, order: Order, page: int) -> bytes:
    """Something that a node might say, often almost right."""
    numbers = st.one_of(st.integers(0, 3), st.integers(0, 1 << 31))
    places = st.lists(st.one_of(st.integers(-2, 1300), st.integers(-(1 << 63), (1 << 63) - 1)), min_size=1, max_size=9)
    small, grows = st.lists(st.integers(-2, 1300), max_size=9), replace(order, policy=JoaderPolicy(4))
    begin = Begin(
        draw(st.integers(0, 1200)), draw(st.integers(1, 4)), (0,), draw(st.sampled_from([0, 0, 5])), ONE, 1, 0, 4
    )
    drawing = Drawing("run", 0, order, draw(st.integers(0, 3)), begin, draw(st.integers(0, 3)))
    pages = np.full((draw(st.integers(0, 6)), page), draw(st.integers(0, 255)), np.uint8)
    said = draw(
        st.one_of(
            st.binary(max_size=40),
            st.builds(lambda asks: wire.EpochAnnounced(drawing, asks), st.booleans()),
            st.builds(lambda epoch: wire.EpochReleased("run", order, epoch), st.none() | st.just(drawing.epoch)),
            st.builds(wire.PeerCapacity, st.integers(0, (1 << 64) - 1)),
            st.builds(lambda n, p: wire.SampleRequest(n, 5, array(p)), numbers, places),
            st.builds(lambda n, p: wire.Fetch(n, array(p)), numbers, places),
            st.builds(lambda n, p, m: wire.Push(n, array(p), array(m), pages), numbers, places, places),
            st.builds(wire.PushPart, numbers, st.integers(0, 1300), st.integers(0, 5), st.just(pages)),
            st.builds(lambda n: wire.FetchReply(n, 10, 0, memoryview(b"0123456789")), numbers),
            st.just(wire.Refused(wire.EpochReleased("run", order, None), "because")),
            st.builds(
                lambda epoch, n, draws: wire.OrderFollowed("run", grows, epoch, n, draws),
                numbers,
                numbers,
                st.booleans(),
            ),
            st.builds(
                lambda n, first, most, p: wire.OrderKnown(n, first, most, 1, int32(p)), numbers, numbers, numbers, small
            ),
            st.builds(lambda n, first, p: wire.OrderGrown(n, first, int32(p)), numbers, numbers, small),
            st.builds(wire.OrderLeft, numbers),
        )
    )
    message: bytes = said if isinstance(said, bytes) else wire.pack(said)
    if draw(st.booleans()) and len(message) > 8:
        where = draw(st.integers(0, len(message) - 1))
        message = message[:where] + draw(st.binary(max_size=9)) + message[where + draw(st.integers(0, 9)) :]
    return message


@pytest.mark.slow
@given(data=st.data(), asks=st.booleans())
@examples(1000)
def test_whatever_a_node_says_the_server_goes_on(
    served: tuple[NodeServer, Wire], texts: Path, data: Any, asks: bool
) -> None:
    """Each handler, in any order and state: a message is taken, or the stream is hung up on; memory stays accounted."""
    server, made = served
    order = order_of(texts)
    message = data.draw(messages(order, residents_of(server).pool.allocator.page))
    made.coming.append(Received(PeerStream(1, asks), message))
    turn(server)
    made.sent.clear()
    free = residents_of(server).pool.allocator.free
    assert 0 <= free < residents_of(server).pool.allocator.count
    assert reserved(residents_of(server), server._state.core.remote_pages) >= 0


@given(st.binary(max_size=200))
@example(struct.pack("<HHIII", PeerKind.PUSH, wire.VERSION, 0, (1 << 32) - 1, (1 << 32) - 1))
@example(struct.pack("<HHIQI", PeerKind.PART, wire.VERSION, 0, (1 << 64) - 1, (1 << 32) - 1) + bytes(PAGE))
@example(struct.pack("<HHQQQ", PeerKind.FETCHED, wire.VERSION, 0, (1 << 64) - 1, (1 << 64) - 1))
@example(struct.pack("<HH", PeerKind.DRAWING, wire.VERSION) + b'{"run": ' + b"[" * 100_000)
@example(struct.pack("<HH", PeerKind.DRAWING, wire.VERSION) + json.dumps({"run": "x", "order": 5}).encode())
def test_any_bytes(message: bytes) -> None:
    """Taken or refused; no length in a message makes anybody allocate memory."""
    with suppress(ProtocolError):
        wire.unpack_question(message, ONE)
    with suppress(ProtocolError):
        wire.unpack_reply(message, PAGE)


def test_a_push_that_nobody_waits_for_is_no_harm(texts: Path) -> None:
    """Of an epoch that is not there, or said again: no memory is taken. More than there is room for is hung up on."""
    # A server of its own: one that other tests have talked to may be filling its memory for an epoch they announced.
    with serving(texts) as (server, made):
        turn(server)
        pool = residents_of(server).pool.allocator
        pages = int(residents_of(server).pages_of[700])
        came = Received(
            PeerStream(1, asks=True),
            wire.pack(wire.Push(99, array([700]), array([]), np.zeros((pages, pool.page), np.uint8))),
        )
        free = pool.free
        for _ in range(2):
            made.coming.append(came)
            turn(server)
        assert (pool.free, made.hung_up) == (free, [])
        made.coming += [came] * (2 + server._state.core.remote_pages // pages)
        turn(server)
        assert (pool.free, made.hung_up[:1]) == (free, [PeerStream(1, asks=True)])


def test_a_peer_that_lies(texts: Path) -> None:
    """Rows of the index are this node's own, so wrong bytes are found out; what a node does not own it cannot send."""
    data, order = StoredDataSet(texts), order_of(texts)
    with serving(texts) as (server, made):
        turn(server)
        core, page = server._state.core, residents_of(server).pool.allocator.page
        run = core.epochs.runs.register(CLIENT, order, "run", None)
        core.epochs.begin_here(ClientBegins(CLIENT, run, Announcement(0)))
        wait_until(lambda: planned(server, (run, 0)), "the epoch is planned")
        live = core.epochs.get((run, 0))
        assert live is not None
        epoch = live.epoch
        mine, theirs = 3, order.samples - 3
        assert epoch.owner_of(array([mine, theirs])).tolist() == [0, 1]
        assert epoch.states.due(array([theirs])).all()
        lie = np.full((int(residents_of(server).pages_of[theirs]), page), 255, np.uint8)
        made.coming.append(
            Received(PeerStream(1, asks=True), wire.pack(wire.Push(epoch.number, array([theirs]), array([]), lie)))
        )
        turn(server)
        counts, pages = core.residents.chains(array([theirs]))
        assert counts.tolist() == [len(lie)]
        kept = server._arenas.samples.pages[pages[0], :ROW_BYTES].tobytes()
        assert kept == theirs.to_bytes(8, "little") + data.rows_at(array([theirs])).tobytes()[8:]
        assert made.hung_up == []
        lie = lie[:1].repeat(int(residents_of(server).pages_of[mine]), axis=0)
        made.coming.append(
            Received(PeerStream(1, asks=True), wire.pack(wire.Push(epoch.number, array([mine]), array([]), lie)))
        )
        turn(server)
        assert made.hung_up == [PeerStream(1, asks=True)]


@pytest.mark.parametrize("lie", ["another place", "a gap", "no beginning", "not its own", "a push", "no such place"])
def test_a_peer_that_lies_in_the_parts_of_a_sample(texts: Path, lie: str) -> None:
    """It is hung up on, and the pages that its sample had reserved are free: it was never in memory."""
    order = order_of(texts)
    with serving(texts) as (server, made):
        turn(server)
        core, residents = server._state.core, residents_of(server)
        run = core.epochs.runs.register(CLIENT, order, "run", None)
        core.epochs.begin_here(ClientBegins(CLIENT, run, Announcement(0)))
        wait_until(lambda: planned(server, (run, 0)), "the epoch is planned")
        live = core.epochs.get((run, 0))
        assert live is not None
        number, owner = live.epoch.number, live.epoch.owner_of(np.arange(order.samples))
        large = np.flatnonzero(
            (residents.pages_of[:] >= 3) & (residents.pages_of[:] <= core.epochs.limits.largest_sent(ZERO))
        )
        mine, (place, other) = int(large[owner[large] == 0][0]), large[owner[large] == 1][:2].tolist()
        pages = np.zeros((1, residents.pool.allocator.page), np.uint8)
        whole = pages.repeat(int(residents.pages_of[other]), axis=0)
        first = wire.PushPart(number, place, 0, pages)
        lies: dict[str, list[wire.Reply]] = {
            "another place": [first, wire.PushPart(number, other, 1, pages)],
            "a gap": [first, wire.PushPart(number, place, 2, pages)],
            "no beginning": [wire.PushPart(number, place, 1, pages)],
            "not its own": [wire.PushPart(number, mine, 0, pages)],
            "a push": [first, wire.Push(number, array([other]), array([]), whole)],
            "no such place": [wire.PushPart(number, order.samples, 0, pages)],
        }
        *before, last = (Received(PeerStream(1, asks=True), wire.pack(message)) for message in lies[lie])
        assert server._exchange is not None
        free = residents.pool.allocator.free
        made.coming += before
        server._exchange.take_events()
        assert made.hung_up == []
        assert residents.pool.allocator.free == free - len(before) * int(residents.pages_of[place])
        made.coming.append(last)
        server._exchange.take_events()
        server._exchange.take_events()  # the stream has ended
        assert made.hung_up == [PeerStream(1, asks=True)]
        assert (residents.pool.allocator.free, residents.sent_pages[1]) == (free, 0)
        assert not residents.present(np.array([place, other])).any()
