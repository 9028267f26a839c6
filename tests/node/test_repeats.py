"""Of many like events the log tells the first, and how many came after it: none is lost, none is told twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.node.serve.repeats import Repeats


def test_four_hundred_failures_in_four_seconds_are_two_lines() -> None:
    """The first at once, and after the interval one line for all others; then silence."""
    repeats = Repeats[str](30.0)
    assert [repeats.tell("EIO", n / 100) for n in range(400)] == [True, *[False] * 399]
    assert list(repeats.overdue(29.9)) == []
    assert list(repeats.overdue(30.0)) == [("EIO", 399, 30.0)]
    assert list(repeats.overdue(90.0)) == []
    assert repeats.counted == 0


def test_an_event_after_a_long_time_has_a_line_of_its_own() -> None:
    """It is news again once nothing has been said of its kind for the interval."""
    repeats = Repeats[str](30.0)
    assert repeats.tell("EIO", 0.0)
    assert repeats.tell("EIO", 30.0)
    assert not repeats.tell("EIO", 59.9)


def test_what_goes_on_is_summed_up_once_an_interval() -> None:
    """An hour of failures, one a second, is one line in thirty seconds, and each failure is in one of them."""
    repeats, lines = Repeats[str](30.0), []
    for second in range(3600):
        if repeats.tell("EIO", float(second)):
            lines.append(1)
        lines += [count for _, count, _ in repeats.overdue(float(second))]
    lines += [count for _, count, _ in repeats.rest(3600.0)]
    assert sum(lines) == 3600
    assert len(lines) <= 1 + 3600 / 30


def test_kinds_are_told_apart() -> None:
    """One kind of trouble does not hide another."""
    repeats = Repeats[str](30.0)
    assert repeats.tell("EIO", 0.0)
    assert repeats.tell("ENOENT", 0.0)
    assert not repeats.tell("EIO", 1.0)
    assert list(repeats.rest(2.0)) == [("EIO", 1, 2.0)]
    assert list(repeats.rest(3.0)) == []


def test_kinds_without_number_take_no_memory_without_end() -> None:
    """The oldest kind of which nothing is left to tell is forgotten first."""
    repeats = Repeats[int](30.0, most=10)
    repeats.tell(0, 0.0)
    repeats.tell(0, 0.0)
    for kind in range(1, 1000):
        assert repeats.tell(kind, 0.0)
    assert len(repeats._since) == 10
    assert list(repeats.rest(1.0)) == [(0, 1, 1.0)]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 20)), max_size=60))
def test_every_event_is_told_or_counted_once(events: list[tuple[int, float]]) -> None:
    """Whatever comes when, the lines add up to the events, and lines of a kind are never nearer than the interval."""
    repeats, now_s, told, lines = Repeats[int](10.0), 0.0, 0, dict[int, list[float]]()
    for kind, later_s in events:
        now_s += later_s
        for summed, count, _ in repeats.overdue(now_s):
            told += count
            lines.setdefault(summed, []).append(now_s)
        if repeats.tell(kind, now_s):
            told += 1
            lines.setdefault(kind, []).append(now_s)
    assert told + repeats.counted == len(events)
    told += sum(count for _, count, _ in repeats.rest(now_s))
    assert told == len(events)
    for times in lines.values():
        assert all(later - earlier >= 10.0 for earlier, later in pairwise(times))
