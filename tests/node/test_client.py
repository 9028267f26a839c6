"""The way to a server: what a training process asks is answered, or an error says why, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brand import pack
from brand.errors import (
    BrandError,
    ChecksumError,
    ProtocolError,
    ServerError,
    UnreachableError,
    UnreadableError,
    UsageError,
)
from brand.node.client.client import Client
from brand.node.client.connector import look_at
from brand.node.client.session import _open as open_sessions
from brand.node.decide.draws import draws
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire import messages
from brand.node.wire.connection import socket_name
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import Kind
from brand.orders.base.joins import Join, Joins
from brand.orders.base.part import Subset
from brand.orders.policies.shared_policy import SharedPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import attached, random_address, running_server
from brand.testing.storage import BlockedStorage, Fault, FaultyStorage
from brand.torch import BrandSampler
from tests.made_orders import order_of
from tests.node.support import RawClient, drawing
from tests.support import LIMIT_S, wait_until


class Interruption(BaseException):
    """What Ctrl-C in a notebook raises, by another name."""


@pytest.fixture
def interrupt() -> Iterator[int]:
    """A signal that raises `Interruption` in the main thread."""

    def handler(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, handler)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_draw_is_forgotten(texts: Path, interrupt: int) -> None:
    """Ctrl-C while a draw waits (a notebook, no workers): the draws after it get what they ask for."""
    main = threading.main_thread().ident
    assert main is not None
    with (
        BlockedStorage() as storage,
        running_server(texts, depth=2, storage=storage) as server,
        drawing(texts, server.address) as data_set,
    ):
        tickets = list(BrandSampler(data_set, seed=1))

        def strike() -> None:
            wait_until(lambda: server.facts()["waiting"] == 1, "the draw waits")
            signal.pthread_kill(main, interrupt)

        striker = threading.Thread(target=strike)
        striker.start()
        with pytest.raises(Interruption):
            data_set.__getitems__(tickets[:10])
        striker.join()
        storage.release()
        first = data_set.__getitems__(tickets[10:20])
        assert first == data_set.__getitems__(tickets[10:20])


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
def test_storage_that_hangs(texts: Path, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that never end: a draw is answered after `LONGEST_WAIT_S` all the same, and its samples read exactly."""
    monkeypatch.setattr(draws, "LONGEST_WAIT_S", 0.1)
    with (
        BlockedStorage() as storage,
        running_server(texts, depth=depth, storage=storage) as server,
        drawing(texts, server.address) as data_set,
    ):
        tickets = list(BrandSampler(data_set, seed=1))
        got = data_set.__getitems__(tickets[:10])
        assert [number for number, _ in got] == [index for _, index in got]
        storage.release()  # the server's end would wait for the reads


@pytest.mark.slow
def test_more_clients_at_once_than_the_queue_holds(texts: Path) -> None:
    """Many workers connect while a server measures a large data set: each of them waits for its turn."""
    server = NodeServer(ServerSpec(texts, random_address()))
    thread = threading.Thread(target=server.run, daemon=True)
    node = Client(ServerSpec(str(texts), server.address), StoredDataSet(texts).id, 200.0, "run", attach=True)
    try:
        with ExitStack() as stack, closing(node):
            for _ in range(129):
                stack.enter_context(RawClient(server.address))
            timer = threading.Timer(0.2, thread.start)
            timer.start()
            try:
                assert node.stats()["clients"] >= 1
            finally:
                timer.join()
    finally:
        server.stop()
        thread.join()


def test_a_server_that_has_ended_is_named_and_says_why(texts: Path) -> None:
    """A client that attaches hears which server it was, and that it was told to end; not that there never was one."""
    with running_server(texts) as server:
        client = attached(server)
        client.stats()
    with closing(client), pytest.raises(ServerError) as caught:
        client.stats()
    assert str(caught.value) == (
        f"the server of this data set at {server.address}, process {os.getpid()}, has ended: it was stopped, by a "
        f"signal or by its launcher; start it again (`brand serve {texts}`), and continue from the last checkpoint"
    )


def test_what_a_server_refuses_as_wrong_use_is_a_usage_error(texts: Path, tmp_path: Path) -> None:
    """The client raises the class that the server names: another data set, an unknown tag."""
    pack([{"number": 1}], tmp_path / "other", {"number": "int"}, jobs=1)
    with running_server(texts) as server, closing(attached(server)) as client:
        data = StoredDataSet(tmp_path / "other")
        other = Client(ServerSpec(str(data.path), server.address), data.id, data.mean_bytes, "run", attach=True)
        with closing(other), pytest.raises(UsageError, match=rf"{server.address} refuses: .* serves data set "):
            other.stats()
        with pytest.raises(UsageError, match=r"no order of run .* has tag 7"):
            client.order_by_tag(7, owner=os.getpid())


def test_ranks_of_one_node_draw_one_order(texts: Path) -> None:
    """Another seed or another part at the same sampler is refused: each rank would draw its share of its own order.

    Other samplers of the job, other jobs, and the ranks that come after these have gone draw what they like.
    """
    order = order_of(texts)
    others = [replace(order, seed=7), replace(order, subset=Subset.of(np.arange(1200) % 2 == 0))]
    with running_server(texts) as server:
        with closing(attached(server, "job")) as first:
            first.begin(order, 1, Announcement(0, 0, 0, 2), turn=5)
            said = (r"seed is 7 here and 0 there;", r"part is \w+ here and absent there;")
            for number, (other, why) in enumerate(zip(others, said, strict=True)):
                with (
                    closing(attached(server, "job")) as second,
                    pytest.raises(UsageError, match=f"disagree: {why} give"),
                ):
                    second.begin(other, 2, Announcement(0, 0, 1, 2), turn=5)
                with closing(attached(server, "job")) as second:
                    second.begin(other, 2, Announcement(0, 0, 1, 2), turn=6 + number)
                with closing(attached(server, f"job {number}")) as third:
                    third.begin(other, 2, Announcement(0, 0, 1, 2), turn=5)
            with closing(attached(server, "job")) as second:
                second.begin(order, 1, Announcement(0, 0, 1, 2), turn=5)
        with closing(attached(server, "job")) as later:
            wait_until(lambda: later.stats()["clients"] == 1, "the others have gone")
            later.begin(others[0], 2, Announcement(0, 0, 0, 2), turn=5)


@pytest.mark.parametrize("count", [1, 700])
def test_a_server_that_has_all_samples_reads_what_a_client_names(texts: Path, count: int) -> None:
    """In the order in which they are named. Places that are not there are refused."""
    data, places = StoredDataSet(texts), np.random.default_rng(1).permutation(1200)[:count]
    with running_server(texts) as server, closing(attached(server)) as client:
        present, found = client.fetch(places, data.rows_at(places))
        assert present.all()
        assert found == data.stored_bytes(places)
        with pytest.raises(ProtocolError, match="places that the data set does not have"):
            client.fetch(np.array([len(data)]), data.rows_at(np.array([0])))


def test_a_sample_that_the_server_cannot_read_is_named(texts: Path) -> None:
    """The client raises the error that the server has met, with file, chunk and sample."""
    data, place = StoredDataSet(texts), np.array([40])
    storage = FaultyStorage(Fault(chunk=1, kind="error"))
    with (
        running_server(texts, storage=storage) as server,
        closing(attached(server)) as client,
        pytest.raises(UnreadableError, match="Input/output error") as caught,
    ):
        client.fetch(place, data.rows_at(place))
    index = int(data.rows_at(place)["index"][0])
    assert (caught.value.path, caught.value.chunk, caught.value.sample) == (texts / "chunks/00000001.brand", 1, index)


@pytest.mark.parametrize(
    ("named", "raised"),
    [
        ("UsageError", UsageError),
        ("UnreachableError", UnreachableError),
        ("ProtocolError", ProtocolError),
        ("ServerError", ServerError),
        ("ChecksumError", ChecksumError),
        ("KeyError", ServerError),
        ("SystemExit", ServerError),
        ("", ServerError),
        (["UsageError"], ServerError),
        (None, ServerError),
    ],
)
def test_a_refusal_has_a_class_of_a_short_list(named: object, raised: type[Exception]) -> None:
    """What is not on the list is a `ServerError`; each keeps the server's words. Errors of samples are as they are."""
    address = random_address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_name(address))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.send(messages.pack_json(Kind.FAILED, {"type": named, "message": "not so"}))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(BrandError) as caught:
            look_at(address)
        thread.join()
    assert type(caught.value) is raised
    said = "not so" if raised is ChecksumError else f"the data server at {address} refuses: not so"
    assert str(caught.value) == said


def test_a_client_forgets_where_old_epochs_joined_others(texts: Path) -> None:
    """Each of its connections knows the last two epochs, however many it has drawn."""
    with running_server(texts, memory=0.5) as server, closing(attached(server)) as node:
        order, known = order_of(texts, SharedPolicy(4, stripe=4)), list[int]()
        for epoch in range(6):
            node.begin(order, 1, Announcement(epoch))
            node.draw(order, epoch, np.arange(40), owner=os.getpid())
            known.append(max(len(session._joined) for session in open_sessions))
    assert known[-1] == known[2] <= 2


def test_a_client_remembers_where_few_orders_joined_others(texts: Path) -> None:
    """However many orders it has drawn from, the last epoch of the last one is known."""
    with running_server(texts, memory=0.5) as server, closing(attached(server)) as node:
        for seed in range(40):
            order = order_of(texts, SharedPolicy(4, stripe=4), seed=seed)
            for epoch in range(3):
                node.learn_joins(order, epoch, Joins((Join(0, epoch, 40, 1024),), epoch))
        assert len(node._joins) == 32
        assert [epoch for known, epoch in node._joins if known == order] == [1, 2]


def test_a_new_server_learns_where_two_epochs_joined_others(texts: Path) -> None:
    """A rank of another node may still draw the epoch before; if nobody knew its joins, they would be decided anew."""
    order, joins = order_of(texts, SharedPolicy(4, stripe=4)), Joins((Join(0, 3, 40, 1024),), 3)
    address, run = random_address(), "run"
    with ExitStack() as stack:
        with running_server(texts, memory=0.5, address=address) as server:
            node = stack.enter_context(closing(attached(server, run)))
            node.learn_joins(order, 0, joins)
            node.begin(order, 1, Announcement(0))
            for epoch in range(2):
                node.draw(order, epoch, np.arange(40), owner=os.getpid())
            known = node.joins(order, 1)
        assert known.rows != joins.rows
        with running_server(texts, memory=0.5, address=address) as server, closing(attached(server, run)) as other:
            node.draw(order, 1, np.arange(40, 80), owner=os.getpid())
            other.begin(order, 1, Announcement(1))
            assert [other.joins(order, epoch).rows for epoch in range(2)] == [joins.rows, known.rows]


def test_a_client_is_running_while_a_thread_uses_its_connection(texts: Path) -> None:
    """So statistics are never empty in the middle of a training."""
    used, asked = threading.Event(), threading.Event()

    def use(_: object) -> None:
        used.set()
        asked.wait(0.2)  # `running` waits for this thread

    with running_server(texts) as server, closing(attached(server)) as client:
        client.stats()
        thread = threading.Thread(target=client._with_control, args=(use,))
        thread.start()
        assert used.wait(LIMIT_S)
        assert client.running
        asked.set()
        thread.join(LIMIT_S)
