"""Each case of a test has one place; the cases of a test take turns, and so do tests with a single case."""

from __future__ import annotations

from tests.places import deal


def test_cases_take_turns() -> None:
    """Whatever stands between the two places of a case, and however many cases there are."""
    cases = [("one", number, place) for place in ("folder", "store") for number in "abc"]
    found = [case for case, runs in zip(cases, deal(cases), strict=True) if runs]
    assert sorted(number for _, number, _ in found) == ["a", "b", "c"]
    where = {number: place for _, number, place in found}
    assert where["a"] == where["c"] != where["b"]


def test_the_name_of_a_test_decides_where_its_single_case_runs() -> None:
    """Of many tests, a third runs in each of three places, and always in the same one."""
    cases = [(f"m.py::{number}", "", place) for number in range(300) for place in ("s3", "gs", "http")]
    found = [case for case, runs in zip(cases, deal(cases), strict=True) if runs]
    assert [test for test, _, _ in found] == [f"m.py::{number}" for number in range(300)]
    assert all(80 < sum(place == each for _, _, place in found) < 120 for each in ("s3", "gs", "http"))
    assert deal(cases[3:]) == deal(cases)[3:]


def test_a_case_with_one_place_runs_there() -> None:
    """That place was asked for."""
    assert deal([("one", "a", "folder"), ("one", "b", "folder"), ("one", "c", "store")]) == [True, True, True]
    assert deal([]) == []
