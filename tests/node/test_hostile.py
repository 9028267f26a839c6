"""A process of the same user sends what no client sends: it is told why or cut off, and the others go on."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import ServerError
from brand.node.client.client import Client
from brand.node.memory.residents import MAX_LEASES
from brand.node.serve import clients
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire import messages
from brand.node.wire.connection import socket_name
from brand.node.wire.messages import Kind
from brand.orders.order import MAX_EPOCH
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, random_address, running_server
from brand.testing.storage import BlockedStorage
from tests.made_orders import order_of
from tests.node.packing import pack_begin, pack_draw, pack_release
from tests.node.support import RawClient, draw, greeted, memory_kib
from tests.support import LIMIT_S, wait_until


@pytest.fixture
def server(texts: Path) -> Iterator[RunningServer]:
    """A server with room for a third of the data, and an honest client that can still draw when the test is over."""
    with running_server(texts, memory=0.33) as server:
        yield server
        with greeted(server.address, texts) as honest:
            assert len(draw(honest, honest.order(order_of(texts, seed=77)), 0, range(64)).places) == 64


@pytest.mark.parametrize(
    "owner",
    [
        1 << 31,
        1 << 70,
        -1,
        0,
        1.5,
        "1",
        None,
        [1],
    ],
)
def test_an_owner_that_is_no_process(texts: Path, owner: Any) -> None:
    """Greeted or refused, and the server goes on."""
    with running_server(texts, owners=(os.getpid(),)) as server:
        with RawClient(server.address) as client:
            client.send(messages.pack_json(Kind.HELLO, {"data_set": StoredDataSet(texts).id, "owner": owner}))
            assert client.receive()[0] in (Kind.HELLO, Kind.FAILED)
        assert server.facts()["fetched"] == 0


@pytest.mark.parametrize("group_chunks", [10**12, 10**30])
def test_an_order_with_absurd_groups(texts: Path, group_chunks: int) -> None:
    """A group of more chunks than there are is refused."""
    with running_server(texts) as server, greeted(server.address, texts) as client:
        order = order_of(texts).to_json() | {"group_chunks": group_chunks}
        client.send(messages.pack_json(Kind.ORDER, {"run": "run", "order": order}))
        kind, body = client.receive()
        if kind == Kind.ORDER:  # or taken as all chunks in one group
            draw(client, messages.unpack_json(body)["number"], 0, range(4))
        else:
            assert kind == Kind.FAILED
        server.facts()


def test_the_last_epoch_there_is(texts: Path) -> None:
    """An epoch after which there is none can be drawn to its end."""
    with running_server(texts) as server, greeted(server.address, texts) as client:
        order = client.order(order_of(texts))
        client.begin(order, MAX_EPOCH)
        for first in range(0, 1200, 300):
            draw(client, order, MAX_EPOCH, range(first, first + 300))
        with greeted(server.address, texts) as other:
            draw(other, other.order(order_of(texts, seed=1)), 0, range(4))  # its plan is made after the wrong one


def test_a_deep_report(texts: Path) -> None:
    """However deep a report is nested, it is refused or told; the server goes on."""
    with running_server(texts) as server:
        for depth in (10, *range(950, 1000)):
            with greeted(server.address, texts) as client:
                report = messages.frame(Kind.REPORT, b'{"a":' * depth + b"1" + b"}" * depth)
                client.send(report + messages.frame(Kind.STATS))
                assert client.receive()[0] in (Kind.STATS, Kind.FAILED)


def test_long_reports(server: RunningServer, texts: Path) -> None:
    """What reports take is bounded."""
    before = memory_kib(os.getpid(), "RssAnon")
    report = messages.pack_json(Kind.REPORT, {"what": "x" * 1_000_000})
    with greeted(server.address, texts) as client:
        for _ in range(40):
            client.send(report)
        client.stats()
    assert memory_kib(os.getpid(), "RssAnon") - before < 16 << 10


def test_more_ranks_than_there_can_be(server: RunningServer, texts: Path) -> None:
    """Four billion ranks are refused."""
    with greeted(server.address, texts) as client:
        run = client.order(order_of(texts))
        client.send(pack_begin(run, 0, 0, 0, (1 << 32) - 1) + messages.frame(Kind.STATS))
        assert client.receive()[0] == Kind.FAILED


def test_a_client_that_never_listens(texts: Path) -> None:
    """What a client may ask for without taking answers is bounded."""
    with BlockedStorage() as storage, running_server(texts, depth=2, storage=storage) as server:
        with greeted(server.address, texts) as client:
            order = client.order(order_of(texts))
            client.begin(order, 0)
            before = memory_kib(os.getpid(), "RssAnon")
            client.socket.settimeout(2)
            message = pack_draw(order, 0, np.arange(1 << 16) % 1200)
            try:
                for _ in range(200):
                    client.send(message)
            except (TimeoutError, ConnectionError):
                pass  # not listened to any more, or cut off
            grown = memory_kib(os.getpid(), "RssAnon") - before
        wait_until(lambda: server.facts()["clients"] == 1, "the client is gone")
        storage.release()
    assert grown < 50 << 10


def test_nothing_is_held_for_those_who_left(server: RunningServer, texts: Path) -> None:
    """After the last client of an order has left, its epochs take no memory."""
    with greeted(server.address, texts) as client:
        draw(client, client.order(order_of(texts)), 0, range(4))
    wait_until(lambda: server.facts()["clients"] == 1, "the client is gone")
    wait_until(lambda: not server.facts()["reading"], "no read is on its way")
    memory = server.facts()["memory"]
    assert memory["used"] == memory["cached"]


@pytest.mark.slow
def test_a_draw_from_a_run_that_others_have_registered(texts: Path) -> None:
    """A run's number is guessed, and its own clients leave while the draw waits: the server goes on."""
    with BlockedStorage() as storage, running_server(texts, depth=1, storage=storage) as server:
        with greeted(server.address, texts) as stranger:
            with greeted(server.address, texts) as client:
                run = client.order(order_of(texts))
                client.begin(run, 0)
                client.stats()
                stranger.send(pack_draw(run, 0, np.arange(10)) + messages.frame(Kind.STATS))
                kind, _ = stranger.receive()
            if kind == Kind.STATS:
                wait_until(lambda: server.facts()["clients"] == 2, "the run's client is gone")
                storage.release()
                assert stranger.receive()[0] in (Kind.LEASE, Kind.FAILED)
        wait_until(lambda: server.facts()["clients"] == 1, "both are gone")
        assert server.facts()["waiting"] == 0


@pytest.mark.slow
def test_many_questions_at_once_whose_answers_nobody_takes(server: RunningServer, texts: Path) -> None:
    """4,000 times STATS in one go, 40 KiB each: what waits to be sent is bounded, and others are served meanwhile."""
    with greeted(server.address, texts) as client:
        client.send(40 * messages.pack_json(Kind.REPORT, {"reason": "x" * 1000}))
        length = len(str(client.stats()))
        assert length > 40_000
        before = memory_kib(os.getpid(), "RssAnon")
        client.send(4000 * messages.frame(Kind.STATS))
        server.facts()
        assert memory_kib(os.getpid(), "RssAnon") - before < 48 << 10
        for _ in range(4000):
            assert client.receive()[0] == Kind.STATS


@pytest.mark.slow
def test_ten_thousand_draws_whose_answers_nobody_takes(server: RunningServer, texts: Path) -> None:
    """Each with its release, as if the answer had been read: what waits is bounded, others are served."""
    with greeted(server.address, texts) as client:
        run = client.order(order_of(texts))
        client.begin(run, 0)
        first = draw(client, run, 0, range(600)).number
        before = memory_kib(os.getpid(), "RssAnon")
        client.socket.settimeout(0.5)
        message = pack_draw(run, 0, np.arange(600))
        with suppress(TimeoutError, ConnectionError):
            for number in range(10_000):
                client.send(message + pack_release(first + 1 + number, checked=True))
        with greeted(server.address, texts) as other:
            draw(other, other.order(order_of(texts, seed=5)), 0, range(20))
        assert memory_kib(os.getpid(), "RssAnon") - before < 48 << 10


@pytest.mark.slow
def test_as_many_epochs_as_there_are(texts: Path) -> None:
    """Draws from epoch after epoch, none of them begun: memory does not grow with their number."""
    with running_server(texts) as server, greeted(server.address, texts) as client:
        run = client.order(order_of(texts))
        for epoch in range(300):
            draw(client, run, epoch, [epoch])
        before = memory_kib(os.getpid(), "RssAnon")
        for epoch in range(300, 900):
            draw(client, run, epoch, [epoch])
        assert memory_kib(os.getpid(), "RssAnon") - before < 4 << 10
        assert len(list(server.node._state.core.epochs.lives)) < 300


def test_runs_with_long_names(server: RunningServer, texts: Path) -> None:
    """What the names of runs take is bounded."""
    before = memory_kib(os.getpid(), "RssAnon")
    order = order_of(texts).to_json()
    with greeted(server.address, texts) as client:
        for number in range(64):
            client.send(messages.pack_json(Kind.ORDER, {"run": f"{number}" + 1_000_000 * "x", "order": order}))
            if client.receive()[0] == Kind.FAILED:
                break
    assert memory_kib(os.getpid(), "RssAnon") - before < 16 << 10


@pytest.mark.slow
@pytest.mark.parametrize("field", ["run", "tag", "order", "data_set", "owner", "index", "reason"])
def test_a_deep_value_anywhere(texts: Path, field: str) -> None:
    """A field nested as deep as JSON allows, near the limit of recursion: refused or taken, and the server goes on."""
    with running_server(texts, owners=(os.getpid(),)) as server:
        data_set = StoredDataSet(texts).id
        for depth in range(940, 1000, 4):
            body = b'{"%s":' % field.encode() + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
            with RawClient(server.address) as client:
                if field in ("data_set", "owner"):
                    client.send(messages.frame(Kind.HELLO, body))
                else:
                    client.hello(data_set)
                    kind = Kind.REPORT if field in ("index", "reason") else Kind.ORDER
                    client.send(messages.frame(kind, body) + messages.frame(Kind.STATS))
                assert client.receive()[0] in (Kind.HELLO, Kind.STATS, Kind.ORDER, Kind.FAILED)
        server.facts()


def test_garbage(server: RunningServer, texts: Path) -> None:
    """Random bytes, and messages of every kind with random bodies, before and after HELLO."""
    rng = np.random.default_rng(3)
    data_set = StoredDataSet(texts).id
    for number in range(300):
        size = int(rng.choice([0, 1, 7, 8, 9, 16, 24, 40, 1000]))
        body = rng.bytes(size)
        with RawClient(server.address) as client, suppress(ConnectionError):
            if number % 2:
                client.hello(data_set)
            client.send(body if number % 3 == 0 else messages.frame(Kind(int(rng.integers(1, 10))), body))
            client.socket.shutdown(socket.SHUT_WR)
            assert all(kind in Kind for kind, _ in client.ended())
    assert server.facts()["clients"] == 1


@pytest.mark.slow
def test_half_messages(server: RunningServer, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that never ends is waited for only so long; one that comes byte by byte is as good as any."""
    monkeypatch.setattr(clients, "HALF_MESSAGE_S", 0.2)
    with greeted(server.address, texts) as client, RawClient(server.address) as silent:
        message = pack_begin(client.order(order_of(texts)), 0, 0, 0, 1) + messages.frame(Kind.STATS)
        client.send(message[:-5])
        assert client.ended()[-1][0] == Kind.FAILED
        assert silent.ended()[-1][0] == Kind.FAILED
    monkeypatch.undo()
    with greeted(server.address, texts) as client:
        for byte in messages.frame(Kind.STATS):
            client.send(bytes([byte]))
        client.answer(Kind.STATS)


@pytest.mark.parametrize(
    "message",
    [
        messages.HEAD.pack(messages.MAX_REQUEST + 1, Kind.DRAW, messages.VERSION),
        messages.HEAD.pack(0, 99, messages.VERSION),
        messages.HEAD.pack(0, Kind.STATS, messages.VERSION + 1),
        messages.frame(Kind.LEASE),
        messages.frame(Kind.FAILED, b"{}"),
        messages.pack_json(Kind.HELLO, {"data_set": None}),
        pack_release(1, checked=True),
        pack_draw(12345, 0, np.arange(3)),
        pack_begin(12345, 0, 0, 0, 1),
        pack_begin(0, 0, 0, 0, 1),
    ],
)
def test_what_no_client_says(server: RunningServer, texts: Path, message: bytes) -> None:
    """It is told why and cut off."""
    with greeted(server.address, texts) as client:
        client.send(message)
        kind, body = client.ended()[-1]
        assert kind == Kind.FAILED
        assert messages.unpack_json(body)["message"]


@pytest.mark.parametrize("positions", [[-1], [1200], [0, 1 << 62], [-(1 << 63)]])
def test_positions_that_are_not_there(server: RunningServer, texts: Path, positions: list[int]) -> None:
    """They are refused."""
    with greeted(server.address, texts) as client:
        client.send(pack_draw(client.order(order_of(texts)), 0, np.array(positions, np.int64)))
        assert client.ended()[-1][0] == Kind.FAILED


def test_too_many_leases(server: RunningServer, texts: Path) -> None:
    """A client that never releases is cut off, and its leases are let go."""
    with greeted(server.address, texts) as client:
        run = client.order(order_of(texts))
        client.begin(run, 0)
        for number in range(MAX_LEASES):
            client.send(pack_draw(run, 0, np.arange(number, number + 1)))
            client.lease()
        client.send(pack_draw(run, 0, np.arange(5)))
        assert client.ended()[-1][0] == Kind.FAILED
    wait_until(lambda: server.facts()["clients"] == 1, "it is gone")
    assert server.facts()["memory"]["leased"] == 0


def test_somebody_elses_lease(server: RunningServer, texts: Path) -> None:
    """Only who has a lease can release it."""
    with greeted(server.address, texts) as client, greeted(server.address, texts) as other:
        run = client.order(order_of(texts))
        client.send(pack_draw(run, 0, np.arange(5)))
        lease = client.lease()
        other.send(pack_release(lease.number, checked=False))
        assert other.ended()[-1][0] == Kind.FAILED
        client.send(pack_release(lease.number, checked=False))
        client.stats()


def test_more_clients_than_are_let_in(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one above the limit is turned away, and can come when another has left."""
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)
    with running_server(texts) as server, ExitStack() as stack:
        first = [stack.enter_context(greeted(server.address, texts)) for _ in range(3)]
        with RawClient(server.address) as late:
            ((kind, body),) = late.ended()
            assert kind == Kind.FAILED
            assert b"3 clients are connected, which is the maximum" in body
        first[0].socket.close()
        wait_until(lambda: len(server.node._clients) == 2, "one has left")
        with greeted(server.address, texts) as late:
            late.stats()


def test_nobody_can_write_to_or_resize_the_memory(server: RunningServer, texts: Path) -> None:
    """Clients map what they are given read-only; it keeps its size."""
    with RawClient(server.address) as client:
        client.send(messages.pack_json(Kind.HELLO, {"data_set": StoredDataSet(texts).id, "owner": None}))
        _, (descriptor,), _, _ = socket.recv_fds(client.socket, 1 << 16, 1)
        try:
            with pytest.raises(OSError, match="not permitted"):
                mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(OSError, match="not permitted"):
                os.pwrite(descriptor, b"x", 0)
            for size in (0, 1 << 30):
                with pytest.raises(OSError, match="not permitted"):
                    os.ftruncate(descriptor, size)
            assert mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)


def as_nobody(work: Callable[[], bool]) -> bool:
    """Do something in a forked process of another user; whether it said yes."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@root_only
def test_another_user_is_turned_away(server: RunningServer, texts: Path) -> None:
    """Hung up before a byte of an answer, and no memory is handed over."""
    hello = messages.pack_json(Kind.HELLO, {"data_set": StoredDataSet(texts).id, "owner": None})

    def nothing_comes() -> bool:
        with RawClient(server.address) as client, suppress(ConnectionError):
            client.send(hello)
            data, descriptors, _, _ = socket.recv_fds(client.socket, 1000, 1)
            return not data and not descriptors
        return True

    assert as_nobody(nothing_comes)
    assert server.facts()["clients"] == 1


@root_only
def test_a_listener_of_another_user_is_refused(texts: Path) -> None:
    """Somebody else sits at the address: the client says so, tells nothing, and starts no server there."""
    address = random_address()
    ready, go = os.pipe()

    def hears_nothing() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(socket_name(address))
            listener.listen()
            listener.settimeout(LIMIT_S)
            os.write(go, b"x")
            connection, _ = listener.accept()
            connection.settimeout(LIMIT_S)
            return connection.recv(1000) == b""

    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(as_nobody(hears_nothing)))
    thread.start()
    assert os.read(ready, 1) == b"x"
    node = Client(ServerSpec(str(texts), address), StoredDataSet(texts).id, 200.0, "run", attach=False)
    with closing(node), pytest.raises(ServerError, match="another user"):
        node.stats()
    thread.join()
    assert heard == [True]
    os.close(ready)
    os.close(go)


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"x", messages.HEAD.pack(10, Kind.HELLO, 1), messages.pack_json(Kind.HELLO, {})])
def test_a_server_that_hangs_up_in_its_first_words(texts: Path, said: bytes) -> None:
    """A client that attaches says that the server does not answer; it does not wait for more."""
    code = (
        "import sys\n"
        "from brand.node.client.client import Client\n"
        "from brand.storage.dataset.dataset import StoredDataSet\n"
        "from brand.node.setup.server_spec import ServerSpec\n"
        "spec = ServerSpec(sys.argv[1], sys.argv[2])\n"
        "node = Client(spec, StoredDataSet(sys.argv[1]).id, 200.0, 'run', attach=True)\n"
        "try:\n"
        "    node.stats()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    address = random_address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_name(address))
        listener.listen()
        listener.settimeout(0.1)
        command = [sys.executable, "-c", code, str(texts), address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            try:
                end_s = time.monotonic() + LIMIT_S
                while client.poll() is None and time.monotonic() < end_s:
                    with suppress(TimeoutError):
                        connection, _ = listener.accept()
                        connection.send(said)
                        connection.recv(1000)
                        connection.close()
                assert client.poll() == 0, "the client hangs"
                assert client.stdout is not None
                assert client.stdout.read().strip() in ("ServerError", "ProtocolError")
            finally:
                client.kill()
