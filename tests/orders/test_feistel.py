"""A network is a permutation of any count, at any positions, as a slow model has it; statistics take it for a sort."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import feistel
from brand.orders.base.feistel import ROUNDS, FeistelNetwork
from brand.orders.base.random import RandomStream, bits, permutation
from tests.orders.models import epochs, seeds
from tests.rounds import examples


def network(count: int, seed: int = 1, epoch: int = 0) -> FeistelNetwork:
    """A network of the stream that `uniform` uses."""
    return FeistelNetwork(count, seed, RandomStream.SHIFTS, epoch)


def model(count: int, seed: int, epoch: int, number: int) -> int:
    """The number at a position, one by one with whole numbers of any size."""
    rows = 1
    while rows * rows < count:
        rows += 1
    columns = -(-count // rows)
    words = bits(ROUNDS * (rows + columns), seed, RandomStream.SHIFTS, epoch).tolist()
    while True:
        row, column, at = number // columns, number % columns, 0
        for turn in range(ROUNDS):
            if turn % 2 == 0:
                row = (row + ((words[at + column] >> 16) * rows >> 48)) % rows
                at += columns
            else:
                column = (column + ((words[at + row] >> 16) * columns >> 48)) % columns
                at += rows
        number = row * columns + column
        if number < count:
            return number


@examples(60)
@given(st.integers(1, 300), seeds, epochs)
def test_it_is_the_permutation_of_the_model(count: int, seed: int, epoch: int) -> None:
    """Of counts that fill a grid and that leave cells over; its inverse leads back."""
    made, every = network(count, seed, epoch), np.arange(count)
    numbers = made.numbers(every)
    assert numbers.tolist() == [model(count, seed, epoch, position) for position in range(count)]
    assert sorted(numbers.tolist()) == every.tolist()
    assert made.positions(numbers).tolist() == every.tolist()


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**32 - 1, 2**32])
def test_the_largest_counts(count: int) -> None:
    """Numbers and distances fit in their types; also the last positions, and those that walk."""
    made, rng = network(count, 2**128 - 1, 2**16 - 1), np.random.default_rng(1)
    at = np.unique(np.concatenate([[0, 1, count - 2, count - 1], rng.integers(0, count, 200_000)]))
    numbers = made.numbers(at)
    assert numbers[:2].tolist() == [model(count, 2**128 - 1, 2**16 - 1, position) for position in (0, 1)]
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < count
    assert len(np.unique(numbers)) == len(at)
    assert (made.positions(numbers) == at).all()


@examples(30)
@given(st.integers(1, 2**32), seeds, st.lists(st.integers(0, 2**32), max_size=30))
def test_any_positions_of_any_count(count: int, seed: int, some: list[int]) -> None:
    """Positions of any order and type, some of them twice."""
    positions = np.array([each % count for each in some], np.uint64)
    made = network(count, seed)
    numbers = made.numbers(positions)
    assert numbers.tolist() == [model(count, seed, 0, position) for position in positions.tolist()]
    assert made.positions(numbers).tolist() == positions.tolist()


def test_a_large_network_never_changes() -> None:
    """WARNING: a change here changes the order of runs that users resume (see `test_golden`)."""
    large = network(3_000_000_000, 2024, 5)
    found = [large.numbers(np.arange(first, first + 1000)) for first in (0, 1_234_567_890, 2_999_999_000)]
    made = hashlib.sha256(np.concatenate(found).astype("<i8").tobytes())
    assert made.hexdigest() == "722b86992cee7f87ad811ad4004e92331e16e8a42622dfbfaf49552ece95602d"


def kept_distances(order: np.ndarray, columns: int, rows: int) -> float:
    """The pairs of numbers of one column that are as many rows apart as their positions, against chance.

    In standard deviations. It is the closest look at a network that is known.
    """
    numbers = np.arange(len(order))
    column, moved = numbers % columns, (order // columns - numbers // columns) % rows
    count = np.bincount(column * rows + moved).astype(np.float64)
    pairs = np.bincount(column).astype(np.float64)
    expected = (pairs * (pairs - 1) / 2).sum() / rows
    return float(((count * (count - 1) / 2).sum() - expected) / math.sqrt(expected))


@pytest.mark.parametrize("rounds", [4, 6, ROUNDS])
def test_the_closest_look_sees_fewer_rounds(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 300 epochs of 10,000 numbers: 70 standard deviations an epoch after 4 rounds, 0.7 after 6, then none."""
    monkeypatch.setattr(feistel, "ROUNDS", rounds)
    every = np.arange(10_000)
    found = [kept_distances(network(10_000, seed).numbers(every), 100, 100) for seed in range(300)]
    mean = float(np.mean(found))
    if rounds == ROUNDS:
        sorted_ones = [kept_distances(permutation(10_000, s, RandomStream.ACCESS), 100, 100) for s in range(300)]
        assert abs(mean) < 4 / math.sqrt(300)
        assert abs(float(np.mean(sorted_ones))) < 4 / math.sqrt(300)
    else:
        assert mean == pytest.approx({4: 70, 6: 0.7}[rounds], abs=4 * float(np.std(found)) / math.sqrt(300))
