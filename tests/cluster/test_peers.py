"""Streams between nodes: they open, carry messages in order, end, and open again; and nothing stays behind."""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from brand.cluster.options import MAX_MESSAGE
from brand.cluster.peers import PeerStreams
from brand.cluster.streams import LIMIT_UNSENT
from brand.errors import BrandError, UsageError
from brand.node.wire.network import MAX_UNSENT, Closed, Event, Opened, PeerStream, Received
from tests.cluster.support import TOKEN, Node, asking, greeting, running
from tests.support import LIMIT_S, wait_until

Pair = tuple[Node, Node]
ASKS, ANSWERS = PeerStream(1, asks=True), PeerStream(0, asks=False)


def test_each_of_three_nodes_asks_and_answers_each() -> None:
    """Two streams between any two nodes, one opened by each."""
    with running(0, 3) as first, running(1, 3) as second, running(2, 3) as third:
        nodes = [first, second, third]
        for me, node in enumerate(nodes):
            node.peers.connect({n: other.peers.address for n, other in enumerate(nodes) if n != me})
        for me, node in enumerate(nodes):
            awaited = {PeerStream(n, asks) for n in range(3) if n != me for asks in (True, False)}
            while awaited:
                awaited.remove(node.next(Opened).stream)


@pytest.mark.slow
def test_messages_come_in_order_both_ways(pair: Pair) -> None:
    """Of all sizes, whatever way they travel: alone, or together with others."""
    asker, answerer = pair
    generator = random.Random(0)
    sizes = [0, 1, 100, 5000, 300_000, (1 << 20) - 9, (1 << 20) - 5, (1 << 20) - 1, 1 << 20, 3_000_000]
    messages = [generator.randbytes(size) for size in generator.choices(sizes, k=30)]
    for message in messages:
        asker.peers.send(ASKS, b"to" + message)
        answerer.peers.send(ANSWERS, b"fro" + message)
    assert answerer.messages(ANSWERS, 30) == [b"to" + message for message in messages]
    assert asker.messages(ASKS, 30) == [b"fro" + message for message in messages]
    wait_until(lambda: asker.peers.unsent(ASKS) == answerer.peers.unsent(ANSWERS) == 0, "all is sent")


def test_many_small_messages(pair: Pair) -> None:
    """More than go into one parcel."""
    asker, answerer = pair
    messages = [b"%d" % number for number in range(20_000)]
    for message in messages:
        answerer.peers.send(ANSWERS, message)
    assert asker.messages(ASKS, len(messages)) == messages


def test_the_largest_message(pair: Pair) -> None:
    """Goes through; one byte more is refused before anything is sent."""
    asker, answerer = pair
    largest = os.urandom(MAX_MESSAGE)
    asker.peers.send(ASKS, largest)
    assert answerer.messages(ANSWERS, 1) == [largest]
    with pytest.raises(UsageError, match="8,388,609 bytes"):
        asker.peers.send(ASKS, bytes(MAX_MESSAGE + 1))
    answerer.peers.send(ANSWERS, b"still there")
    assert asker.messages(ASKS, 1) == [b"still there"]


@pytest.mark.slow
def test_a_node_that_comes_back_is_found_again() -> None:
    """The asking node hears why the stream ended, and opens it as soon as somebody listens there."""
    with running(1) as first, asking(first) as asker:
        address = first.peers.address
        asker.opened(1, asks=True)
        first.peers.close()
        assert asker.closed(ASKS).reason == "node 1 has ended it"
        assert "127.0.0.1" in (refused := asker.closed(ASKS)).reason
        assert not refused.refused
        with running(1, bind=address) as second:
            asker.opened(1, asks=True)
            second.peers.send(second.opened(0, asks=False), b"again")
            assert asker.messages(ASKS, 1) == [b"again"]


def test_a_node_that_was_not_there_yet() -> None:
    """Nodes start in any order: why not is said once, not at each attempt."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        address = "{}:{}".format(*place.getsockname())
    with running(0) as asker:
        asker.peers.connect({1: address})
        events: list[Event] = [asker.next(Closed)]
        with running(1, bind=address):
            while not isinstance(events[-1], Opened):
                events.append(asker.next_event())
        assert [type(event) for event in events] == [Closed, Opened]


def test_what_is_sent_where_no_stream_is_open(pair: Pair) -> None:
    """Nothing happens, and nothing is kept."""
    asker, answerer = pair
    for stream in (PeerStream(0, asks=True), PeerStream(1, asks=False), PeerStream(7, asks=True)):
        asker.peers.send(stream, b"lost")
        asker.peers.hang_up(stream, "nobody there")
        assert asker.peers.unsent(stream) == 0
    asker.peers.send(ASKS, b"found")
    assert answerer.messages(ANSWERS, 1) == [b"found"]


@pytest.mark.parametrize("who", ["asker", "answerer"])
def test_hanging_up(pair: Pair, who: str) -> None:
    """Ends the stream on both sides, with the reason here; then it is opened anew."""
    asker, answerer = pair
    here, there = (asker, answerer) if who == "asker" else (answerer, asker)
    mine, yours = (ASKS, ANSWERS) if who == "asker" else (ANSWERS, ASKS)
    here.peers.hang_up(mine, "it says what it should not")
    assert here.closed(mine) == Closed(mine, "it says what it should not")
    there.closed(yours)
    here.opened(mine.node, asks=mine.asks)
    there.opened(yours.node, asks=yours.asks)
    here.peers.send(mine, b"once more")
    assert there.messages(yours, 1) == [b"once more"]


def test_a_second_stream_of_a_node_replaces_the_first(pair: Pair) -> None:
    """The node has started anew, and its old stream is not yet seen to have ended: Closed, then Opened."""
    old, answerer = pair
    with asking(answerer) as new:
        new.opened(1, asks=True)
        assert answerer.closed(ANSWERS).reason == "node 0 has opened it again"
        assert answerer.opened(0, asks=False) == ANSWERS
        old.closed(ASKS)
        old.peers.close()


@pytest.mark.slow
def test_never_two_streams_at_a_time(pair: Pair) -> None:
    """However two processes fight for being the same node, Opened and Closed alternate."""
    _, answerer = pair
    with asking(answerer) as rival:
        kinds = [type(answerer.next_event()) for _ in range(12)]
        rival.peers.close()
    assert kinds == [Closed, Opened] * 6


@pytest.mark.slow
def test_the_sender_waits_for_a_loop_that_takes_nothing(pair: Pair) -> None:
    """What the other loop does not take stays here, but for what is under way; it all comes in order then."""
    asker, answerer = pair
    count = (LIMIT_UNSENT >> 20) - 4
    for number in range(count):
        answerer.peers.send(ANSWERS, number.to_bytes(4, "little") * (1 << 18))
    seen = [LIMIT_UNSENT]

    def stands_still() -> bool:
        seen.append(answerer.peers.unsent(ANSWERS))
        return len(seen) > 2000 and seen[-1] == seen[-1000]

    wait_until(stands_still, "no more is taken")
    assert seen[-1] > MAX_UNSENT
    messages = asker.messages(ASKS, count)
    assert [int.from_bytes(message[:4], "little") for message in messages] == list(range(count))


def test_the_loop_is_woken_when_a_full_stream_has_room(pair: Pair) -> None:
    """Once, without an event, when less than half of the limit is left."""
    asker, answerer = pair
    sent = 0
    while answerer.peers.unsent(ANSWERS) < MAX_UNSENT:
        answerer.peers.send(ANSWERS, bytes(1 << 20))
        sent += 1
    assert answerer.take() == []
    while answerer.peers.unsent(ANSWERS) >= MAX_UNSENT // 2:
        asker.next(Received)
        sent -= 1
    assert select.select([answerer.peers.wake], [], [], LIMIT_S)[0]
    assert answerer.take() == []
    asker.messages(ASKS, sent)
    wait_until(lambda: not answerer.peers.unsent(ANSWERS), "all is sent")
    assert not select.select([answerer.peers.wake], [], [], 0)[0]


def test_a_stream_that_is_given_too_much_is_ended(pair: Pair) -> None:
    """Who does not look at `unsent` loses the stream, not the machine's memory; it is opened anew."""
    _, answerer = pair
    message = bytes(MAX_MESSAGE)
    for _ in range(2 * LIMIT_UNSENT // MAX_MESSAGE):
        answerer.peers.send(ANSWERS, message)
    assert answerer.closed(ANSWERS).reason == "node 0 does not receive the messages sent to it"
    answerer.opened(0, asks=False)
    assert answerer.peers.unsent(ANSWERS) == 0


def test_an_address_that_is_taken() -> None:
    """A clear error, and nothing stays open."""
    with (
        running(0) as node,
        pytest.raises(BrandError, match=r"cannot listen at 127\.0\.0\.1:.*: Address already in use"),
    ):
        PeerStreams(greeting(1), TOKEN, node.peers.address)


@pytest.mark.parametrize(
    "address", ["", "here", "127.0.0.1", ":7000", "a b:1", "unix:/x:1", "[::1]", "h:70000", "h:-1", "h:1\n"]
)
def test_an_address_that_is_none(address: str) -> None:
    """To listen at or to ask at."""
    with pytest.raises(UsageError, match="is not an address; write it like"):
        PeerStreams(greeting(0), TOKEN, address)
    with running(0) as node, pytest.raises(UsageError, match="is not an address; write it like"):
        node.peers.connect({1: address})


@pytest.mark.parametrize("node", [-1, 0, 2])
def test_a_node_that_is_not_another_one(node: int) -> None:
    """Itself, or one that the cluster does not have."""
    with running(0) as me, pytest.raises(UsageError, match=f"node {node} is not another node: this is node 0 of 2"):
        me.peers.connect({node: "127.0.0.1:1"})


def test_addresses_of_other_kinds() -> None:
    """A name, and IPv6 where the machine has it."""
    binds = ["localhost:0"]
    if socket.has_ipv6:
        with socket.socket(socket.AF_INET6) as probe:
            if probe.connect_ex(("::1", 9, 0, 0)) != 99:
                binds.append("[::1]:0")
    for bind in binds:
        with running(1, bind=bind) as answerer, asking(answerer) as asker:
            assert answerer.peers.address.startswith(bind[:-1])
            asker.opened(1, asks=True)


@pytest.mark.slow
def test_closing_leaves_nothing_behind() -> None:
    """No thread and no descriptor, with streams open, in use, full, and to nodes that are not there."""

    def live() -> None:
        with running(0, 3) as zero, running(1, 3) as one:
            zero.peers.connect({1: one.peers.address, 2: "127.0.0.1:1"})
            one.peers.connect({0: zero.peers.address, 2: "127.0.0.1:1"})
            zero.opened(1, asks=True)
            one.opened(0, asks=True)
            for _ in range(40):
                zero.peers.send(PeerStream(1, asks=False), bytes(1 << 20))
                zero.peers.send(PeerStream(1, asks=True), bytes(1 << 20))

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = set(threading.enumerate())
    live()  # what gRPC keeps for the process is there from now on
    held = descriptors()
    for _ in range(5):
        live()
    wait_until(lambda: set(threading.enumerate()) <= before, "threads end")
    wait_until(lambda: descriptors() <= held, "descriptors are closed")


def test_calls_after_closing(pair: Pair) -> None:
    """Nothing happens."""
    asker, _ = pair
    asker.peers.close()
    assert asker.peers.events() == []
    asker.peers.send(ASKS, b"too late")
    asker.peers.hang_up(ASKS, "too late")
    asker.peers.close()


OTHER = """
import sys
from brand.cluster.peers import PeerStreams
from tests.cluster.support import ANY, TOKEN, greeting
peers = PeerStreams(greeting(1), TOKEN, ANY)
print(peers.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_dies_or_hangs_is_noticed(blow: signal.Signals) -> None:
    """Also where the kernel of its machine still answers for it."""
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            with running(0) as node, closing(other.stdout):
                node.peers.connect({1: other.stdout.readline().strip()})
                node.opened(1, asks=True)
                other.send_signal(blow)
                assert node.closed(ASKS).reason.startswith("the stream to node 1 broke")
        finally:
            other.kill()
