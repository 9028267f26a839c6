"""Certificates that have expired, or are renewed while nodes run, and handshakes that end half-way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from brand.cluster import asking as asking_module
from brand.cluster.certificates import CertificateFiles, hint
from brand.errors import UsageError
from brand.node.setup.server_spec import Tls
from brand.node.wire.network import Closed, PeerStream
from tests.cluster.conftest import Certificates
from tests.cluster.conftest import certificates as certificates
from tests.cluster.support import asking, running

NOW, DAY = datetime.now(UTC), timedelta(days=1)
EXPIRED: dict[str, Any] = {"not_before": NOW - 9 * DAY, "not_after": NOW - DAY}
NOT_YET: dict[str, Any] = {"not_before": NOW + DAY, "not_after": NOW + 9 * DAY}
ASKS = PeerStream(1, asks=True)


def write(ca: trustme.CA, folder: Path, host: str = "127.0.0.1", trusted: trustme.CA | None = None, **more: Any) -> Tls:
    """Files of a node; written anew, as by a program that renews them."""
    folder.mkdir(exist_ok=True)
    issued = ca.issue_cert(host, **more)
    made = {"ca": (trusted or ca).cert_pem, "key": issued.private_key_pem, "cert": issued.cert_chain_pems[0]}
    for name, pem in made.items():
        pem.write_to_path(folder / "new.pem")
        (folder / "new.pem").rename(folder / f"{name}.pem")
    return Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


@pytest.mark.parametrize(("dates", "said"), [(EXPIRED, "certificate has expired"), (NOT_YET, "is not yet valid")])
def test_dates_are_looked_at_before_anything_listens(tmp_path: Path, dates: dict[str, Any], said: str) -> None:
    """The error names the file, whoever has signed it."""
    ca, other = trustme.CA(), trustme.CA()
    for trusted in (ca, other):
        with pytest.raises(UsageError, match=rf"cert\.pem: certificate {said.removeprefix('certificate ')}: renew it"):
            write(ca, tmp_path / "files", trusted=trusted, **dates)


@pytest.mark.parametrize("mutual", [False, True])
def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path, mutual: bool) -> None:
    """Of a new CA even, once all nodes have them; the stream that is open goes on."""
    first, second = trustme.CA(), trustme.CA()
    here, there = (replace(write(first, tmp_path / name), mutual=mutual) for name in ("here", "there"))
    with running(1, tls=there) as answerer, asking(answerer, tls=here) as asker:
        asker.opened(1, asks=True)
        write(second, tmp_path / "there")
        asker.peers.hang_up(ASKS, "a test")
        refused = asker.next(Closed, lambda event: event.reason != "a test")
        assert f"no CA in {here.ca} has signed the certificate of node 1" in refused.reason
        write(second, tmp_path / "here")
        asker.opened(1, asks=True)


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_file_that_is_half_written_changes_nothing(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was read before remains in use, and the log names the file, once."""
    tls = write(trustme.CA(), tmp_path / "files")
    path, whole = tmp_path / "files" / f"{name}.pem", (tmp_path / "files" / f"{name}.pem").read_bytes()
    with running(1, tls=tls) as answerer, asking(answerer, tls=tls) as asker:
        asker.opened(1, asks=True)
        path.write_bytes(whole[: len(whole) // 2])
        for _ in range(2):
            asker.peers.hang_up(ASKS, "a test")
            asker.opened(1, asks=True)
        assert any(f"{name}.pem" in each.message and "remain in use" in each.message for each in caplog.records)
        path.unlink()
        asker.peers.hang_up(ASKS, "a test")
        asker.opened(1, asks=True)


def test_an_asking_node_whose_own_certificate_has_expired_says_so(tmp_path: Path) -> None:
    """With `mutual`, the other side only ends the handshake."""
    ca = trustme.CA()
    here, there = (replace(write(ca, tmp_path / name), mutual=True) for name in ("here", "there"))
    files = CertificateFiles(here)
    with pytest.raises(UsageError):
        write(ca, tmp_path / "here", **EXPIRED)
    assert (
        files.hint("Socket closed", "node 1")
        == f"{here.cert}: certificate has expired: renew it, or set the clock of this host"
    )
    assert files.channel() is not None
    assert CertificateFiles(there).hint("deadline exceeded", "node 1") == ""


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            "CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "the certificate of node 1, or of its CA, has expired",
        ),
        ("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "compare the clocks of both hosts"),
        ("UNAUTHENTICATED: Hostname Verification Check failed.", "for another host"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "no CA in ca.pem has signed"),
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate", "no CA in ca.pem has signed"),
        ("SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER", "node 1 does not use TLS"),
        ("Handshake read failed (Socket closed)", "do both sides use TLS, with the same CA?"),
        ("Connection refused", ""),
    ],
)
def test_the_cause_is_said_in_words(details: str, said: str) -> None:
    """As gRPC gives it; the real errors are in the other tests."""
    found = hint(details, "node 1", "ca.pem")
    assert said in found
    assert bool(said) == bool(found)


Act = Callable[[socket.socket, threading.Event], None]


def _silent(connection: socket.socket, ended: threading.Event) -> None:
    ended.wait()


def _half_closed(connection: socket.socket, ended: threading.Event) -> None:
    connection.recv(100)
    connection.shutdown(socket.SHUT_WR)
    ended.wait()


def _reset(connection: socket.socket, _: threading.Event) -> None:
    connection.recv(100)


def _other_protocol(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    ended.wait()


@contextmanager
def listener(act: Act) -> Iterator[str]:
    """A program that takes connections and does this with each."""
    ended = threading.Event()

    def each(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            act(connection, ended)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=each, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("act", [_silent, _half_closed, _reset, _other_protocol])
def test_a_handshake_that_ends_half_way_is_an_error_that_names_the_node(
    certificates: Certificates, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the other side ends it, or never does."""
    monkeypatch.setattr(asking_module, "ANSWER_LIMIT_S", 0.5)
    with listener(act) as address, running(0, tls=certificates.ours) as asker:
        asker.peers.connect({1: address})
        assert asker.closed(ASKS).reason.startswith(f"node 1 at {address} ")


def test_half_a_handshake_does_not_keep_other_nodes_out(certificates: Certificates) -> None:
    """A client that sends the beginning of a handshake, and nothing or an end; nodes meet meanwhile."""
    with running(1, tls=certificates.ours) as answerer:
        host, _, port = answerer.peers.address.rpartition(":")
        begun = [socket.create_connection((host, int(port))) for _ in range(20)]
        for number, connection in enumerate(begun):
            connection.sendall(bytes.fromhex("16030100f8010000f40303")[: 1 + number % 11])
            if number % 2:
                connection.shutdown(socket.SHUT_WR)
        with asking(answerer, tls=certificates.ours) as asker:
            asker.opened(1, asks=True)
        for connection in begun:
            connection.close()
