"""A small, read-only HTTP port for browsers and Prometheus, served by threads of its own.

    GET /            the page (page.html)                     GET /metrics     Prometheus text
    GET /events      server-sent events, once a second        GET /stats.json  all statistics
    GET /healthz     200 while the server's loop answers, without a token

Every other path needs the token, as `?token=` or as `Authorization: Bearer`. A connection answers one request. The
number of connections, the size of a request and every wait have limits, so no client can block the server's loop: the
threads ask the loop for statistics, at most twice a second for all connections together.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from brand.errors import BrandError, UsageError
from brand.node.serve.loops import MOST_CELLS
from brand.node.serve.metrics import CONTENT_TYPE, prometheus
from brand.reprs import Reprs

MOST_CONNECTIONS: Final = 32
"""Maximum number of connections at a time. Further connections get status 503 and are closed."""
MOST_HEAD: Final = 8192
"""Maximum size of a request in bytes."""
REQUEST_LIMIT_S: Final = 5.0
"""Seconds that a client may take to send its request, and to receive each answer."""
EVERY_S: Final = 1.0
"""Seconds between two events of the page."""
FRESH_S: Final = 0.5
"""Seconds for which statistics are used again."""
_EVENT_CELLS: Final = 3
"""Cells of each training loop in an event. The page has the earlier cells already."""
_LINE: Final = re.compile(r"([A-Z]{1,16}) (/\S*) HTTP/1\.[01]")
_TEXT: Final = "text/plain; charset=utf-8"
_BEARER: Final = "bearer "
_PAGE: Final = Path(__file__).with_name("page.html")
log = logging.getLogger("brand.node")


class HttpPort(Reprs, shows="address _connections"):
    """Serves the statistics that `facts(cells)` returns, with that many cells of each training loop, until `close`.

    `where` is `[HOST:]PORT`; without a host, loopback. Raises `UsageError` if the text is invalid or the port is taken.
    `facts` raises TimeoutError or a `BrandError` if there are no statistics.
    """

    def __init__(self, where: str, token: str, facts: Callable[[int], dict[str, Any]]) -> None:
        self._token, self._facts = token.encode(), facts
        self._listener = _listen(where)
        host, port = self._listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """The address at which the port listens, `host:port`."""
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._ended = threading.Event()
        self._looking = threading.Lock()
        self._seen: tuple[float, dict[str, Any]] = (float("-inf"), {})
        """The time of the last request for statistics, and its result."""
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(target=self._accept, name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.address}/?token={self._token.decode()}"

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join(REQUEST_LIMIT_S)
        self._listener.close()
        with self._lock:
            threads = dict(self._connections)
        for connection, thread in threads.items():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(REQUEST_LIMIT_S)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._ended.wait(0.1)  # the port is closed, or no descriptor is left at the moment
                continue
            if not self._room.acquire(blocking=False):
                with connection, suppress(OSError):
                    connection.settimeout(0)
                    connection.sendall(_answer(503, "too many connections\n"))
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="http-client", daemon=True)
            with self._lock:
                self._connections[connection] = thread
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads at the moment
                self._forget(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):
                self._respond(connection, _head(connection))
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            del self._connections[connection]
        connection.close()
        self._room.release()

    def _respond(self, connection: socket.socket, head: str | int) -> None:
        """Send the answer to a request. Raises OSError if the client has disconnected or does not read."""
        connection.settimeout(REQUEST_LIMIT_S)
        if isinstance(head, int):
            connection.sendall(_answer(head))
            return
        method, target, fields = _parse(head)
        path, _, query = target.partition("?")
        if method not in ("GET", "HEAD"):
            answer = _answer(400 if not method else 405, fields={"Allow": "GET, HEAD"})
        elif path != "/healthz" and not self._may(query, fields):
            hint = f"give the token: {path}?token=TOKEN, or Authorization: Bearer TOKEN\n"
            answer = _answer(401, hint, fields={"WWW-Authenticate": "Bearer"})
        elif path == "/events" and method == "GET":
            self._stream(connection)
            return
        else:
            answer = self._answer(path)
        connection.sendall(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else answer)

    def _may(self, query: str, fields: Mapping[str, str]) -> bool:
        given = parse_qs(query).get("token", [])
        authorization = fields.get("authorization", "")
        if authorization.lower().startswith(_BEARER):
            given.append(authorization[len(_BEARER) :].strip())
        return any(hmac.compare_digest(text.encode(errors="replace"), self._token) for text in given)

    def _answer(self, path: str) -> bytes:
        if path not in ("/", "/healthz", "/stats.json", "/metrics"):
            return _answer(404, "there are /, /metrics, /stats.json, /events and /healthz\n")
        if path == "/":
            page = _PAGE.read_bytes()
            return _answer(200, page, "text/html; charset=utf-8", {"Content-Security-Policy": _policy(page)})
        try:
            facts = self._look()
        except (TimeoutError, BrandError) as error:
            return _answer(503, f"{error}\n")
        if path == "/healthz":
            return _answer(200, "ok\n")
        if path == "/metrics":
            return _answer(200, prometheus(facts), CONTENT_TYPE)
        return _answer(200, json.dumps(facts), "application/json")

    def _stream(self, connection: socket.socket) -> None:
        """Send events until the client disconnects or the port closes."""
        connection.sendall(_front(200, "text/event-stream", {"X-Accel-Buffering": "no"}))
        cells = MOST_CELLS
        while not self._ended.is_set():
            try:
                facts = self._look()
                loops = [{**loop, "cells": loop["cells"][-cells:]} for loop in facts["loops"]]
                event = f"data: {json.dumps({**facts, 'loops': loops})}\n\n"
                cells = _EVENT_CELLS
            except (TimeoutError, BrandError) as error:
                event = f"event: lost\ndata: {json.dumps(str(error))}\n\n"
            connection.sendall(event.encode())
            self._ended.wait(EVERY_S)

    def _look(self) -> dict[str, Any]:
        """Return statistics that are at most `FRESH_S` old."""
        with self._looking:
            if time.monotonic() - self._seen[0] > FRESH_S:
                self._seen = time.monotonic(), self._facts(MOST_CELLS)
            return self._seen[1]


def derived_token(secret: str) -> str:
    """Return the token of a cluster's pages, derived from the secret of its nodes, which it does not reveal."""
    return hmac.new(secret.encode(), b"brand http", hashlib.sha256).hexdigest()[:32]


def check_where(where: str) -> tuple[str, int]:
    """Return host and port of `[HOST:]PORT`. Raises `UsageError` if the text is invalid."""
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in where and not host):
        raise UsageError(f"an HTTP port is [HOST:]PORT, such as 8585 or 0.0.0.0:8585, not {where!r}")
    return (host.removeprefix("[").removesuffix("]") or "127.0.0.1"), int(port)


def _listen(where: str) -> socket.socket:
    host, port = check_where(where)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise UsageError(f"HTTP cannot listen at {host}:{port}: {error.strerror or error}; give another port") from None


def _head(connection: socket.socket) -> str | int:
    """Read the head of a request. Returns a status instead if the request is refused. Raises OSError."""
    end_s, data = time.monotonic() + REQUEST_LIMIT_S, b""
    while b"\r\n\r\n" not in data:
        left_s = end_s - time.monotonic()
        if len(data) > MOST_HEAD:
            return 431
        if left_s <= 0:
            return 408
        connection.settimeout(left_s)
        try:
            more = connection.recv(MOST_HEAD)
        except TimeoutError:
            return 408
        if not more:
            raise ConnectionResetError
        data += more
    return 431 if len(data) > MOST_HEAD else data.partition(b"\r\n\r\n")[0].decode("latin-1")


def _parse(head: str) -> tuple[str, str, dict[str, str]]:
    """Return method, target and header fields of a request; the method is empty if the request is invalid."""
    line, *rest = head.split("\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        return "", "/", {}
    pairs = (field.partition(":") for field in rest)
    return found[1], found[2], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _policy(page: bytes) -> str:
    """Return the policy that allows the page's own script and style, and no other source."""
    hashes = {}
    for tag in ("script", "style"):
        found = re.search(f"<{tag}>(.*?)</{tag}>".encode(), page, re.DOTALL)
        digest = hashlib.sha256(found[1] if found else b"").digest()
        hashes[tag] = f"'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _front(status: int, kind: str, fields: Mapping[str, str] | None = None) -> bytes:
    lines = {
        "Content-Type": kind,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **(fields or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode()


def _answer(status: int, body: str | bytes = "", kind: str = _TEXT, fields: Mapping[str, str] | None = None) -> bytes:
    data = (body or f"{HTTPStatus(status).phrase.lower()}\n").encode() if isinstance(body, str) else body
    return _front(status, kind, {**(fields or {}), "Content-Length": str(len(data))}) + data
