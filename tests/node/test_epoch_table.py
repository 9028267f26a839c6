"""The life of an epoch: its stages, and what waits for it meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from brand.node.decide.peers.sending import Taker, queue_to
from brand.node.decide.state.account import Account
from brand.node.decide.state.connected import MAX_ASKED
from brand.node.decide.state.epoch import Division, Epoch, EpochSetting
from brand.node.decide.state.epoch_table import (
    ActiveEpoch,
    EpochDropped,
    EpochEntry,
    EpochTable,
    PlanReady,
    PlanUnderWay,
    PlanWanted,
    Stage,
)
from brand.node.decide.state.members import Members, SampleLimits
from brand.node.decide.state.runs import EpochStart
from brand.node.decide.state.states import HELD
from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import NodeNumber, RunNumber
from brand.orders.base.plan import EpochPlan
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy

ZERO, ONE = map(NodeNumber, range(2))
SAMPLES = 32
ORDER = Order("0" * 32, SAMPLES, 4, 0, SlotPolicy(2, nodes=2, ranks=2, window=8, remote=8))
DIVISION = Division(SAMPLES, 0, 2)


@pytest.fixture(scope="module")
def plan() -> EpochPlan:
    """With requests: nodes ask each other."""
    return ORDER.plan(0)


def live(plan: EpochPlan, number: int = 1) -> ActiveEpoch:
    """A live epoch on node 0 of two, with a rank on each."""
    members = Members(ZERO, 2)
    residents = Residents(PagePool(Allocator(128 * 64, 128), NoMemory(128), np.ones(SAMPLES, np.uint32)), 2)
    limits = SampleLimits(residents, 10, ZERO, 10)
    limits.learn(ONE, 10)
    epoch = Epoch(plan, DIVISION, number, EpochSetting(members.owners(ORDER.mapping), limits, list))
    epoch.expect({0: ZERO, 1: ONE}, {})
    return ActiveEpoch(epoch, Account(DIVISION), EpochStart(DIVISION, 1))


def stage_of(life: EpochEntry) -> Stage:
    """Where it is."""
    return life.stage


def test_one_stage_after_the_other(plan: EpochPlan) -> None:
    """From the first word to the last; what was said of how ranks begin is kept until the epoch is live."""
    life, begin = EpochEntry(), EpochStart(DIVISION, 2)
    assert isinstance(stage_of(life), EpochDropped)
    assert not life.planned
    life.want_plan()
    assert stage_of(life) == PlanWanted(None)
    assert life.begin is None
    life.want_plan(begin)
    assert stage_of(life) == PlanWanted(begin)
    assert life.begin == life.wanted_begin == begin
    life.want_plan()
    assert life.begin == begin, "a plan that is wanted again takes nothing back"
    life.hand_out()
    assert (stage_of(life), life.planned) == (PlanUnderWay(begin), True)
    life.set_plan(plan, None, begin)
    assert isinstance(stage_of(life), PlanReady)
    assert [life.waiting_since(5.0), life.waiting_since(9.0)] == [5.0, 5.0]
    made = live(plan)
    life.activate(made)
    assert (life.live, life.planned, life.begin) == (made, False, None)
    made.epoch.states.mark_present(np.array([0]))
    assert life.drop().tolist() == [0]
    assert isinstance(stage_of(life), EpochDropped)
    assert not len(made.epoch.states.all(HELD))


def test_what_is_read_ahead_was_begun_by_no_rank(plan: EpochPlan) -> None:
    """Other nodes are told nothing of it."""
    life = EpochEntry()
    life.want_plan()
    life.hand_out()
    life.set_plan(plan, None, EpochStart(DIVISION, 0))
    assert life.begin is None


def test_a_node_that_asks_before_there_is_a_plan_is_answered_once_there_is(plan: EpochPlan) -> None:
    """Its positions come first; a node that never said that it can take samples is sent none."""
    life = EpochEntry()
    life.want_plan()
    life.take(ONE, Taker(ONE, 0, True))
    made = live(plan)
    owned = made.epoch.owner_of(plan.sample_of) == 0
    theirs = np.flatnonzero(owned & (np.arange(SAMPLES) % 2 == 1))[:2].astype(np.int64)
    life.ask(ONE, theirs)
    life.ask(NodeNumber(5), theirs)
    life.activate(made)
    assert list(made.epoch.outgoing) == [1]
    assert queue_to(made.epoch, ONE).unanswered.tolist() == theirs.tolist()


def test_what_is_asked_for_too_early_has_a_bound(plan: EpochPlan) -> None:
    """A node may ask for anything before there is a plan: more than so much is not kept."""
    life = EpochEntry()
    life.take(ONE, Taker(ONE, 0, True))
    for _ in range(3):
        life.ask(ONE, np.zeros(MAX_ASKED // 2, np.int64))
    life.want_plan()
    made = live(plan)
    life.activate(made)
    assert len(queue_to(made.epoch, ONE).unanswered) <= MAX_ASKED


def test_the_takers_of_an_epoch_outlast_its_being_dropped(plan: EpochPlan) -> None:
    """It made room, and goes on later; a node that has no use for it any more is forgotten."""
    life = EpochEntry()
    life.want_plan()
    life.activate(live(plan))
    life.take(ONE, Taker(ONE, 0, False))
    life.drop()
    life.want_plan()
    again = live(plan, 2)
    life.activate(again)
    assert list(again.epoch.outgoing) == [1]
    life.forget(ONE)
    assert list(again.epoch.outgoing) == []


def test_lives_are_told_in_the_order_of_runs_and_epochs(plan: EpochPlan) -> None:
    """However they came; one that nothing was said of is there once it is asked for."""
    lives = EpochTable()
    one, two = RunNumber(1), RunNumber(2)
    assert lives.get((one, 0)) is None
    for key in [(two, 0), (one, 1), (one, 0)]:
        lives[key].want_plan()
    lives[one, 1].activate(live(plan))
    lives[one, 0].activate(live(plan, 2))
    assert list(lives) == [(1, 0), (1, 1), (2, 0)]
    assert [key for key, _ in lives.live()] == [(1, 0), (1, 1)]
    lives.remove((one, 0))
    assert list(lives) == [(1, 1), (2, 0)]
