"""Seconds by bytes: they are learned, follow a change, and slow moments hardly count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.node.decide.decoding.queues import FIRST, HALF_LIFE, Costs
from tests.rounds import examples

SIZES = np.array([0, 1, 60_000, 105_000, 300_000, 3_000_000])


def reports(
    costs: Costs, a: float, b: float, count: int, *, noise: float = 0.0, seed: int = 0, stuck: float = 0.0
) -> None:
    """Report batches of 16 samples that took a + b * bytes; a share of `stuck` samples took 10 s more."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        sizes = np.exp(random.normal(np.log(105_000), 0.6, 16)).astype(np.int64)
        seconds = (a + b * sizes) * np.exp(random.normal(0, noise, 16))
        costs.observe(sizes, seconds + 10 * (random.random(16) < stuck))


def truth(a: float, b: float) -> NDArray[np.float64]:
    """Seconds by the line."""
    return a + b * SIZES


def test_before_any_report_seconds_are_as_bytes() -> None:
    """Twice the bytes, twice the seconds."""
    assert Costs().predict(SIZES[2:]) == pytest.approx(FIRST * SIZES[2:])


@pytest.mark.slow
@examples(20)
@given(st.floats(0, 0.02), st.floats(1e-9, 1e-6), st.integers(0, 100))
def test_a_line_is_learned(a: float, b: float, seed: int) -> None:
    """After 3,200 samples, without noise, for the sizes that came often; nearly, as classes begin with a guess."""
    costs = Costs()
    reports(costs, a, b, 200, seed=seed)
    assert costs.predict(SIZES[2:5]) == pytest.approx(truth(a, b)[2:5], rel=0.15)


def test_a_curve_is_learned() -> None:
    """The seconds of a small sample are many for each byte, as in a set of many kinds of pictures."""
    costs, random = Costs(), np.random.default_rng(0)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e6), 8000)).astype(np.int64)
    for some in np.split(sizes, 500):
        costs.observe(some, 1e-5 * np.sqrt(some))
    seen = np.array([2000, 30_000, 500_000])
    assert costs.predict(seen) == pytest.approx(1e-5 * np.sqrt(seen), rel=0.05)


@pytest.mark.parametrize("stuck", [0.0, 0.01])
def test_noise_and_slow_moments_hardly_count(stuck: float) -> None:
    """Seconds that scatter by 30 %; then 1 % of the samples take ten seconds more."""
    costs = Costs()
    reports(costs, 0.002, 5e-8, 300, noise=0.3, stuck=stuck)
    assert costs.predict(SIZES[2:5]) == pytest.approx(truth(0.002, 5e-8)[2:5], rel=0.2)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_change_is_followed(factor: float) -> None:
    """Ten times as fast, or as slow: followed within seven half-lives."""
    costs = Costs()
    reports(costs, 0.002, 5e-8, 200)
    reports(costs, 0.002 * factor, 5e-8 * factor, 7 * HALF_LIFE // 16)
    assert costs.predict(SIZES[2:5]) == pytest.approx(factor * truth(0.002, 5e-8)[2:5], rel=0.2)


def test_samples_of_one_size_have_their_seconds() -> None:
    """Smaller ones as long, larger ones in proportion: nothing else is known of them."""
    costs = Costs()
    for _ in range(100):
        costs.observe(np.full(16, 1000), np.full(16, 0.004))
    assert costs.predict(np.array([10, 1000, 3000])) == pytest.approx([0.004, 0.004, 0.012])


def test_a_class_begins_with_what_was_predicted() -> None:
    """The first sample of a size counts a third, and two as many as its size was thought to take the rest."""
    costs = Costs()
    for _ in range(100):
        costs.observe(np.array([1000]), np.array([0.001]))
    costs.observe(np.array([4000]), np.array([0.016]))
    assert costs.predict(np.array([4000])) == pytest.approx([(2 * 0.004 + 0.016) / 3], rel=1e-2)


@pytest.mark.slow
@examples(100)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1 << 40), st.floats() | st.sampled_from([0.0, 1e300])), max_size=16),
        max_size=20,
    )
)
def test_any_report_leads_to_a_prediction(batches: list[list[tuple[int, float]]]) -> None:
    """What is no number of seconds is left out; predictions are finite and positive, and the same for the same."""
    costs, again = Costs(), Costs()
    for batch in batches:
        sizes = np.array([size for size, _ in batch], np.int64)
        seconds = np.array([second for _, second in batch], np.float64)
        costs.observe(sizes, seconds)
        again.observe(sizes, seconds)
    found = costs.predict(SIZES)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (found == again.predict(SIZES)).all()
