"""Who owns which chunk and who draws at which position: contiguous runs, equal shares, equal turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.owners import MAX_NODES, drawer_of, owner_of_chunk, owner_of_group
from tests.orders.models import Nodes

some_nodes = st.one_of(st.integers(1, 9), st.integers(1, MAX_NODES))


@given(st.integers(1, 2000), some_nodes)
def test_groups_are_owned_in_runs_of_equal_length(groups: int, nodes: int) -> None:
    """Owners ascend, and none has a group more than another one but for rounding."""
    owner = owner_of_group(groups, nodes)
    assert owner.dtype == np.int32
    assert owner.tolist() == sorted(owner.tolist())
    shares = np.bincount(owner, minlength=nodes)
    assert len(shares) == nodes
    assert shares.max() - shares.min() <= 1


@given(st.integers(1, 2000), st.integers(1, 50), some_nodes)
def test_a_chunk_belongs_to_the_owner_of_its_group(chunks: int, group_chunks: int, nodes: int) -> None:
    """Chunk by chunk, by the formula; the last group may be short."""
    groups = -(-chunks // group_chunks)
    expected = [chunk // group_chunks * nodes // groups for chunk in range(chunks)]
    owner = owner_of_chunk(chunks, group_chunks, nodes)
    assert owner.dtype == np.int32
    assert owner.tolist() == expected


def test_seven_groups_of_three_nodes() -> None:
    """A share of 7/3 groups: 3, 2 and 2."""
    assert owner_of_group(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert owner_of_chunk(13, 2, 3).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_nodes_without_groups() -> None:
    """More nodes than groups: some own nothing."""
    assert owner_of_group(2, 5).tolist() == [0, 2]


def test_products_beyond_32_bits() -> None:
    """Many groups of many nodes: the last is that of the last node."""
    owner = owner_of_group(5_000_000, MAX_NODES)
    assert owner[-1] == MAX_NODES - 1
    assert (np.diff(owner) >= 0).all()


@pytest.mark.parametrize("nodes", [0, -1, MAX_NODES + 1, 1 << 40])
def test_a_wrong_number_of_nodes_is_refused(nodes: int) -> None:
    """The message has the number."""
    with pytest.raises(ValueError, match=f"^{nodes} nodes"):
        owner_of_group(4, nodes)
    with pytest.raises(ValueError, match=f"^{nodes} nodes"):
        owner_of_chunk(4, 2, nodes)


def test_nothing_to_own_is_refused() -> None:
    """No groups, no chunks, groups of no chunks."""
    with pytest.raises(ValueError, match=r"^0 groups"):
        owner_of_group(0, 1)
    with pytest.raises(ValueError, match=r"^0 chunks"):
        owner_of_chunk(0, 1, 1)
    with pytest.raises(ValueError, match="groups of -1"):
        owner_of_chunk(4, -1, 1)


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 100))
def test_ranks_draw_in_turn_and_lie_on_nodes_in_blocks(nodes: int, each: int, count: int) -> None:
    """The node of each position is that of the rank whose turn it is."""
    ranks = nodes * each
    expected = [Nodes(nodes, ranks, 0, 0).drawer(position) for position in range(count)]
    assert drawer_of(np.arange(count), nodes, ranks).tolist() == expected


def test_drawers_of_two_nodes_with_two_ranks_each() -> None:
    """Ranks 0 and 1 are on node 0, ranks 2 and 3 on node 1."""
    assert drawer_of(np.arange(10), 2, 4).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
