"""Between the threads that receive and the loop: a bound in bytes, one stream at a time, a descriptor that wakes."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from brand.cluster.streams import PARCEL, PeerLink, Streams
from brand.node.wire.network import Closed, Opened, PeerStream, Received
from tests.support import LIMIT_S, wait_until

STREAM = PeerStream(3, asks=False)
SIZE = PARCEL + 1


@pytest.fixture
def streams() -> Iterator[Streams]:
    """Room for three messages and a half."""
    with closing(Streams(7 * SIZE // 2)) as streams:
        yield streams


def opened(streams: Streams) -> PeerLink:
    """A stream that is open."""
    link = PeerLink(STREAM, streams.rouse)
    assert streams.open(link)
    assert streams.take() == [Opened(STREAM)]
    return link


def readable(streams: Streams) -> bool:
    return bool(select.select([streams.wake], [], [], 0)[0])


class Receiver:
    """A thread that receives ten messages."""

    def __init__(self, streams: Streams, link: PeerLink) -> None:
        self.pulled = 0
        self.thread = threading.Thread(target=streams.follow, args=(link, self._messages()), daemon=True)
        self.thread.start()

    def _messages(self) -> Iterator[bytes]:
        for number in range(10):
            self.pulled += 1
            yield bytes([number]) * SIZE


def test_the_queue_has_a_bound(streams: Streams) -> None:
    """Who receives waits with the message that does not fit, and takes no other; nothing is lost."""
    link = opened(streams)
    receiver = Receiver(streams, link)
    numbers: list[int] = []
    while len(numbers) < 10:
        full = min(10, len(numbers) + 4)
        wait_until(lambda full=full: receiver.pulled >= full, "the queue is full")  # type: ignore[misc]
        taken = streams.take()
        assert len(taken) <= 3
        numbers += [event.message[0] for event in taken if isinstance(event, Received)]
        assert receiver.pulled <= len(numbers) + 4
    receiver.thread.join(LIMIT_S)
    assert numbers == list(range(10))


def test_a_message_above_the_bound_goes_alone() -> None:
    """Else it would wait for ever."""
    with closing(Streams(limit=100)) as streams:
        link = opened(streams)
        streams.follow(link, iter([bytes(SIZE)]))
        assert streams.take() == [Received(STREAM, bytes(SIZE))]


def test_who_waits_for_room_is_let_go_when_the_stream_ends(streams: Streams) -> None:
    """What it holds is dropped: the stream has ended before it."""
    link = opened(streams)
    receiver = Receiver(streams, link)
    wait_until(lambda: receiver.pulled == 4, "the queue is full")
    streams.end(link, "over")
    receiver.thread.join(LIMIT_S)
    assert receiver.pulled == 4
    assert streams.take()[-1] == Closed(STREAM, "over")
    assert streams.find(STREAM) is None


def test_who_waits_for_room_is_let_go_when_all_ends(streams: Streams) -> None:
    """Also who opens a stream then, or could not open one."""
    link = opened(streams)
    receiver = Receiver(streams, link)
    wait_until(lambda: receiver.pulled == 4, "the queue is full")
    late = [
        threading.Thread(target=streams.open, args=(PeerLink(PeerStream(1, asks=True), streams.rouse),), daemon=True),
        threading.Thread(target=streams.fail, args=(Closed(PeerStream(2, asks=True), "not there"),), daemon=True),
    ]
    for thread in late:
        thread.start()
    streams.close()
    for thread in (receiver.thread, *late):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert not streams.open(link)
    assert streams.take() == []


def test_the_loop_is_woken_until_it_has_taken_all(streams: Streams) -> None:
    """For the first event and for later ones, and not without any."""
    assert not readable(streams)
    link = opened(streams)
    assert not readable(streams)
    for _ in range(2):
        streams.follow(link, iter([bytes(SIZE), bytes(SIZE)]))
        assert readable(streams)
        assert len(streams.take()) == 2
        assert not readable(streams)
    streams.rouse()
    assert readable(streams)
    assert streams.take() == []


def test_a_stream_ends_once(streams: Streams) -> None:
    """Whoever sees it first says why; after that it neither receives nor ends again."""
    link = opened(streams)
    streams.end(link, "first")
    streams.end(link, "second")
    streams.follow(link, iter([bytes(SIZE)]))
    assert streams.take() == [Closed(STREAM, "first")]
    assert list(link.outgoing()) == []


def test_a_new_stream_replaces_the_old_one(streams: Streams) -> None:
    """From then on what comes on the old one is not heard, nor that it ends."""
    old = opened(streams)
    new = PeerLink(STREAM, streams.rouse)
    assert streams.open(new)
    assert streams.find(STREAM) is None, "the loop still speaks to the old one"
    events = streams.take()
    assert [type(event) for event in events] == [Closed, Opened]
    streams.follow(old, iter([b""]))
    streams.end(old, "late")
    assert streams.take() == []
    assert streams.find(STREAM) is new
    assert list(old.outgoing()) == []


def test_a_peer_that_sends_no_parcel(streams: Streams) -> None:
    """Loses its stream, and the reason names it."""
    link = opened(streams)
    streams.follow(link, iter([b"no parcel", bytes(SIZE)]))
    (event,) = streams.take()
    assert isinstance(event, Closed)
    assert event.reason.startswith("node 3 violated the protocol")
