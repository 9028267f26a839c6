"""The client of a data server: it sends draws, maps the server's pages, and copies the samples.

`Client` is picklable and opens nothing before its first use, so it survives fork, spawn and forkserver. Each process,
and each thread that draws at the same time, has its own connection. If a server has ended, the client starts a new one
and draws again. Samples that the old server had in memory are then read directly. The process that has begun the epoch
announces it to the new server, too, with the position that its rank has reached.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, ServerError
from brand.forks import after_in_child
from brand.node.client.connector import Cluster, Connector
from brand.node.client.decoded import DecodeSpecs
from brand.node.client.direct_hits import NO_FILES, Files
from brand.node.client.session import DrawResult, Session
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire.client_messages import (
    AskOrder,
    AskStats,
    ClientBegins,
    ClientDivides,
    ClientFetches,
    OrderFound,
    PositionsDivided,
    Replaced,
    ServerFacts,
    pack,
    unpack,
    unpack_samples,
)
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import LoopReport
from brand.node.wire.messages import GOES_ON, Kind, unpack_json
from brand.node.wire.numbers import NO_CLIENT
from brand.orders.base.joins import Joins
from brand.orders.base.rank_rule import RankRule
from brand.orders.order import Order
from brand.reprs import Reprs

if TYPE_CHECKING:
    from brand.node.client.orders import Orders

ATTEMPTS: Final = 3
FETCH_BYTES: Final = 8 << 20
"""Approximate number of bytes that a client fetches from other nodes at a time."""

MAX_BEGUN: Final = 16
"""Number of orders whose last epoch a client can announce again."""

_T = TypeVar("_T")
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Begun:
    """The last epoch of an order that this process has announced."""

    announcement: Announcement
    tag: int
    turn: int | None
    rule: RankRule | None
    life: str
    """The server that knows of it."""


class Client(Reprs, shows="path address run _idle"):
    """The client of the server of one data set.

    If the server refuses a request, the client raises the class that the server names: `UsageError`, `UnreachableError`
    or `ProtocolError`. For any other class it raises `ServerError`.

    Args:
        spec: The server's address, and the specification of a server that this client starts.
        data_set, mean_bytes: Id of the data set, and the mean size of a stored sample.
        run: Name of the training, which its processes share and no other process has.
        attach: Never start a server.
        cluster: Connects a server that this client starts with those of other nodes; None if there is one node.
        specs: Fields that the server may decode for this client; None for nothing.
        files: Readers and checks of the data set's files that need no server.
    """

    def __init__(
        self,
        spec: ServerSpec,
        data_set: str,
        mean_bytes: float,
        run: str,
        *,
        attach: bool,
        cluster: Cluster | None = None,
        specs: DecodeSpecs | None = None,
        files: Files = NO_FILES,
    ) -> None:
        self.path, self.address, self.run = str(spec.where), spec.address, run
        self._mean_bytes = mean_bytes
        self._joins: dict[tuple[Order, int], Joins] = {}
        """The points at which this run joined other runs, by order and epoch, as far as this process knows."""
        self._orders: dict[str, Orders] = {}
        self._connector = Connector(spec, data_set, attach, cluster, specs, files)
        self._begin_again()
        _clients.add(self)

    def _begin_again(self) -> None:
        """Begin without connections: a forked child opens its own."""
        self._idle: list[Session] = []
        """Connections for draws that no thread uses now; reused because mapping the arena for each draw is slow."""
        self._lock = threading.Lock()
        for orders in self._orders.values():
            orders.begin_again()
        self._control: Session | None = None
        self._lost = False
        """Whether the last connection has ended meanwhile."""
        self._begun: dict[Order, Begun] = {}
        """Epochs that this process has announced, by order. A child announces none: its parent does."""
        self._life = ""
        """The server to which the last connection was opened."""
        self._under_way: dict[object, tuple[Order, int, int]] = {}
        """The order, the epoch and the first position of each draw that is not answered."""

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_idle", "_lock", "_control", "_lost", "_orders", "_begun", "_life", "_under_way")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._orders = {}
        self._begin_again()
        _clients.add(self)

    def begin(
        self,
        order: Order,
        tag: int,
        announcement: Announcement,
        turn: int | None = None,
        rule: RankRule | None = None,
    ) -> NDArray[np.int64] | None:
        """Announce that this process is about to draw. Raises `ServerError`.

        From then on other processes of the run find the order by the tag. `turn` is the same number on all nodes for
        the same sampler: if nodes have different orders with one `turn`, the server refuses them. With a `batch`, the
        server returns the positions of this rank, as soon as all ranks have begun; without it, the result is None.
        `rule`: how ranks of several nodes divide the positions, if not in turn.
        """
        epoch, begun = announcement.epoch, self._begun.get(order)
        if announcement.as_begun and begun is not None and begun.rule is not None:  # another server may not know it
            announcement = replace(begun.announcement, epoch=epoch, position=0, processes=GOES_ON, front=0)
            rule = begun.rule

        def act(connection: Session) -> NDArray[np.int64] | None:
            number = connection.number_of(self.run, order, tag, turn)
            for each in (epoch - 1, epoch) if order.joins else ():
                self._exchange_joins(connection, order, each)
            if order.grows:
                self.orders.tell(connection, order, epoch)
            connection.send(pack(ClientBegins(NO_CLIENT, number, announcement, rule=rule)))
            self._begun.pop(order, None)
            self._begun[order] = Begun(announcement, tag, turn, rule, connection.server.life)
            if len(self._begun) > MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
            if not announcement.batch:
                return None
            message = pack(ClientDivides(NO_CLIENT, (number, epoch), announcement.rank))
            return unpack(PositionsDivided, connection.request(message, Kind.POSITIONS)).positions

        _tell(self._idle)  # what was taken from the epoch before counts for that one
        return self._with_control(act)

    def register(self, order: Order, tag: int, turn: int | None = None) -> None:
        """Have the server number an order, so that its `begin` waits for no answer. Raises `ServerError`."""
        self._with_control(lambda connection: connection.number_of(self.run, order, tag, turn))

    def _begin_there(self, order: Order, epoch: int) -> None:
        """Announce an epoch to a new server, if this process has announced it to another one.

        Without this, the new server would not know which samples the rank draws, and nor would other nodes.
        """

        def act(connection: Session) -> None:
            if connection.server.life != self._life:
                raise ConnectionResetError("another server has taken its place")
            begun = self._begun[order]
            if begun.announcement.epoch != epoch or begun.life == self._life:
                return  # another thread was faster
            number = connection.number_of(self.run, order, begun.tag, begun.turn)
            front = min(first for *of, first in list(self._under_way.values()) if of == [order, epoch])
            front = front if begun.rule is None else max(0, front - begun.rule.reach)
            announcement = replace(begun.announcement, processes=GOES_ON, front=front)
            connection.send(pack(ClientBegins(NO_CLIENT, number, announcement, rule=begun.rule)))
            self._begun[order] = replace(begun, life=self._life)

        begun = None if order.shares else self._begun.get(order)
        if begun is None or begun.announcement.epoch != epoch or begun.life == self._life or self._lock.locked():
            return  # if another thread uses the connection, it announces the epoch, or the next draw does
        with suppress(ServerError):  # the draw itself raises the reason
            self._with_control(act)

    def _connect(self, owner: int, worker: tuple[int, int] | None) -> Session:
        connection = self._connector.connect(owner, worker)
        self._life = connection.server.life
        return connection

    @property
    def orders(self) -> Orders:
        """Orders that grow, as far as this process knows them. Its threads share this table."""
        if self.run not in self._orders:
            from brand.node.client.orders import Orders

            self._orders.setdefault(self.run, Orders(self.run, self._with_control))  # another thread may be faster
        return self._orders[self.run]

    def joins(self, order: Order, epoch: int) -> Joins:
        """Return where this run joined other runs in an epoch; if no server answers, as far as this process knows."""
        if order.joins and self.running:
            with suppress(ServerError):
                self._with_control(lambda connection: self._exchange_joins(connection, order, epoch))
        return self._joins.get((order, epoch), Joins())

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """Remember where this run joined other runs in an epoch, as told by a loader state or another process."""
        if len(joins.rows) >= len(self._joins.get((order, epoch), Joins()).rows):
            kept = {key: at for key, at in self._joins.items() if key[0] != order or key[1] >= epoch - 1}
            kept.pop((order, epoch), None)
            # As many as `_begun` has orders, with two epochs each; the last ones are those that were learned last.
            self._joins = dict([*kept.items(), ((order, epoch), joins)][-2 * MAX_BEGUN :])

    def _exchange_joins(self, connection: Session, order: Order, epoch: int) -> None:
        """Tell a server where this run joined other runs in an epoch, and learn what it knows."""
        known = self._joins.get((order, epoch), Joins())
        if epoch >= 0:
            self.learn_joins(order, epoch, connection.joins(self.run, order, epoch, known))

    def _tell_joins(self, connection: Session, order: Order, epoch: int) -> None:
        """Tell a new server the joins of an epoch, and of the one before, which another node may still draw."""
        for each in (epoch - 1, epoch):
            if (order, each) in self._joins and not connection.has_joins(order, each):
                self._exchange_joins(connection, order, each)

    def order_by_tag(self, tag: int, *, owner: int) -> Order:
        """Return the order that another process of the run has begun to draw.

        Raises `UsageError` if no order has this tag, and `ServerError`.
        """
        connection = self._connector.connect(owner)
        try:
            return unpack(OrderFound, connection.request(pack(AskOrder(self.run, tag)), Kind.ORDER)).order
        except (ConnectionError, TimeoutError) as error:
            raise ServerError(f"the data server at {self.address} does not answer: {error}") from error
        finally:
            connection.close()

    def draw(
        self,
        order: Order,
        epoch: int,
        positions: NDArray[np.int64],
        *,
        owner: int,
        worker: tuple[int, int] | None = None,
    ) -> list[DrawResult]:
        """Draw positions of an epoch, in segments. Raises `ServerError`.

        A server that the client has to start ends with the process `owner`. `worker` is (worker, number of workers) of
        the owner, and (0, 1) for the owner itself; None if it is unknown, and the server then does not check for
        skipped positions. A segment is small compared with the arena: all its samples are in memory at one time.
        """
        draw = object()
        try:
            return self._draw(draw, order, epoch, positions, owner, worker)
        finally:
            self._under_way.pop(draw, None)

    def _draw(
        self,
        draw: object,
        order: Order,
        epoch: int,
        positions: NDArray[np.int64],
        owner: int,
        worker: tuple[int, int] | None,
    ) -> list[DrawResult]:
        parts: list[DrawResult] = []
        done = failures = 0
        while done < len(positions):
            self._under_way[draw] = order, epoch, int(positions[done])
            try:
                connection = _popped(self._idle) or self._connect(owner, worker)
                self._begin_there(order, epoch)
                step = connection.most_at_once(self._mean_bytes, order, epoch)
                if order.joins:
                    self._tell_joins(connection, order, epoch)
                known = self._joins.get((order, epoch), Joins())
                some = positions[done : done + step]
                if order.grows:
                    self.orders.tell(connection, order, epoch)
                part = connection.draw(self.run, order, epoch, some, known)
                if order.grows:  # a sample whose position is unknown afterwards does not count as drawn
                    self.orders.learn(connection, order, epoch, some, part)
                parts.append(part)
                if part.joins != known:
                    self.learn_joins(order, epoch, part.joins)
                # Only now, because an interrupted draw leaves an incomplete answer in the socket.
                self._idle.append(connection)
                done += step
            except (ConnectionError, TimeoutError) as error:
                self._connector.note_end(error)
                failures += 1
                self._idle.clear()  # these connections are to the same server
                if failures == ATTEMPTS:
                    raise self._connector.given_up(error) from error
        return parts

    def fetch(self, places: NDArray[np.int64], rows: NDArray[np.void]) -> tuple[NDArray[np.bool_], list[bytes]]:
        """Fetch samples that only other nodes have, by place. Raises `ServerError`.

        Returns which samples the nodes could read, shape (places,), and the stored bytes of each of these. `rows` are
        the rows of the index for these places, which are all different.
        """
        sizes = rows["size"].astype(np.int64)
        part = np.cumsum(sizes) // FETCH_BYTES
        present, samples = [], []
        for number in np.unique(part).tolist():
            some = part == number
            message, limit = pack(ClientFetches(NO_CLIENT, places[some])), int(sizes[some].sum()) + int(some.sum())

            def act(connection: Session, message: bytes = message, limit: int = limit) -> memoryview:
                return connection.request(message, Kind.FETCH, limit)

            found, data = unpack_samples(self._with_control(act), sizes[some])
            present.append(found)
            samples += data
        return np.concatenate(present), samples

    def stats(self) -> dict[str, Any]:
        """Return counters of the server. Raises `ServerError`."""
        _tell(self._idle)
        return self._with_control(lambda c: unpack_json(c.request(pack(AskStats()), Kind.STATS)))

    def tell_loop(self, report: LoopReport) -> bool:
        """Report the waits of this process's training loop to the server. Returns whether the report was sent.

        It is not sent if this process has no connection; this method neither opens one nor starts a server.
        """
        with self._lock:
            control, self._control = self._control, None
            if control is None:
                return False
            try:
                control.send(pack(report))
            except (OSError, BrandError) as error:  # the next draw raises the reason
                self._connector.note_end(error)
                self._lost = True
                return False
            self._control = control
            return True

    def report(self, replaced: Replaced) -> None:
        self._with_control(lambda c: c.send(pack(replaced)))

    def server(self) -> ServerFacts:
        return self._with_control(lambda c: c.server)

    @property
    def running(self) -> bool:
        """Whether this process has communicated with a server."""
        with self._lock:  # another thread may use the connection, and keeps it meanwhile
            return self._control is not None or bool(self._idle) or self._lost

    def close(self) -> None:
        _tell(self._idle)
        with self._lock:
            for connection in (self._control, *self._idle):
                if connection is not None:
                    connection.close()
            self._control = None
            self._idle.clear()

    def _with_control(self, act: Callable[[Session], _T]) -> _T:
        """Call `act` with this process's connection for everything but draws."""
        with self._lock:
            for attempt in range(ATTEMPTS):
                control, self._control = self._control, None  # as for draws
                try:
                    if control is None:
                        control = self._connect(os.getpid(), (0, 1))
                    result = act(control)
                    self._control = control
                    return result
                except (ConnectionError, TimeoutError) as error:
                    self._connector.note_end(error)
                    if attempt == ATTEMPTS - 1:
                        raise self._connector.given_up(error) from error
            raise AssertionError


def _popped(idle: list[Session]) -> Session | None:
    """Return a connection that no thread uses."""
    try:
        return idle.pop()
    except IndexError:
        return None


def _tell(idle: list[Session]) -> None:
    """Report this process's direct hits to the server, on connections that no thread uses."""
    told = []
    while idle:
        connection = idle.pop()
        with suppress(OSError, BrandError):  # the next draw raises the reason
            connection.tell()
            told.append(connection)
    idle += told


def _begin_again_in_child() -> None:
    """Reset all clients of a forked child, which must use neither connections nor locks of its parent."""
    for client in list(_clients):
        client._begin_again()


after_in_child(_begin_again_in_child)
