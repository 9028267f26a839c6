"""How does a sampler use one data set? `DrawPort` chooses its orders, makes tags of them, and calls its data server.

Data, memory, storage and nodes decide the order.

Nodes draw in the same order if their samplers are the same one: samplers that the training's program makes at the same
place, their origin. All ranks run one program. A sampler that only one rank uses is made at a place of its own, and is
not compared.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import traceback
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import UsageError
from brand.node.client.client import Client
from brand.node.client.direct import SERVER_ONLY, DirectClient
from brand.node.setup.choose import Nodes, choose_order, choose_room, facts_of
from brand.node.setup.weighted import as_subset, of_subset
from brand.node.wire.drawing import Announcement, as_begun
from brand.node.wire.messages import GOES_ON, MAX_SHARED_ORDER, UNTOLD
from brand.orders.base.joins import Joins
from brand.orders.base.part import RandomSubset, Subset
from brand.orders.base.rank_rule import RankRule
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.reprs import Reprs
from brand.torch.fetch.fetch import Fetcher
from brand.torch.job.discovery import check_same_begin, check_same_order
from brand.torch.job.ranks import find_rank, node_by_launcher

log = logging.getLogger("brand")

_APART: Final = (
    "jobs with ranks on several nodes share by servers that know each other: start them with `brand launch`, leave out "
    "server=, or give order='stripes'"
)
"""Error message for a job whose nodes have servers that do not know each other."""
_TOO_LARGE: Final = (
    "weights, lengths or a subset of all samples take {size:,} bytes, and nodes send each other at most {most:,}: "
    "with weights=, give a few different weights only; with lengths, make rows of one length at conversion "
    "(docs/guides/token-data.md), or round them; with subset=, convert these samples to a data set of their own"
)
"""Error message for an order of too many samples on several nodes."""
_NAMELESS: Final = (
    "ranks on several nodes find each other by the name of their job, which a launcher would give: "
    'give job="NAME" to the BrandDataset of every rank, the same name for all'
)
"""Error message for ranks by hand (`num_replicas=`, `rank=`) whose server is one of several."""


class DrawPort(Reprs, shows="name resolver"):
    """The interface of one data set for samplers. Can be pickled.

    `name` is the data set's name for users, `option` the user's `order=`.
    """

    def __init__(self, name: str, fetcher: Fetcher, option: OrderOption) -> None:
        self.name, self.fetcher, self.data, self.resolver = name, fetcher, fetcher.data, fetcher.resolver
        self._option = option

    def order(
        self, seed: int, subset: ArrayLike | None = None, *, replicas: int | None = None, at_a_time: int = 1
    ) -> Order:
        """Return the order of all epochs of a run. `subset` is as `BrandSampler` takes it. Raises `UsageError`.

        `replicas`: the number of ranks that the user gives; None: the launcher's. `at_a_time`: the number of orders
        that a sampler draws at a time; each gets its fraction of the memory.
        """
        order, chosen = self._whole(seed, replicas, at_a_time), as_subset(self.data, subset)
        if caution := order.policy.caution(order.chunk_size):
            log.warning("%s", caution)
        order = of_subset(order, chosen)
        if order.shares and self.resolver.without_server:
            raise UsageError(SERVER_ONLY.format(f'order="{order.policy.name}"'))
        return order

    def order_of_indices(self, seed: int, subset: ArrayLike | None = None) -> Order:
        """Return an order that nobody draws, for a sampler that yields the indices of a subset: no server is asked."""
        order = choose_order(facts_of(self.data), seed, "stripes", 1.0, None)
        return replace(order, subset=as_subset(self.data, subset))

    def room(self, order: Order) -> int:
        """Return about how many samples the data server can hold in addition to those of the shuffle buffer."""
        share, nodes = self._memory(1)
        return choose_room(facts_of(self.data), order, share, self.resolver.options.memory, nodes)

    def _whole(self, seed: int, replicas: int | None, at_a_time: int) -> Order:
        share, nodes = self._memory(find_rank(None, None)[1] if replicas is None else replicas)
        memory = self.resolver.options.memory
        order = choose_order(facts_of(self.data), seed, self._option, share, memory, nodes, at_a_time)
        if order.shares and share is not None and nodes.nodes == 1 < (node_by_launcher() or (0, 1))[1]:
            raise UsageError(_APART)
        return order

    def _memory(self, ranks: int) -> tuple[float | None, Nodes]:
        """Return the fraction of the data in the memory of a running server, None if it is not started, and the nodes.

        Raises the errors of a client.
        """
        options = self.resolver.options
        if options.attached:
            server = self.resolver.client.server()
            return server.share, Nodes(server.nodes, ranks, server.remote_share)
        job = self.resolver.job
        return None, Nodes() if job is None else Nodes(job.nodes, ranks, options.peer_memory)

    @property
    def client(self) -> Client | DirectClient:
        """The client of the data server. The first use decides which server that is."""
        return self.resolver.client

    def tag_of(self, order: Order) -> int:
        """Return the tag of an order's tickets. This data set knows it, and so do its copies in later workers."""
        return self.fetcher.tag_of(order)

    def has_tag(self, tag: int) -> bool:
        """Return whether a sampler that draws from this data set has this tag. May ask the data server."""
        try:
            self.fetcher.order_of(tag)
        except UsageError:
            return False
        return True

    def announce(
        self, order: Order, announcement: Announcement, *, origin: str, rule: RankRule | None = None
    ) -> NDArray[np.int64] | None:
        """Announce to the data server that a sampler is about to draw, so that it begins to read.

        `origin` is the place of the program that makes the sampler (`origin_here`). `rule`: how ranks of several nodes
        divide the positions, if not in turn. If the announcement has a `batch`, returns the positions of this rank,
        once all ranks have announced theirs; otherwise None. Raises `ServerError`, `UsageError`.
        """
        number = self._number(order, announcement, origin, rule)
        return self.client.begin(order, self.tag_of(order), announcement, number, rule)

    def prepare(self, order: Order, announcement: Announcement, *, origin: str, rule: RankRule | None = None) -> None:
        """Do everything of `announce` that waits for other ranks or for the server. Raises `ServerError`, `UsageError`.

        A sampler that draws several orders at a time prepares all of them first. Otherwise the server would read ahead
        for the first ones, and its memory could be full before it knows the others.
        """
        self.client.register(order, self.tag_of(order), self._number(order, announcement, origin, rule))

    def _number(self, order: Order, announcement: Announcement, origin: str, rule: RankRule | None) -> int | None:
        """Return the number of an order that ranks share, None for one rank. Check that all ranks begin it alike."""
        if announcement.replicas > 1 and not self.resolver.named and self.resolver.nodes > 1:
            raise UsageError(_NAMELESS)
        if self.resolver.nodes > 1:
            _check_size(order, rule)
        shared = announcement.replicas > 1 or announcement.processes not in (1, GOES_ON, UNTOLD)
        number = order_number(order, origin) if shared else None
        if number is not None:
            check_same_order(number, order)
            if number not in _begun:  # later, a rank may begin an epoch again that others do not
                check_same_begin(number, order, announcement.epoch, announcement.position)
                _begun.add(number)
        return number

    def continue_with(self, tag: int, epoch: int) -> None:
        """Continue with the next epoch of the order with this tag. Raises `ServerError`, `UsageError`."""
        self.client.begin(self.fetcher.order_of(tag), tag, as_begun(epoch))

    def joins(self, order: Order, epoch: int) -> Joins:
        """Return the positions at which a run with this order joined others in an epoch (`order="shared"`)."""
        return self.client.joins(order, epoch) if order.joins and self.resolver.settled else Joins()


_orders: dict[tuple[str, str], list[Order]] = {}
"""Orders that this process has begun to draw with other ranks, by data set and origin of the sampler."""
_begun: set[int] = set()
"""Numbers of the orders that this process has begun to draw with other ranks (`order_number`)."""


def _check_size(order: Order, rule: RankRule | None) -> None:
    """Raise `UsageError` if nodes cannot send each other the order and the rule of its ranks."""
    size = 0 if order.subset is None else _text_size(order.subset)
    size += 0 if rule is None else len(json.dumps(rule.to_json()))
    if size > MAX_SHARED_ORDER:
        raise UsageError(_TOO_LARGE.format(size=size, most=MAX_SHARED_ORDER))


@lru_cache(64)
def _text_size(subset: Subset | RandomSubset) -> int:
    """Return the characters of a subset, which takes time for millions of samples."""
    return len(subset.to_text())


def origin_here() -> str:
    """Return the place of the program that calls this library, without folders, which differ between nodes."""
    frames = traceback.walk_stack(inspect.currentframe())
    return "|".join(
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] != "brand"
    )


def order_number(order: Order, origin: str) -> int:
    """Return a number that identifies an order to other nodes, made from its sampler's origin and its number there.

    One origin has several orders if a loop makes several samplers, or if a sampler loads states.
    """
    orders = _orders.setdefault((order.data_set, origin), [])
    if order not in orders:
        orders.append(order)
    facts = f"{origin}|{orders.index(order)}"
    return int.from_bytes(hashlib.blake2s(facts.encode(), digest_size=4).digest()) >> 1
