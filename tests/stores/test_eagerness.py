"""Ranges are asked for eagerly while few need patience."""

from __future__ import annotations

from brand.stores.cloud import HedgePolicy


def test_few_late_ranges_change_nothing() -> None:
    """Eight of any 64."""
    eagerness = HedgePolicy()
    for number in range(1000):
        assert eagerness.next()
        eagerness.note(late=number % 8 == 0)


def test_many_late_ranges_make_patient_for_a_while() -> None:
    """A thousand ranges; then it is tried again."""
    eagerness = HedgePolicy()
    for _ in range(2):
        for _ in range(9):
            assert eagerness.next()
            eagerness.note(late=True)
        assert [eagerness.next() for _ in range(1000)] == [False] * 1000
