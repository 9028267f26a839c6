"""The node server: one process per node and data set, which reads ahead and answers draws.

One loop owns all state (`Core`) and never waits for storage: it takes requests from Unix sockets, starts the reads that
are due, and answers. Reads and plans are made in the threads of `Executor`. Only processes of the same user get in. A
client that sends garbage is told why and cut off; one that does not take its answers is not listened to meanwhile.

The server ends when all the processes that own it have ended (the kernel tells, by pidfd), or when told to.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from brand.errors import BrandError, UsageError
from brand.node import messages
from brand.node.arena import Arena
from brand.node.choose import choose_depth, choose_storage
from brand.node.connection import Channel, listen, peer, same_user
from brand.node.core import Core
from brand.node.epochs import Key
from brand.node.executor import Executor
from brand.node.memory import Memory, memory_bytes
from brand.node.messages import Kind, ProtocolError
from brand.node.pages import arena_bytes, measure_pages
from brand.node.tasks import Choice, Read
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.plan import choose_kept, read_of_sample
from brand.storage.dataset import StoredDataSet
from brand.storage.vectored import Storage

MAX_CLIENTS: Final = 1024
MAX_REPORTS: Final = 1000
MAX_NAME: Final = 100
MAX_UNSENT: Final = 1 << 20
"""A client with more than this to take is not listened to."""
HALF_MESSAGE_S: Final = 30.0
"""How long a client may take to finish a message, or to say hello."""
LINGER_S: Final = 10.0
"""A server that is owned ends when nobody was connected for so long."""
_POLL_S: Final = 0.05

log = logging.getLogger("brand.node")

Callback = Callable[[int], None]


class NodeServer:
    """Serves one data set at an abstract socket address.

    Raises `UsageError` (memory too small), OSError (EADDRINUSE: the address is taken), `FormatError` (no data set).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        address: str,
        *,
        memory: Memory = None,
        owners: tuple[int, ...] = (),
        depth: int | None = None,
        storage: Callable[[], Storage] | None = None,
    ) -> None:
        self._data = StoredDataSet(os.fspath(path))
        self.address, self._listener = address, listen(address)
        try:
            page, self._pages_of = measure_pages(self._data)
            every = arena_bytes(self._pages_of, page)
            limit = memory_bytes(memory, every)
            # A number of bytes is a hard limit; a share of very little data still means that something fits.
            self._arena = Arena(limit if isinstance(memory, str | int) else max(limit, 2 * page), page)
        except BaseException:
            self._listener.close()
            raise
        self._all_pages = every // page
        self._core = Core(self._data, self._arena, self._pages_of, self._data.header.chunk_size)
        storage = storage or choose_storage(self._data, self._arena.bytes)
        self._executor = Executor(depth or choose_depth(self._data), storage)
        self._selector = selectors.DefaultSelector()
        self._channels: dict[int, Channel] = {}
        self._numbers = 0
        self._owners: dict[int, int] = {}
        self._owned = bool(owners)
        self._reports: list[dict[str, Any]] = []
        self._stopped = False
        self._started_s = self._alone_s = time.monotonic()
        self._stop_end, self._stop_start = socket.socketpair()
        self._watch(self._listener.fileno(), lambda _: self._accept())
        self._watch(self._executor.wake, lambda _: self._take_results())
        self._watch(self._stop_end.fileno(), lambda _: self._stop())
        for owner in owners:
            self._own(owner)

    @property
    def memory(self) -> int:
        """Size of the arena in bytes."""
        return self._arena.bytes

    def run(self) -> None:
        """Serve until stopped, or until no owner is left."""
        try:
            while not self._stopped and not self._abandoned():
                for key, events in self._selector.select(self._patience()):
                    callback: Callback = key.data
                    callback(events)
                self._step()
        finally:
            self._close()

    def stop(self) -> None:
        """End `run`, from any thread or signal handler."""
        with suppress(OSError):
            self._stop_start.send(b"x")

    def _abandoned(self) -> bool:
        """Whether all owners have ended, or nobody has been connected for a while (data sets were dropped)."""
        if self._channels:
            self._alone_s = time.monotonic()
        return self._owned and (not self._owners or time.monotonic() - self._alone_s > LINGER_S)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """How long the loop may sleep where nothing happens."""
        if not self._core.idle():
            return _POLL_S
        if self._owned and not self._channels:
            return 1.0
        return 1.0 if any(channel.half for channel in self._channels.values()) else None

    def _step(self) -> None:
        """Start what can be started, answer what can be answered."""
        for key, order in self._core.plans_wanted():
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
            channel = self._channels.get(answer.client)
            if channel is not None:
                lease = (answer.places, answer.state, answer.counts, answer.pages)
                self._send(channel, messages.pack_lease(answer.lease, *lease))
        for channel in [c for c in self._channels.values() if c.half and now_s - c.began_s > HALF_MESSAGE_S]:
            if channel.closing:
                self._drop(channel)
            else:
                self._refuse(channel, ProtocolError(f"no whole message within {HALF_MESSAGE_S:.0f} s"))

    def _start_plan(self, key: Key, order: Order) -> None:
        def make(_: object) -> Any:
            if not self._core.plan_wanted(key):
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

        self._executor.plan(lambda _: choose_kept(choice.plan, self._pages_of, choice.room, choice.stripe, 0), chosen)

    def _start_read(self, read: Read) -> None:
        path = self._data.chunk_file(read.chunk)

        def job(storage: Storage | None) -> None:
            assert storage is not None
            storage.scatter(path, read.offset, read.size, read.vector, forget=read.forget)

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                log.warning("%s cannot be read as a whole: %s", path, error or type(error).__name__)
            self._core.read_done(read, time.monotonic(), failed=error is not None)

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
                run, epoch, position, rank, replicas = messages.unpack_begin(body)
                key = self._key(channel, run, epoch)
                self._core.begin(channel.number, key, min(position, len(self._data)), rank, replicas)
            case Kind.DRAW:
                run, epoch, positions = messages.unpack_draw(body)
                self._core.draw(channel.number, self._key(channel, run, epoch), positions, time.monotonic())
            case Kind.RELEASE:
                number, checked = messages.unpack_release(body)
                self._core.release(channel.number, number, checked=checked)
            case Kind.STATS:
                self._send(channel, messages.pack_json(Kind.STATS, self._facts()))
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
        if owner is not None and self._owned:
            if not isinstance(owner, int) or not 1 < owner < 1 << 31:  # 1 never ends
                raise ProtocolError(f"process {owner} cannot own a server")
            self._own(owner)
        channel.greeted = True
        pages = {"page": self._arena.page, "pages": self._arena.count, "all_pages": self._all_pages}
        welcome = {"data_set": mine, "process": os.getpid(), **pages}
        if not channel.send(messages.pack_json(Kind.HELLO, welcome), self._arena.descriptor):
            self._drop(channel)

    def _register(self, channel: Channel, value: dict[str, Any]) -> None:
        name, tag = str(value.get("run")), value.get("tag")
        if len(name) > MAX_NAME:
            raise ProtocolError(f"the name of a run has at most {MAX_NAME} characters")
        if not isinstance(tag, int | None):
            raise ProtocolError(f"a tag is a number, not {tag!r}")
        if "order" not in value:
            order = self._core.order_by_tag(name, tag)
            self._send(channel, messages.pack_json(Kind.ORDER, {"order": order.to_json()}))
            return
        try:
            order = Order.from_json(value["order"])
        except (ValueError, TypeError) as error:
            raise UsageError(f"no order: {error}") from None
        if order.data_set != self._data.id:
            raise UsageError(f"the order is of data set {order.data_set}, this is {self._data.id}")
        self._send(
            channel, messages.pack_json(Kind.ORDER, {"number": self._core.register(channel.number, order, name, tag)})
        )

    def _key(self, channel: Channel, run: int, epoch: int) -> Key:
        """An epoch that a client may ask for."""
        if not self._core.knows(channel.number, run):
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
            "clients": len(self._channels),
            "replaced": self._reports,
            **self._core.facts(self._data.mean_bytes),
        }

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # hung up already, or no descriptor left: it may come again
            return
        connection.settimeout(0)
        if not same_user(connection) or len(self._channels) >= MAX_CLIENTS:
            log.warning("turned away process %d of user %d", *peer(connection))
            connection.close()
            return
        self._numbers += 1
        channel = Channel(self._numbers, connection)
        self._channels[channel.number] = channel
        self._watch(connection.fileno(), lambda events: self._serve(channel, events))

    def _serve(self, channel: Channel, events: int) -> None:
        """A connection can be read from or written to."""
        if channel.number not in self._channels:
            return
        if events & selectors.EVENT_WRITE and not channel.flush():
            self._drop(channel)
            return
        if channel.unsent <= MAX_UNSENT and not channel.closing:
            alive = channel.receive() if events & selectors.EVENT_READ else True
            try:
                for kind, body in channel.messages():
                    self._handle(channel, kind, body)
                    if channel.number not in self._channels:
                        return
                    if channel.unsent > MAX_UNSENT:
                        break  # the rest when it has taken its answers
            except BrandError as error:
                self._refuse(channel, error)
                return
            if not alive:
                self._drop(channel)
                return
        self._adjust(channel)

    def _send(self, channel: Channel, message: bytes) -> None:
        if channel.send(message):
            self._adjust(channel)
        else:
            self._drop(channel)

    def _refuse(self, channel: Channel, error: BrandError) -> None:
        """Say why, and hang up."""
        log.warning("client %d is cut off: %s", channel.number, error)
        channel.closing, channel.began_s = True, time.monotonic()
        self._send(channel, messages.pack_json(Kind.FAILED, {"type": type(error).__name__, "message": str(error)}))

    def _adjust(self, channel: Channel) -> None:
        """Listen to what matters now."""
        if channel.closing and not channel.unsent:
            self._drop(channel)
            return
        events = selectors.EVENT_WRITE if channel.unsent else 0
        if channel.unsent <= MAX_UNSENT and not channel.closing:
            events |= selectors.EVENT_READ
        key = self._selector.get_key(channel.socket.fileno())
        if key.events != events:
            self._selector.modify(channel.socket.fileno(), events, key.data)

    def _drop(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is None:
            return
        self._selector.unregister(channel.socket.fileno())
        channel.socket.close()
        self._core.left(channel.number)

    # -- life --------------------------------------------------------------------------------------------------------

    def _own(self, process: int) -> None:
        """Live as long as this process does."""
        if process in self._owners:
            return
        try:
            descriptor = os.pidfd_open(process)
        except OSError:  # gone already
            return
        self._owners[process] = descriptor
        self._watch(descriptor, lambda _: self._disown(process))

    def _disown(self, process: int) -> None:
        descriptor = self._owners.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _watch(self, descriptor: int, callback: Callback) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _stop(self) -> None:
        self._stopped = True

    def _close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._listener.close()
        self._executor.close()
        for process in list(self._owners):
            self._disown(process)
        self._selector.close()
        self._stop_end.close()
        self._stop_start.close()
        self._arena.close()
