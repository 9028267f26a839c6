"""Packed rows: every document once and whole, rows never over-full, and rows are found again from the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.planned_batches import count_over
from brand.orders.batches.batching import PositionBatches, best_fit, laid_out, packed
from tests.orders.test_batching import listed
from tests.rounds import examples

LENGTHS = st.lists(st.integers(0, 12) | st.integers(0, 40), min_size=1, max_size=120)


def model_fit(sizes: list[int], capacity: int, rooms: list[int]) -> list[list[int]]:
    """Sizes by bin, one after another: the largest first, each to the least room that holds it."""
    free, bins = list(rooms), [list[int]() for _ in rooms]
    for size in sorted((max(size, 1) for size in sizes), reverse=True):
        fitting = [(room, number) for number, room in enumerate(free) if room >= size]
        if not fitting:
            free.append(capacity)
            bins.append([])
            fitting = [(capacity, len(bins) - 1)]
        number = min(fitting)[1]
        free[number] -= size
        bins[number].append(size)
    return bins


@given(sizes=st.lists(st.integers(0, 20), max_size=80), rooms=st.lists(st.integers(0, 20), max_size=6))
@examples(200)
def test_best_fit_is_that_of_the_model(sizes: list[int], rooms: list[int]) -> None:
    """As many bins, with as much room left in each: of bins that have the same room, either may be taken."""
    bin_of, bins = best_fit(np.array(sizes, np.int64), 20, np.array(rooms, np.int64))
    found = [list[int]() for _ in range(bins)]
    for size, number in zip(sizes, bin_of.tolist(), strict=True):
        found[number].append(max(size, 1))
    wanted = model_fit(sizes, 20, rooms)
    capacity = rooms + [20] * bins
    left, model_left = ([capacity[n] - sum(part) for n, part in enumerate(parts)] for parts in (found, wanted))
    assert min(left, default=0) >= 0
    assert sorted(left) == sorted(model_left)


def model_rows(lengths: list[int], row: int) -> list[list[int]]:
    """Document numbers token by token, row by row."""
    rows = [list[int]()]
    for number, length in enumerate(lengths):
        if rows[-1] and len(rows[-1]) + length > row:
            rows.append([])
        for _ in range(length):
            if len(rows[-1]) == row:
                rows.append([])
            rows[-1].append(number)
    return rows


@given(lengths=LENGTHS, row=st.integers(1, 16))
@example(lengths=[16, 3], row=4)
@example(lengths=[0, 0], row=4)
@example(lengths=[0, 2], row=1)
@examples(200)
def test_rows_are_those_of_the_model(lengths: list[int], row: int) -> None:
    """Piece by piece, what lies token by token in the model's rows."""
    pieces = laid_out(np.array(lengths, np.int64), row)
    wanted = model_rows(lengths, row)
    assert pieces.rows == (len(wanted) if any(lengths) else 0)
    found = [[-1] * row for _ in wanted]
    for document, at, offset, length in zip(*(values.tolist() for values in pieces), strict=True):
        found[at][offset : offset + length] = [document] * length
    assert [[number for number in line if number >= 0] for line in found] == wanted
    for document in set(pieces.document.tolist()):
        mine = pieces.document == document
        assert pieces.length[mine].sum() == lengths[document]
        assert np.diff(pieces.row[mine]).tolist() == [1] * (int(mine.sum()) - 1)
        assert mine.sum() == 1 or pieces.offset[mine].tolist() == [0] * int(mine.sum())


@given(
    lengths=LENGTHS,
    row=st.integers(1, 16),
    spare=st.integers(0, 3),
    window=st.integers(1, 130),
    epoch=st.integers(0, 3),
)
@examples(200)
def test_packed_batches_have_every_position_once_and_fit(
    lengths: list[int], row: int, spare: int, window: int, epoch: int
) -> None:
    """Also where documents are longer than rows, and where most are empty."""
    rows = max(1, -(-max(lengths) // row)) + spare
    batches = listed(packed(np.array(lengths), row, rows, window, 5, epoch))
    assert all(batches), "no batch is empty"
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert laid_out(np.array([lengths[position] for position in batch]), row).rows <= rows


@given(st.integers(1, 40), st.integers(0, 10**6))
@examples(200)
def test_what_is_carried_on_is_at_most_one_batch(window: int, seed: int) -> None:
    """A document is drawn in its window or in the next one, where at most as many others were carried on, too."""
    lengths = np.random.default_rng(seed).integers(1, 9, 300)
    batches = packed(lengths, 8, 2, window, seed, 0)
    windows = [sorted({position // window for position in batch}) for batch in listed(batches)]
    latest = -1
    for met in windows:
        assert met[-1] - met[0] <= 1
        assert met[-1] >= latest, "windows follow one another"
        latest = max(latest, met[0])


def test_documents_of_mixed_lengths_leave_little_padding() -> None:
    """Of a window of some batches: under 2 %; of one batch a window, more."""
    lengths = np.random.default_rng(0).lognormal(4.5, 1.1, 20_000).astype(np.int64) % 4000 + 1
    for window, most in ((8192, 0.005), (1024, 0.02)):
        batches = packed(lengths, 2048, 8, window, 0, 0)
        assert 1 - lengths.sum() / (len(batches) * 2048 * 8) < most


def test_a_packed_order_does_not_change() -> None:
    """States resume it, in every version."""
    lengths = np.arange(24) * 7 % 11
    assert listed(packed(lengths, 8, 3, 12, 3, 2)) == [
        [6, 1, 2, 7],
        [3, 4, 9],
        [0, 19, 16, 22, 5, 8, 14, 15],
        [13, 18, 20, 11, 23],
        [10, 21, 17, 12],
    ]


@pytest.mark.slow
def test_a_million_documents_leave_hardly_any_padding() -> None:
    """Less than a thousandth, in rows of 2,048; the work grows with different lengths, not with documents."""
    lengths = np.random.default_rng(0).lognormal(4.5, 1.1, 1_000_000).astype(np.int64) % 8000 + 1
    batches = packed(lengths, 2048, 8, 1 << 16, 0, 0)
    assert 1 - lengths.sum() / (len(batches) * 2048 * 8) < 0.001


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        ({"batch_size": 3}, 0),
        ({"batch_size": 2}, 1),
        ({"batch_length": 15}, 0),
        ({"batch_length": 14}, 1),
        ({"tokens_per_row": 5, "rows_per_batch": 2}, 1),
        ({"tokens_per_row": 6, "rows_per_batch": 2}, 0),
    ],
)
def test_the_benchmark_counts_batches_over_their_limit(limits: dict[str, int], over: int) -> None:
    """By the names of the limits that the samplers have; the batches have lengths of 3, 4, 5 and of 1, 1."""
    batches = PositionBatches(np.arange(5), np.array([3, 5]))
    assert count_over(batches, np.array([3, 4, 5, 1, 1]), **limits) == over
