"""In which order is a data set drawn, and how much can its server hold? Its data, memory, storage and nodes decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from numpy.typing import ArrayLike

from brand.errors import UsageError
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.setup.memory import Memory
from brand.node.setup.room import choose_room
from brand.protocol.order import Order
from brand.protocol.policy import BY_ONE_NODE
from brand.protocol.registry import OrderOption
from brand.storage.dataset import StoredDataSet
from brand.torch.parts import as_part
from brand.torch.ranks import find_rank, node_by_launcher
from brand.torch.way import Way

_APART: Final = (
    "jobs with ranks on several nodes share by servers that know each other: start them with `brand launch`, leave out "
    "server=, or give protocol='stripes'"
)
"""Why a job is refused whose nodes have servers of their own."""


class Ordering:
    """Chooses the orders of one `BrandDataset`; `attached`: the user gave a server. Picklable."""

    def __init__(
        self,
        data: StoredDataSet,
        way: Way,
        protocol: OrderOption,
        memory: Memory,
        remote_memory: Memory,
        *,
        attached: bool,
    ) -> None:
        self._data, self._way, self._protocol, self._attached = data, way, protocol, attached
        self._memory, self._remote_memory = memory, remote_memory

    def __repr__(self) -> str:
        return f"Ordering({self._data.name!r}, {self._protocol!r})"

    def order(self, seed: int, part: ArrayLike | None = None) -> Order:
        """The order of all epochs of a run with this seed.

        `part`: the samples that are drawn, as `BrandSampler` takes them; None: all. Raises `UsageError`.
        """
        order, chosen = self._whole(seed), as_part(self._data, part)
        if chosen is not None and order.policy.no_part is not None:
            raise UsageError(order.policy.no_part)
        if order.policy.one_node and (node_by_launcher() or (0, 1))[1] > 1:
            raise UsageError(BY_ONE_NODE)
        return replace(order, part=chosen)

    def room(self, order: Order) -> int:
        """About how many samples the node server can hold out of turn, beside those that an order mixes."""
        share = self._way.client.server().share if self._attached else None
        return choose_room(facts_of(self._data), order, share, self._memory)

    @property
    def nodes(self) -> int:
        """Nodes that draw from the data set together. Raises `UsageError`, and `ServerError` as a draw does."""
        if self._attached:
            return self._way.client.server().nodes
        return 1 if self._way.job is None else self._way.job.nodes

    def _whole(self, seed: int) -> Order:
        """The order of all samples."""
        facts = facts_of(self._data)
        if self._attached:
            server = self._way.client.server()
            nodes = Nodes(server.nodes, find_rank(None, None)[1], server.remote_share)
            order = choose_order(facts, seed, self._protocol, server.share, self._memory, nodes)
            if order.joins and server.nodes == 1 < (node_by_launcher() or (0, 1))[1]:
                raise UsageError(_APART)
            return order
        job = self._way.job
        nodes = Nodes() if job is None else Nodes(job.nodes, find_rank(None, None)[1], self._remote_memory)
        return choose_order(facts, seed, self._protocol, None, self._memory, nodes)
