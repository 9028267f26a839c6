"""How does a sampler's sequence reach one data set? `DrawPort` has tags of its orders, and calls its node server."""

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
    """What the sequences of samplers need of one data set, `name` to users. Picklable."""

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
        """The client of the node server. The first use decides which server that is."""
        return self.way.client

    def indices_of(self, subset: Subset) -> NDArray[np.int64]:
        """Indices of the samples of a part, ascending."""
        return np.sort(self.data.indices(np.flatnonzero(subset.mask)))

    def tag_of(self, order: Order) -> int:
        """The tag of an order's tickets. This data set understands it, and so do its copies in later workers."""
        return self._fetcher.tag_of(order)

    def knows(self, tag: int) -> bool:
        """Whether a sampler that draws from this data set has this tag. May ask the node server."""
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
        """Tell the node server that a sampler is about to draw, so that it begins to read.

        `origin` says where the program makes the sampler (`brand.torch.job.origin`). With a `batch`, the result is the
        positions of this rank, once all ranks have announced theirs; else None. Raises `ServerError`, `UsageError`.
        """
        shared = announcement.replicas > 1 or announcement.processes not in (1, GOES_ON, UNTOLD)
        turn = turn_of(order, origin) if shared else None
        return self.client.begin(order, self.tag_of(order), announcement, turn)

    def come_to(self, tag: int, epoch: int) -> None:
        """Go on with the next epoch of the order with this tag. Raises `ServerError`, `UsageError`."""
        self.client.begin(self._fetcher.order_of(tag), tag, Announcement(epoch, processes=GOES_ON))

    def joins(self, order: Order, epoch: int) -> Joins:
        """Where a run with this order joined others in an epoch (`order="shared"`)."""
        return self.client.joins(order, epoch) if order.joins and self.way.settled else Joins()

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """Tell the node server where the run of a state joined others in an epoch."""
        self.client.learn_joins(order, epoch, joins)

    def drawn(self, order: Order, epoch: int, position: int) -> NDArray[np.int32]:
        """The places drawn before a position of an epoch, if the order is decided while jobs draw."""
        return self.client.orders.drawn(order, epoch, position)

    def load_drawn(self, order: Order, epoch: int, places: NDArray[np.int32]) -> None:
        """Tell the node server which places the run of a state has drawn, if the order is decided while jobs draw."""
        self.client.orders.load(order, epoch, places)
