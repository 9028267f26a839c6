"""Would a queue of each rank in loading help the rank that waits? Reads start in the order of need: none is better."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests.rounds import examples

SAMPLES, CHUNK = 24, 4


def longest_wait(due: NDArray[np.float64], takes: NDArray[np.float64]) -> float:
    """By how much the latest read is late, if one read follows the other."""
    return float((np.cumsum(takes) - due).max())


@examples(30)
@given(st.data(), st.integers(0, 99), st.integers(1, 4), st.floats(0.1, 4))
def test_no_other_order_of_the_reads_has_a_shorter_longest_wait(
    data: st.DataObject, seed: int, ranks: int, step_s: float
) -> None:
    """Whatever each read takes: all orders of six reads are tried (earliest due date first: Jackson, 1955).

    Ranks take positions in turn, so a read is due in the step of its position, whichever rank needs it.
    """
    plan = Order("0" * 32, SAMPLES, CHUNK, seed, StripePolicy(2, CHUNK)).plan(0)
    assert plan.reads is not None
    due = plan.reads["deadline"] // ranks * step_s
    takes = np.array(data.draw(st.lists(st.floats(0, 9), min_size=len(due), max_size=len(due))))
    others = (longest_wait(due[list(order)], takes[list(order)]) for order in permutations(range(len(due))))
    assert longest_wait(due, takes) <= min(others) + 1e-9


def test_reads_of_single_samples_start_in_the_order_of_need() -> None:
    """With `uniform`, a read is due at its own position."""
    plan = Order("0" * 32, SAMPLES, CHUNK, 1, UniformPolicy(1)).plan(0)
    assert [plan.deadline(number) for number in range(plan.read_count)] == list(range(SAMPLES))
