"""Which node owns a sample, and at which node is it best drawn?"""

from __future__ import annotations

import numpy as np

from brand.node.decide.state.members import Members
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.mapping import Mapping

PLACES = np.arange(8_000)


def near(nodes: int, *ranks: int) -> list[int]:
    """Where a job with ranks on these nodes best draws each place."""
    owners = Members(NodeNumber(0), nodes).owners(Mapping(len(PLACES), 10, 10))
    return list(map(int, owners.near(PLACES, {rank: NodeNumber(node) for rank, node in enumerate(ranks)})))


def test_a_sample_is_best_drawn_at_its_owner() -> None:
    """Where the job has ranks there; else at a node of the job, each as often."""
    owner = Members(NodeNumber(0), 4).owners(Mapping(len(PLACES), 10, 10)).of(PLACES)
    assert near(4, 0, 1, 2, 3) == owner.tolist()
    some = np.array(near(4, 3, 1))
    assert (some[np.isin(owner, [1, 3])] == owner[np.isin(owner, [1, 3])]).all()
    others = some[np.isin(owner, [0, 2])]
    assert set(others.tolist()) == {1, 3}
    assert abs(np.mean(others == 1) - 0.5) < 0.03


def test_jobs_on_other_nodes_agree_where_they_can() -> None:
    """Of samples that neither has at an owner, as many as rendezvous hashing allows: the share of common nodes."""
    one, other = np.array(near(8, 0, 1)), np.array(near(8, 1, 2))
    owner = Members(NodeNumber(0), 8).owners(Mapping(len(PLACES), 10, 10)).of(PLACES)
    away = owner > 2
    assert abs(np.mean(one[away] == other[away]) - 1 / 3) < 0.03
