"""The way to a server: what a training process asks is answered, or an error says why, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from brand.node import core
from brand.node.client import Node
from brand.node.launch import ServerError
from brand.node.server import NodeServer
from brand.storage.dataset import StoredDataSet
from brand.testing.node import attached, random_address, running_server
from brand.testing.storage import BlockedStorage
from brand.torch import BrandSampler
from tests.node.support import RawClient, drawing
from tests.support import wait_until


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
    monkeypatch.setattr(core, "LONGEST_WAIT_S", 0.1)
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
    server = NodeServer(texts, random_address())
    thread = threading.Thread(target=server.run, daemon=True)
    node = Node(str(texts), StoredDataSet(texts).id, 200.0, server.address, None, "run", attach=True)
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
        f"the server of this data set at {server.address}, process {os.getpid()}, has ended: it was told to end, by a "
        f"signal or by its launcher; start it again (`brand serve {texts}`), and go on from the last checkpoint"
    )
