"""The HTTP port: what it tells to whom, and that no request, however bad, holds up the server or leaves anything."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.errors import ServerError, UsageError
from brand.node.serve import http, loops
from brand.node.serve.http import MOST_CONNECTIONS, HttpPort, check_where, derived_token
from brand.node.serve.http_heads import MOST_HEAD, MOST_PENDING
from brand.testing.node import RunningServer, running_server
from tests.node.test_metrics import read, report_to
from tests.rounds import examples
from tests.support import LIMIT_S, wait_until

TOKEN = "secret"


@pytest.fixture
def served(texts: Path) -> Iterator[tuple[RunningServer, HttpPort]]:
    """A server, and a port that shows it."""
    with running_server(texts) as server, closing(HttpPort("0", TOKEN, server.node.facts)) as port:
        yield server, port


@pytest.fixture(scope="module")
def lasting(texts: Path) -> Iterator[HttpPort]:
    """One port for all examples of a test."""
    with running_server(texts) as server, closing(HttpPort("0", TOKEN, server.node.facts)) as port:
        yield port


def get(port: HttpPort, path: str, *, token: str | None = TOKEN, **fields: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and header fields of an answer."""
    url = f"http://{port.address}{path}" + ("" if token is None else f"?token={token}")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=fields), timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def raw(port: HttpPort, data: bytes, *, ends: bool = False) -> bytes:
    """What comes back for these bytes until the port hangs up. `ends`: nothing follows them."""
    host, _, number = port.address.rpartition(":")
    found = b""
    with (
        socket.create_connection((host, int(number)), timeout=LIMIT_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(1 << 16):
            found += more
    return found


def descriptors() -> int:
    """How many descriptors this process has open, without those of garbage."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# -- what it tells ---------------------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_the_server(served: tuple[RunningServer, HttpPort]) -> None:
    """As JSON with the cells of each loop, and as Prometheus text."""
    server, port = served
    report_to(server, "run", [("storage", 0.5)])
    facts = json.loads(get(port, "/stats.json")[1])
    assert set(facts) == set(server.facts()) | {"history"}
    assert facts["loops"][0]["cells"][0]["worst"] is None
    assert facts["loops"][0]["cells"][0]["cause"] == "storage"
    status, text, fields = get(port, "/metrics")
    assert (status, fields["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert read(text)["brand_loop_wait_seconds_sum"][("run", "run"), ("rank", "0"), ("cause", "storage")] == 0.5


def test_the_page_is_one_small_file_and_takes_nothing_from_elsewhere(served: tuple[RunningServer, HttpPort]) -> None:
    """Its own script and style only; no address of another host in it; not kept in a cache, not in a frame."""
    status, page, fields = get(served[1], "/")
    assert (status, fields["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert len(page) < 60_000
    assert page.replace("http://www.w3.org/2000/svg", "").count("//") == 0
    policy = fields["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert (fields["Cache-Control"], fields["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert "Access-Control-Allow-Origin" not in fields


@pytest.mark.slow
def test_events_come_again_and_again(served: tuple[RunningServer, HttpPort], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one with all cells, later ones with the last."""
    monkeypatch.setattr(loops, "CELL_S", 1e-6)
    server, port = served
    for _ in range(8):
        report_to(server, "run", [("node", 0.1)])
    cells: list[int] = []
    with urllib.request.urlopen(f"http://{port.address}/events?token={TOKEN}", timeout=LIMIT_S) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        while len(cells) < 2:
            line = stream.readline().decode()
            if line.startswith("data: "):
                cells.append(len(json.loads(line[6:])["loops"][0]["cells"]))
    assert cells == [8, 3]


@pytest.mark.parametrize("path", ["/", "/metrics", "/stats.json", "/events", "/nothing", "//", "/%00"])
@pytest.mark.parametrize("token", [None, "", "wrong", "secre", "secrets", "s%C3%A9cret"])
def test_without_the_token_it_tells_nothing(
    served: tuple[RunningServer, HttpPort], path: str, token: str | None
) -> None:
    """Not even which paths there are."""
    status, body, fields = get(served[1], path, token=token)
    assert (status, fields["WWW-Authenticate"]) == (401, "Bearer")
    assert "texts" not in body
    assert TOKEN not in body


def test_the_token_in_the_header(served: tuple[RunningServer, HttpPort]) -> None:
    """As Prometheus sends it."""
    assert get(served[1], "/metrics", token=None, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert get(served[1], "/metrics", token=None, Authorization=f"bearer  {TOKEN} ")[0] == 200
    assert get(served[1], "/metrics", token=None, Authorization=f"Basic {TOKEN}")[0] == 401
    assert get(served[1], "/nothing", token=TOKEN)[0] == 404


def test_health_needs_no_token_and_is_that_of_the_loop(
    served: tuple[RunningServer, HttpPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 where the loop does not answer, or has ended."""
    server, port = served
    assert get(port, "/healthz", token=None)[:2] == (200, "ok\n")
    monkeypatch.setattr(http, "FRESH_S", -1.0)
    stuck = threading.Event()
    asks = threading.Thread(target=lambda: server.node._executor.ask(stuck.wait, LIMIT_S))
    asks.start()
    with closing(HttpPort("0", TOKEN, lambda cells: server.node.facts(cells, limit_s=0.05))) as impatient:
        status, body, _ = get(impatient, "/healthz", token=None)
        assert (status, body) == (503, "the server's loop has not answered within 0.05 s\n")
        stuck.set()
        asks.join()
        wait_until(lambda: get(impatient, "/healthz", token=None)[0] == 200, "the loop answers")
    server.node.stop()
    server.thread.join()
    status, body, _ = get(port, "/healthz", token=None)
    assert (status, body) == (503, "the server has ended\n")


def test_statistics_that_cannot_be_had(served: tuple[RunningServer, HttpPort]) -> None:
    """Said so, also to a page that is open."""

    def gone(cells: int) -> dict[str, Any]:
        raise ServerError("no data server there")

    with closing(HttpPort("0", TOKEN, gone)) as port:
        assert get(port, "/metrics")[:2] == (503, "no data server there\n")
        with urllib.request.urlopen(f"http://{port.address}/events?token={TOKEN}", timeout=LIMIT_S) as stream:
            assert stream.readline() == b"event: lost\n"
            assert json.loads(stream.readline()[6:]) == "no data server there"


def test_head_is_the_answer_without_its_body(served: tuple[RunningServer, HttpPort]) -> None:
    """With the length that the body would have."""
    answer = raw(served[1], b"HEAD /healthz HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 3\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


# -- bad requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\n\r\n", 405),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET http://evil/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01" + bytes(60) + b"\r\n\r\n", 400),
        (b"GET /?token[=%zz&&&;\xff HTTP/1.1\r\n\r\n", 401),
        (b"GET //[ HTTP/1.1\r\n: \r\nx\r\n\r\n", 401),
        (b"GET /" + b"a" * MOST_HEAD + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * MOST_HEAD, 431),
    ],
)
def test_bad_requests_are_refused(served: tuple[RunningServer, HttpPort], request_: bytes, status: int) -> None:
    """With a status that says why; the next request is answered."""
    answer = raw(served[1], request_)
    assert not answer or answer.startswith(f"HTTP/1.1 {status} ".encode())  # a reset may overtake it
    assert get(served[1], "/healthz")[0] == 200


@pytest.mark.slow
@given(data=st.binary(max_size=200))
@examples(60)
def test_any_bytes_as_a_request(lasting: HttpPort, data: bytes) -> None:
    """Refused or taken, never an error of the port."""
    answer = raw(lasting, data + b"\r\n\r\n", ends=True)
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert b" 200 " not in answer.split(b"\r\n")[0]


@contextlib.contextmanager
def silent(port: HttpPort, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that send no request, or only its first bytes."""
    host, _, number = port.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(socket.create_connection((host, int(number)), timeout=LIMIT_S)))
            with contextlib.suppress(ConnectionError):
                found[-1].sendall(data)
        yield found


@pytest.mark.parametrize("count", [MOST_CONNECTIONS + 8, 3 * MOST_PENDING])
@pytest.mark.parametrize("data", [b"", b"GET /healthz HTTP/1.1\r\n"])
def test_silent_clients_hold_up_nothing(served: tuple[RunningServer, HttpPort], count: int, data: bytes) -> None:
    """However many there are: health checks and those who know the token get their answers, and few threads run."""
    server, port = served
    before = threading.active_count()
    with silent(port, count, data):
        for path, token in (("/healthz", None), ("/metrics", TOKEN), ("/healthz", None)):
            began_s = time.monotonic()
            assert get(port, path, token=token)[0] == 200
            assert time.monotonic() - began_s < http.REQUEST_LIMIT_S
        wait_until(lambda: threading.active_count() <= before, "no thread serves them")
        assert server.node.facts()["fetched"] == 0


def test_pages_that_are_open_do_not_hold_up_health_checks(served: tuple[RunningServer, HttpPort]) -> None:
    """As many as there may be; one more is refused with 503."""
    _, port = served
    url = f"http://{port.address}/events?token={TOKEN}"
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            stack.enter_context(urllib.request.urlopen(url, timeout=LIMIT_S))
        assert get(port, "/events")[:2] == (503, "too many connections\n")
        assert get(port, "/healthz", token=None)[:2] == (200, "ok\n")


@pytest.mark.slow
def test_slow_clients_are_given_up(served: tuple[RunningServer, HttpPort], monkeypatch: pytest.MonkeyPatch) -> None:
    """With status 408, after their time; too many at once lose their oldest."""
    monkeypatch.setattr(http, "REQUEST_LIMIT_S", 1.0)
    _, port = served
    before = descriptors()
    with silent(port, MOST_PENDING + 5, b"G") as slow:
        answers = []
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                answers.append(connection.recv(100))
        assert 5 <= len([answer for answer in answers if not answer]) + len(slow) - len(answers) < 10
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers if answer)
        assert get(port, "/healthz")[0] == 200
    wait_until(lambda: descriptors() <= before, "no descriptor is left")


@pytest.mark.slow
def test_a_client_that_takes_no_events_is_given_up(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not hold a thread for ever."""
    monkeypatch.setattr(http, "REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(http, "EVERY_S", 0.001)
    facts = {"loops": [], "much": "x" * (1 << 20)}
    with closing(HttpPort("0", TOKEN, lambda cells: facts)) as port:
        host, _, number = port.address.rpartition(":")
        with socket.create_connection((host, int(number)), timeout=LIMIT_S) as connection:
            connection.sendall(f"GET /events?token={TOKEN} HTTP/1.1\r\n\r\n".encode())
            wait_until(lambda: "connections=1 items" in repr(port), "it is connected")
            wait_until(lambda: "connections={}" in repr(port), "it is given up")


def test_statistics_are_asked_for_once_for_many(served: tuple[RunningServer, HttpPort]) -> None:
    """Requests that come at the same time share an answer of the loop."""
    asked: list[float] = []

    def facts(cells: int) -> dict[str, Any]:
        asked.append(time.monotonic())
        return served[0].node.facts(cells)

    with closing(HttpPort("0", TOKEN, facts)) as port:
        threads = [threading.Thread(target=get, args=(port, "/stats.json")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert min(gaps, default=1.0) >= http.FRESH_S


@pytest.mark.slow
def test_nothing_is_left_of_a_port(texts: Path) -> None:
    """No thread and no descriptor, though a page is open and a request is half sent."""
    with running_server(texts) as server:
        before, threads = descriptors(), threading.active_count()
        for _ in range(5):
            port = HttpPort("0", TOKEN, server.node.facts)
            host, _, number = port.address.rpartition(":")
            with (
                urllib.request.urlopen(f"http://{port.address}/events?token={TOKEN}", timeout=LIMIT_S) as stream,
                socket.create_connection((host, int(number)), timeout=LIMIT_S) as half,
            ):
                assert stream.readline().startswith(b"data: ")
                half.sendall(b"GET / HT")
                wait_until(lambda port=port: "connections=1 items" in repr(port), "one is answered")  # type: ignore[misc]
                port.close()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((host, int(number)), timeout=LIMIT_S)
        wait_until(lambda: descriptors() <= before and threading.active_count() <= threads, "nothing is left")


# -- addresses and tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("8585", ("127.0.0.1", 8585)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:80", ("::1", 80)),
        ("node1:9", ("node1", 9)),
    ],
)
def test_where_a_port_listens(where: str, found: tuple[str, int]) -> None:
    """Without a host on loopback, which no other machine reaches."""
    assert check_where(where) == found


@pytest.mark.parametrize("where", ["", "x", ":80", "80:", "1:2:x", "65536", "-1", "8585 ", "٣"])
def test_what_is_no_port(where: str) -> None:
    """Said with what it is."""
    with pytest.raises(UsageError, match="PORT"):
        check_where(where)


def test_a_port_that_is_taken(served: tuple[RunningServer, HttpPort]) -> None:
    """Said with what to do."""
    with pytest.raises(UsageError, match="give another port"):
        HttpPort(served[1].address, TOKEN, served[0].node.facts)


def test_the_token_of_a_cluster_does_not_tell_its_secret() -> None:
    """The same for all nodes, and another for another secret."""
    assert derived_token("a") == derived_token("a") != derived_token("b")
    assert len(derived_token("a")) == 32
    assert "secret" not in derived_token("secret")
