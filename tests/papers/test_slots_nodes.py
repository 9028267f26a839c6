"""Real servers count what the plans foresee (bench/slots_nodes.py): Brand's tables 4 and 6 in small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.slots_nodes import EPOCHS, Arm, arms, chunks_of, divide, foresee, make_data, order_for, serve
from brand.orders.base.plan import EpochPlan
from brand.simulate.storages import StorageLimits
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.storage import ReadCall
from tests.several_nodes.conftest import patient as patient

SAMPLES, CHUNK = 480, 8
FAST = StorageLimits("fast", 1e12)
VARIANTS = [replace(arm, chunk_size=CHUNK, memory=0.3, peer_memory=0.3) for arm in arms(SAMPLES)[:4]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of the bench."""
    return make_data(tmp_path_factory.mktemp("slots-nodes"), SAMPLES, CHUNK)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("arm", VARIANTS, ids=lambda arm: arm.name)
def test_servers_count_what_the_plans_foresee(data: Path, arm: Arm) -> None:
    """Requests and samples sent ahead exactly, in each variant of Table 4. `serve` compares each sample and each read.

    At the end of an epoch, a server leaves out a few reads for the next one: their samples are still in memory.
    """
    stored = StoredDataSet(data)
    order = order_for(stored, arm)
    foreseen, served = foresee(stored, order, arm), serve(data, order, arm, FAST)
    assert replace(served.counts, reads=foreseen.counts.reads) == foreseen.counts
    assert 0.97 * foreseen.counts.reads <= served.counts.reads <= foreseen.counts.reads
    assert (served.counts.direct, served.late) == (0, 0)
    assert bool(served.counts.ahead) == (arm.slots.window != 0)


def test_the_rows_of_table_6_read_less_and_then_more_again(tmp_path: Path) -> None:
    """A larger limit saves reads and requests, until it leaves so little memory that n becomes 5 (paper: 3,000 MB)."""
    data = StoredDataSet(make_data(tmp_path, 2400, 64))
    rows = {arm.name: arm for arm in arms(2400) if arm.shown == "Table 6"}
    orders = {name: order_for(data, arm) for name, arm in rows.items()}
    found = {name: foresee(data, orders[name], arm).counts for name, arm in rows.items()}
    for less, more in (("500 MB", "1,000 MB"), ("1,000 MB", "1,500 MB")):
        assert found[more].reads < found[less].reads
        assert found[more].requests < found[less].requests
    assert found["3,000 MB"].reads > found["500 MB"].reads
    assert [order.policy.group_chunks for order in orders.values()] == [4, 4, 4, 4, 5]


def test_reads_are_divided_into_those_of_the_epochs_and_of_the_next_one(data: Path) -> None:
    """A read that was left out is missing in the count; a read that no plan has is told."""
    order = order_for(StoredDataSet(data), VARIANTS[-1])
    plans = [order.plan(epoch) for epoch in range(EPOCHS + 1)]
    calls, ahead = [call for plan in plans[:-1] for call in _calls(plan)], _calls(plans[-1])[:5]
    assert divide(calls, plans) == (len(calls), 0)
    assert divide(calls + ahead, plans) == (len(calls), 5)
    assert divide(calls[1:], plans) == (len(calls) - 1, 0)
    with pytest.raises(AssertionError, match="in no plan"):
        divide(calls + 2 * _calls(plans[-1]), plans)


def _calls(plan: EpochPlan) -> list[ReadCall]:
    return [ReadCall(chunk, 0, 1) for chunk in chunks_of(plan)]
