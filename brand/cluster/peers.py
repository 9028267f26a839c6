"""The streams between the nodes of a cluster, over gRPC: `PeerStreams` is the `Network` of `brand.node`.

A node answers on the streams that others open to its server (`StreamServer`), and asks on those that it opens to theirs
(`StreamClient`: one thread for each other node). One bounded queue (`Streams`) has the events of all threads.

All state is behind the locks of `Streams` and `PeerLink`. The loop's calls never wait, except `close`.
"""

from __future__ import annotations

import time
from typing import Final

from brand.cluster.answering import StreamServer
from brand.cluster.asking import StreamClient
from brand.cluster.certificates import CertificateFiles
from brand.cluster.greeting import Greeting, Token
from brand.cluster.options import MAX_MESSAGE
from brand.cluster.streams import Streams
from brand.errors import UsageError
from brand.node.setup.server_spec import Tls
from brand.node.wire.network import Event, PeerStream, split_address
from brand.reprs import Reprs

CLOSE_S: Final = 2.0
"""Seconds that the threads that ask may take to end."""


class PeerStreams(Reprs, shows="_greeting.node _greeting.nodes address _streams"):
    """Streams to and from the other nodes. Listens at `bind` (`host:port`, port 0 for any) at once.

    Without `tls` nothing is encrypted, which is right on one machine, or on a network that no stranger can read. Raises
    `UsageError` (`bind` is no address, the token is short, no file of `tls`), `ServerError` (cannot listen).
    """

    def __init__(self, greeting: Greeting, token: str, bind: str, tls: Tls | None = None) -> None:
        self._greeting, self._token = greeting, Token(token)
        self._certificates = None if tls is None else CertificateFiles(tls)
        split_address(bind)
        self._streams = Streams()
        self._asking: list[StreamClient] = []
        try:
            self._answering = StreamServer(greeting, self._token, bind, self._certificates, self._streams)
        except BaseException:
            self._streams.close()
            raise
        self.address, self.wake = self._answering.address, self._streams.wake

    def connect(self, addresses: dict[int, str]) -> None:
        """Open a stream to each of these nodes, and open it again whenever it ends. Raises `UsageError`."""
        me = self._greeting
        for node, address in addresses.items():
            if node == me.node or not 0 <= node < me.nodes:
                raise UsageError(f"node {node} is not another node: this is node {me.node} of {me.nodes}")
            split_address(address)
        for node, address in addresses.items():
            self._asking.append(StreamClient(node, address, me, self._token, self._certificates, self._streams))

    def events(self) -> list[Event]:
        return self._streams.take()

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Send a message of at most `MAX_MESSAGE` bytes. Has no effect if the stream is not open.

        A stream with over four times `MAX_UNSENT` to send is ended. Raises `UsageError` if the message is too large.
        """
        if len(message) > MAX_MESSAGE:
            raise UsageError(f"a message of {len(message):,} bytes; the limit between nodes is {MAX_MESSAGE:,}")
        link = self._streams.find(stream)
        if link is not None and not link.put(message):
            self._streams.end(link, f"node {stream.node} does not receive the messages sent to it")

    def unsent(self, stream: PeerStream) -> int:
        link = self._streams.find(stream)
        return 0 if link is None else link.unsent

    def hang_up(self, stream: PeerStream, reason: str) -> None:
        link = self._streams.find(stream)
        if link is not None:
            self._streams.end(link, reason)

    def close(self) -> None:
        self._streams.close()
        for asking in self._asking:
            asking.close()
        end_s = time.monotonic() + CLOSE_S
        for asking in self._asking:
            asking.join(max(0.0, end_s - time.monotonic()))
        self._asking.clear()
        self._answering.close()
