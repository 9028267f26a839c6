"""The split by locality: a rank takes what its own node owns first, and all ranks take equally many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import owners as by_node
from brand.orders.base.owners import MAX_NODES, split_near
from brand.orders.base.random import RandomStream, permutation
from tests.rounds import examples


@dataclass(frozen=True)
class Case:
    """Owners, nodes of ranks, and batch."""

    owner_at: list[int]
    node_of_rank: list[int]
    batch: int

    @property
    def whole(self) -> int:
        """Positions in whole global batches."""
        size = self.batch * len(self.node_of_rank)
        return len(self.owner_at) // size * size

    def split(self) -> list[int]:
        """The rank of each position."""
        owner_at, node_of_rank = np.array(self.owner_at, np.int32), np.array(self.node_of_rank, np.int32)
        return [int(rank) for rank in split_near(owner_at, node_of_rank, self.batch)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to five nodes of which some may have no ranks, some own nothing, and one may own nearly all."""
    nodes = draw(st.integers(1, 5))
    owners = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=4))
    return Case(
        draw(st.lists(st.sampled_from(owners), max_size=120)),
        draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=7)),
        draw(st.integers(1, 9)),
    )


def model_split(owner_at: Sequence[int], node_of_rank: Sequence[int], batch: int) -> list[int]:
    """Global batch by global batch, position by position."""
    ranks, size, found = len(node_of_rank), batch * len(node_of_rank), []
    for first in range(0, len(owner_at), size):
        owners = owner_at[first : first + size]
        if len(owners) < size:
            found += [position % ranks for position in range(len(owners))]
            continue
        room = {node: batch * node_of_rank.count(node) for node in sorted(set(node_of_rank))}
        drawer = [-1] * size
        for position, owner in enumerate(owners):
            if room.get(owner, 0):
                drawer[position] = owner
                room[owner] -= 1
        for position in range(size):
            if drawer[position] < 0:
                drawer[position] = next(node for node in room if room[node])
                room[drawer[position]] -= 1
        turn = dict.fromkeys(room, 0)
        for node in drawer:
            of_node = [rank for rank in range(ranks) if node_of_rank[rank] == node]
            found.append(of_node[turn[node] % len(of_node)])
            turn[node] += 1
    return found


@pytest.mark.slow
@examples(300)
@given(cases())
def test_a_split_is_that_of_the_model(case: Case) -> None:
    """Position by position the same ranks."""
    assert case.split() == model_split(case.owner_at, case.node_of_rank, case.batch)


@pytest.mark.slow
@given(cases())
def test_every_rank_takes_exactly_a_batch_of_each_whole_global_batch(case: Case) -> None:
    """Whatever the owners, so that no rank waits for another one."""
    ranks = len(case.node_of_rank)
    size = case.batch * ranks
    taken = case.split()
    for first in range(0, case.whole, size):
        assert Counter(taken[first : first + size]) == dict.fromkeys(range(ranks), case.batch)


@pytest.mark.slow
@given(cases())
def test_the_last_incomplete_global_batch_is_dealt_in_turn(case: Case) -> None:
    """Position `j` of it to rank `j % ranks`, so that ranks differ by one sample at the most."""
    tail = case.split()[case.whole :]
    assert tail == [j % len(case.node_of_rank) for j in range(len(tail))]


@pytest.mark.slow
@given(cases())
def test_no_more_crosses_than_must(case: Case) -> None:
    """Of each whole global batch a node takes all that it owns and has room for."""
    size = case.batch * len(case.node_of_rank)
    taken = case.split()
    for first in range(0, case.whole, size):
        owners = Counter(case.owner_at[first : first + size])
        least = sum(max(0, own - case.batch * case.node_of_rank.count(node)) for node, own in owners.items())
        crossing = sum(case.node_of_rank[taken[p]] != case.owner_at[p] for p in range(first, first + size))
        assert crossing == least


def test_a_worked_example() -> None:
    """Nodes 0 (ranks 0 and 2), 1 (rank 1) and 2 (no rank), two samples a rank: node 1 owns three, node 2 owns two."""
    #                       0: in turn 0, 2, and 0 for what is over; 1: the first two
    assert Case([1, 0, 2, 1, 1, 2, 0, 0], [0, 1, 0], 2).split()[:6] == [1, 0, 2, 1, 0, 2]
    assert Case([1, 0, 2, 1, 1, 2, 0, 0], [0, 1, 0], 2).split()[6:] == [0, 1]


@pytest.mark.parametrize("block", [1, 7, 12, 13, 100, 1 << 30])
def test_splitting_in_other_blocks_gives_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many global batches are split at a time is not seen."""
    owner_at = permutation(1000, 1, RandomStream.ACCESS) % 4
    expected = split_near(owner_at, np.array([0, 0, 1, 2]), 3)
    monkeypatch.setattr(by_node, "BLOCK", block)
    assert split_near(owner_at, np.array([0, 0, 1, 2]), 3).tolist() == expected.tolist()


@pytest.mark.parametrize("each", [1, 2, 8])
def test_less_than_a_tenth_crosses_of_what_crosses_in_turn(each: int) -> None:
    """Three nodes that own equal shares, global batches of 768 samples in random order."""
    owner_at = permutation(256_000, 5, RandomStream.ACCESS) % 3
    node_of_rank = np.repeat(np.arange(3), each)
    near = split_near(owner_at, node_of_rank, 256 // each)
    in_turn = np.arange(256_000) % (3 * each)
    crossing = [np.count_nonzero(node_of_rank[rank_at] != owner_at) for rank_at in (near, in_turn)]
    assert crossing[1] == pytest.approx(256_000 * 2 / 3, rel=0.02)
    assert crossing[0] < 0.1 * crossing[1]


@pytest.mark.parametrize(("ranks", "dtype"), [(1, np.int16), (1 << 15, np.int16), ((1 << 15) + 1, np.int32)])
def test_the_type_is_the_smaller_one_that_holds_every_rank(ranks: int, dtype: type) -> None:
    """Also in a global batch to which the last rank belongs."""
    found = split_near(np.zeros(2 * ranks + 1, np.int32), np.arange(ranks) % 7, 1)
    assert found.dtype == dtype
    assert found[-1] == 0
    assert found.max() == ranks - 1
    assert found.min() == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64, np.int64])
def test_nodes_may_be_of_any_int_type(dtype: type[np.integer[np.typing.NBitBase]]) -> None:
    """The same split for all types."""
    owner_at, node_of_rank = np.arange(30) * 7 % 3, np.array([2, 0, 1])
    expected = split_near(owner_at, node_of_rank, 4).tolist()
    assert split_near(owner_at.astype(dtype), node_of_rank.astype(dtype), 4).tolist() == expected


def test_a_batch_that_is_never_full() -> None:
    """A batch larger than all positions together takes no memory: all is dealt in turn."""
    assert split_near(np.array([1, 1, 1, 0]), np.array([0, 1, 1]), 10**15).tolist() == [0, 1, 2, 0]


def test_nothing_to_split() -> None:
    """No positions, no ranks for them."""
    assert split_near(np.arange(0), np.array([0, 1]), 4).shape == (0,)


@pytest.mark.parametrize(
    ("owner_at", "node_of_rank", "batch", "told"),
    [
        ([0], [], 1, "^0 ranks"),
        ([0], [0], 0, "batches of 0"),
        ([0], [0], -3, "batches of -3"),
        ([0, -1], [0], 1, "^owner_at has nodes from -1 to 0"),
        ([MAX_NODES], [0], 1, f"^owner_at has nodes from {MAX_NODES} to"),
        ([0], [-1], 1, "^node_of_rank has nodes from -1"),
        ([0], [0, MAX_NODES], 1, f"^node_of_rank has nodes from 0 to {MAX_NODES}"),
    ],
)
def test_nonsense_is_refused(owner_at: list[int], node_of_rank: list[int], batch: int, told: str) -> None:
    """The message has what is wrong."""
    with pytest.raises(ValueError, match=told):
        split_near(np.array(owner_at, np.int64), np.array(node_of_rank, np.int64), batch)
