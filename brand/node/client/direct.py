"""Draws without a data server: this process computes the order, and reads each sample directly.

`DirectClient` has those methods of `Client` that a training uses, so samplers, loaders and states are the same with
both. It keeps no samples in memory and reads nothing ahead: a batch costs one small read for each sample. It serves
systems on which no server can run, debuggers and unit tests.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from brand.errors import ServerError, UnreadableError, UsageError
from brand.formats.contents import StoredSamples
from brand.node.client.session import DrawResult
from brand.node.wire.client_messages import MAX_REPORTS, Replaced
from brand.node.wire.draw_messages import NOT_HELD
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import LoopReport
from brand.orders.base.joins import Joins
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet

_NEEDED: Final = ((os, "fork"), (socket, "AF_UNIX"), (socket, "SCM_RIGHTS"))
_PLANS: Final = 2
"""Plans that a process keeps in any case: workers may still draw the last epoch while others begin the next one."""
_PLANS_BYTES: Final = 256 << 20
"""Bytes of plans up to which a process keeps more: a loader may draw several orders in turn."""
SERVER_ONLY: Final = 'server="none" reads for this process alone, and {} needs a data server'


def why_no_server() -> str:
    """Return in words why no data server can run on this system; empty if one can."""
    if sys.platform != "linux":
        return "this system is not Linux"
    missing = [name for module, name in _NEEDED if not hasattr(module, name)]
    return f"this system has no {missing[0]}" if missing else ""


@dataclass(slots=True, eq=False)
class DirectClient:
    """Draws from `data` for the training `run`, without a server. Can be pickled, and used by several threads."""

    data: StoredDataSet
    run: str
    _plans: dict[tuple[Order, int], NDArray[Any]] = field(default_factory=dict, init=False, repr=False)
    """The place at each position, by order and epoch."""
    _drawn: int = field(default=0, init=False)
    _replaced: list[Replaced] = field(default_factory=list, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectClient, (self.data, self.run)

    def begin(self, order: Order, tag: int, announcement: Announcement, turn: int | None = None) -> None:  # noqa: ARG002 - as `Client`
        """Check that nothing needs a server. Raises `UsageError`."""
        if order.shares:
            raise UsageError(SERVER_ONLY.format("an order that jobs share"))
        if announcement.batch:
            raise UsageError(SERVER_ONLY.format("locality=True"))
        self._plan(order, announcement.epoch)  # before several threads draw, which would each compute it

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
        places = self._plan(order, epoch)[positions].astype(np.int64)
        nothing = np.empty(0, np.int64)
        stored = StoredSamples(np.empty(0, np.uint8), nothing, self.data.rows_at(nothing))
        return [DrawResult(places, nothing, stored, {}, 0.0, 0.0, NOT_HELD, Joins(), 0)]

    def _plan(self, order: Order, epoch: int) -> NDArray[Any]:
        """Return the place at each position of an epoch."""
        plan = self._plans.get((order, epoch))
        if plan is None:
            plan = order.plan(epoch).sample_of
            kept = self._plans | {(order, epoch): plan}
            while len(kept) > _PLANS and sum(each.nbytes for each in kept.values()) > _PLANS_BYTES:
                del kept[next(iter(kept))]
            self._plans = kept  # assigned as a whole: other threads read it meanwhile
        return plan

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
