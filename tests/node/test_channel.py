"""A channel: however bytes come and go, messages are whole, in order, and nothing waits."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.errors import ProtocolError, UsageError
from brand.node.wire import connection, messages
from brand.node.wire.connection import (
    Channel,
    listen,
    own_address,
    own_addresses,
    peer,
    same_user,
    second_address,
    socket_name,
)
from brand.node.wire.messages import HEAD, MAX_REQUEST, Kind, frame
from brand.node.wire.numbers import ClientNumber
from brand.testing.node import random_address
from tests.node.support import listeners
from tests.rounds import examples
from tests.support import LIMIT_S

Ends = tuple[Channel, socket.socket]


class Pair:
    """A channel and the client's end."""

    def __enter__(self) -> Ends:
        self._stack = ExitStack()
        here, there = (self._stack.enter_context(end) for end in socket.socketpair())
        here.settimeout(0)
        there.settimeout(LIMIT_S)
        return Channel(ClientNumber(1), here), there

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with Pair() as pair:
        yield pair


@pytest.mark.slow
@given(
    bodies=st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=50)), max_size=12),
    cuts=st.lists(st.integers(0, 700), max_size=12),
)
@examples(60)
def test_messages_come_whole_however_they_are_cut(bodies: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    """Any bytes at a time."""
    stream = b"".join(frame(kind, body) for kind, body in bodies)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found: list[tuple[Kind, bytes]] = []
    with Pair() as (channel, client):
        channel.greeted = True
        assert channel.receive()
        for first, end in itertools.pairwise(edges):
            client.sendall(stream[first:end])
            assert channel.receive()
            found += channel.messages()
            done = sum(HEAD.size + len(body) for _, body in found)
            assert channel.half == (done < end)
        assert found == bodies
        client.close()
        assert not channel.receive()


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(MAX_REQUEST + 1, Kind.DRAW, messages.VERSION),
        HEAD.pack((1 << 32) - 1, Kind.DRAW, messages.VERSION),
        HEAD.pack(0, 0, messages.VERSION),
        HEAD.pack(0, Kind.STATS, 0),
    ],
)
def test_a_head_that_cannot_be_is_refused_at_once(ends: Ends, head: bytes) -> None:
    """Not after a body that never comes; what came before it is still taken."""
    channel, client = ends
    client.sendall(frame(Kind.STATS) + head)
    channel.receive()
    found = channel.messages()
    assert next(found) == (Kind.STATS, b"")
    with pytest.raises(ProtocolError):
        next(found)


def test_only_an_order_may_be_longer() -> None:
    """It may have the bits of a part of a large data set."""
    here, there = socket.socketpair()
    here.settimeout(0)
    with here, there:
        for length, kind in (
            (MAX_REQUEST + 9, Kind.ORDER),
            (MAX_REQUEST + 10, Kind.ORDER),
            (MAX_REQUEST + 1, Kind.DRAW),
        ):
            channel = Channel(ClientNumber(1), here, MAX_REQUEST + 9)
            there.sendall(HEAD.pack(length, kind, messages.VERSION))
            channel.receive()
            if length == MAX_REQUEST + 9:
                assert not list(channel.messages())
                continue
            with pytest.raises(ProtocolError, match="a message of"):
                list(channel.messages())


def test_the_longest_message(ends: Ends) -> None:
    """As long as a request may be, in many pieces."""
    channel, client = ends
    message, found = frame(Kind.DRAW, bytes(MAX_REQUEST)), list[Any]()
    view = memoryview(message)
    client.setblocking(False)
    while view or not found:
        if view:
            with suppress(BlockingIOError):
                view = view[client.send(view) :]
        channel.receive()
        found += channel.messages()
    assert found == [(Kind.DRAW, bytes(MAX_REQUEST))]
    assert not channel._inbox


def test_a_client_that_takes_its_answers_slowly(ends: Ends) -> None:
    """Sending never waits; what is kept goes out in order, and is counted."""
    channel, client = ends
    sent = b""
    for number in range(300):
        message = frame(Kind.STATS, bytes([number % 256]) * 5000)
        assert channel.send(message)
        sent += message
    assert 0 < channel.unsent < len(sent)
    got = b""
    while len(got) < len(sent):
        got += client.recv(10_000)
        assert channel.flush()
    assert got == sent
    assert channel.unsent == 0


def test_a_client_that_has_hung_up(ends: Ends) -> None:
    """Every way to use the channel says so."""
    channel, client = ends
    client.close()
    assert not channel.receive()
    assert not channel.send(frame(Kind.STATS))
    assert not channel.flush()


def test_a_descriptor_goes_with_the_first_message(ends: Ends) -> None:
    """The client gets both."""
    channel, client = ends
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"hello")
    assert channel.send(frame(Kind.HELLO, b"{}"), [descriptor])
    data, (received,), _, _ = socket.recv_fds(client, 100, 1)
    assert data == frame(Kind.HELLO, b"{}")
    assert os.pread(received, 10, 0) == b"hello"
    os.close(received)
    os.close(descriptor)


def test_half_means_that_something_is_awaited(ends: Ends) -> None:
    """A HELLO, the rest of a message, or that the last words are taken."""
    channel, client = ends
    assert channel.half
    channel.greeted = True
    assert not channel.half
    client.sendall(b"x")
    channel.receive()
    assert channel.half
    channel._inbox.clear()
    channel.closing = True
    assert channel.half


@pytest.mark.parametrize(
    "address", ["", "unix:", "unix:@", "unix:/tmp/x", "@x", "tcp:@x", "unix:@" + 100 * "x", "unix:@a\0b"]
)
def test_addresses_that_are_none(address: str) -> None:
    """An error shows what one looks like."""
    with pytest.raises(UsageError, match="unix:@name"):
        socket_name(address)


def test_an_address_is_taken_once_and_free_again() -> None:
    """The kernel gives it to one; when that one is gone, nothing is left of it."""
    address = random_address()
    with listen(address):
        with pytest.raises(OSError, match="Address already in use"):
            listen(address)
        assert listeners(address)
    assert not listeners(address)
    listen(address).close()


def test_who_is_there() -> None:
    """The kernel knows process and user."""
    address = random_address()
    with listen(address) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(socket_name(address))
        accepted, _ = listener.accept()
        with accepted:
            assert peer(accepted) == peer(client) == (os.getpid(), os.getuid())
            assert same_user(accepted)
            assert same_user(client)


def test_own_addresses() -> None:
    """Those of this user's servers, of the form that servers have."""
    facts = os.urandom(8)
    address = own_address(facts)
    assert own_address(facts) == address != own_address(facts + b"x")
    other = random_address()
    with listen(address), listen(other):
        assert address in own_addresses()
        assert other not in own_addresses()
    assert address not in own_addresses()


def test_second_addresses() -> None:
    """A server is listed by one name: its own, or one that follows from it."""
    listed, chosen = own_address(b"x"), random_address()
    assert second_address(listed) is None
    assert second_address(chosen) == second_address(chosen) != second_address(random_address())
    found = second_address(chosen)
    assert found is not None
    assert second_address(found) is None


def test_a_table_of_sockets_without_any(tmp_path: Any) -> None:
    """No server, no address."""
    table = tmp_path / "unix"
    table.write_text("Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 0 1 1 5\n1: 2 0 0 1 1 5 /run/x\n\n")
    with pytest.raises(IndexError):  # an empty line does not occur there
        own_addresses(table)
    table.write_text(table.read_text().rstrip("\n") + "\n")
    assert connection.own_addresses(table) == []
