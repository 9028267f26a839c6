"""A store whose errors arrive with a cut body: the request is repeated, as other cut answers are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from brand.stores.opening import open_store

_BODY = b"<Error><Code>%s</Code></Error>"


class CuttingServer:
    """Answers the first requests for each path with an error whose body is cut, and later ones in full."""

    def __init__(self, status: bytes, cuts: int) -> None:
        self.status, self.cuts, self.asked = status, cuts, list[str]()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                path = connection.recv(1 << 16).split(b" ")[1].decode()
                self.asked.append(path)
                if self.asked.count(path) <= self.cuts:
                    self._answer(connection, self.status, b"<Error><Code>NoSu", 300)
                elif path.endswith("there.json"):
                    self._answer(connection, b"200 OK", b"whole", 5)
                else:
                    body = _BODY % b"NoSuchKey"
                    self._answer(connection, b"404 Not Found", body, len(body))

    def _answer(self, connection: socket.socket, status: bytes, body: bytes, size: int) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n" % (status, size)
        date = b'Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\nETag: "1"\r\n\r\n'
        connection.sendall(head + date + body)


@pytest.fixture(params=["404 Not Found", "403 Forbidden", "400 Bad Request"])
def server(request: pytest.FixtureRequest) -> Iterator[CuttingServer]:
    made = CuttingServer(request.param.encode(), cuts=3)
    with closing(made.socket):
        yield made


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_an_error_with_a_cut_body_is_repeated(
    server: CuttingServer, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is there is read, and one that is not is missing, after three cut answers each."""
    for name, value in (
        ("ENDPOINT_URL", f"http://{server.address}"),
        ("ACCESS_KEY_ID", "k"),
        ("SECRET_ACCESS_KEY", "s"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    store = open_store(f"http://{server.address}/set" if scheme == "http" else "s3://bucket/set")
    assert store.read("there.json", 100) == b"whole"
    with pytest.raises(FileNotFoundError):
        store.read("missing.json", 100)
    assert len(server.asked) == 8
