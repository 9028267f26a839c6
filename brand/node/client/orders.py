"""Orders that grow (online orders), as far as this process knows them.

The server decides such an order while jobs draw. This process knows the order of an epoch as far as it was decided at
its last draw, and a loader state has the samples before its position. A server that replaces another one learns the
order from here. So no sample is accepted from a server before this process knows its position in the order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError, ServerError
from brand.node.client.session import DrawResult, Session
from brand.node.wire.messages import MOST_PLACES
from brand.orders.order import Order
from brand.reprs import Reprs

LIMIT_S: Final = 30.0
"""Seconds that a loader state waits until the server has decided the order before its position."""
_POLL_S: Final = 0.005
_NONE: Final[NDArray[np.int32]] = np.empty(0, np.int32)


@dataclass(slots=True)
class _Known:
    """The order of one epoch, as far as this process knows it."""

    places: NDArray[np.int32]
    """Places at the first positions, with capacity for more."""
    count: int = 0
    """Number of known positions."""
    sure: int = 0
    """This process may have received samples at positions before this position."""
    loaded: bool = False
    """Whether the places are from a loader state: then they are a set without an order."""
    life: str = ""
    """The server that told these places, or that knows them; empty if there is none."""

    @property
    def before(self) -> NDArray[np.int32]:
        return self.places[: self.count]

    def puts(self, first: int, places: NDArray[np.int32], decided: int) -> None:
        """Store the places of positions from `first` on, as the server tells them. Raises `ProtocolError`."""
        end = first + len(places)
        if first > self.count or not max(end, self.sure) <= decided <= len(self.places):
            raise ProtocolError("the server sends an impossible order")
        self.places[first:end] = places
        self.count = end

    def loads(self, places: NDArray[np.int32]) -> None:
        self.puts(0, places, len(places))
        self.sure, self.loaded = len(places), True

    def draws(self, end: int) -> None:
        """Record that positions before `end` are fixed, by answered draws of this process or by a loader state."""
        self.sure = max(self.sure, end)

    def is_known_to(self, life: str) -> None:
        self.life, self.loaded = life, False


class Orders(Reprs, shows="_run _known"):
    """The orders of one run, by order and epoch, as far as this process knows them. Safe for several threads."""

    def __init__(self, run: str, with_server: Callable[[Callable[[Session], None]], None]) -> None:
        """Make an empty table. `with_server` calls a function with a connection, and may raise `ServerError`."""
        self._run, self._with_server = run, with_server
        self._known: dict[tuple[Order, int], _Known] = {}
        self._lock = threading.Lock()

    def begin_again(self) -> None:
        """Replace the lock in a forked child, because another thread of its parent may have held it."""
        self._lock = threading.Lock()

    def load(self, order: Order, epoch: int, places: NDArray[np.int32]) -> None:
        """Store the places that were drawn before a loader state, in any order."""
        with self._lock:
            before = self._known.get((order, epoch))
            if before is None or not _same(before.before[: len(places)], places):
                self._begin(order, epoch).loads(places)

    def tell(self, server: Session, order: Order, epoch: int) -> None:
        """Tell a server the decisions that it may not know. Raises `UsageError` if its own decisions differ.

        Those of the epoch before are told, too: another rank may still draw from it.
        """
        with self._lock:
            self._of(order, epoch)
            for (of, number), known in list(self._known.items()):
                if of == order:
                    self._tell(server, order, number, known)

    def learn(self, server: Session, order: Order, epoch: int, positions: NDArray[np.int64], drawn: DrawResult) -> None:
        """Record the order up to answered positions. Raises ConnectionError if another server has replaced it."""
        with self._lock:
            known, last = self._of(order, epoch), int(positions.max())
            if known.life != server.server.life:
                raise ConnectionResetError("another server has replaced it")
            # Ask again if less than 3/4 of the decided positions ahead are known.
            if 4 * (drawn.decided - known.count) >= drawn.decided - last:
                self._ask(server, order, epoch, known, max(last + 1, drawn.decided))
            if known.count <= last or (known.places[positions] != drawn.places).any():
                raise ProtocolError("the server sends other samples than it has decided")
            known.draws(last + 1)

    def drawn(self, order: Order, epoch: int, position: int) -> NDArray[np.int32]:
        """Return the places that this run draws before a position of an epoch. Raises `ServerError`."""

        def ask(server: Session) -> None:
            with self._lock:
                known = self._of(order, epoch)
                self._tell(server, order, epoch, known)
                self._ask(server, order, epoch, known, position, wanted=position)

        end_s = time.monotonic() + LIMIT_S
        while (found := self._known_before(order, epoch, position)) is None:
            self._with_server(ask)
            if time.monotonic() > end_s:
                raise ServerError(f"no server knows the samples before position {position:,} of epoch {epoch}")
            time.sleep(_POLL_S)
        return found

    def _known_before(self, order: Order, epoch: int, position: int) -> NDArray[np.int32] | None:
        """Return the places drawn before a position; None if this process does not know them."""
        with self._lock:
            known = self._known.get((order, epoch))
            if known is None or known.count < position:
                return None
            known.draws(position)
            return known.places[:position].copy()

    def _tell(self, server: Session, order: Order, epoch: int, known: _Known) -> None:
        """Tell a server the decisions of an earlier server."""
        life = server.server.life
        if known.life == life:
            return
        if known.loaded:
            drawn = self._drawn_of(server, order, epoch, known.sure)
            if drawn is not None and _same(drawn, known.before):  # the set of this state, but in the order of the draws
                known.puts(0, drawn, known.sure)
                known.is_known_to(life)
                return
        for first in range(0, known.count, MOST_PLACES):
            some = known.before[first : first + MOST_PLACES].copy()
            decided, places = server.decided(self._run, order, epoch, first, some, known.sure)
            # The server may have decided positions otherwise that no client has received yet.
            if not np.array_equal(places[: len(some)], some):
                known.puts(first, places, decided)
                break
        known.is_known_to(life)

    def _drawn_of(self, server: Session, order: Order, epoch: int, position: int) -> NDArray[np.int32] | None:
        """Return the places before a position as a server knows them; None if it has not decided that many."""
        decided, found = server.decided(self._run, order, epoch, order.draws, _NONE, 0)
        while len(found) < position <= decided:
            _, places = server.decided(self._run, order, epoch, len(found), _NONE, 0)
            if not len(places):
                raise ProtocolError("the server does not send the decided order")
            found = np.concatenate((found, places))
        return found[:position] if position <= decided else None

    def _ask(self, server: Session, order: Order, epoch: int, known: _Known, until: int, wanted: int = 0) -> None:
        """Ask the server for the order before a position, as far as it is decided."""
        while known.count < until:
            decided, places = server.decided(self._run, order, epoch, known.count, _NONE, 0, wanted)
            known.puts(known.count, places, decided)
            if not len(places):
                return

    def _of(self, order: Order, epoch: int) -> _Known:
        return self._known.get((order, epoch)) or self._begin(order, epoch)

    def _begin(self, order: Order, epoch: int) -> _Known:
        """Return an empty entry for an epoch, and forget epochs long before it."""
        self._known = {key: known for key, known in self._known.items() if key[1] >= epoch - 1}
        known = self._known[order, epoch] = _Known(np.empty(order.draws, np.int32))
        return known


def _same(some: NDArray[np.int32], others: NDArray[np.int32]) -> bool:
    """Return whether both are the same set of places, without repeats."""
    return len(some) == len(others) and bool((np.sort(some) == np.sort(others)).all())
