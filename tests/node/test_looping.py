"""A tally: sums and differences of steps by cause, and percentiles that are never too low and hardly too high."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.node.wire.looping import ALL, BOUNDS, CAUSES, LOOP, StepTally

STEPS = st.lists(st.tuples(st.sampled_from(ALL), st.floats(0, 99), st.floats(0, 99)), max_size=30)


def tally_of(steps: list[tuple[str, float, float]]) -> StepTally:
    """The tally of (cause, wait, training)."""
    tally = StepTally()
    for cause, wait_s, trained_s in steps:
        tally.count(cause, wait_s, wait_s + trained_s, samples=4)
    return tally


def test_bounds_ascend_and_have_the_round_ones() -> None:
    """Ten in a decade; neighbours differ by a factor of 1.3 at most; Prometheus gets those of 1, 2 and 5."""
    ratios = [high / low for low, high in itertools.pairwise(BOUNDS)]
    assert 1.2 < min(ratios) <= max(ratios) < 1.3
    assert {0.0001, 0.002, 0.05, 1.0, 20.0, 100.0} <= set(BOUNDS)


@pytest.mark.slow
@given(STEPS, STEPS)
def test_tallies_add_up(first: list[tuple[str, float, float]], second: list[tuple[str, float, float]]) -> None:
    """Two ranks together are the tally of all their steps; what is new since the first is the second."""
    both, before = tally_of(first + second), tally_of(first)
    merged = before.copy()
    merged.add(tally_of(second))
    assert {cause: waits.counts for cause, waits in merged.waits.items()} == {
        cause: waits.counts for cause, waits in both.waits.items()
    }
    assert merged.wait_s == pytest.approx(both.wait_s)
    new = both.since(before)
    assert (new.steps, new.samples) == (len(second), 4 * len(second))
    assert new.wait_s == pytest.approx(sum(wait_s for _, wait_s, _ in second), abs=1e-6)
    assert before.steps == len(first)


@given(st.lists(st.floats(0.0001, 99), min_size=1, max_size=99), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_the_end_of_the_right_bucket(waits: list[float], share: float) -> None:
    """At least the exact one, and at most 1.28 times as much."""
    tally = tally_of([("storage", wait_s, 0.0) for wait_s in waits])
    exact = sorted(waits)[max(0, -(-int(share * 100) * len(waits) // 100) - 1)]
    found = tally.quantile(share)
    assert found is not None
    assert exact <= found <= max(BOUNDS[0], 1.28 * exact)


def test_waits_beyond_the_last_bound() -> None:
    """They are counted, and shown as the last bound: a number, so that it is JSON."""
    tally = tally_of([("node", 1000.0, 0.0)])
    assert tally.to_json()["p99_s"] == 100.0
    assert tally.to_json()["causes"] == {"node": {"steps": 1, "wait_s": 1000.0}}


def test_without_steps_nothing_is_known() -> None:
    """No percentile, no cause."""
    facts = StepTally().to_json()
    assert (facts["steps"], facts["p50_s"], facts["cause"], facts["wait_share"]) == (0, None, None, None)


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_many_steps(cause: str) -> None:
    """What took the most time in all; the loop itself where little was waited."""
    other = CAUSES[(CAUSES.index(cause) + 1) % len(CAUSES)]
    assert tally_of([(cause, 2.0, 1.0), *[(other, 0.1, 1.0)] * 9]).cause == cause
    assert tally_of([(cause, 0.2, 9.0)]).cause == LOOP
