"""Draws without a data server: this process computes the order, and reads each sample directly.

`DirectClient` has those methods of `Client` that a training uses, so samplers, loaders and states are the same with
both. It keeps no samples in memory and reads nothing ahead: a batch costs one small read for each sample. It plans only
the windows of an epoch that are drawn, if the order has windows. It serves systems on which no server can run,
debuggers and unit tests.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from brand.errors import ServerError, UnreadableError, UsageError
from brand.forks import after_in_child
from brand.formats.contents import StoredSamples
from brand.node.client.session import DrawResult
from brand.node.wire.client_messages import MAX_REPORTS, Replaced
from brand.node.wire.draw_messages import NOT_HELD
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import LoopReport
from brand.orders.base.joins import Joins
from brand.orders.base.rank_rule import RankRule
from brand.orders.order import Order
from brand.orders.places import EpochPlaces
from brand.storage.dataset.dataset import StoredDataSet

_NEEDED: Final = ((os, "fork"), (socket, "AF_UNIX"), (socket, "SCM_RIGHTS"))
_EPOCHS: Final = 2
"""Epochs of an order that a process keeps: threads may still draw the last epoch while others begin the next one."""
_PLACES_BYTES: Final = 256 << 20
"""Bytes of places up to which a process keeps the epochs of several orders, which a loader may draw in turn."""
SERVER_ONLY: Final = 'server="none" reads for this process alone, and {} needs a data server'


def why_no_server() -> str:
    """Return in words why no data server can run on this system; empty if one can."""
    if sys.platform != "linux":
        return "this system is not Linux"
    missing = [name for module, name in _NEEDED if not hasattr(module, name)]
    return f"this system has no {missing[0]}" if missing else ""


@dataclass(slots=True, weakref_slot=True, eq=False)
class DirectClient:
    """Draws from `data` for the training `run`, without a server. Can be pickled, and used by several threads."""

    data: StoredDataSet
    run: str
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    """Held while `_epochs` and its values are used."""
    _epochs: dict[tuple[Order, int], EpochPlaces] = field(default_factory=dict, init=False, repr=False)
    """The places of the epochs that were drawn last, by order and epoch."""
    _drawn: int = field(default=0, init=False)
    _replaced: list[Replaced] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _clients.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectClient, (self.data, self.run)

    def reset_in_child(self) -> None:
        """Go on in a forked child, in which a thread that drew in the parent does not run."""
        if self._lock.locked():
            self._lock, self._epochs = threading.Lock(), {}  # that thread may have been changing them

    def register(self, order: Order, tag: int, turn: int | None = None) -> None:
        """Do nothing: there is no server."""

    def begin(
        self,
        order: Order,
        tag: int,  # noqa: ARG002 - as `Client`
        announcement: Announcement,
        turn: int | None = None,  # noqa: ARG002
        rule: RankRule | None = None,  # noqa: ARG002
    ) -> None:
        """Check that nothing needs a server. Raises `UsageError`."""
        if order.shares:
            raise UsageError(SERVER_ONLY.format("an order that jobs share"))
        if announcement.batch:
            raise UsageError(SERVER_ONLY.format("locality=True"))
        with self._lock:
            self._places(order, announcement.epoch)  # workers that are forked later share a plan that is made whole

    def draw(
        self,
        order: Order,
        epoch: int,
        positions: NDArray[np.int64],
        *,
        owner: int,  # noqa: ARG002 - as `Client`
        worker: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> list[DrawResult]:
        """Return the places of some positions of an epoch. None of their samples is in memory."""
        self._drawn += len(positions)
        with self._lock:
            places = self._places(order, epoch).at(positions)
        nothing = np.empty(0, np.int64)
        stored = StoredSamples(np.empty(0, np.uint8), nothing, self.data.rows_at(nothing))
        return [DrawResult(places, nothing, stored, {}, 0.0, 0.0, NOT_HELD, Joins(), 0)]

    def _places(self, order: Order, epoch: int) -> EpochPlaces:
        """Return the places of an epoch."""
        found = self._epochs.get((order, epoch))
        if found is None:
            found = self._epochs[order, epoch] = EpochPlaces(order, epoch)
            for key in [key for key in self._epochs if key[0] == order][:-_EPOCHS]:
                del self._epochs[key]
            while len(self._epochs) > _EPOCHS and sum(each.nbytes for each in self._epochs.values()) > _PLACES_BYTES:
                del self._epochs[next(iter(self._epochs))]
        return found

    def fetch(self, places: NDArray[np.int64], rows: NDArray[np.void]) -> tuple[NDArray[np.bool_], list[bytes]]:  # noqa: ARG002
        """Read samples of an object store. Returns as `Client.fetch`.

        Raises `FormatError`, `ElsewhereError`, and `ServerError` if the store does not answer, which no draw may skip.
        """
        try:
            stored = self.data.stored_bytes(places, raising=True)
        except UnreadableError as error:
            raise ServerError(str(error)) from error
        return np.ones(len(places), np.bool_), [bytes(each or b"") for each in stored]

    def order_by_tag(self, tag: int, *, owner: int) -> NoReturn:  # noqa: ARG002
        """Raise `ServerError`: only a server could know it."""
        raise ServerError(
            "without a data server, a worker knows only the samplers that were made, and had loaded states, before "
            "it started: do both before the loader starts its workers"
        )

    @property
    def orders(self) -> NoReturn:
        """Raise `UsageError`: an order that grows is a server's."""
        raise UsageError(SERVER_ONLY.format("an order that jobs share"))

    def server(self) -> NoReturn:
        """Raise `UsageError`: there is none."""
        raise UsageError(SERVER_ONLY.format("this"))

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """Ignore joins: `begin` refuses an order that has some."""

    def joins(self, order: Order, epoch: int) -> Joins:  # noqa: ARG002
        return Joins()

    def stats(self) -> dict[str, Any]:
        """Return the counts of this process: samples read directly, and those replaced, as `Client.stats`."""
        # No "process": programs end a server by it, and this is the training.
        replaced = [asdict(each) for each in self._replaced]
        return {"server": "none", "fetched": self._drawn, "direct": self._drawn, "replaced": replaced}

    def report(self, replaced: Replaced) -> None:
        if len(self._replaced) < MAX_REPORTS:
            self._replaced.append(replaced)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def tell_loop(self, report: LoopReport) -> bool:  # noqa: ARG002
        return False

    @property
    def running(self) -> bool:
        """Whether this process has drawn."""
        return self._drawn > 0


_clients: weakref.WeakSet[DirectClient] = weakref.WeakSet()


def _reset_in_child() -> None:
    for client in list(_clients):
        client.reset_in_child()


after_in_child(_reset_in_child)
