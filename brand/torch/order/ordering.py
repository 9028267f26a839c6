"""In which order is a data set drawn, and how much can its server hold? Its data, memory, storage and nodes decide.

`as_part` returns the samples that a user means by `subset=`: a mask over all samples, or their indices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from brand.errors import UsageError, counted
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.setup.room import choose_room
from brand.orders.base.part import Subset
from brand.orders.base.policy import BY_ONE_NODE
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.reprs import Reprs
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.job.ranks import find_rank, node_by_launcher
from brand.torch.job.resolver import ServerResolver

_APART: Final = (
    "jobs with ranks on several nodes share by servers that know each other: start them with `brand launch`, leave out "
    "server=, or give order='stripes'"
)
"""Error message for a job whose nodes have servers that do not know each other."""


class Ordering(Reprs, shows="_data.name _order"):
    """Chooses the orders of one `BrandDataset`. Can be pickled."""

    def __init__(self, data: StoredDataSet, resolver: ServerResolver, order: OrderOption) -> None:
        self._data, self._resolver, self._order = data, resolver, order

    def order(self, seed: int, subset: ArrayLike | None = None) -> Order:
        """Return the order of all epochs of a run with this seed.

        `subset`: the samples that are drawn, as `BrandSampler` takes them; None: all. Raises `UsageError`.
        """
        order, chosen = self._whole(seed), as_part(self._data, subset)
        if chosen is not None and order.policy.no_part is not None:
            raise UsageError(order.policy.no_part)
        if order.policy.one_node and (node_by_launcher() or (0, 1))[1] > 1:
            raise UsageError(BY_ONE_NODE)
        return replace(order, subset=chosen)

    def room(self, order: Order) -> int:
        """Return about how many samples the data server can hold in addition to those of the shuffle buffer."""
        options = self._resolver.options
        share = self._resolver.client.server().share if options.attached else None
        return choose_room(facts_of(self._data), order, share, options.memory)

    def _whole(self, seed: int) -> Order:
        """Return the order of all samples."""
        facts, options = facts_of(self._data), self._resolver.options
        if options.attached:
            server = self._resolver.client.server()
            nodes = Nodes(server.nodes, find_rank(None, None)[1], server.remote_share)
            order = choose_order(facts, seed, self._order, server.share, options.memory, nodes)
            if order.joins and server.nodes == 1 < (node_by_launcher() or (0, 1))[1]:
                raise UsageError(_APART)
            return order
        job = self._resolver.job
        nodes = Nodes() if job is None else Nodes(job.nodes, find_rank(None, None)[1], options.peer_memory)
        return choose_order(facts, seed, self._order, None, options.memory, nodes)


def as_part(data: Catalogue, subset: Any) -> Subset | None:
    """Return the places of `subset`: bools for all samples, shape (samples,), or indices, each once. None: all samples.

    Deleted samples of a collection are in no subset, whatever a mask says of them. Raises `UsageError` if `subset` has
    another form or no sample, `DeletedError` if an index is that of a deleted sample.
    """
    if subset is None:
        drawn = data.drawn()
        return None if drawn is None else Subset.of(drawn)
    wanted, samples = np.asarray(subset), len(data)
    if wanted.dtype == np.bool_:
        if wanted.shape != (samples,):
            raise UsageError(
                f"subset= is a mask of shape {wanted.shape}; this data set has {counted(samples, 'sample')}"
            )
        wanted = np.flatnonzero(wanted)
        wanted = wanted if data.deleted is None else np.setdiff1d(wanted, data.deleted, assume_unique=True)
    elif wanted.size and (wanted.ndim != 1 or wanted.dtype.kind not in "iu"):
        raise UsageError(
            f"subset= is a {wanted.dtype} array of shape {wanted.shape}: give one bool a sample, or indices"
        )
    if not wanted.size:
        raise UsageError("subset= has no sample")
    outside = wanted[(wanted < 0) | (wanted >= samples)]
    if len(outside):
        raise UsageError(f"subset= has sample {outside[0]}; this data set has samples 0 to {samples - 1:,}")
    mask = np.zeros(data.header.samples, np.bool_)
    mask[data.places(wanted)] = True
    if np.count_nonzero(mask) < len(wanted):
        alike = np.sort(wanted)
        twice = alike[1:][alike[1:] == alike[:-1]][0]
        raise UsageError(f"subset= has sample {twice} twice; give each index once, or a mask as an array of bools")
    return None if mask.all() else Subset.of(mask)
