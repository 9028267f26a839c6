"""The node server: one process per node and data set, which reads ahead and answers draws.

One loop owns all state (`Core`) and never waits for storage or for other nodes: it takes requests from Unix sockets
(`Clients`), starts the reads that are due, answers, and exchanges samples with the servers of other nodes (`Exchange`).
Reads and plans are made in the threads of `Executor`.

The server ends when all the processes that own it have ended (the kernel tells, by pidfd), or when told to.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from brand.errors import BrandError, UsageError
from brand.node import messages
from brand.node.account import Drawer
from brand.node.arena import Arena
from brand.node.choose import choose_depth, choose_vector_reader
from brand.node.clients import Clients
from brand.node.connection import Channel
from brand.node.core import Core
from brand.node.epochs import Key
from brand.node.exchange import Exchange, ReadFor, Watch
from brand.node.executor import Executor
from brand.node.fetches import Fetches, pack_samples
from brand.node.lifetime import Lifetime
from brand.node.members import members_of
from brand.node.memory import Memory, memory_bytes, remote_bytes
from brand.node.messages import Kind, ProtocolError
from brand.node.network import Network
from brand.node.pages import arena_bytes, measure_pages
from brand.node.shares import Shares
from brand.node.tasks import Choice, Read
from brand.node.troubles import Troubles
from brand.protocol.mapping import Mapping
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.plan import read_of_sample
from brand.storage.dataset import StoredDataSet
from brand.storage.location import Where
from brand.storage.vectored import VectorReader

MAX_REPORTS: Final = 1000
_POLL_S: Final = 0.05

Callback = Callable[[int], None]


class NodeServer:
    """Serves one data set at an abstract socket address; as one of several nodes over a network.

    `page_cache`: whether large reads go through the page cache; None: where it can hold all the data.
    `network` makes one for a data set and the page size of the arena; other nodes may fill `remote_memory` of the
    memory, a tenth by default.

    Raises `UsageError` (memory too small), OSError (EADDRINUSE: the address is taken), `FormatError` (no data set).
    """

    def __init__(
        self,
        where: Where,
        address: str,
        *,
        memory: Memory = None,
        owners: tuple[int, ...] = (),
        depth: int | None = None,
        page_cache: bool | None = None,
        node: int = 0,
        nodes: int = 1,
        network: Callable[[StoredDataSet, int], Network] | None = None,
        remote_memory: Memory = None,
    ) -> None:
        self._data = StoredDataSet(where)
        self.address = address
        self._selector = selectors.DefaultSelector()
        self._clients = Clients(address, self._selector, self._handle, self._left)
        try:
            page, self._pages_of = measure_pages(self._data)
            every = arena_bytes(self._pages_of, page)
            limit = memory_bytes(memory, every)
            # A number of bytes is a hard limit; a share of very little data still means that something fits.
            self._arena = Arena(limit if isinstance(memory, str | int) else max(limit, 2 * page), page)
            members = members_of(self._data, node, nodes)
            remote = remote_bytes(remote_memory, self._arena.bytes) // page if nodes > 1 else 0
            self._network = None if network is None else network(self._data, page)
        except BaseException:
            self._clients.close()
            raise
        self._all_pages = every // page
        self._core = Core(self._data, self._arena, self._pages_of, self._data.header.chunk_size, members, remote)
        make_reader = choose_vector_reader(self._data, self._arena.bytes, page_cache=page_cache)
        self._executor = Executor(depth or choose_depth(self._data), make_reader)
        self._fetches: Fetches | None = None
        self._exchange: Exchange | None = None
        if self._network is not None:
            by_share = members.owners(Mapping(len(self._data), self._data.header.chunk_size, 1))
            self._fetches = Fetches(self._data, by_share, len(self._data), self._core.counters)
            self._exchange = Exchange(self._core, self._network, members, page, self._fetches)
        self._shares = Shares(self._core, self._clients)
        self._node, self._nodes, self._connected = node, nodes, False
        self._greeted = False
        """Whether a client has come that means to draw; one that only looks is none."""
        self._troubles = Troubles(
            self._data.location.chunk_file, self._clients.process_of, self._data.header.chunk_size, members.node
        )
        self._reports: list[dict[str, Any]] = []
        self._stopped = False
        self._started_s = time.monotonic()
        self._stop_end, self._stop_start = socket.socketpair()
        self._watch(self._executor.wake, lambda _: self._take_results())
        self._watch(self._stop_end.fileno(), lambda _: self._stop())
        if self._exchange is not None:
            exchange = self._exchange
            self._watch(exchange.wake, lambda _: exchange.take_events(time.monotonic()))
        self._lifetime = Lifetime(self._selector, owners)

    @property
    def memory(self) -> int:
        """Size of the arena in bytes."""
        return self._arena.bytes

    @property
    def listens_at(self) -> str | None:
        """Where other nodes reach this one, `host:port`; None where it is alone."""
        return None if self._network is None else self._network.address

    def connect(self, addresses: dict[int, str], watch: Watch | None = None) -> None:
        """Where the servers of the other nodes listen; nothing happens where that is known.

        `watch` is told of each stream that opens, ends, or cannot be opened, by the loop.
        """
        if self._exchange is not None and self._network is not None and not self._connected:
            self._connected = True
            self._exchange.watch = watch
            self._network.connect(addresses)

    def run(self) -> None:
        """Serve until stopped, or until no owner is left."""
        why = "it was told to end, by a signal or by its launcher"
        try:
            while not self._stopped and not self._over():
                for key, events in self._selector.select(self._patience()):
                    callback: Callback = key.data
                    callback(events)
                self._step()
        except BaseException as error:
            why = f"of an error, {type(error).__name__}: {error}"
            raise
        finally:
            self._close(why)

    def stop(self) -> None:
        """End `run`, from any thread or signal handler."""
        with suppress(OSError):
            self._stop_start.send(b"x")

    def _over(self) -> bool:
        """Whether nobody needs this server any more."""
        used, starting = len(self._clients) > 0, not self._greeted
        if self._exchange is not None:
            used, starting = used or self._exchange.asked, starting or not self._exchange.complete
        return self._lifetime.over(time.monotonic(), used=used, starting=starting)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """How long the loop may sleep where nothing happens."""
        if not self._core.idle() or not self._shares.idle or (self._fetches is not None and not self._fetches.idle):
            return _POLL_S
        if self._lifetime.owned and not len(self._clients):
            return 1.0
        return 1.0 if self._clients.half or self._troubles.pending else None

    def _step(self) -> None:
        """Start what can be started, answer what can be answered."""
        for key, order in self._core.epochs.plans_wanted():
            self._start_plan(key, order)
        choice = self._core.choice_wanted()
        if choice is not None:
            self._start_choice(choice)
        while self._core.reading < self._executor.depth:
            read = self._core.next_read()
            if read is not None:
                self._start_read(read)
            elif self._core.idle() or not self._core.unblock(time.monotonic()):
                break
        now_s = time.monotonic()
        self._core.answer_ready(now_s)
        for answer in self._core.answers():
            channel = self._clients.get(answer.client)
            if channel is not None:
                lease = (answer.places, answer.state, answer.counts, answer.pages)
                self._clients.send(channel, messages.pack_lease(answer.lease, *lease))
        if self._exchange is not None:
            for wanted in self._exchange.step(now_s):
                self._read_for(self._exchange, wanted)
            for client, outcome in self._exchange.outcomes():
                self._tell(client, outcome, now_s)
        self._shares.answer(now_s)
        self._clients.tend(now_s)
        self._troubles.tend(self._core.waiting, self._core.epochs, now_s)

    def _start_plan(self, key: Key, order: Order) -> None:
        def make(_: object) -> Any:
            if not self._core.epochs.planned(key):
                return None
            plan = order.plan(key[1])
            return plan, read_of_sample(plan)

        def made(result: Any, error: BaseException | None) -> None:
            if error is not None:
                raise error  # plans are pure: a bug, and no server is better than a wrong one
            if result is not None:
                plan, read_of = result
                self._core.plan_ready(key, plan, read_of, time.monotonic())

        self._executor.plan(make, made)

    def _start_choice(self, choice: Choice) -> None:
        def chosen(mask: Any, error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._core.kept_ready(mask)

        self._executor.plan(lambda _: choice.kept(self._pages_of), chosen)

    def _start_read(self, read: Read) -> None:
        path = self._data.location.chunk_file(read.chunk)

        def job(reader: VectorReader | None) -> None:
            assert reader is not None
            self._data.check_tables(read.places.astype(np.int64), close=True)  # each of many threads would keep some
            reader.scatter(read.chunk, read.offset, read.size, read.vector, forget=read.forget)

        def done(_: object, error: BaseException | None) -> None:
            now_s = time.monotonic()
            if error is not None:
                self._troubles.read_failed(path, error, now_s)
            self._core.read_done(read, now_s, failed=error is not None)

        self._executor.read(job, done)

    def _take_results(self) -> None:
        for result in self._executor.results():
            result()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, channel: Channel, kind: Kind, body: bytes) -> None:
        """Do what a message asks. Raises `BrandError` where it asks for what cannot be."""
        if channel.greeted == (kind == Kind.HELLO):
            raise ProtocolError("the first message, and no other, is HELLO")
        match kind:
            case Kind.HELLO:
                self._greet(channel, messages.unpack_json(body))
            case Kind.ORDER:
                self._register(channel, messages.unpack_json(body))
            case Kind.BEGIN:
                run, epoch, position, rank, replicas, batch, shared = messages.unpack_begin(body)
                key, start = self._key(channel, run, epoch), min(position, len(self._data))
                self._core.begin(channel.number, key, start, rank, replicas, batch, shared, channel.drawer)
            case Kind.POSITIONS:
                run, epoch, rank = messages.unpack_which(body)
                self._shares.ask(channel.number, self._key(channel, run, epoch), rank, time.monotonic())
            case Kind.DRAW:
                run, epoch, positions = messages.unpack_draw(body)
                key = self._key(channel, run, epoch)
                self._core.draw(channel.number, key, positions, time.monotonic(), channel.drawer)
            case Kind.RELEASE:
                number, checked = messages.unpack_release(body)
                self._core.release(channel.number, number, checked=checked)
            case Kind.FETCH:
                if self._fetches is None:
                    raise UsageError("this server knows no other node from which it could fetch")
                self._fetches.want(channel.number, messages.unpack_fetch(body), time.monotonic())
            case Kind.PEERS:
                self.connect(messages.unpack_peers(body))
            case Kind.STATS:
                self._clients.send(channel, messages.pack_json(Kind.STATS, self._facts()))
            case Kind.REPORT:
                if len(self._reports) < MAX_REPORTS:
                    self._reports.append(messages.unpack_report(body))
            case _:
                raise ProtocolError(f"{kind.name} is not for servers")

    def _greet(self, channel: Channel, hello: dict[str, Any]) -> None:
        mine = self._data.id
        if hello.get("data_set") not in (mine, None):  # None: somebody who only looks
            raise UsageError(
                f"the server at {self.address} serves data set {mine} ({self._data.path}), not {hello.get('data_set')}"
            )
        owner = hello.get("owner")
        if owner is not None and self._lifetime.owned:
            if not isinstance(owner, int) or not 1 < owner < 1 << 31:  # 1 never ends
                raise ProtocolError(f"process {owner} cannot own a server")
            self._lifetime.own(owner)
        self._greeted = self._greeted or hello.get("data_set") is not None
        channel.drawer = Drawer.named(owner, hello.get("worker"), channel.number)
        channel.greeted = True
        pages = {"page": self._arena.page, "pages": self._arena.count, "all_pages": self._all_pages}
        others = {"node": self._node, "nodes": self._nodes, "remote_pages": self._core.remote_pages}
        cluster = {"listens_at": self.listens_at, "joined": self._connected, **others}
        welcome = {"data_set": mine, "process": os.getpid(), **pages, **cluster}
        self._clients.send(channel, messages.pack_json(Kind.HELLO, welcome), self._arena.descriptor)

    def _register(self, channel: Channel, value: dict[str, Any]) -> None:
        name, tag, turn = str(value.get("run")), value.get("tag"), value.get("turn")
        if len(name) > messages.MAX_NAME:
            raise ProtocolError(f"the name of a run has at most {messages.MAX_NAME} characters")
        if not isinstance(tag, int | None) or not isinstance(turn, int | None):
            raise ProtocolError(f"tags and turns are numbers, not {tag!r}, {turn!r}")
        if "order" not in value:
            order = self._core.epochs.runs.order_by_tag(name, tag)
            self._clients.send(channel, messages.pack_json(Kind.ORDER, {"order": order.to_json()}))
            return
        try:
            order = Order.from_json(value["order"])
        except (ValueError, TypeError) as error:
            raise UsageError(f"no order: {error}") from None
        if order.data_set != self._data.id:
            raise UsageError(f"the order is of data set {order.data_set}, this is {self._data.id}")
        number = self._core.epochs.runs.register(channel.number, order, name, tag, turn)
        self._clients.send(channel, messages.pack_json(Kind.ORDER, {"number": number}))

    def _key(self, channel: Channel, run: int, epoch: int) -> Key:
        """An epoch that a client may ask for."""
        if not self._core.epochs.runs.knows(channel.number, run):
            raise UsageError(f"run {run} was never registered")
        if epoch > MAX_EPOCH:
            raise UsageError(f"epoch {epoch}; the last is {MAX_EPOCH:,}")
        return run, epoch

    def _facts(self) -> dict[str, Any]:
        return {
            "data_set": str(self._data.path),
            "address": self.address,
            "process": os.getpid(),
            "uptime_s": time.monotonic() - self._started_s,
            "data_bytes": int(self._data.chunk_rows["file_size"].sum()),
            "clients": len(self._clients),
            "replaced": self._reports,
            **self._core.facts(self._data.mean_bytes),
            "cluster": None if self._exchange is None else self._exchange.facts(),
        }

    # -- other nodes -------------------------------------------------------------------------------------------------

    def _read_for(self, exchange: Exchange, wanted: ReadFor) -> None:
        """Read samples exactly for another node; those that cannot be read are left out."""

        def done(data: Any, error: BaseException | None) -> None:
            if error is not None:
                raise error  # what storage says is told by what is left out: a bug
            exchange.have_read(wanted.node, wanted.number, data)

        self._executor.read(lambda _: pack_samples(self._data.stored_bytes(wanted.places)), done)

    def _tell(self, client: int, outcome: bytes | BrandError, now_s: float) -> None:
        """A client gets what it has fetched, or hears why it cannot go on."""
        channel = self._clients.get(client)
        if channel is None or channel.closing:
            return
        if isinstance(outcome, bytes):
            self._clients.send(channel, messages.frame(Kind.FETCH, outcome))
        else:
            self._clients.refuse(channel, outcome, now_s)

    # -- life --------------------------------------------------------------------------------------------------------

    def _left(self, client: int) -> None:
        """A client is gone."""
        self._core.left(client)
        if self._fetches is not None:
            self._fetches.left(client)

    def _watch(self, descriptor: int, callback: Callback) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _stop(self) -> None:
        self._stopped = True

    def _close(self, why: str) -> None:
        self._clients.close(why)
        if self._network is not None:
            self._network.close()
        self._executor.close()
        self._troubles.close(time.monotonic())
        self._lifetime.close()
        self._selector.close()
        self._stop_end.close()
        self._stop_start.close()
        self._arena.close()
