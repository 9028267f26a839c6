"""Joins there and back, as bytes and as JSON; whatever else is refused."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.orders.base.joins import LEAST_PACE, MAX_LAP, MOST, MOST_PACE, Join, Joins, alone

NUMBERS = st.integers(0, (1 << 62) - 1)
PACES = st.one_of(st.just(0), st.integers(LEAST_PACE, MOST_PACE))


@st.composite
def joins(draw: st.DrawFn) -> Joins:
    """Any joins of one epoch."""
    positions = [0, *sorted(draw(st.sets(NUMBERS.filter(bool), max_size=MOST - 1)))]
    laps, fronts = st.integers(0, MAX_LAP), NUMBERS
    rows = tuple(Join(position, draw(laps), draw(fronts), draw(PACES)) for position in positions)
    return Joins(rows if draw(st.booleans()) else (), draw(st.integers(-1, MAX_LAP)))


@given(joins())
def test_there_and_back(some: Joins) -> None:
    """As bytes, and as JSON."""
    assert Joins.from_bytes(some.to_bytes(), some.lap) == some
    assert Joins.from_json(some.to_json(), some.lap) == some


@given(st.binary(max_size=100), st.integers(-3, MAX_LAP + 3))
def test_any_bytes(data: bytes, lap: int) -> None:
    """Refused by a ValueError, or right: such bytes come back."""
    try:
        found = Joins.from_bytes(data, lap)
    except ValueError:
        return
    assert found.to_bytes() == data


@pytest.mark.parametrize(
    ("rows", "lap"),
    [
        (None, 0),
        ([[0, 0, 0]], 0),
        ([[0, 0, 0, "0"]], 0),
        ([[0, 0, 0, True]], 0),
        ([[0, 0, 0, 0.0]], 0),
        ([[1, 0, 0, 0]], 0),
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 0),
        ([[0, 0, 0, 0], [9, 0, 0, 0], [8, 0, 0, 0]], 0),
        ([[0, 0, 0, LEAST_PACE - 1]], 0),
        ([[0, 0, 0, MOST_PACE + 1]], 0),
        ([[0, 0, -1, 0]], 0),
        ([[0, MAX_LAP + 1, 0, 0]], 0),
        ([[position, 0, 0, 0] for position in range(MOST + 1)], 0),
        ([[0, 0, 0, 0]], -2),
        ([[0, 0, 0, 0]], None),
    ],
)
def test_wrong_rows_are_refused(rows: Any, lap: Any) -> None:
    """By a ValueError."""
    with pytest.raises(ValueError, match=r"joins|join|laps"):
        Joins.from_json(rows, lap)


def test_joins_fit_a_data_set_or_not() -> None:
    """A position past the end of an epoch, and a front past the end of a lap."""
    Joins((Join(0, 0, 99, 0), Join(50, 0, 0, 1024))).check_fits(100, 50)
    for wrong in (Joins((Join(0, 0, 100, 0),)), Joins((*alone(0), Join(51, 0, 0, 0)))):
        with pytest.raises(ValueError, match="beyond"):
            wrong.check_fits(100, 50)


def test_one_process_knows_more_than_another() -> None:
    """What the other one knows is the start of it."""
    some, more = Joins(alone(3)), Joins((*alone(3), Join(7, 3, 9, 1024)))
    assert some.is_start_of(more)
    assert not more.is_start_of(some)
    assert not Joins(alone(4)).is_start_of(more)
    assert Joins().is_start_of(some)
