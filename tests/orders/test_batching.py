"""Batches by length: every position once, never over a limit, within windows, and as a slow, obvious model has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brand.orders.batches.batching import BatchLimits, PositionBatches, by_length, choose_window, samples_of
from tests.rounds import examples

SEED = 7


@dataclass(frozen=True)
class Case:
    """Lengths by position, a window, and limits."""

    lengths: list[float]
    window: int
    size: int | None
    most: float | None
    epoch: int = 0

    def batches(self) -> PositionBatches:
        """What is under test."""
        return by_length(np.array(self.lengths), self.window, SEED, self.epoch, size=self.size, most=self.most)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Whole and other lengths, with many ties; batches of a size, up to a length, or both."""
    kinds = st.one_of(st.integers(0, 5), st.integers(0, 1000), st.floats(0, 100, width=32))
    lengths = [float(length) for length in draw(st.lists(kinds, min_size=1, max_size=120))]
    size = draw(st.none() | st.integers(1, 9))
    least = max(*lengths, 1e-30, 0.0)
    most = (
        draw(st.none() if size else st.nothing())
        if size and draw(st.booleans())
        else draw(st.sampled_from([least, least * 1.5, least * 7]))
    )
    window = draw(st.integers(1, 12)) * (size or draw(st.integers(1, 9)))
    return Case(lengths, window, size, most, draw(st.integers(0, 3)))


def listed(batches: PositionBatches) -> list[list[int]]:
    """The batches as lists."""
    return [part.tolist() for part in np.split(batches.positions, batches.ends)[:-1]]


def model(case: Case) -> list[list[list[float]]]:
    """The lengths of the batches of each window, without their order: the longest first, one sample after another."""
    found = []
    for first in range(0, len(case.lengths), case.window):
        window, batches = sorted(case.lengths[first : first + case.window], reverse=True), list[list[float]]()
        for length in window:
            last = batches[-1] if batches else []
            full = not last or len(last) == case.size
            if full or (case.most is not None and last[0] * (len(last) + 1) > case.most):
                batches.append([])
            batches[-1].append(length)
        found.append(batches)
    return found


@given(case=cases())
@example(case=Case([0.1] * 3, 3, None, 0.3))
@example(case=Case([0.0] * 5, 4, None, 1.0))
@examples(200)
def test_batches_are_those_of_the_model(case: Case) -> None:
    """Window by window, the same batches, in an order of their own; and no batch is over a limit."""
    batches = listed(case.batches())
    assert sorted(position for batch in batches for position in batch) == list(range(len(case.lengths)))
    for number, wanted in enumerate(model(case)):
        window = [batch for batch in batches if batch[0] // case.window == number]
        assert sorted([case.lengths[position] for position in batch] for batch in window) == sorted(wanted)
        assert all(position // case.window == number for batch in window for position in batch)
    for batch in batches:
        lengths = [case.lengths[position] for position in batch]
        assert case.size is None or len(batch) <= case.size
        assert case.most is None or max(lengths) * len(batch) <= case.most


@given(case=cases())
@examples(200)
def test_sums_and_padding_are_those_of_single_batches(case: Case) -> None:
    """Also what `taken` and `first_from` say."""
    batches, lengths = case.batches(), np.array(case.lengths)
    every = listed(batches)
    sums, padded = batches.sums(lengths), batches.padded(lengths)
    for number, batch in enumerate(every):
        assert sums[number] == pytest.approx(sum(lengths[batch]))
        assert padded[number] == max(lengths[batch]) * len(batch)
        assert batches.first_from(number) == min(position for later in every[number:] for position in later)
    assert batches.first_from(len(every)) == len(lengths)
    numbers = np.arange(len(every))[::-2]
    positions, sizes = batches.taken(numbers)
    assert positions.tolist() == [position for number in numbers.tolist() for position in every[number]]
    assert sizes.tolist() == [len(every[number]) for number in numbers.tolist()]


def test_only_the_last_batch_is_short() -> None:
    """Where the window is a whole number of batches."""
    lengths = np.random.default_rng(0).integers(1, 100, 1003).astype(float)
    sizes = [len(batch) for batch in listed(by_length(lengths, 64, SEED, 0, size=8))]
    assert sorted(sizes) == [3] + [8] * 125
    assert 3 in sizes[-5:], "the short batch is one of the last window"


def test_an_epoch_has_its_own_batches_and_a_window_its_own_order() -> None:
    """Equally long samples meet others in another epoch; batches do not come sorted by length."""
    lengths = np.repeat(np.arange(1.0, 33), 8)
    one, two = (listed(by_length(lengths, 256, SEED, epoch, size=4)) for epoch in (0, 1))
    assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in two}
    order = [lengths[batch[0]] for batch in one]
    assert order not in (sorted(order), sorted(order, reverse=True))
    assert listed(by_length(lengths, 256, SEED, 0, size=4)) == one
    assert listed(by_length(lengths, 256, SEED + 1, 0, size=4)) != one


def test_a_batch_order_does_not_change() -> None:
    """States resume it, in every version."""
    lengths = (np.arange(24) * 7 % 11).astype(float)
    assert listed(by_length(lengths, 12, 3, 2, size=4)) == [
        [4, 7, 10, 2],
        [5, 8, 11, 0],
        [3, 6, 9, 1],
        [14, 17, 20, 12],
        [13, 16, 19, 22],
        [23, 15, 18, 21],
    ]


def wrong() -> Sequence[dict[str, object]]:
    """Facts that are no limits."""
    return [
        {},
        {"window": 4},
        {"window": 0, "lengths": "", "size": 1},
        {"window": True, "lengths": "", "size": 1},
        {"window": 4, "lengths": 3, "size": 1},
        {"window": 4, "lengths": ""},
        {"window": 4, "lengths": "", "size": 0},
        {"window": 4, "lengths": "", "size": "4"},
        {"window": 4, "lengths": "", "most": float("nan")},
        {"window": 4, "lengths": "", "most": "1"},
        {"window": 4, "lengths": "", "row": 4},
        {"window": 4, "lengths": "", "row": 4, "rows": 2, "size": 3},
        {"window": 4, "lengths": "", "size": 3, "more": 1},
    ]


@pytest.mark.parametrize("values", wrong())
def test_limits_distrust_a_state(values: dict[str, object]) -> None:
    """Each of these facts is refused."""
    with pytest.raises(ValueError, match=r"\w"):
        BatchLimits.from_json(values)


@pytest.mark.parametrize(
    "limits",
    [
        BatchLimits(8, "d", size=4),
        BatchLimits(8, "d", most=2.5),
        BatchLimits(8, "d", size=4, most=9),
        BatchLimits(8, "d", row=16, rows=2),
    ],
)
def test_limits_come_back(limits: BatchLimits) -> None:
    """From their JSON."""
    assert BatchLimits.from_json(limits.to_json()) == limits


@pytest.mark.parametrize(
    ("room", "samples", "size", "pack", "window"),
    [
        (10**6, 16, 16, False, 16 * 1024),
        (1000, 16, 16, False, 992),
        (3, 16, 16, False, 16),
        (10**6, 100, None, True, 6400),
        (3, 100, None, True, 400),
        (10**6, 1, None, False, 1024),
    ],
)
def test_a_window_fits_memory_and_holds_whole_batches(
    room: int, samples: float, size: int | None, pack: bool, window: int
) -> None:
    """At least one batch, at most as many as help."""
    assert choose_window(room, 10**6, samples, size=size, pack=pack) == window
    assert choose_window(10**6, 1003, 16, size=16, pack=False) == 1008, "one window for all, also for the last batch"


def test_the_samples_of_a_batch_follow_from_the_mean_length() -> None:
    """By its size, its length, or its rows; at least one."""
    assert samples_of(10.0, size=4, most=None, row=None, rows=None) == 4
    assert samples_of(10.0, size=None, most=250, row=None, rows=None) == 25
    assert samples_of(10.0, size=4, most=250, row=None, rows=None) == 4
    assert samples_of(10.0, size=None, most=None, row=100, rows=3) == 30
    assert samples_of(10.0, size=None, most=3, row=None, rows=None) == 1
