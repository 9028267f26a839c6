"""The stream from this node to another node, opened again whenever it ends. Each other node has one thread.

The thread greets, opens the stream, and receives until the stream ends. Then it tries again, after a pause that doubles
while attempts fail. Each attempt has a channel of its own, so that no attempt depends on the state of an earlier one.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from hmac import compare_digest
from typing import Any, Final

import grpc

from brand.cluster.certificates import CertificateFiles, hint
from brand.cluster.greeting import NONCE, Greeting, PeerHello, Token, disagreement
from brand.cluster.options import (
    ANSWER_LIMIT_S,
    ASKING,
    EXCHANGE,
    GREET,
    HELLO,
    PROOF,
    WELCOME,
    said,
)
from brand.cluster.streams import PeerLink, Streams
from brand.errors import BrandError, ProtocolError
from brand.node.wire.network import Closed, PeerStream, split_address
from brand.reprs import Reprs

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
"""Maximum pause between two attempts; also the pause after a refusal, as the other node may restart, corrected."""


class StreamClient(Reprs, shows="_stream.node _address _channel"):
    """A stream to a node, opened again whenever it ends, until `close`. Raises `UsageError` if `address` is invalid."""

    def __init__(
        self,
        node: int,
        address: str,
        greeting: Greeting,
        token: Token,
        certificates: CertificateFiles | None,
        streams: Streams,
    ) -> None:
        split_address(address)
        self._stream, self._address = PeerStream(node, asks=True), address
        self._greeting, self._token, self._streams = greeting, token, streams
        self._certificates = certificates
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ask-{node}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream, and stop trying. Does not wait for the thread; `join` does."""
        with self._lock:
            self._ended.set()
            if self._channel is not None:
                self._channel.close()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self) -> None:
        pause_s, told = FIRST_PAUSE_S, ""
        while not self._ended.is_set():
            began_s = time.monotonic()
            failure = self._attempt()
            if failure is None:
                told = ""
                # A stream that broke at once does not count as a recovery, so its pause still grows.
                if time.monotonic() - began_s > LONGEST_PAUSE_S:
                    pause_s = FIRST_PAUSE_S
            elif failure.refused:
                pause_s = LONGEST_PAUSE_S
            if failure is not None and failure.reason != told:  # each reason once, not twice a second
                told = failure.reason
                self._streams.fail(failure)
            self._ended.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _attempt(self) -> Closed | None:
        """Open the stream and receive until it ends. Returns why it could not be opened; None if it was opened."""
        with self._lock:
            if self._ended.is_set():
                return None
            target = f"dns:///{self._address}"
            if self._certificates is None:
                channel = grpc.insecure_channel(target, ASKING)
            else:
                channel = grpc.secure_channel(target, self._certificates.channel(), ASKING)
            self._channel = channel
        with closing(channel):
            try:
                self._exchange(channel)
            except BrandError as error:
                return Closed(self._stream, str(error), refused=True)
            except grpc.RpcError as error:
                return self._failure(error)
            except ValueError:  # the channel was closed before the call
                if not self._ended.is_set():
                    raise
        return None

    def _exchange(self, channel: grpc.Channel) -> None:
        """Greet, then receive. Raises `grpc.RpcError` or `BrandError` if the stream cannot be opened."""
        greet: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GREET)
        nonce = greet(b"", timeout=ANSWER_LIMIT_S)
        if len(nonce) != NONCE:
            raise ProtocolError(f"the process at {self._address} is not a node of Brand")
        hello = PeerHello(self._stream.node, nonce, self._greeting.to_json()).to_bytes()
        link = PeerLink(self._stream, self._streams.rouse)
        metadata = ((HELLO, hello), (PROOF, self._token.of_asking(hello)))
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(EXCHANGE)
        call = exchange(link.outgoing(), metadata=metadata)
        link.carry(call.cancel)
        try:
            self._check(call, hello)
            if self._streams.open(link):
                self._receive(link, call)
        finally:
            link.end()

    def _check(self, call: Any, hello: bytes) -> None:
        """Check that the other side knows the token, too, and is the right node. Raises as `_exchange` does."""
        watchdog = threading.Timer(ANSWER_LIMIT_S, call.cancel)  # gRPC waits for metadata without a limit
        watchdog.start()
        try:
            said = dict(call.initial_metadata())
            if PROOF not in said:
                for _ in call:  # raises the error of the other side
                    break
            welcome = said.get(WELCOME, b"")
            if not compare_digest(self._token.of_answering(hello, welcome), said.get(PROOF, b"")):
                raise ProtocolError(f"the process at {self._address} does not know the token of this cluster")
        finally:
            watchdog.cancel()
            watchdog.join()
        theirs = Greeting.from_json(welcome)
        if theirs.node != self._stream.node:
            raise ProtocolError(
                f"node {theirs.node} listens at {self._address}, the address of node {self._stream.node}"
            )
        if wrong := disagreement(self._greeting, theirs):
            raise ProtocolError(wrong)

    def _receive(self, link: PeerLink, call: Any) -> None:
        reason = f"node {self._stream.node} has ended it"
        try:
            self._streams.follow(link, call)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                reason = f"the stream to node {self._stream.node} broke: {said(error.details())}"
        finally:
            self._streams.end(link, reason)

    def _failure(self, error: grpc.RpcError) -> Closed:
        """Return the event of a failed call, which tells the server why the stream is not open."""
        details = said(error.details())
        who = f"node {self._stream.node} at {self._address}"
        match error.code():
            case grpc.StatusCode.UNAUTHENTICATED:
                return Closed(self._stream, f"{who} has another token: start all nodes with one token", refused=True)
            case grpc.StatusCode.FAILED_PRECONDITION:
                return Closed(self._stream, details, refused=True)
            case grpc.StatusCode.CANCELLED | grpc.StatusCode.DEADLINE_EXCEEDED:
                return Closed(self._stream, f"{who} does not answer within {ANSWER_LIMIT_S:.0f} s")
            case grpc.StatusCode.UNIMPLEMENTED:
                return Closed(self._stream, f"the process at {self._address} is not a node of Brand")
        if self._certificates is None:
            why = hint(details, f"node {self._stream.node}", "")
        else:
            why = self._certificates.hint(details, f"node {self._stream.node}")
        return Closed(self._stream, f"{who} cannot be reached: {details}" + (f" ({why})" if why else ""))
