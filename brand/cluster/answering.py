"""The gRPC server to which other nodes open their streams. It admits nodes of the cluster that know the token.

Each node gets one stream. From an unauthenticated peer, the server reads only two short values of metadata. An admitted
stream takes two of the server's bounded number of threads: one sends, one receives.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hmac import compare_digest
from typing import Any, Final, NoReturn

import grpc

from brand.cluster.certificates import CertificateFiles
from brand.cluster.greeting import Greeting, Nonces, PeerHello, Token, disagreement
from brand.cluster.options import HELLO, PROOF, SERVICE, WELCOME, answering, said
from brand.cluster.streams import PeerLink, Streams
from brand.errors import BrandError, ServerError
from brand.node.wire.network import PeerStream, check_free, split_address
from brand.reprs import Reprs

STRANGER: Final = "not let in"
"""The only answer to a peer that does not know the token."""
_WITHOUT_TOKEN: Final = (
    "it does not know the token of this cluster. If it is one of your nodes, start all nodes with one token; else "
    "another program connects to this port"
)
_SPARE: Final = 16
"""Calls at a time, in addition to two for each node (its stream, and one that replaces it): greetings and refusals."""
_STOP_S: Final = 2.0
"""Seconds that calls may take to end, first by themselves, then once all are cancelled."""

log = logging.getLogger("brand.cluster")


class StreamServer(Reprs, shows="_greeting.node _greeting.nodes address _streams"):
    """A server at `bind`, which adds the streams that it admits to `streams`.

    Raises `UsageError` (`bind` is no address), `ServerError` (it cannot listen there).
    """

    def __init__(
        self, greeting: Greeting, token: Token, bind: str, certificates: CertificateFiles | None, streams: Streams
    ) -> None:
        self._greeting, self._token, self._streams = greeting, token, streams
        self._nonces = Nonces()
        self._turned_away = ""
        host, _ = split_address(bind)
        check_free(bind)
        calls = 2 * greeting.nodes + _SPARE
        options = answering(greeting.nodes, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._pool = ThreadPoolExecutor(2 * calls, thread_name_prefix="answer")
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=calls)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Greet": grpc.stream_unary_rpc_method_handler(self.greet),
            "Exchange": grpc.stream_stream_rpc_method_handler(self.exchange),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if certificates is None:
                port = self._server.add_insecure_port(bind)
            else:
                port = self._server.add_secure_port(bind, certificates.server())
        except RuntimeError as error:
            raise ServerError(f"the data server cannot listen at {bind}: {error}") from None
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """The address at which it listens."""
        self._server.start()

    def close(self) -> None:
        # Calls whose streams are closed end by themselves, and notify the other side. Cancelling them here would race
        # with that, and the other side would see a broken stream.
        stopped = self._server.stop(_STOP_S).wait(2 * _STOP_S)
        self._pool.shutdown(wait=stopped)  # once all calls are cancelled, no thread waits any more

    def greet(self, _requests: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        """Return a nonce, for any caller. Nothing is read from the caller, so no caller can block a thread."""
        return self._nonces.make()

    def exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        said: dict[str, Any] = dict(context.invocation_metadata())
        hello = said.get(HELLO, b"")
        if not compare_digest(self._token.of_asking(hello), said.get(PROOF, b"")):
            self._turn_away(context, grpc.StatusCode.UNAUTHENTICATED, STRANGER, _WITHOUT_TOKEN)
        node = self._admit(hello, context)
        welcome = self._greeting.to_json()
        context.send_initial_metadata(((WELCOME, welcome), (PROOF, self._token.of_answering(hello, welcome))))
        link = PeerLink(PeerStream(node, asks=False), self._streams.rouse, context.cancel)
        if self._streams.open(link):
            self._pool.submit(self._receive, link, requests)
            yield from link.outgoing()

    def _admit(self, data: bytes, context: grpc.ServicerContext) -> int:
        """Return the number of the node that sent this hello and knows the token. Raises if the node is refused."""
        me = self._greeting.node
        try:
            hello = PeerHello.from_bytes(data)
            if not self._nonces.use(hello.nonce):
                why = "the greeting took too long, or was sent a second time"
                self._turn_away(context, grpc.StatusCode.ABORTED, why)
            theirs = Greeting.from_json(hello.greeting)
        except BrandError as error:
            self._turn_away(context, grpc.StatusCode.FAILED_PRECONDITION, f"node {me} does not understand: {error}")
        wrong = disagreement(self._greeting, theirs)
        if hello.to != me:
            wrong = f"node {theirs.node} expects node {hello.to} at the address of node {me}"
        if wrong:
            self._turn_away(context, grpc.StatusCode.FAILED_PRECONDITION, wrong)
        return theirs.node

    def _receive(self, link: PeerLink, requests: Iterator[bytes]) -> None:
        reason = f"node {link.stream.node} has ended it"
        try:
            self._streams.follow(link, requests)
        except grpc.RpcError:  # on this side, gRPC gives no reason
            reason = f"node {link.stream.node} has ended it, has died, or is not reachable any more"
        finally:
            self._streams.end(link, reason)

    def _turn_away(
        self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, to_log: str = ""
    ) -> NoReturn:
        """End a call, and log the reason, or `to_log` if the peer must not learn it. Always raises."""
        host, _, _ = context.peer().rpartition(":")
        line = f"{said(host)} is refused: {to_log or said(reason)}"
        if line != self._turned_away:  # the same peer tries again and again
            self._turned_away = line
            log.warning("%s", line)
        context.abort(code, said(reason))
