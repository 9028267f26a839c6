"""The states of samples against a table written by hand, one sample at a time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.node.decide.state.states import COMING, DUE, EARLY, GONE, HELD, UNWANTED, SampleStates
from tests.rounds import examples

SAMPLES = 12
AFTER: dict[str, dict[int, int]] = {
    "expect": {GONE: DUE, UNWANTED: COMING, HELD: HELD, DUE: DUE, COMING: COMING, EARLY: EARLY},
    "start": {GONE: UNWANTED, DUE: COMING, EARLY: COMING},
    "start_early": {DUE: EARLY},
    "mark_present": {DUE: HELD},
    "mark_arrived": {UNWANTED: GONE, DUE: HELD, COMING: HELD, EARLY: DUE},
    "mark_failed": {UNWANTED: GONE, DUE: GONE, COMING: GONE, EARLY: DUE},
    "release": {GONE: GONE, UNWANTED: UNWANTED, HELD: GONE, DUE: GONE, COMING: UNWANTED, EARLY: UNWANTED},
    "forget": {GONE: GONE, UNWANTED: GONE, HELD: HELD, DUE: GONE, COMING: GONE, EARLY: EARLY},
    "requeue": {HELD: DUE},
}


def all_states(states: SampleStates) -> list[int]:
    """The state of every sample."""
    found = np.full(SAMPLES, -1)
    for state in (GONE, UNWANTED, HELD, DUE, COMING, EARLY):
        found[states.all(state)] = state
    return [int(state) for state in found]


@given(st.lists(st.tuples(st.sampled_from(sorted(AFTER)), st.sets(st.integers(0, SAMPLES - 1), min_size=1))))
@examples(60)
def test_every_transition_is_the_table_s(steps: list[tuple[str, set[int]]]) -> None:
    """In any order; places that cannot make a transition are left out of it."""
    states, model = SampleStates(SAMPLES), [GONE] * SAMPLES
    for name, chosen in steps:
        places = np.array([place for place in sorted(chosen) if model[place] in AFTER[name]], np.int64)
        held_before = [model[place] == HELD for place in places.tolist()]
        result = getattr(states, name)(places)
        for place in places.tolist():
            model[place] = AFTER[name][model[place]]
        if name == "release":
            assert result.tolist() == held_before
        if name == "mark_arrived":
            assert result.tolist() == [model[place] == HELD for place in places.tolist()]
        assert all_states(states) == model
        every = np.arange(SAMPLES)
        assert states.are(HELD, every).tolist() == [state == HELD for state in model]
        assert states.due(every).tolist() == [state == DUE for state in model]
        assert states.waited_for(every).tolist() == [state in (DUE, COMING, EARLY) for state in model]
        assert states.on_the_way(every).tolist() == [state in (COMING, UNWANTED, EARLY) for state in model]
        assert states.are(EARLY, every).tolist() == [state == EARLY for state in model]


@pytest.mark.parametrize("name", sorted(AFTER))
@pytest.mark.parametrize("before", [GONE, UNWANTED, HELD, DUE, COMING, EARLY])
def test_what_cannot_be_is_an_error(name: str, before: int) -> None:
    """A transition that the table does not have, from each state."""
    ways = {GONE: [], DUE: ["expect"], COMING: ["expect", "start"], HELD: ["expect", "mark_present"]}
    ways |= {UNWANTED: ["expect", "start", "release"], EARLY: ["expect", "start_early"]}
    states, place = SampleStates(1), np.array([0])
    for way in ways[before]:
        getattr(states, way)(place)
    assert states.all(before).tolist() == [0]
    if before in AFTER[name]:
        getattr(states, name)(place)
        assert states.all(AFTER[name][before]).tolist() == [0]
    else:
        with pytest.raises(AssertionError, match="cannot happen"):
            getattr(states, name)(place)
