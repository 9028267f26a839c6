"""Bytes at the port that no gRPC library sends: the node refuses them, takes no memory for them, and goes on."""

from __future__ import annotations

import base64
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from brand.cluster.options import EXCHANGE, GREET
from brand.node.wire.network import Closed, PeerStream
from tests.cluster.conftest import Certificates
from tests.cluster.support import Node, asking, running
from tests.cluster.test_security import Stranger, hello
from tests.support import LIMIT_S, wait_until

ANSWERS = PeerStream(0, asks=False)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_HEADERS = 4
TEN_GB = 10 * 10**9
"""More than the four bytes of a length hold; the most that they can claim is 4 GiB."""


def frame(kind: int, body: bytes = b"", *, flags: int = 0, stream: int = 0, claim: int | None = None) -> bytes:
    """An HTTP/2 frame, which may claim another length than it has."""
    return (
        struct.pack(">I", len(body) if claim is None else claim)[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + body
    )


def text(value: bytes) -> bytes:
    """A string of HPACK, not compressed; its length is an integer with a prefix of seven bits."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, length = len(value) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + value


def headers(more: list[tuple[str, str | bytes]]) -> bytes:
    """A HEADERS frame that begins a stream; each field a literal that is not indexed."""
    fields = [
        (":method", b"POST"),
        (":scheme", b"http"),
        (":path", EXCHANGE.encode()),
        (":authority", b"here"),
        ("te", b"trailers"),
        ("content-type", b"application/grpc"),
        *((key, base64.b64encode(v).rstrip(b"=") if isinstance(v, bytes) else v.encode()) for key, v in more),
    ]
    block = b"".join(b"\0" + text(key.encode()) + text(value) for key, value in fields)
    return frame(HEADERS, block, flags=END_HEADERS, stream=1)


def claims(length: int) -> bytes:
    """The beginning of a message of this length, in a DATA frame."""
    return frame(DATA, b"\0" + struct.pack(">I", min(length, (1 << 32) - 1)) + b"x" * 100, stream=1)


def resident() -> int:
    """Memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Raw:
    """A connection that sends whatever a test wants to."""

    def __init__(self, node: Node) -> None:
        host, _, port = node.peers.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # it has seen enough
            self.socket.sendall(data)

    def everything(self) -> bytes:
        """What it sends until it hangs up."""
        received = b""
        with suppress(ConnectionError):
            while data := self.socket.recv(1 << 16):
                received += data
        return received


@pytest.fixture
def node() -> Iterator[Node]:
    """A node that an honest one can still reach when the test is over."""
    with running(1) as node:
        yield node
        with asking(node) as honest:
            honest.opened(1, asks=True)


def test_a_stranger_that_claims_10_gb(node: Node) -> None:
    """Is not let in, and what he sends is not read."""
    before = resident()
    with Raw(node) as raw:
        raw.send(PREFACE + frame(SETTINGS) + headers([]) + claims(TEN_GB))
        received = b""
        while b"grpc-message" not in received and b"not let in" not in received:
            received += raw.socket.recv(1 << 16)
    assert node.take() == []
    assert resident() - before < 50 << 20


def test_a_node_that_claims_10_gb(node: Node) -> None:
    """Who knows the token, too, loses the stream as soon as the length is read."""
    before = resident()
    with grpc.insecure_channel(node.peers.address) as channel, Raw(node) as raw:
        raw.send(PREFACE + frame(SETTINGS) + headers(hello(Stranger(channel).nonce())))
        node.opened(0, asks=False)
        raw.send(claims(TEN_GB))
        assert node.closed(ANSWERS).stream == ANSWERS
        assert resident() - before < 50 << 20


def test_a_message_that_never_ends(node: Node) -> None:
    """Its beginning is kept, up to the cap, and goes with the connection."""
    with grpc.insecure_channel(node.peers.address) as channel, Raw(node) as raw:
        raw.send(PREFACE + frame(SETTINGS) + headers(hello(Stranger(channel).nonce())))
        node.opened(0, asks=False)
        raw.send(claims(1 << 20))
        raw.socket.close()
        assert isinstance(node.next_event(), Closed)


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, claim=(1 << 24) - 1, stream=1) + bytes(1000),
        frame(HEADERS, claim=(1 << 24) - 1, flags=END_HEADERS, stream=1) + bytes(1000),
        frame(HEADERS, b"\0\x7f\xff\xff\xff\xff\xff\xff", flags=END_HEADERS, stream=1),
        frame(HEADERS, b"\xff" * 100, flags=END_HEADERS, stream=1),
        frame(WINDOW_UPDATE, struct.pack(">I", 0)),
        frame(SETTINGS, b"\0\4" + struct.pack(">I", (1 << 32) - 1)),
        frame(SETTINGS, b"12345"),
        frame(99, b"unknown") + frame(DATA, b"x", stream=2),
    ],
)
def test_frames_that_cannot_be(node: Node, data: bytes) -> None:
    """The connection ends, and nothing else does."""
    before = resident()
    with Raw(node) as raw:
        raw.send(PREFACE + frame(SETTINGS) + data)
        raw.socket.shutdown(socket.SHUT_WR)
        raw.everything()
    assert node.take() == []
    assert resident() - before < 50 << 20


def test_headers_without_end(node: Node) -> None:
    """Metadata has a cap."""
    with Raw(node) as raw:
        raw.send(PREFACE + frame(SETTINGS) + headers([(f"key-{n}", "x" * 1000) for n in range(14)]))
        received = b""
        while b"grpc-status" not in received and (data := raw.socket.recv(1 << 16)):
            received += data
    assert node.take() == []


def test_random_bytes(node: Node) -> None:
    """At once, and after what looks like the beginning of a connection."""
    generator = random.Random(0)
    for number in range(40):
        begin = [b"", PREFACE, PREFACE + frame(SETTINGS)][number % 3]
        with Raw(node) as raw:
            raw.send(begin + generator.randbytes(generator.randrange(1, 3000)))
            raw.socket.shutdown(socket.SHUT_WR)
            raw.everything()
    assert node.take() == []


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_who_says_nothing_is_hung_up_on(certificates: Certificates, encrypted: bool) -> None:
    """From the start, and after the first words."""
    tls = certificates.ours if encrypted else None
    with running(1, tls=tls) as node, Raw(node) as silent, Raw(node) as halting:
        halting.send(PREFACE[:10])
        silent.everything()
        halting.everything()
        assert node.take() == []


def test_many_who_say_nothing(node: Node) -> None:
    """Do not keep an honest node out."""
    raws = [Raw(node) for _ in range(100)]
    try:
        with asking(node) as honest:
            honest.opened(1, asks=True)
            node.opened(0, asks=False)
    finally:
        for raw in raws:
            raw.socket.close()
    node.closed(ANSWERS)


@pytest.mark.slow
def test_many_greetings_that_are_not_finished(node: Node) -> None:
    """A stranger who opens calls and leaves them open has no thread wait for him."""
    finished = threading.Event()

    def unfinished() -> Iterator[bytes]:
        finished.wait(LIMIT_S)
        yield from ()

    with grpc.insecure_channel(node.peers.address) as channel:
        greet: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(GREET)
        calls = [greet.future(unfinished(), timeout=LIMIT_S) for _ in range(60)]
        wait_until(lambda: all(call.done() for call in calls), "he is answered at once")
        finished.set()
