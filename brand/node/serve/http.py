"""A small, read-only HTTP port for browsers and Prometheus, served by threads of its own.

    GET /            the page (page.html)                     GET /metrics     Prometheus text
    GET /events      server-sent events, once a second        GET /stats.json  all statistics
    GET /healthz     200 while the server's loop answers, without a token

Every other path needs the token, as `?token=` or as `Authorization: Bearer`. A connection answers one request. The
number of connections, the size of a request and every wait have limits, so no client can block the server's loop: the
threads ask the loop for statistics, at most twice a second for all connections together. One thread reads all requests
and refuses those without a token. Only a request with a token takes one of the other threads, and health checks have
threads of their own, so strangers hold up neither.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from brand.errors import BrandError, UsageError
from brand.node.serve.http_heads import PendingRequests
from brand.node.serve.loops import MOST_CELLS
from brand.node.serve.metrics import CONTENT_TYPE, prometheus
from brand.reprs import Reprs

MOST_CONNECTIONS: Final = 32
"""Maximum number of requests with a token at a time. Further requests get status 503."""
MOST_HEALTH: Final = 8
"""Maximum number of health checks at a time."""
REQUEST_LIMIT_S: Final = 5.0
"""Seconds that a client may take to send its request, and to receive each answer."""
EVERY_S: Final = 1.0
"""Seconds between two events of the page."""
FRESH_S: Final = 0.5
"""Seconds for which statistics are used again."""
_LOOK_S: Final = 0.1
"""Seconds after which the port looks for requests that have taken too long."""
_MOST_AT_ONCE: Final = 16
"""Connections that are accepted before the requests of earlier ones are read."""
_EVENT_CELLS: Final = 3
"""Cells of each training loop in an event. The page has the earlier cells already."""
_BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted."""
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
        self._listener.settimeout(0)
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._health = threading.BoundedSemaphore(MOST_HEALTH)
        self._ended = threading.Event()
        self._looking = threading.Lock()
        self._seen: tuple[float, dict[str, Any]] = (float("-inf"), {})
        """The time of the last request for statistics, and its result."""
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.address}/?token={self._token.decode()}"

    def close(self) -> None:
        self._ended.set()
        self._thread.join(REQUEST_LIMIT_S)
        self._listener.close()
        with self._lock:
            threads = dict(self._connections)
        for connection, thread in threads.items():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(REQUEST_LIMIT_S)

    def _run(self) -> None:
        """Accept connections and read their requests, until the port closes."""
        with selectors.DefaultSelector() as selector:
            pending = PendingRequests(selector, self._on_request)
            selector.register(self._listener, selectors.EVENT_READ, lambda: self._accept(pending))
            while not self._ended.is_set():
                for key, _ in selector.select(_LOOK_S):
                    key.data()
                pending.tend(time.monotonic())
            pending.close()

    def _accept(self, pending: PendingRequests) -> None:
        for _ in range(_MOST_AT_ONCE):  # those that were accepted may have sent their requests
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # the port is closed, or no descriptor is left at the moment
                if not pending.close_oldest():
                    self._ended.wait(_LOOK_S)
                return
            pending.add(connection, REQUEST_LIMIT_S)

    def _on_request(self, connection: socket.socket, head: str | int) -> None:
        """Refuse a request at once, or start the thread that answers it."""
        request = _parse(head) if isinstance(head, str) else None
        refusal = _answer(head) if isinstance(head, int) else self._refusal(_parse(head))
        room = self._health if request is not None and request.path == "/healthz" else self._room
        if refusal is None and not room.acquire(blocking=False):
            refusal = _answer(503, "too many connections\n")
        if refusal is not None or request is None:
            with connection, suppress(OSError):  # it does not wait: so few bytes are in the kernel at once
                connection.sendall(refusal or b"")
            return
        thread = threading.Thread(target=self._serve, args=(connection, request, room), name="http-client", daemon=True)
        with self._lock:
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads at the moment
            self._forget(connection, room)

    def _refusal(self, request: _Request) -> bytes | None:
        """Return the answer to a request that is invalid or has no token; None for all others."""
        if request.method not in ("GET", "HEAD"):
            return _answer(400 if not request.method else 405, fields={"Allow": "GET, HEAD"})
        if request.path != "/healthz" and not self._may(request.query, request.fields):
            hint = f"give the token: {request.path}?token=TOKEN, or Authorization: Bearer TOKEN\n"
            answer = _answer(401, hint, fields={"WWW-Authenticate": "Bearer"})
            return _front_of(answer) if request.method == "HEAD" else answer
        return None

    def _serve(self, connection: socket.socket, request: _Request, room: threading.BoundedSemaphore) -> None:
        try:
            with suppress(OSError):
                self._respond(connection, request)
        finally:
            self._forget(connection, room)

    def _forget(self, connection: socket.socket, room: threading.BoundedSemaphore) -> None:
        with self._lock:
            del self._connections[connection]
        connection.close()
        room.release()

    def _respond(self, connection: socket.socket, request: _Request) -> None:
        """Send the answer to a request. Raises OSError if the client has disconnected or does not read."""
        connection.settimeout(REQUEST_LIMIT_S)
        if request.path == "/events" and request.method == "GET":
            self._stream(connection)
            return
        answer = self._answer(request.path)
        connection.sendall(_front_of(answer) if request.method == "HEAD" else answer)

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
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(f"HTTP cannot listen at {host}:{port}: {error.strerror or error}; give another port") from None


class _Request(NamedTuple):
    """The head of a request; the method is empty if the request is invalid."""

    method: str
    path: str
    query: str
    fields: Mapping[str, str]


def _parse(head: str) -> _Request:
    line, *rest = head.split("\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        return _Request("", "/", "", {})
    path, _, query = found[2].partition("?")
    pairs = (field.partition(":") for field in rest)
    return _Request(found[1], path, query, {name.strip().lower(): value.strip() for name, _, value in pairs})


def _front_of(answer: bytes) -> bytes:
    """Return the head of an answer, without its body."""
    return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


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
