"""How does a process draw? It asks the node server, maps the server's pages, and copies what it was given.

`Node` is picklable and opens nothing before it is used, so it survives fork, spawn and forkserver; each process, and
each thread that draws at the same time, has a connection of its own. A server that is gone is replaced: the draw is
asked again, and what the old one had in memory is read exactly.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.formats.stored import Stored
from brand.node import messages
from brand.node.arena import ROW_BYTES
from brand.node.buffers import Buffers
from brand.node.connection import same_user, socket_name
from brand.node.launch import START_LIMIT_S, ServerError, Spec, start_server
from brand.node.memory import Memory
from brand.node.messages import CHECKED, HEAD, MAX_DRAW, MAX_REPLY, Kind, ProtocolError
from brand.protocol.order import Order

ANSWER_LIMIT_S: Final = 120.0
"""How long a server may take to answer; it answers within 30 s even where storage hangs."""
ATTEMPTS: Final = 3
PART_SHARE: Final = 32
"""Samples of one draw fill one part in so many of the arena, at the most."""
LEAST_PART: Final = 8

_T = TypeVar("_T")
_open: weakref.WeakSet[_Connection] = weakref.WeakSet()
_nodes: weakref.WeakSet[Node] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a draw brought, in the order of the positions asked for."""

    places: NDArray[np.int64]
    """Place of each sample."""
    present: NDArray[np.intp]
    """Which of them came from memory, checked, as positions in `places`; the others are to be read exactly."""
    stored: Stored
    """Those: memory that is used again when nobody looks at it any more."""
    waited_s: float
    """How long the server took to answer."""


class Node:
    """The way to the server of one data set.

    Args:
        path, data_set, mean_bytes: Folder and id of the data set, and the mean size of a stored sample.
        address: Where the server listens.
        memory: What a server that has to be started is told; None together with `attach`.
        run: What all processes of one training share, and no other.
        attach: Never start a server.
    """

    def __init__(
        self, path: str, data_set: str, mean_bytes: float, address: str, memory: Memory, run: str, *, attach: bool
    ) -> None:
        self.path, self.data_set, self.mean_bytes = path, data_set, mean_bytes
        self.address, self.memory, self.run, self.attach = address, memory, run, attach
        self._begin_anew()
        _nodes.add(self)

    def _begin_anew(self) -> None:
        """Without connections: a forked child has its own."""
        self._idle: list[_Connection] = []
        """Connections for draws that no thread uses just now; to map the arena anew for each would cost too much."""
        self._lock = threading.Lock()
        self._control: _Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("path", "data_set", "mean_bytes", "address", "memory", "run", "attach")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def begin(self, order: Order, tag: int, epoch: int, position: int, ranks: tuple[int, int]) -> None:
        """Say that this process, rank so many of so many, is about to draw. Raises `ServerError`.

        From then on other processes of the run find the order by the tag.
        """

        def act(connection: _Connection) -> None:
            number = connection.number_of(self.run, order, tag)
            connection.send(messages.pack_begin(number, epoch, position, *ranks))

        self._with_control(act)

    def order_by_tag(self, tag: int, *, owner: int) -> Order:
        """The order that another process of the run has begun to draw. Raises `ServerError` where none has this tag."""
        connection = self._connect(owner)
        try:
            body = connection.ask(messages.pack_json(Kind.ORDER, {"run": self.run, "tag": tag}), Kind.ORDER)
            return Order.from_json(messages.unpack_json(body)["order"])
        except (ConnectionError, TimeoutError) as error:
            raise ServerError(f"the node server at {self.address} does not answer: {error}") from error
        finally:
            connection.close()

    def draw(self, order: Order, epoch: int, positions: NDArray[np.int64], *, owner: int) -> list[Drawn]:
        """Draw positions of an epoch, in parts; `owner` is the process with which a server that has to be started ends.

        A part is small against the arena: all of its samples must be there at the same time.

        Raises `ServerError`.
        """
        parts: list[Drawn] = []
        done = failures = 0
        while done < len(positions):
            try:
                connection = self._idle_connection() or self._connect(owner)
                step = min(MAX_DRAW, max(LEAST_PART, int(connection.arena_bytes / PART_SHARE / self.mean_bytes)))
                parts.append(connection.draw(self.run, order, epoch, positions[done : done + step]))
                self._idle.append(connection)  # only now: a draw that is interrupted leaves half an answer behind
                done += step
            except (ConnectionError, TimeoutError) as error:
                failures += 1
                self._idle.clear()  # they are to the same server
                if failures == ATTEMPTS:
                    raise ServerError(f"the node server at {self.address} does not answer: {error}") from error
        return parts

    def stats(self) -> dict[str, Any]:
        """Counters of the server. Raises `ServerError`."""
        return self._with_control(lambda c: messages.unpack_json(c.ask(messages.frame(Kind.STATS), Kind.STATS)))

    def report(self, fact: dict[str, Any]) -> None:
        """Put a fact on the server's list of samples that were replaced."""
        self._with_control(lambda c: c.send(messages.pack_json(Kind.REPORT, fact)))

    def share(self) -> float:
        """How much of the data fits into the server's memory; 1 and more is all. Raises `ServerError`."""
        return self._with_control(lambda c: c.share)

    @property
    def running(self) -> bool:
        """Whether this process has talked to a server."""
        return self._control is not None or bool(self._idle)

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            for connection in (self._control, *self._idle):
                if connection is not None:
                    connection.close()
            self._control = None
            self._idle.clear()

    def _idle_connection(self) -> _Connection | None:
        """A connection of this process that no thread uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _with_control(self, act: Callable[[_Connection], _T]) -> _T:
        """Act on this process's connection for everything but draws."""
        with self._lock:
            for attempt in range(ATTEMPTS):
                control, self._control = self._control, None  # as for draws
                try:
                    if control is None:
                        control = self._connect(os.getpid())
                    result = act(control)
                    self._control = control
                    return result
                except (ConnectionError, TimeoutError) as error:
                    if attempt == ATTEMPTS - 1:
                        raise ServerError(f"the node server at {self.address} does not answer: {error}") from error
            raise AssertionError

    def _connect(self, owner: int) -> _Connection:
        if not hasattr(os, "memfd_create"):
            raise ServerError("draws need Linux (memfd); here samples can be read exactly, by plain indices")
        try:
            return _Connection(self.address, self.data_set, owner)
        except ConnectionError:
            if self.attach:
                raise ServerError(
                    f"no node server at {self.address}: start one with `brand serve {self.path}`, or leave out server="
                ) from None
        start_server(Spec(self.path, self.address, self.memory, (owner,)))
        return _Connection(self.address, self.data_set, owner)


def look_at(address: str) -> dict[str, Any]:
    """Counters of a server, whatever data set it serves. Raises `ServerError` where none is."""
    try:
        connection = _Connection(address, None, None)
        try:
            return messages.unpack_json(connection.ask(messages.frame(Kind.STATS), Kind.STATS))
        finally:
            connection.close()
    except (ConnectionError, TimeoutError) as error:
        raise ServerError(f"no node server at {address}: {error}") from None


class _Connection:
    """One connection of this process to a server, used by one thread at a time."""

    def __init__(self, address: str, data_set: str | None, owner: int | None) -> None:
        self._address = address
        self._numbers: dict[Order, int] = {}
        self._buffers = Buffers()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _open.add(self)
        try:
            self._socket.settimeout(ANSWER_LIMIT_S)
            _connect(self._socket, address)
            if not same_user(self._socket):
                raise ServerError(f"the server at {address} belongs to another user")
            hello = {"data_set": data_set, "owner": owner}
            self._pages, self.share = self._greet(messages.pack_json(Kind.HELLO, hello))
            self.arena_bytes = self._pages.size
        except BaseException:
            self._socket.close()
            raise

    def number_of(self, run: str, order: Order, tag: int | None = None) -> int:
        """The server's number of a run with an order."""
        if order not in self._numbers:
            facts = {"run": run, "order": order.to_json(), "tag": tag}
            body = self.ask(messages.pack_json(Kind.ORDER, facts), Kind.ORDER)
            self._numbers[order] = int(messages.unpack_json(body)["number"])
        return self._numbers[order]

    def send(self, message: bytes) -> None:
        """Send a message that gets no reply."""
        self._socket.sendall(message)

    def ask(self, message: bytes, expected: Kind) -> memoryview:
        """Send a message; the body of the reply."""
        self._socket.sendall(message)
        return self._receive(expected)

    def draw(self, run: str, order: Order, epoch: int, positions: NDArray[np.int64]) -> Drawn:
        """See `Node.draw`."""
        if len(positions) > MAX_DRAW:
            raise ValueError(f"{len(positions)} positions in one draw; the limit is {MAX_DRAW}")
        number = self.number_of(run, order)
        asked_s = time.monotonic()
        lease = messages.unpack_lease(self.ask(messages.pack_draw(number, epoch, positions), Kind.LEASE))
        waited_s = time.monotonic() - asked_s
        if len(lease.places) != len(positions) or not 0 <= lease.places.min() <= lease.places.max() < order.samples:
            raise ProtocolError("the server's answer is to another question")
        stored, present = self._gather(lease), np.flatnonzero(lease.state)
        right = lease.state[present] == CHECKED
        if not right.all():
            right[~right] = stored.part(~right).right()
        # At once, not with the next request: until then the pages could serve nobody.
        self.send(messages.pack_release(lease.number, checked=bool(right.all())))
        if not right.all():  # whoever reads them exactly will say what is wrong, if it is not this memory
            stored, present = stored.part(right), present[right]
        return Drawn(lease.places, present, stored, waited_s)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __del__(self) -> None:
        self.close()

    def _gather(self, lease: messages.Lease) -> Stored:
        """Copy the samples out of the shared pages: one array operation for all."""
        page = self._pages.shape[1]
        if len(lease.pages) and not 0 <= lease.pages.min() <= lease.pages.max() < len(self._pages):
            raise ProtocolError("the server names pages that are not there")
        memory = self._buffers.take(len(lease.pages) * page)
        np.take(self._pages, lease.pages, axis=0, out=memory.reshape(-1, page), mode="clip")
        starts = (np.cumsum(lease.counts, dtype=np.int64) - lease.counts) * page
        rows = memory[starts[:, None] + np.arange(ROW_BYTES)].view(ROW)[:, 0] if len(starts) else np.empty(0, ROW)
        if (rows["size"].astype(np.int64) + ROW_BYTES > lease.counts.astype(np.int64) * page).any():
            raise ProtocolError("a sample is larger than its pages")
        return Stored(memory, starts + ROW_BYTES, rows)

    def _greet(self, hello: bytes) -> tuple[NDArray[np.uint8], float]:
        """Say hello; the server's pages, read-only, and how much of the data fits into them."""
        self._socket.sendall(hello)
        head, descriptors, _, _ = socket.recv_fds(self._socket, HEAD.size, 1)
        try:
            while 0 < len(head) < HEAD.size:
                more = self._socket.recv(HEAD.size - len(head))
                if not more:
                    raise ConnectionResetError("it hung up")
                head += more
            welcome = messages.unpack_json(self._body(head, Kind.HELLO))
            if len(descriptors) != 1:
                raise ProtocolError("the server sent no memory")
            page, count, every = welcome.get("page"), welcome.get("pages"), welcome.get("all_pages")
            size = os.fstat(descriptors[0]).st_size
            if not (isinstance(page, int) and isinstance(count, int) and isinstance(every, int)):
                raise ProtocolError("the server does not say how large its memory is")
            if page < ROW_BYTES or every < 1 or page * count != size:
                raise ProtocolError("the server's memory is not as it says")
            mapping = mmap.mmap(descriptors[0], size, prot=mmap.PROT_READ)
            return np.frombuffer(mapping, np.uint8).reshape(count, page), count / every
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive(self, expected: Kind) -> memoryview:
        return self._body(bytes(self._exactly(HEAD.size)), expected)

    def _body(self, head: bytes, expected: Kind) -> memoryview:
        if not head:
            raise ConnectionResetError("it hung up")
        kind, length = messages.parse_head(head, MAX_REPLY)
        body = self._exactly(length)
        if kind == Kind.FAILED:
            fact = messages.unpack_json(body)
            raise ServerError(f"the node server at {self._address} refuses: {fact.get('message')}")
        if kind != expected:
            raise ProtocolError(f"the server answers {kind.name} where {expected.name} is due")
        return body

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self._socket.recv_into(data[done:])
            if not count:
                raise ConnectionResetError("it hung up")
            done += count
        return data


def _connect(connection: socket.socket, address: str) -> None:
    """Connect, waiting where many others do. Raises ConnectionError, TimeoutError."""
    end_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            connection.connect(socket_name(address))
            return
        except BlockingIOError:  # the queue of those who want to connect is full
            if time.monotonic() > end_s:
                raise TimeoutError(f"{address} accepts nobody") from None
            time.sleep(0.01)


def _begin_anew_in_child() -> None:
    """A forked child must not keep its parent's connections open, nor wait for a lock that a thread of it holds."""
    for connection in list(_open):
        with suppress(OSError):
            connection.close()
    for node in list(_nodes):
        node._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_in_child)
