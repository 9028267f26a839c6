"""Where jobs on different nodes look for a sample: how often they agree, and that shares are even."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.orders.base.owners import rendezvous
from tests.rounds import examples

IDS = np.arange(200_000)
GOLDEN = [
    [1, 2, 0, 0, 0, 3, 3, 2, 0, 3, 1, 0, 1, 1, 3, 3],
    [503, 856],
]
Place = Callable[[NDArray[Any], list[int]], NDArray[Any]]


def by_remainder(ids: NDArray[Any], nodes: list[int]) -> NDArray[Any]:
    """A single hash over the job's own nodes, as the public code of JOADER has it."""
    found: NDArray[Any] = np.array(nodes)[ids % len(nodes)]
    return found


def by_two(ids: NDArray[Any], nodes: list[int]) -> NDArray[Any]:
    """JOADER's double hash in a cluster of eight nodes: a node of all, and if it is none of the job's, one of these."""
    first, second = np.random.default_rng(0).integers(0, (8, len(nodes)), (len(ids), 2)).T
    found: NDArray[Any] = np.where(np.isin(first, nodes), first, np.array(nodes)[second])
    return found


@pytest.mark.parametrize(
    ("place", "pairs", "fours"), [(by_remainder, 0, 0), (by_two, 1 / 8, 1 / 4), (rendezvous, 1 / 3, 1 / 3)]
)
def test_two_jobs_agree_as_often_as_the_closed_form_says(place: Place, pairs: float, fours: float) -> None:
    """Jobs on nodes 0, 1 and 1, 2 of eight; on 0 to 3 and 2 to 5. |A & B| / |A or B| is 1/3 in both cases."""
    for one, other, found in ([0, 1], [1, 2], pairs), ([0, 1, 2, 3], [2, 3, 4, 5], fours):
        assert np.mean(place(IDS, one) == place(IDS, other)) == pytest.approx(found, abs=0.004)


@pytest.mark.parametrize("nodes", [[3], [0, 1], [1, 2, 5, 6, 7], list(range(8))])
def test_each_node_has_an_even_share(nodes: list[int]) -> None:
    """Within what chance makes of it: five standard deviations."""
    counts = np.bincount(rendezvous(IDS, nodes), minlength=8)
    assert set(np.flatnonzero(counts)) == set(nodes)
    even = len(IDS) / len(nodes)
    assert np.abs(counts[nodes] - even).max() <= 5 * np.sqrt(even)


@examples(50)
@given(st.data())
def test_a_node_that_leaves_moves_only_its_own_samples(data: st.DataObject) -> None:
    """By rendezvous. So what other nodes hold is found again."""
    nodes = data.draw(st.lists(st.integers(0, 1023), min_size=2, max_size=20, unique=True))
    gone = data.draw(st.sampled_from(nodes))
    ids = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=50)))
    before, after = rendezvous(ids, nodes), rendezvous(ids, [node for node in nodes if node != gone])
    stayed = before != gone
    assert np.array_equal(before[stayed], after[stayed])
    assert gone not in after


@examples(50)
@given(st.permutations([0, 2, 3, 7]))
def test_the_order_of_nodes_does_not_matter(nodes: list[int]) -> None:
    """Two jobs may name the same nodes in different orders."""
    ids = IDS[:100]
    assert np.array_equal(rendezvous(ids, nodes), rendezvous(ids, [0, 2, 3, 7]))


def test_places_never_change() -> None:
    """Nodes of other versions look in the same places."""
    assert rendezvous(IDS[:16], [0, 1, 2, 3]).tolist() == GOLDEN[0]
    assert rendezvous(np.array([2**62, 2**63 - 1]), list(range(1024))).tolist() == GOLDEN[1]


@pytest.mark.parametrize("nodes", [[], [1, 1], [-1], [1024]])
def test_nodes_outside_the_cluster_are_refused(nodes: list[int]) -> None:
    """And no nodes at all."""
    with pytest.raises(ValueError, match="give one or more of 0 to 1,023"):
        rendezvous(IDS[:1], nodes)
