"""If memory holds all samples, an epoch is a uniform shuffle, which is read in stripes and planned in windows."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import random
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan
from brand.orders.policies import uniform
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformOrder
from brand.orders.policies.uniform_stripes import UniformStripes
from tests.orders.models import table_of
from tests.orders.test_windows import check_open_reads
from tests.rounds import examples


@dataclass(frozen=True)
class Small:
    """The numbers of a small epoch."""

    mapping: Mapping
    stripe: int
    subset: Subset | None
    epoch: int = 1

    def windows(self) -> UniformStripes:
        return UniformStripes(self.mapping, self.stripe, 3, self.epoch, self.subset)

    def drawn(self) -> list[int]:
        """The places in the order in which they are drawn: the members of the subset, permuted."""
        members = np.flatnonzero(np.ones(self.mapping.samples) if self.subset is None else self.subset.mask)
        order = UniformOrder(len(members), 3, self.epoch)
        found: list[int] = members[order.numbers(np.arange(len(members)))].tolist()
        return found


@st.composite
def small_epochs(draw: st.DrawFn) -> Small:
    """Draw an epoch of up to 40 samples. A stripe may be shorter than the others, or have no sample of the subset."""
    samples, chunk_size = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    members = draw(st.sets(st.integers(0, samples - 1), min_size=1))
    mask = np.isin(np.arange(samples), sorted(members))
    subset = None if draw(st.booleans()) or mask.all() else Subset.of(mask)
    return Small(Mapping(samples, chunk_size, 1), draw(st.integers(1, chunk_size)), subset)


@pytest.fixture(params=[(0, 5), (1 << 16, 1 << 17)], ids=["network", "table"])
def kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have orders made by a network, a few places at a time, or by a table."""
    most, block = request.param
    monkeypatch.setattr(uniform, "MOST_SORTED", most)
    monkeypatch.setattr(random, "BLOCK", block)


@pytest.mark.slow
@pytest.mark.usefixtures("kinds")
@examples(80)
@given(small_epochs())
def test_the_plan_is_that_of_the_model(case: Small) -> None:
    """Each stripe is due at the first of its samples, and spans those that are drawn."""
    plan, drawn = case.windows().whole(), case.drawn()
    assert plan.sample_of.tolist() == drawn
    assert sorted(drawn) == sorted(set(drawn))
    stripes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, place in enumerate(drawn):
        chunk, slot = divmod(place, case.mapping.chunk_size)
        stripes[chunk, slot // case.stripe].append(position)
    expected = []
    for (chunk, _), positions in sorted(stripes.items(), key=lambda item: min(item[1])):
        slots = [drawn[position] % case.mapping.chunk_size for position in positions]
        expected.append((min(positions), chunk, min(slots), max(slots) - min(slots) + 1))
    assert table_of(plan).tolist() == expected
    held = [place for number in range(len(expected)) for place in plan.places_held(number).tolist()]
    assert sorted(held) == sorted(drawn)


@pytest.mark.usefixtures("kinds")
@examples(40)
@given(small_epochs())
def test_windows_are_parts_of_the_plan(case: Small) -> None:
    """A job that begins at any position reads what is left of the stripes that are due before it."""
    plan, found = case.windows().whole(), case.windows()
    due = table_of(plan)["deadline"]
    for first in range(found.draws + 1):
        for end in (first, (first + found.draws) // 2, found.draws):
            window = found.window(first, end)
            assert window.sample_of.tolist() == plan.sample_of[first:end].tolist()
            assert window.reads is not None
            assert window.reads.tolist() == table_of(plan)[(due >= first) & (due < end)].tolist()
        check_open_reads(found, plan, first)
    assert found.read_count == len(due)


def test_the_epochs_after_the_first_are_uniform() -> None:
    """The first one is read as ever, so that memory fills at the speed of the storage."""
    mapping, policy = Mapping(2_000, 50, 4), StripePolicy(4, 5, all_cached=1)

    def apart(plan: EpochPlan) -> float:
        position_of = np.argsort(plan.sample_of)
        return float(np.abs(np.diff(position_of)).mean()) / 2_000

    plans = [policy.plan(mapping, 7, epoch) for epoch in range(6)]
    assert plans[0].sample_of.tolist() == StripePolicy(4, 5).plan(mapping, 7, 0).sample_of.tolist()
    assert apart(plans[0]) < 0.2
    assert all(0.32 < apart(plan) < 0.35 for plan in plans[1:])
    assert len({plan.sample_of.tobytes() for plan in plans}) == 6


def test_such_orders_never_change() -> None:
    """WARNING: a change here changes the order of runs that users resume (see `test_golden`)."""
    made = hashlib.sha256()
    for samples in (1_000, 300_000):
        plan = UniformStripes(Mapping(samples, 500, 3), 16, 2024, 5).whole()
        made.update(plan.sample_of.astype("<i8").tobytes())
        made.update(np.array(table_of(plan).tolist(), "<i8").tobytes())
    assert made.hexdigest() == "5348ef34bc4a81ae5a375b9d4615cddf234b28287e2f006b78aae531a4fb6b3f"
