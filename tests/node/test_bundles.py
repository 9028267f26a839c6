"""Single samples that are read together: which ones, in how much memory, and what becomes of those that fail."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.node.decide.reads import reads
from brand.node.decide.reads.reads import BUNDLE
from brand.node.decide.state.states import DUE, HELD
from brand.node.wire.drawing import Announcement
from brand.node.wire.numbers import RunNumber
from brand.orders.order import MAX_EPOCH
from brand.orders.policies.uniform import UniformPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import attached, running_server
from brand.testing.storage import CountedStorage, Fault, FaultyStorage
from tests import places
from tests.made_orders import order_of
from tests.node.test_core import SAMPLES, draw, world
from tests.node.world import PAGE, World
from tests.orders.models import table_of

pytestmark = places.EVERYWHERE

ORDER: dict[str, Any] = {"protocol": "uniform", "seed": 1}


def drawn(world_: World, run: RunNumber) -> NDArray[Any]:
    """The places of an epoch in the order of its draws."""
    return world_.plan(world_.runs[run].order, 0).sample_of


def test_bundles_are_the_next_samples_sorted_by_place() -> None:
    """As many bundles as reads may be under way; each counts its samples as reads."""
    world_ = world(SAMPLES, depth=3)
    run = world_.begun(1, **ORDER)
    world_.step()
    places = drawn(world_, run)
    assert [read.places.tolist() for read in world_.reads] == [
        sorted(places[first : first + BUNDLE].tolist()) for first in range(0, 3 * BUNDLE, BUNDLE)
    ]
    for read in world_.reads:
        assert len(read.pieces) == len(read.vectors) == BUNDLE
        assert (read.pieces["samples"] == 1).all()
        assert read.pieces["chunk"].tolist() == (read.places // 8).tolist()
        assert read.pieces["offset"].tolist() == world_.index.table["offset"][read.places].tolist()
        assert [read.places_of(piece).tolist() for piece in range(BUNDLE)] == [[place] for place in read.places]
    counted = world_.core.counters.reads
    assert (counted.reads, counted.read_samples, counted.buffered) == (3 * BUNDLE,) * 3
    assert world_.core.facts(1.0, 0.0)["reading"] == 3


def test_a_bundle_takes_what_memory_has_room_for() -> None:
    """And the rest when draws have freed it; every sample comes from memory."""
    world_ = world(20)
    run = world_.begun(1, **ORDER)
    world_.step()
    places = drawn(world_, run)
    assert [len(read.places) for read in world_.reads] == [20]
    assert draw(world_, 1, run, 0, range(SAMPLES)) == 1.0
    assert sorted(np.concatenate([answer.places for answer in world_.answered]).tolist()) == list(range(SAMPLES))
    assert np.concatenate([answer.places for answer in world_.answered]).tolist() == places.tolist()


@pytest.mark.parametrize(("most", "expected"), [(1, [1, 1]), (7 * PAGE, [7, 7]), (1 << 20, [32, 28])])
def test_large_samples_make_small_bundles(monkeypatch: pytest.MonkeyPatch, most: int, expected: list[int]) -> None:
    """By the memory that they take; a sample that is larger than the bound is a bundle of its own."""
    monkeypatch.setattr(reads, "BUNDLE_BYTES", most)
    world_ = World([96] * 60, 8, 61, 2)
    world_.begun(1, **ORDER)
    world_.step()
    assert [len(read.places) for read in world_.reads] == expected


def test_samples_that_are_there_need_no_read() -> None:
    """What another run holds goes from due to held, a bundle at a time."""
    world_ = world(SAMPLES // 2)
    first = world_.begun(1, **ORDER)
    world_.quiet()
    read = world_.core.counters.reads.reads
    ahead = set(world_.epochs()[first, 0].epoch.states.all(HELD).tolist())
    second = world_.register(2, "two", **ORDER)
    world_.begin(2, second, 0)
    world_.step()
    world_.finish_plan()
    world_.step()
    held = world_.epochs()[second, 0].epoch.states.all(HELD).tolist()
    assert len(held) > BUNDLE
    assert set(held) <= ahead
    assert world_.core.counters.reads.reads == read


@pytest.mark.parametrize("failed", [[0], [31], [3, 4, 30], range(32)])
def test_a_piece_that_fails_costs_its_own_sample(failed: list[int]) -> None:
    """The others of the bundle are held; the failed ones are read exactly."""
    world_ = world(SAMPLES, depth=1)
    run = world_.begun(1, **ORDER)
    world_.step()
    places = world_.reads[0].places
    lost = places[list(failed)].tolist()
    world_.finish_read(0, failed=failed)
    states = world_.epochs()[run, 0].epoch.states
    assert sorted(states.all(HELD).tolist()) == sorted(set(places.tolist()) - set(lost))
    assert world_.core.counters.reads.failed_reads == len(lost)
    world_.quiet()
    draw(world_, 1, run, 0, range(SAMPLES))
    exact = [place for answer in world_.answered for place in answer.places[answer.state == 0].tolist()]
    assert sorted(exact) == sorted(lost)


def test_rows_of_the_index_that_cannot_be_read_cost_their_samples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the samples of the first bundle: the bundle has the others."""
    world_ = world(SAMPLES, depth=1)
    run = world_.begun(1, **ORDER)
    bad = drawn(world_, run)[[3, 17]].tolist()
    rows_at = world_.index.rows_at

    def broken(places: NDArray[Any]) -> NDArray[np.void]:
        if np.isin(places, bad).any():
            raise FormatError("a block of the index")
        return rows_at(places)

    monkeypatch.setattr(world_.index, "rows_at", broken)
    world_.step()
    assert world_.reads[0].places.tolist() == sorted(set(drawn(world_, run)[:BUNDLE].tolist()) - set(bad))
    assert world_.core.counters.reads.failed_reads == 2
    assert not np.isin(bad, world_.epochs()[run, 0].epoch.states.all(DUE)).any()


@pytest.mark.slow
def test_a_plan_with_a_table_leads_to_the_same_epoch() -> None:
    """The queue of its reads and all that is drawn, read by read in place of bundles."""
    found = []
    for table in (False, True):
        world_ = world(60)
        run = world_.register(1, **ORDER)
        order = world_.runs[run].order
        plan = order.plan(0)
        assert plan.reads is None
        world_.plans[order, 0, ()] = dataclasses.replace(plan, reads=table_of(plan)) if table else plan
        world_.begin(1, run, 0)
        world_.step()
        world_.finish_job()
        queue = world_.epochs()[run, 0].epoch.reads
        before = queue.rest().tolist(), queue.deadline
        assert draw(world_, 1, run, 0, range(SAMPLES)) == 1.0
        first = [answer.places.tolist() for answer in world_.answered]
        counted = world_.core.counters.reads
        found.append((before, first, counted.read_samples, counted.reads, world_.core.residents.kept_pages))
    assert found[0] == found[1]


# -- a real server -----------------------------------------------------------------------------------------------------


def presence(path: Path, storage: FaultyStorage | CountedStorage) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
    """Draw the last epoch that there is from storage with a habit: all places, which came from memory, the counters."""
    order = order_of(path, UniformPolicy(2))
    with running_server(path, memory=1.0, storage=storage) as server, closing(attached(server)) as client:
        client.begin(order, 1, Announcement(MAX_EPOCH))
        parts = client.draw(order, MAX_EPOCH, np.arange(order.samples), owner=0)
        facts = client.stats()
    places = np.concatenate([part.places for part in parts])
    assert places.tolist() == order.plan(MAX_EPOCH).sample_of.tolist()
    here = np.concatenate([part.places[part.present] for part in parts])
    assert all(part.stored.right().all() for part in parts)
    return places, here, facts


def test_a_server_reads_each_sample_once_in_pieces(texts: Path) -> None:
    """Storage sees one operation a sample, and the server counts them."""
    storage = CountedStorage()
    places, here, facts = presence(texts, storage)
    assert sorted(here.tolist()) == sorted(places.tolist())
    rows = StoredDataSet(texts).rows(0, len(places))
    asked = sorted((call.chunk, call.offset, call.size) for call in storage.reads if not call.exact)
    ranges = zip((np.arange(len(places)) // 32).tolist(), rows["offset"].tolist(), rows["size"].tolist(), strict=True)
    assert asked == sorted(ranges)
    assert (facts["reads"], facts["read_bytes"], facts["failed_reads"]) == (len(places), int(rows["size"].sum()), 0)


@pytest.mark.parametrize("kind", ["error", "short"])
def test_a_range_that_cannot_be_read_costs_the_samples_in_it(texts: Path, kind: Any) -> None:
    """One sample, and a whole chunk; all others of their bundles come from memory."""
    rows = StoredDataSet(texts).rows(0, 32 * 6)
    one = rows[32 * 5 + 7]
    first = int(one["offset"])
    storage = FaultyStorage(Fault(2, kind=kind), Fault(5, first, first + int(one["size"]), kind=kind))
    places, here, facts = presence(texts, storage)
    lost = set(places.tolist()) - set(here.tolist())
    assert lost == {*range(32 * 2, 32 * 3), 32 * 5 + 7}
    assert facts["failed_reads"] == 33
    assert facts["from_memory"] == len(places) - 33
