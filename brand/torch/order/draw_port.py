"""How does a sampler's sequence use one data set? `DrawPort` makes tags of its orders, and calls its data server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.client.client import Client
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import GOES_ON, UNTOLD
from brand.orders.base.joins import Joins
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.fetch.fetch import Fetcher
from brand.torch.job.origin import turn_of
from brand.torch.job.way import ServerResolver


class DrawPort:
    """The interface of one data set for the sequences of samplers. `name` is its name for users. Can be pickled."""

    def __init__(self, way: ServerResolver, fetcher: Fetcher, name: str) -> None:
        self.way, self._fetcher, self.name = way, fetcher, name

    def __repr__(self) -> str:
        return f"DrawPort({self.name!r}, {self.way!r})"

    @property
    def data(self) -> StoredDataSet:
        """The stored samples."""
        return self._fetcher.data

    @property
    def client(self) -> Client:
        """The client of the data server. The first use decides which server that is."""
        return self.way.client

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

    def announce(
        self,
        order: Order,
        announcement: Announcement,
        *,
        origin: str,
    ) -> NDArray[np.int64] | None:
        """Announce to the data server that a sampler is about to draw, so that it begins to read.

        `origin` is the place of the program that makes the sampler (`brand.torch.job.origin`). If the announcement has
        a `batch`, returns the positions of this rank, once all ranks have announced theirs; otherwise None. Raises
        `ServerError`, `UsageError`.
        """
        shared = announcement.replicas > 1 or announcement.processes not in (1, GOES_ON, UNTOLD)
        turn = turn_of(order, origin) if shared else None
        return self.client.begin(order, self.tag_of(order), announcement, turn)

    def come_to(self, tag: int, epoch: int) -> None:
        """Continue with the next epoch of the order with this tag. Raises `ServerError`, `UsageError`."""
        self.client.begin(self._fetcher.order_of(tag), tag, Announcement(epoch, processes=GOES_ON))

    def joins(self, order: Order, epoch: int) -> Joins:
        """Return the positions at which a run with this order joined others in an epoch (`order="shared"`)."""
        return self.client.joins(order, epoch) if order.joins and self.way.settled else Joins()

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """Send the data server the joins of an epoch that a loader state has."""
        self.client.learn_joins(order, epoch, joins)

    def drawn(self, order: Order, epoch: int, position: int) -> NDArray[np.int32]:
        """Return the places drawn before a position of an epoch, if the order is decided while jobs draw."""
        return self.client.orders.drawn(order, epoch, position)

    def load_drawn(self, order: Order, epoch: int, places: NDArray[np.int32]) -> None:
        """Send the data server the places that a state's run has drawn, if the order is decided while jobs draw."""
        self.client.orders.load(order, epoch, places)
