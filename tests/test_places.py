"""A test with several cases has them in turn in a folder and in a store; one with a single case has it in both."""

from __future__ import annotations

from tests.places import deal


def test_cases_take_turns() -> None:
    """Whatever stands between the two places of a case, and however many cases there are."""
    cases = [("one", number, place) for place in ("folder", "store") for number in "abc"]
    assert [case for case, runs in zip(cases, deal(cases), strict=True) if runs] == [
        ("one", "a", "folder"),
        ("one", "c", "folder"),
        ("one", "b", "store"),
    ]


def test_a_single_case_runs_in_both_places() -> None:
    """Beside others of the same name in other modules."""
    cases = [("m.py::one", "", "folder"), ("m.py::one", "", "store"), ("n.py::one", "", "folder")]
    assert deal(cases) == [True, True, True]


def test_a_case_with_one_place_runs_there() -> None:
    """That place was asked for."""
    assert deal([("one", "a", "folder"), ("one", "b", "folder"), ("one", "c", "store")]) == [True, True, True]
    assert deal([]) == []
