"""One connection between a client and its data server: requests, replies, and copies of samples.

One thread at a time uses a connection. A forked child closes it, because it must not send in its parent's name.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import EndedError, FormatError, ProtocolError, ServerError, unpack_error
from brand.forks import after_in_child
from brand.formats.contents import StoredSamples
from brand.node.client.decoded import NOTHING, DecodeSpecs, Values
from brand.node.client.direct_hits import NO_FILES, DirectHitReader, Files
from brand.node.client.memories import MOST_MEMORIES, Buffers, Memories, Pages, map_memories
from brand.node.setup.request_sizes import most_at_once
from brand.node.wire import messages
from brand.node.wire.client_messages import (
    ClientJoins,
    ClientOrders,
    ClientRegisters,
    ClientReleases,
    Hello,
    Joined,
    Number,
    OrderDecided,
    ServerFacts,
    pack,
    unpack,
)
from brand.node.wire.connection import pid_namespace, same_user, socket_name
from brand.node.wire.decoding import PAGE
from brand.node.wire.draw_messages import NOT_HELD, Held, Lease, pack_draw, unpack_lease
from brand.node.wire.messages import CHECKED, HEAD, MAX_DRAW, MAX_FAILED, MAX_REPLY, PREPARED, Chains, Kind
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.orders.base.joins import Joins
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.storage.io.crew import Crew
from brand.storage.io.files import no_descriptor_left

ANSWER_LIMIT_S: Final = 120.0
"""Seconds that a server may take to answer. It answers within 30 s even if storage hangs."""
START_LIMIT_S: Final = 60.0
"""Seconds that a server may take until it listens."""


_open: weakref.WeakSet[Session] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class DrawResult:
    """The result of a draw, in the order of its positions."""

    places: NDArray[np.int64]
    """Place of each sample."""
    present: NDArray[np.intp]
    """Indices into `places` of the samples that were in memory and are right. The others are read directly."""
    stored: StoredSamples
    """Stored bytes of the present samples. The buffer is reused once no view of it is alive."""
    prepared: Values
    """Decoded values of some of the present samples: views, as of `stored`."""
    asked_s: float
    """Time of the request to the server (`time.monotonic`)."""
    waited_s: float
    """Seconds that the server took to answer; 0 if it was not asked."""
    held: Held
    """Seconds of `waited_s` by cause, as reported by the server."""
    joins: Joins
    """The points at which the run joined other runs in the epoch."""
    decided: int
    """Number of decided positions of the epoch, if its order grows."""


class Session(Reprs, shows="_address _hang_up.alive _numbers server"):
    """One connection of this process to a server, used by one thread at a time."""

    def __init__(
        self,
        address: str,
        data_set: str | None,
        owner: int | None,
        worker: tuple[int, int] | None = None,
        specs: DecodeSpecs | None = None,
        files: Files = NO_FILES,
    ) -> None:
        self._address, self._files = address, files
        self._numbers: dict[Order, tuple[RunNumber, tuple[int, ...]]] = {}
        """Number of the run with each order, and numbers of its decode specs."""
        self._joined: set[tuple[Order, int]] = set()
        """The last two epochs of each order whose joins the server of this connection has reported."""
        self._specs = DecodeSpecs({}) if specs is None else specs
        buffers = Buffers()
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            why = no_descriptor_left(error)
            raise (ServerError(why) if why else error) from None
        # Not `__del__`: in a cycle, the socket may be finalized before its session, and would then warn.
        self._hang_up = weakref.finalize(self, self._socket.close)
        _open.add(self)
        try:
            self._socket.settimeout(ANSWER_LIMIT_S)
            _connect(self._socket, address)
            if not same_user(self._socket):
                raise ServerError(f"the server at {address} belongs to another user")
            memories, self.server = self._greet(pack(Hello(data_set, owner, worker, pid_namespace())))
            workers = 1 if worker is None else worker[1]
            crew = Crew() if workers == 1 else Crew(1)  # workers share the machine's processors
            self._first = Pages(memories.pages, buffers, crew)
            self._second = None if memories.prepared is None else Pages(memories.prepared, buffers, crew)
            self._taking = None
            if memories.entries is not None:
                self._taking = DirectHitReader(self._first, memories.entries, self.request, self.send, workers, files)
            self._each = 0.0
            """Bytes of each of the last decoded samples."""
        except BaseException:
            self.close()
            raise

    def number_of(self, run: str, order: Order, tag: int | None = None, turn: int | None = None) -> RunNumber:
        """Return the server's number of a run with an order; see `Client.begin`."""
        if order not in self._numbers:
            body = self.request(pack(ClientRegisters(NO_CLIENT, order, run, tag, turn)), Kind.ORDER)
            number = unpack(Number, body).run
            prepares: tuple[int, ...] = ()
            if self._second is not None:
                prepares = self._specs.numbers(number, lambda asks: self.request(asks, Kind.PREPARE))
            self._numbers[order] = number, prepares
        return self._numbers[order][0]

    def most_at_once(self, mean_bytes: float, order: Order, epoch: int) -> int:
        """Return how many samples of this mean size to draw at once (`request_sizes.most_at_once`).

        Just one, if the others may be read directly as soon as the server has answered the first draw of an epoch.
        """
        number, _ = self._numbers.get(order, (0, ()))
        if self._taking is not None and not order.shares and not self._taking.may(number, epoch):
            return 1
        most = most_at_once(self._first.pages.size, mean_bytes)
        if self._second is not None and self._each:
            most = min(most, most_at_once(self._second.pages.size, self._each))
        return most

    def send(self, message: bytes) -> None:
        try:
            self._socket.sendall(message)
        except (BrokenPipeError, ConnectionResetError):  # a server that was stopped has sent a FAILED before
            self._body(bytes(self._exactly(HEAD.size)), Kind.FAILED)
            raise

    def request(self, message: bytes, expected: Kind, limit: int = MAX_REPLY) -> memoryview:
        """Send a message, and return the body of the reply, which has at most `limit` bytes."""
        self.send(message)
        return self._body(bytes(self._exactly(HEAD.size)), expected, limit)

    def joins(self, run: str, order: Order, epoch: int, known: Joins) -> Joins:
        """Exchange with the server where the run joined other runs in an epoch. Returns the joins of the server."""
        number = self.number_of(run, order)
        message = pack(ClientJoins(NO_CLIENT, (number, epoch), known))
        found = unpack(Joined, self.request(message, Kind.JOINS)).joins
        try:
            found.check_fits(order.samples, order.draws)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        self._joined = {each for each in self._joined if each[0] != order or each[1] >= epoch - 1} | {(order, epoch)}
        return found

    def has_joins(self, order: Order, epoch: int) -> bool:
        """Return whether this connection has exchanged the joins of an epoch."""
        return (order, epoch) in self._joined

    def draw(self, run: str, order: Order, epoch: int, positions: NDArray[np.int64], known: Joins) -> DrawResult:
        """Draw positions of an epoch; see `Client.draw`. `known`: the epoch's joins that this process knows."""
        if len(positions) > MAX_DRAW:
            raise ValueError(f"{len(positions)} positions in one request; the limit is {MAX_DRAW}")
        number = self.number_of(run, order)
        taking = None if order.shares else self._taking
        taken = None if taking is None else taking.take(number, epoch, positions, order.draws)
        if taken is not None:
            return DrawResult(taken[0], np.arange(len(positions)), taken[1], NOTHING, 0.0, 0.0, NOT_HELD, known, 0)
        self.tell()
        asked_s = time.monotonic()
        lease = unpack_lease(self.request(pack_draw((number, epoch), positions), Kind.LEASE))
        waited_s = time.monotonic() - asked_s
        if len(lease.places) != len(positions) or not 0 <= lease.places.min() <= lease.places.max() < order.samples:
            raise ProtocolError("the server answers another request")
        stored = self._first.stored(self._first.copy(Chains(lease.counts, lease.pages)), lease.counts)
        present = np.flatnonzero(lease.state)
        prepared = self._prepared(lease, stored, present, self._numbers[order][1])
        right = lease.state[present] & CHECKED > 0
        if not right.all():
            right[~right] = self._files.right(stored.part(~right), lease.places[present[~right]])
        # Release at once, not with the next request: until then the server cannot use the pages again.
        wrong = lease.places[present[~right]]
        self.send(pack(ClientReleases(NO_CLIENT, lease.number, not len(wrong), wrong)))
        if not right.all():  # the caller reads them directly, and raises the error if storage is damaged
            stored, present = stored.part(right), present[right]
        if taking is not None:
            taking.answered(number, epoch)
        if order.joins and lease.joins > len(known.rows):
            known = self.joins(run, order, epoch, known)
        decided = lease.joins if order.grows else 0
        return DrawResult(lease.places, present, stored, prepared, asked_s, waited_s, lease.held, known, decided)

    def decided(
        self, run: str, order: Order, epoch: int, first: int, places: NDArray[np.int32], sure: int, wanted: int = 0
    ) -> tuple[int, NDArray[np.int32]]:
        """Tell the server the samples at positions from `first` on, and ask for the decided ones (`ClientOrders`).

        Returns the number of decided positions, and the samples at some of them, from `first` on.
        """
        number = self.number_of(run, order)
        message = pack(ClientOrders(NO_CLIENT, (number, epoch), first, places, sure, wanted))
        found = unpack(OrderDecided, self.request(message, Kind.DECIDED))
        if not len(found.places) <= max(0, found.decided - first) <= max(0, order.draws - first):
            raise ProtocolError("the server sends an impossible order")
        return found.decided, found.places

    def tell(self) -> None:
        if self._taking is not None:
            self._taking.tell()

    def close(self) -> None:
        """Close the connection. Direct hits that were not reported yet are not reported any more."""
        self._hang_up()

    def _prepared(
        self, lease: Lease, stored: StoredSamples, present: NDArray[np.intp], numbers: tuple[int, ...]
    ) -> Values:
        if not len(lease.prepared):
            return NOTHING
        if self._second is None:
            raise ProtocolError("the server sends decoded fields that were not requested")
        which = lease.state[present] & PREPARED > 0
        self._each = len(lease.prepared.pages) * PAGE / np.count_nonzero(which)
        return self._specs.values(self._second, numbers, lease.prepared, stored.rows["index"][which], present[which])

    def _greet(self, hello: bytes) -> tuple[Memories, ServerFacts]:
        """Send HELLO, and return the contents of the server's answer."""
        with suppress(BrokenPipeError):  # the server has disconnected, and may have sent the reason
            self._socket.sendall(hello)
        head, descriptors, flags, _ = socket.recv_fds(self._socket, HEAD.size, MOST_MEMORIES)
        try:
            while 0 < len(head) < HEAD.size:
                more = self._socket.recv(HEAD.size - len(head))
                if not more:
                    raise ConnectionResetError("it closed the connection")
                head += more
            server = unpack(ServerFacts, self._body(head, Kind.HELLO))
            if not descriptors and flags & socket.MSG_CTRUNC:  # the kernel could not pass the descriptor
                raise ServerError(no_descriptor_left(OSError(errno.EMFILE, "")))
            try:
                return map_memories(server, descriptors), server
            except OSError as error:
                why = no_descriptor_left(error)
                raise (ServerError(why) if why else error) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _body(self, head: bytes, expected: Kind, limit: int = MAX_REPLY) -> memoryview:
        if not head:
            raise ConnectionResetError("it closed the connection")
        kind, length = messages.parse_head(head, max(limit, MAX_FAILED))
        body = self._exactly(length)
        if kind == Kind.FAILED:
            fact = messages.unpack_json(body)
            if fact.get("type") == messages.ENDED:
                raise EndedError(str(fact.get("message")))
            error = unpack_error(fact)
            if isinstance(error, FormatError):  # the error of a sample that the server has read for this process
                raise error
            refusal = messages.REFUSALS.get(str(fact.get("type")), ServerError)
            raise refusal(f"the data server at {self._address} refuses: {fact.get('message')}")
        if kind != expected:
            raise ProtocolError(f"the server answers with {kind.name} instead of {expected.name}")
        return body

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self._socket.recv_into(data[done:])
            if not count:
                raise ConnectionResetError("it closed the connection")
            done += count
        return data


def _connect(connection: socket.socket, address: str) -> None:
    """Connect, and wait while many other processes connect. Raises ConnectionError, TimeoutError."""
    end_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            connection.connect(socket_name(address))
            return
        except BlockingIOError:  # the server's queue of new connections is full
            if time.monotonic() > end_s:
                raise TimeoutError(f"{address} accepts no connection") from None
            time.sleep(0.01)


def _close_in_child() -> None:
    for session in list(_open):
        with suppress(OSError):
            session.close()


after_in_child(_close_in_child)
