"""Looks for chunks that the page cache holds: which, how many at a time, and one thread at a time."""

from __future__ import annotations

import threading
from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brand.node.serve.work import FEWEST, MOST, Scout
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests.support import LIMIT_S

CHUNK = 8
STRIPES = StripePolicy(4, 2)


def plan_of(chunks: int, policy: Policy = STRIPES, epoch: int = 0) -> EpochPlan:
    """The plan of an epoch of so many chunks."""
    return Order("0" * 32, chunks * CHUNK, CHUNK, 1, policy).plan(epoch)


def order_of(plan: EpochPlan) -> list[int]:
    """The chunks of a plan, by their first reads."""
    assert plan.reads is not None
    return list(dict.fromkeys(plan.reads["chunk"].tolist()))


@given(st.integers(4, 300), st.data())
def test_it_finds_the_chunks_up_to_the_first_that_is_not_there(chunks: int, data: st.DataObject) -> None:
    """As reads of an epoch go on, each look begins where the last one ended, and no chunk is looked at twice."""
    plan = plan_of(chunks)
    order = order_of(plan)
    there = set(data.draw(st.lists(st.sampled_from(order), unique=True)) if data.draw(st.booleans()) else order)
    asked: list[int] = []

    def holds(chunk: int) -> bool:
        asked.append(chunk)
        return chunk in there

    scout, known, seen = Scout(holds), set[int](), 0
    for at, chunk in enumerate(order):
        if chunk in known or chunk not in there:
            continue  # it needs no read, or its read finds that it is not there
        found = scout.beyond(plan, chunk)
        known.update([chunk, *found])
        seen = max(seen, at + 1)
        assert found == list(takewhile(there.__contains__, order[seen : seen + len(found)]))
        seen += len(found)
        if asked and asked[-1] not in there:  # the look ended there
            seen = max(seen, order.index(asked[-1]) + 1)
        assert len(found) >= FEWEST or seen == len(order) or order[seen - 1] not in there
    assert len(asked) == len(set(asked)), "looked at twice"
    if there == set(order):
        assert known == set(order)


def test_each_look_is_twice_as_long_until_a_chunk_is_not_there() -> None:
    plan = plan_of(400)
    order, there = order_of(plan), set(order_of(plan))
    scout = Scout(there.__contains__)
    counts, at = [], 0
    for _ in range(7):
        counts.append(len(scout.beyond(plan, order[at])))
        at += counts[-1] + 1
    assert counts == [FEWEST, 2 * FEWEST, 4 * FEWEST, 8 * FEWEST, MOST, MOST, MOST]
    there.remove(order[at + 2])
    assert scout.beyond(plan, order[at]) == [order[at + 1]]
    assert scout.beyond(plan, order[at + 3]) == order[at + 4 : at + 4 + FEWEST]


def test_another_plan_begins_anew() -> None:
    scout = Scout(lambda _: True)
    for _ in range(2):
        for epoch in range(2):
            plan = plan_of(10, epoch=epoch)
            order = order_of(plan)
            assert scout.beyond(plan, order[2]) == order[3 : 3 + FEWEST]


def test_where_each_sample_is_a_read_it_does_not_look() -> None:
    asked: list[int] = []
    plan = plan_of(20, UniformPolicy(1))
    assert plan.reads is None

    def holds(chunk: int) -> bool:
        asked.append(chunk)
        return True

    assert Scout(holds).beyond(plan, 0) == []
    assert not asked


def test_one_thread_looks_at_a_time_and_the_others_do_not_wait() -> None:
    looks, goes_on = threading.Event(), threading.Event()
    plan, found = plan_of(20), list[int]()
    order = order_of(plan)

    def holds(_: int) -> bool:
        looks.set()
        assert goes_on.wait(LIMIT_S)
        return True

    scout = Scout(holds)
    thread = threading.Thread(target=lambda: found.extend(scout.beyond(plan, order[0])))
    thread.start()
    try:
        assert looks.wait(LIMIT_S)
        assert scout.beyond(plan, order[5]) == []
    finally:
        goes_on.set()
        thread.join(LIMIT_S)
    assert found == order[1 : 1 + FEWEST]
    assert scout.beyond(plan, order[0]) == order[1 + FEWEST :][: 2 * FEWEST]
    assert np.array_equal(np.sort(order), np.arange(20))
