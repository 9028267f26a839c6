"""How does a sampler's sequence use one data set? `DrawPort` makes tags of its orders, and calls its data server.

Nodes draw in the same order if their samplers are the same one: samplers that the training's program makes at the same
place, their origin. All ranks run one program. A sampler that only one rank uses is made at a place of its own, and is
not compared.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.client.client import Client
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import GOES_ON, UNTOLD
from brand.orders.base.joins import Joins
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.fetch.fetch import Fetcher
from brand.torch.job.resolver import ServerResolver


class DrawPort(Reprs, shows="name resolver"):
    """The interface of one data set for the sequences of samplers. `name` is its name for users. Can be pickled."""

    def __init__(self, resolver: ServerResolver, fetcher: Fetcher, name: str) -> None:
        self.resolver, self._fetcher, self.name = resolver, fetcher, name

    @property
    def data(self) -> StoredDataSet:
        """The stored samples."""
        return self._fetcher.data

    @property
    def client(self) -> Client:
        """The client of the data server. The first use decides which server that is."""
        return self.resolver.client

    def indices_of(self, subset: Subset) -> NDArray[np.int64]:
        """Return the indices of the samples of a subset, ascending."""
        return np.sort(self.data.indices(np.flatnonzero(subset.mask)))

    def tag_of(self, order: Order) -> int:
        """Return the tag of an order's tickets. This data set knows it, and so do its copies in later workers."""
        return self._fetcher.tag_of(order)

    def knows(self, tag: int) -> bool:
        """Return whether a sampler that draws from this data set has this tag. May ask the data server."""
        try:
            self._fetcher.order_of(tag)
        except UsageError:
            return False
        return True

    def announce(self, order: Order, announcement: Announcement, *, origin: str) -> NDArray[np.int64] | None:
        """Announce to the data server that a sampler is about to draw, so that it begins to read.

        `origin` is the place of the program that makes the sampler (`origin_here`). If the announcement has a `batch`,
        returns the positions of this rank, once all ranks have announced theirs; otherwise None. Raises `ServerError`,
        `UsageError`.
        """
        shared = announcement.replicas > 1 or announcement.processes not in (1, GOES_ON, UNTOLD)
        turn = turn_of(order, origin) if shared else None
        return self.client.begin(order, self.tag_of(order), announcement, turn)

    def come_to(self, tag: int, epoch: int) -> None:
        """Continue with the next epoch of the order with this tag. Raises `ServerError`, `UsageError`."""
        self.client.begin(self._fetcher.order_of(tag), tag, Announcement(epoch, processes=GOES_ON))

    def joins(self, order: Order, epoch: int) -> Joins:
        """Return the positions at which a run with this order joined others in an epoch (`order="shared"`)."""
        return self.client.joins(order, epoch) if order.joins and self.resolver.settled else Joins()

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """Send the data server the joins of an epoch that a loader state has."""
        self.client.learn_joins(order, epoch, joins)

    def drawn(self, order: Order, epoch: int, position: int) -> NDArray[np.int32]:
        """Return the places drawn before a position of an epoch, if the order is decided while jobs draw."""
        return self.client.orders.drawn(order, epoch, position)

    def load_drawn(self, order: Order, epoch: int, places: NDArray[np.int32]) -> None:
        """Send the data server the places that a state's run has drawn, if the order is decided while jobs draw."""
        self.client.orders.load(order, epoch, places)


_orders: dict[tuple[str, str], list[Order]] = {}
"""Orders that this process has begun to draw with other ranks, by data set and origin of the sampler."""


def origin_here() -> str:
    """Return the place of the program that calls this library, with its callers. It is the same on all ranks.

    Folders are left out, because nodes may have the program in different folders.
    """
    frames = traceback.walk_stack(inspect.currentframe())
    return "|".join(
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] != "brand"
    )


def turn_of(order: Order, origin: str) -> int:
    """Return a number that identifies an order to other nodes, made from its sampler's origin and its number there.

    One origin has several orders if a loop makes several samplers, or if a sampler loads states.
    """
    orders = _orders.setdefault((order.data_set, origin), [])
    if order not in orders:
        orders.append(order)
    facts = f"{origin}|{orders.index(order)}"
    return int.from_bytes(hashlib.blake2s(facts.encode(), digest_size=4).digest()) >> 1
