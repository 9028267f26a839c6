"""Which ranks get the same samples? Those of one group of tensor, context, pipeline or sequence parallelism.

A group is a number of consecutive ranks (`replication=`), or the ranks of a `DeviceMesh` that differ only along other
dimensions than the data-parallel ones. Samplers divide samples among groups in place of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.wire.messages import MAX_COPIES
from brand.torch.job.ranks import node_by_launcher

_UNEVEN: Final = (
    "ranks {here} get the same samples, and are on the nodes {there}: give each group as many nodes as the others, and "
    "as many ranks on each of them"
)


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """How the group of a rank lies on the nodes of a job."""

    copies: int = 1
    """Number of ranks of the group on each of its nodes."""
    spans: int = 1
    """Number of nodes that it has ranks on."""
    part: int = 0
    """Which of these nodes the rank is on, from 0 on."""


OWN_SEAT: Final = GroupSeat()
"""The seat of a rank that has samples of its own."""


class RankGroups:
    """The groups of ranks that get the same samples. Raises `UsageError` if an argument is not valid.

    Args:
        replication: The number of consecutive ranks of a group.
        device_mesh: A `torch.distributed.device_mesh.DeviceMesh` of all ranks, in place of `replication`.
        dims: The names of its data-parallel dimensions, along which ranks get different samples.
    """

    def __init__(self, replication: int, device_mesh: Any, dims: str | Sequence[str]) -> None:
        if isinstance(replication, bool) or not isinstance(replication, int) or not 1 <= replication <= MAX_COPIES:
            raise UsageError(f"replication={replication!r}: a whole number of ranks from 1 to {MAX_COPIES} is needed")
        if device_mesh is not None and replication != 1:
            raise UsageError("device_mesh= says which ranks get the same samples: leave out replication=")
        self.copies = replication
        self._of_mesh = None if device_mesh is None else groups_of_mesh(device_mesh, dims)
        if self._of_mesh is not None:
            self.copies = self._of_mesh.shape[1]
            if self.copies > MAX_COPIES:
                raise UsageError(f"{self.copies} ranks of device_mesh= get the same samples: at most {MAX_COPIES} can")

    def __repr__(self) -> str:
        return f"RankGroups(of {self.copies} ranks)"

    def check_order(self, order: Any) -> None:
        """Raise `UsageError` if an order shares reads with other jobs."""
        if self.copies > 1 and getattr(order, "shares", False):
            raise UsageError(
                f"order={order.policy.name!r} shares reads with other jobs, and has no groups of ranks that get the "
                "same samples: give order='stripes'"
            )

    def _groups(self, ranks: int) -> NDArray[np.int64]:
        """Return the ranks of each group, shape (groups, ranks of a group).

        Raises `UsageError` if the ranks are no groups of one size.
        """
        groups = self._of_mesh
        if groups is None:
            if ranks % self.copies:
                raise UsageError(
                    f"replication={self.copies}: the {ranks} ranks of this job are no multiple of it; start the job "
                    f"with torchrun or another launcher, or give num_replicas= and rank= of all ranks"
                )
            groups = np.arange(ranks).reshape(-1, self.copies)
        if sorted(groups.ravel().tolist()) != list(range(ranks)):
            raise UsageError(
                f"device_mesh= has {groups.size} ranks, and this job has {ranks}: give the mesh of all ranks"
            )
        return groups

    def division(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return the number of the group of a rank, and the number of groups.

        Raises `UsageError` if the ranks are no groups of one size.
        """
        if self.copies == 1 and self._of_mesh is None:
            return rank, ranks
        groups = self._groups(ranks)
        return int(np.flatnonzero((groups == rank).any(axis=1))[0]), len(groups)

    def seat(self, rank: int, ranks: int, nodes: int) -> GroupSeat:
        """Return how the group of a rank lies on the nodes whose servers are connected.

        Each node has as many consecutive ranks. Servers that are not connected serve the ranks of their own node only.
        Raises `UsageError` if groups lie on connected nodes in different ways.
        """
        groups, launched = self._groups(ranks), node_by_launcher()
        of = launched[1] if nodes == 1 and launched is not None and ranks % launched[1] == 0 else nodes
        node_of = groups * of // ranks
        counts = np.zeros((len(groups), of), np.int64)
        np.add.at(counts, (np.arange(len(groups))[:, None], node_of), 1)
        spans = np.count_nonzero(counts, axis=1)
        uneven = (spans != spans[0]) | ((counts > 0) & (counts * spans[:, None] != self.copies)).any(axis=1)
        if nodes > 1 and uneven.any():
            here, there = (", ".join(map(str, each[uneven.argmax()].tolist())) for each in (groups, node_of))
            raise UsageError(_UNEVEN.format(here=here, there=there))
        own, mine = rank * of // ranks, counts[(groups == rank).any(axis=1)][0]
        return GroupSeat(int(mine[own]), *((int(spans[0]), np.count_nonzero(mine[:own])) if nodes > 1 else (1, 0)))


def groups_of_mesh(device_mesh: Any, dims: str | Sequence[str]) -> NDArray[np.int64]:
    """Return the ranks of each group of a mesh, shape (groups, ranks of a group). Raises `UsageError`."""
    names, mesh = getattr(device_mesh, "mesh_dim_names", None), getattr(device_mesh, "mesh", None)
    if mesh is None:
        raise UsageError(f"device_mesh= is a {type(device_mesh).__name__}: give a torch.distributed DeviceMesh")
    wanted = (dims,) if isinstance(dims, str) else tuple(dims)
    if not names or not wanted or not set(wanted) <= set(names):
        raise UsageError(
            f"dims={dims!r}: device_mesh= has the dimensions {', '.join(map(repr, names or ())) or 'without names'}. "
            'Name those along which ranks get different samples, such as dims="dp"'
        )
    array = np.asarray(mesh.cpu().numpy(), np.int64)
    along = [names.index(name) for name in wanted]
    count = int(np.prod([array.shape[axis] for axis in along]))
    return np.moveaxis(array, along, range(len(along))).reshape(count, -1)
