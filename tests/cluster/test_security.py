"""Who is let in: nobody without the token, nobody of another cluster, and with TLS nobody without the right CA."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from brand.cluster import asking as asking_module
from brand.cluster.answering import STRANGER
from brand.cluster.greeting import PeerHello, Token
from brand.cluster.options import EXCHANGE, GREET, HELLO, MAX_MESSAGE, PROOF, WELCOME
from brand.errors import UsageError
from brand.node.setup.server_spec import Tls
from brand.node.wire.network import Closed, Event, Opened, PeerStream
from tests.cluster.conftest import Certificates
from tests.cluster.support import TOKEN, Node, asking, greeting, running
from tests.support import LIMIT_S, wait_until

ASKS, ANSWERS = PeerStream(1, asks=True), PeerStream(0, asks=False)
NOTHING: Iterator[bytes] = iter(())


@dataclass
class Stranger:
    """A program that speaks gRPC as it likes."""

    channel: grpc.Channel

    def nonce(self) -> bytes:
        """What everybody gets."""
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(GREET)
        return call(b"", timeout=LIMIT_S)

    def exchange(self, metadata: list[tuple[str, str | bytes]], messages: Iterator[bytes] = NOTHING) -> Any:
        """A call that would be a stream."""
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(EXCHANGE)
        return call(messages, metadata=tuple(metadata), timeout=LIMIT_S)

    def refused(self, metadata: list[tuple[str, str | bytes]]) -> tuple[grpc.StatusCode, str]:
        """Why it is not let in; it must learn nothing else."""
        call = self.exchange(metadata)
        with pytest.raises(grpc.RpcError):
            next(call)
        assert not {key for key, _ in call.initial_metadata()} & {WELCOME, PROOF}
        assert {key for key, _ in call.trailing_metadata()} <= {"content-type"}
        return call.code(), call.details()


def hello(nonce: bytes, *, token: str = TOKEN, to: int = 1, said: bytes | None = None) -> list[tuple[str, str | bytes]]:
    """Metadata of node 0, or of one that says what it likes."""
    data = PeerHello(to, nonce, greeting(0).to_json() if said is None else said).to_bytes()
    return [(HELLO, data), (PROOF, Token(token).of_asking(data))]


@pytest.fixture
def answerer() -> Iterator[Node]:
    """A node that still lets an honest one in when the test is over."""
    with running(1) as node:
        yield node
        with asking(node) as honest:
            honest.opened(1, asks=True)
            node.opened(0, asks=False)


@pytest.fixture
def stranger(answerer: Node) -> Iterator[Stranger]:
    with grpc.insecure_channel(answerer.peers.address) as channel:
        yield Stranger(channel)


def refusal(**more: Any) -> Closed:
    """What node 0 hears that is not like node 1; node 1 hears nothing of it."""
    with running(1) as answerer, asking(answerer, **more) as asker:
        closed = asker.next(Closed)
        assert closed.stream == ASKS
        assert answerer.take() == []
        return closed


def test_a_wrong_token() -> None:
    """Both sides stay closed, and the asking one says why."""
    closed = refusal(token="known to nobody else")
    assert closed.refused
    assert "node 1 at 127.0.0.1:" in closed.reason
    assert "has another token" in closed.reason


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        ({"data_set": "c0de"}, "node 0 serves data set c0de, node 1 data set 2b5f"),
        ({"nodes": 3}, "node 0 knows of 3 nodes, node 1 2 nodes"),
        ({"page": 512}, "node 0 has pages of 512 bytes"),
        ({"shares": 7}, "node 0 holds a partition in groups of 7 chunks, node 1 all chunks"),
    ],
)
def test_a_node_of_another_cluster(more: dict[str, Any], differs: str) -> None:
    """Hears what differs, and who."""
    closed = refusal(**more)
    assert closed.refused
    assert differs in closed.reason


def test_another_version_of_brand_is_let_in() -> None:
    """The protocol has a version of its own."""
    with running(1) as answerer, asking(answerer, brand="9.9") as asker:
        asker.opened(1, asks=True)


def test_addresses_in_the_wrong_order() -> None:
    """A node that looks for another one hears whom it has found."""
    with running(2, 3) as answerer, asking(answerer, nodes=3) as asker:
        closed = asker.closed(ASKS)
        assert closed.refused
        assert closed.reason == "node 0 expects node 1 at the address of node 2"
        assert answerer.take() == []


def test_a_number_that_is_taken() -> None:
    """Two nodes with one number: the one that is asked says so."""
    with running(1, 3) as first, running(1, 3) as second:
        second.peers.connect({2: first.peers.address})
        closed = second.next(Closed)
        assert closed.refused
        second.peers.close()
    with running(0) as first, grpc.insecure_channel(first.peers.address) as channel:
        stranger = Stranger(channel)
        code, details = stranger.refused(hello(stranger.nonce(), to=0))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert details == "two nodes have the number 0: give each a number of its own"


@pytest.mark.slow
def test_a_node_that_is_put_right_is_let_in() -> None:
    """It is refused, started anew with the right token, and found without anybody's help."""
    with running(1, token="some other token") as wrong, asking(wrong) as asker:
        address = wrong.peers.address
        assert asker.closed(ASKS).refused
        wrong.peers.close()
        with running(1, bind=address):
            asker.opened(1, asks=True)


@pytest.mark.parametrize("case", ["nothing", "no proof", "no hello", "wrong token", "text", "long", "other role"])
def test_who_does_not_know_the_token_learns_nothing(
    stranger: Stranger, answerer: Node, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Always the same text, whatever is missing, and the node's loop hears nothing. The log says what to do."""
    right = hello(stranger.nonce())
    wrong = hello(stranger.nonce(), token="known to nobody else")
    metadata: dict[str, list[tuple[str, str | bytes]]] = {
        "nothing": [],
        "no proof": right[:1],
        "no hello": right[1:],
        "wrong token": wrong,
        "text": [("brand-hello", "x"), ("brand-proof", "y")],
        "long": [right[0], (PROOF, bytes(1000))],
        "other role": [right[0], (PROOF, Token(TOKEN).of_answering(bytes(right[0][1]), b""))],  # type: ignore[arg-type]
    }
    assert stranger.refused(metadata[case]) == (grpc.StatusCode.UNAUTHENTICATED, STRANGER)
    assert answerer.take() == []
    assert "start all nodes with one token" in caplog.text


def test_a_recorded_greeting_opens_nothing(stranger: Stranger, answerer: Node) -> None:
    """Word for word what a node said a moment ago, while its stream is open and after it has ended."""
    recorded = hello(stranger.nonce())
    call = stranger.exchange(recorded)
    assert WELCOME in dict(call.initial_metadata())
    answerer.opened(0, asks=False)
    for _ in range(2):
        code, details = stranger.refused(recorded)
        assert code == grpc.StatusCode.ABORTED
        assert "sent a second time" in details
        call.cancel()
    answerer.closed(ANSWERS)
    assert answerer.take() == []


def test_a_greeting_with_a_nonce_of_another_node(stranger: Stranger) -> None:
    """What a node said to one of the others opens nothing here."""
    with running(1) as other, grpc.insecure_channel(other.peers.address) as channel:
        nonce = Stranger(channel).nonce()
    assert stranger.refused(hello(nonce))[0] == grpc.StatusCode.ABORTED


@pytest.mark.parametrize(
    "said",
    [b"", b"{", b"[]", b"\xff" * 100, b"x" * 3000, greeting(0).to_json().replace(b"4096", b"-1"), b"{}"],
)
def test_a_malformed_greeting(stranger: Stranger, said: bytes) -> None:
    """Of somebody who knows the token: he hears that it is not understood."""
    code, details = stranger.refused(hello(stranger.nonce(), said=said))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith("node 1 does not understand: a greeting")


def test_half_a_hello(stranger: Stranger) -> None:
    """Too short for its nonces."""
    code, details = stranger.refused([(HELLO, b"short"), (PROOF, Token(TOKEN).of_asking(b"short"))])
    assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "node 1 does not understand: an incomplete hello")


def test_methods_that_are_not_there(stranger: Stranger) -> None:
    """There are two, and nothing tells what else might be."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = stranger.channel.unary_unary("/brand.Peers/Other")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=LIMIT_S)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.slow
def test_a_message_above_the_cap(stranger: Stranger, answerer: Node) -> None:
    """Ends the stream of who sends it; its bytes are never put together."""
    call = stranger.exchange(hello(stranger.nonce()), iter([bytes(MAX_MESSAGE + 1)]))
    answerer.opened(0, asks=False)
    assert isinstance(answerer.next_event(), Closed)
    with pytest.raises(grpc.RpcError):
        next(call)


def test_a_message_that_no_node_sends(stranger: Stranger, answerer: Node) -> None:
    """Ends the stream, with the reason."""
    call = stranger.exchange(hello(stranger.nonce()), iter([b"no parcel"]))
    answerer.opened(0, asks=False)
    assert answerer.closed(ANSWERS).reason.startswith("node 0 violated the protocol: a parcel")
    with suppress(grpc.RpcError):  # cancelled, or ended in good order before that
        assert list(call) == []


class Impostor(grpc.GenericRpcHandler):
    """A server that does not know the token: it says what it is told to say."""

    def __init__(self, nonce: bytes, metadata: dict[str, bytes], *, silent: bool = False) -> None:
        self.nonce, self.metadata, self.silent = nonce, metadata, silent
        self.greeted = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        if handler_call_details.method == GREET:
            self.greeted += 1
            return grpc.unary_unary_rpc_method_handler(lambda *_: self.nonce)
        return grpc.stream_stream_rpc_method_handler(self.exchange)

    def exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self.silent:
            context.send_initial_metadata(tuple(self.metadata.items()))
        yield from requests


@contextmanager
def impostor(handler: Impostor) -> Iterator[str]:
    """Its address."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, [handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.mark.parametrize(
    "handler",
    [Impostor(bytes(64), {}, silent=True), Impostor(bytes(64), {WELCOME: greeting(1).to_json()})],
    ids=["says nothing", "proves nothing"],
)
def test_an_impostor_that_does_not_answer(handler: Impostor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for."""
    monkeypatch.setattr(asking_module, "ANSWER_LIMIT_S", 0.2)
    with impostor(handler) as address, running(0) as asker:
        asker.peers.connect({1: address})
        assert "does not answer within " in asker.closed(ASKS).reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (Impostor(bytes(64), {WELCOME: greeting(1).to_json(), PROOF: bytes(32)}), "does not know the token"),
        (Impostor(bytes(63), {}), "is not a node of Brand"),
        (Impostor(b"", {}), "is not a node of Brand"),
    ],
)
def test_an_impostor_is_not_taken_for_a_node(handler: Impostor, reason: str) -> None:
    """The token is proved both ways before anything is said."""
    with impostor(handler) as address, running(0) as asker:
        asker.peers.connect({1: address})
        closed = asker.closed(ASKS)
        assert reason in closed.reason
        assert asker.take() == []


class Defector(Impostor):
    """One that knows the token, and greets as it likes."""

    def exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        said: dict[str, Any] = dict(context.invocation_metadata())
        self.metadata[PROOF] = Token(TOKEN).of_answering(said[HELLO], self.metadata[WELCOME])
        return super().exchange(requests, context)


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (greeting(2, 3).to_json(), "node 2 listens at 127.0.0.1:"),
        (greeting(1, 3, data_set="c0de").to_json(), "node 1 serves data set c0de, node 0 data set 2b5f"),
        (b"[]", "a greeting is not a JSON object"),
    ],
)
def test_the_asking_side_checks_the_greeting_too(welcome: bytes, reason: str) -> None:
    """And hangs up where the other side did not see the difference."""
    with impostor(Defector(bytes(64), {WELCOME: welcome})) as address, running(0, 3) as asker:
        asker.peers.connect({1: address})
        closed = asker.closed(ASKS)
        assert closed.refused
        assert closed.reason.startswith(reason)
        assert asker.take() == []


@pytest.mark.slow
def test_a_reason_is_given_once() -> None:
    """Not at each attempt."""
    handler = Impostor(b"", {})
    with impostor(handler) as address, running(0) as asker:
        asker.peers.connect({1: address})
        wait_until(lambda: handler.greeted >= 3, "it tries again")
        assert len(asker.take()) == 1


def test_an_impostor_that_repeats_what_a_node_said(answerer: Node, stranger: Stranger) -> None:
    """A recorded welcome is an answer to another hello."""
    recorded = dict(stranger.exchange(hello(stranger.nonce())).initial_metadata())
    handler = Impostor(stranger.nonce(), {key: recorded[key] for key in (WELCOME, PROOF)})
    with impostor(handler) as address, running(0) as asker:
        asker.peers.connect({1: address})
        assert "does not know the token" in asker.closed(ASKS).reason


# -- TLS -------------------------------------------------------------------------------------------------------------


def meet(here: Tls | None, there: Tls | None) -> Event:
    """What node 0 (`here`) hears first of node 1 (`there`), which is the only one that it hears of."""
    with running(1, tls=there) as answerer, asking(answerer, tls=here) as asker:
        event = asker.next_event()
        assert event.stream == ASKS
        if isinstance(event, Opened):
            answerer.opened(0, asks=False)
            asker.peers.send(ASKS, b"secret")
            assert answerer.messages(ANSWERS, 1) == [b"secret"]
        else:
            assert answerer.take() == []
        return event


@pytest.mark.parametrize("mutual", [False, True])
def test_nodes_with_certificates_of_one_ca(certificates: Certificates, mutual: bool) -> None:
    """Meet, with and without the asking side's."""
    tls = replace(certificates.ours, mutual=mutual)
    assert isinstance(meet(tls, tls), Opened)


def test_plain_and_tls(certificates: Certificates) -> None:
    """Neither gets through to the other; the reason asks for TLS."""
    sides = (None, certificates.ours, "do both sides use TLS"), (certificates.ours, None, "node 1 does not use TLS")
    for here, there, said in sides:
        event = meet(here, there)
        assert isinstance(event, Closed)
        assert said in event.reason


def test_a_wrong_ca(certificates: Certificates) -> None:
    """On either side; the reason says what was wrong with the certificate where this side saw it."""
    event = meet(certificates.theirs, certificates.ours)
    assert isinstance(event, Closed)
    assert "CERTIFICATE_VERIFY_FAILED" in event.reason
    right_but_for_its_own = replace(certificates.theirs, ca=certificates.ours.ca, mutual=True)
    event = meet(right_but_for_its_own, replace(certificates.ours, mutual=True))
    assert isinstance(event, Closed)
    assert "do both sides use TLS, with the same CA?" in event.reason


def test_mutual_tls_without_a_certificate(certificates: Certificates) -> None:
    """Who asks and shows none is not let in."""
    event = meet(certificates.ours, replace(certificates.ours, mutual=True))
    assert isinstance(event, Closed)


def test_a_certificate_for_another_host(certificates: Certificates) -> None:
    """Does not pass for this one."""
    event = meet(certificates.ours, certificates.elsewhere)
    assert isinstance(event, Closed)
    assert "certificate" in event.reason.lower() or "hostname" in event.reason.lower()


def test_tls_does_not_replace_the_token(certificates: Certificates) -> None:
    """Both are checked."""
    with ExitStack() as stack:
        answerer = stack.enter_context(running(1, tls=certificates.ours))
        asker = stack.enter_context(asking(answerer, tls=certificates.ours, token="known to nobody else"))
        assert asker.closed(ASKS).refused


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_files_that_are_missing_or_something_else(certificates: Certificates, tmp_path: Path, name: str) -> None:
    """The error names the file, before anything listens."""

    def with_file(path: Path) -> Tls:
        files: dict[str, Any] = {name: path}
        return replace(certificates.ours, **files)

    with pytest.raises(UsageError, match=r"gone\.pem: cannot be read: No such file"):
        with_file(tmp_path / "gone.pem")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        with_file(tmp_path)
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")
    with pytest.raises(UsageError, match=r"junk\.pem"):
        with_file(junk)
    with pytest.raises(UsageError, match=r"cert\.pem and .*key\.pem"):
        replace(certificates.ours, key=certificates.theirs.key)
