"""Jobs of one server: who makes the pace, where others join it, what one read serves, and what makes room."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.errors import UsageError
from brand.node.decide.decoding.ahead import DecodeAhead
from brand.node.decide.epochs.pacing import IDLE_S, LEAST_RATE_S, Pulse
from brand.node.decide.sharing.job_sharing import EarlyHolds
from brand.node.decide.sharing.joins import far
from brand.node.decide.state.epoch import reached
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.states import HELD
from brand.node.decide.stimuli import ClientJoins
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base.joins import Join, Joins, alone
from brand.orders.base.plan import read_of_sample
from brand.orders.policies.shared_policy import UNIT
from tests.node.world import World
from tests.rounds import examples

SAMPLES, SIZE = 384, 96
SHARED: dict[str, Any] = {"protocol": "shared", "group_chunks": 12, "stripe": 4, "seed": 1}


def world_of(share: float = 0.3) -> World:
    """A server of samples of one page each, in chunks of 32, whose memory holds a share of them."""
    return World([SIZE] * SAMPLES, 32, int(SAMPLES * share) + 1, 3)


class Job:
    """A job with one process, which draws an epoch in batches of eight."""

    def __init__(self, world: World, number: int, *, epoch: int = 0, **order: int) -> None:
        self.world, self.client, self.epoch = world, number, epoch
        self.run = world.register(number, f"job {number}", **SHARED | order)
        self.position, self.draws = 0, world.draws(self.run)
        world.begin(number, self.run, epoch)

    @property
    def key(self) -> Key:
        """Its epoch."""
        return self.run, self.epoch

    @property
    def joins(self) -> list[Join]:
        """Where it joined others in its epoch."""
        return list(self.world.joins(self.key))

    def draw(self, samples: int = 8, seconds: float = 0.01) -> bool:
        """Draw and copy the next samples, if any are left; they take so long."""
        end = min(self.draws, self.position + samples)
        if self.position == end:
            return False
        self.world.now_s += seconds
        assert self.world.draw(self.client, self.run, self.epoch, range(self.position, end))
        self.position = end
        self.world.settle()
        return True

    def given(self) -> list[int]:
        """The places that it got, sorted."""
        return sorted(self.world.given[self.key].values())


def read(world: World) -> float:
    """Bytes of large reads over those of the data set."""
    return sum(world.read_bytes.values()) / (SAMPLES * SIZE)


@pytest.mark.slow
def test_jobs_in_step_read_everything_once() -> None:
    """However many there are; with memory for a part of the data set."""
    world = world_of(0.5)
    jobs = [Job(world, number) for number in (1, 2, 3)]
    while sum(job.draw() for job in jobs) == 3:
        pass
    assert [job.given() for job in jobs] == 3 * [list(range(SAMPLES))]
    # What is read ahead for the next epoch is not of this one.
    epochs = {job.world.epochs()[job.key].epoch.number for job in jobs}
    once = sum(size for (number, _), size in world.read_bytes.items() if number in epochs) / (SAMPLES * SIZE)
    assert 1.0 <= once < 1.03  # a sample or two that made room
    assert world.core.counters.draws.direct == 0


def test_jobs_of_other_seeds_share_nothing() -> None:
    """Nor do they join each other."""
    world = world_of()
    one, other = Job(world, 1), Job(world, 2, seed=2)
    while one.draw() + other.draw() == 2:
        pass
    assert (one.joins, other.joins) == ([*alone(0)], [*alone(0)])
    assert world.turn.sharing is not None
    assert world.turn.sharing.pacemakers.others(one.run) == []


@pytest.mark.slow
@pytest.mark.parametrize("late", [40, 192, 376])
def test_a_late_job_reads_what_has_passed_and_no_more(late: int) -> None:
    """It joins where the first one is. Both draw each sample once in each of their epochs."""
    world = world_of(0.4)
    first = Job(world, 1)
    while first.position < late:
        first.draw()
    second = Job(world, 2)
    done = []
    while second.draw():
        if not first.draw():
            done.append(first.given())
            first = Job(world, 1, epoch=first.epoch + 1)
            first.draw()
    assert second.joins == [Join(0, 0, late, UNIT)]
    assert second.given() == list(range(SAMPLES))
    assert all(each == list(range(SAMPLES)) for each in done)
    assert world.core.counters.draws.direct == 0
    share = late / SAMPLES
    alone_read = late / SAMPLES  # before the second one came, nothing could be shared
    assert read(world) <= alone_read + 2 * (1 + share * (1 - share)) / 2 + 0.55  # and what was read ahead for later


def test_a_pulse_knows_a_rate_after_a_while() -> None:
    """Over the last seconds; a pause begins anew."""
    pulse = Pulse()
    assert (pulse.rate, pulse.idle(0.0)) == (None, True)
    for step in range(300):
        pulse.beat(10, 100 + step / 10)
        assert (pulse.rate is None) == (step / 10 < LEAST_RATE_S)
    assert pulse.rate == pytest.approx(100)
    for step in range(300):
        pulse.beat(30, 130 + step / 10)
    assert pulse.rate == pytest.approx(300)
    assert not pulse.idle(160 + IDLE_S - 0.2)
    assert pulse.idle(160 + IDLE_S)
    pulse.beat(30, 200)
    assert pulse.rate is None


@pytest.mark.parametrize("apart_s", [3.0, 12.0])
def test_a_loop_with_long_steps_is_not_idle_between_its_draws(apart_s: float) -> None:
    """Its rate is known, and one pause changes nothing; after a while without a draw it is idle, too."""
    pulse, now_s = Pulse(), 0.0
    for step in range(80):
        for part in range(8):  # a request is drawn in parts, which may take a while
            pulse.beat(16, now_s + part * apart_s / 30)
        if step > 2:
            assert not pulse.idle(now_s + apart_s)
            assert pulse.idle(now_s + 1.7 * apart_s)
        if step > 20:
            assert pulse.rate == pytest.approx(128 / apart_s)
        now_s += apart_s
    now_s += 100
    for _ in range(3):
        pulse.beat(128, now_s)
        now_s += apart_s
    assert not pulse.idle(now_s)
    assert pulse.idle(now_s + 0.6 * apart_s)


def test_speeds_are_compared_over_the_same_time() -> None:
    """A job that begins slows the other one down: what that did before does not count. Four moments are enough."""
    pacing = world_of().core.epochs.pacing
    fast, slow = RunNumber(1), RunNumber(2)
    for step in range(60):
        pacing.pulse(fast).beat(120, step / 10)
        assert pacing.times(slow, fast) is None
    for step in range(60, 70):
        for run, draws in ((fast, 30), (slow, 10)):
            pacing.pulse(run).beat(draws, step / 10)
        if step < 63:
            assert pacing.times(slow, fast) is None
        else:
            assert pacing.times(slow, fast) == pytest.approx(3)
            assert pacing.times(fast, slow) == pytest.approx(1 / 3)


def test_positions_that_are_given_up_count_once() -> None:
    """An epoch is as far as its draws, although the positions before them were given up; and past those in any case."""
    world = world_of()
    job = Job(world, 1)
    for _ in range(20):
        job.draw()
    epoch = world.epochs()[job.key].epoch
    for position in (64, 152):
        epoch.give_up_before(position)
        assert reached(epoch) == job.position == 160
    epoch.give_up_before(200)
    assert reached(epoch) == 200


@pytest.mark.slow
def test_what_a_draw_waits_for_is_due_now_however_slow_its_job_is() -> None:
    """Else a read of a fast job could take its memory for ever. Other reads are as far away as before."""
    world = world_of()
    fast, slow = Job(world, 1), Job(world, 2)
    paced(world, [fast, slow], [48, 12], 16)
    live, sharing = world.core.epochs.lives[slow.key].live, world.turn.sharing
    assert live is not None
    assert sharing is not None
    deadlines, epoch = np.arange(SAMPLES), live.epoch

    def leads() -> list[float]:
        found: list[float] = sharing.early.lead(slow.key, live, deadlines, world.now_s).tolist()
        return found

    before, due = leads(), np.flatnonzero(epoch.states.due(epoch.plan.sample_of))
    at = int(due[due > slow.position][0])
    assert before[at + 1] - before[at] == pytest.approx(4, rel=0.1)
    world.core.draws.ask(ClientNumber(slow.client), slow.key, np.array([at]), world.now_s, None)
    assert world.core.draws.waiting
    assert leads() == [*(min(lead, 0.0) for lead in before[: at + 1]), *before[at + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.002, 0.02])
def test_in_little_memory_jobs_read_nearly_nothing_directly(seconds: float) -> None:
    """At whatever speed, and so with speeds that are known late: fewer than 1 % direct reads, and less than alone.

    Memory holds a sixteenth, and the jobs together need more than that. Batch by batch, in an order that is fixed.
    """
    samples, speeds, starts = 2048, [1, 1 / 2, 1 / 2, 1 / 3], [0.0, 0.99, 0.23, 0.97]
    world = World([SIZE] * samples, 32, samples // 16 + 1, 3, measures=True)
    jobs, drawn = dict[int, Job](), 0
    due = [(start * samples, number) for number, start in enumerate(starts)]
    while due[0][0] < 2 * samples:
        now, number = due[0]
        if number not in jobs or jobs[number].position == samples:
            epoch = jobs[number].epoch + 1 if number in jobs else 0
            jobs[number] = Job(world, number, epoch=epoch, group_chunks=32)
        jobs[number].draw(16, seconds)
        drawn += 16
        heapq.heapreplace(due, (now + 16 / speeds[number], number))
    assert world.core.counters.draws.direct <= 0.01 * drawn
    assert sum(world.read_bytes.values()) / SIZE <= 1.02 * drawn


def paced(world: World, jobs: list[Job], samples: list[int], seconds: float) -> None:
    """Let jobs draw side by side for a while, each so many samples in a half second."""
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        for job, count in zip(jobs, samples, strict=True):
            if not job.draw(count, 0.5 / len(jobs)):
                job.__init__(world, job.client, epoch=job.epoch + 1)  # type: ignore[misc]


@pytest.mark.slow
def test_the_fastest_job_makes_the_pace() -> None:
    """The first one does, until another is 10 % faster, or it draws nothing for two seconds."""
    world = world_of()
    jobs = [Job(world, number) for number in (1, 2)]

    def pacemaker() -> list[bool]:
        return [each["sets_the_pace"] for each in world.core.facts(1.0, world.now_s)["jobs"]]

    paced(world, jobs, [60, 60], 3)
    assert pacemaker() == [True, False]
    paced(world, jobs, [60, 63], 12)
    assert pacemaker() == [True, False]
    paced(world, jobs, [60, 90], 12)
    assert pacemaker() == [False, True]
    world.now_s += IDLE_S + 1
    paced(world, jobs[:1], [60], 1)
    assert pacemaker() == [True, False]


def is_resting(job: Job) -> bool:
    """Whether a job is left out of what is cached and held."""
    return job.world.core.epochs.features.is_resting(job.run, job.world.now_s)


def test_a_job_rests_once_its_epoch_is_drawn_and_others_have_gone_on() -> None:
    """As positions tell, without a clock: a job in the middle of its epoch does not rest, nor one that begins."""
    world = world_of(0.5)
    first, second = Job(world, 1), Job(world, 2)
    for _ in range(SAMPLES // 16):
        first.draw(seconds=0)
        second.draw(seconds=0)
    while first.draw(seconds=0):
        pass
    assert not is_resting(second), "it is only slow"
    while second.draw(seconds=0):
        pass
    assert is_resting(first)
    first = Job(world, 1, epoch=1)
    assert not is_resting(first)
    for _ in range(far(SAMPLES) // 8):
        first.draw(seconds=0)
        assert not is_resting(second), "it may begin its next epoch at once"
    first.draw(seconds=0)
    assert is_resting(second)
    ahead, early = world.core.epochs.lives[second.run, 1].live, world.turn.sharing
    assert ahead is not None
    assert early is not None
    assert np.isinf(early.early.lead((second.run, 1), ahead, 0, world.now_s)), "what it holds goes first"
    second = Job(world, 2, epoch=1)
    assert not is_resting(second)
    while first.draw(seconds=0) + second.draw(seconds=0):
        pass
    assert second.given() == list(range(SAMPLES))


def test_a_job_that_stands_still_rests_if_that_is_longer_than_usual() -> None:
    """In the middle of an epoch both must tell: the time since its last draw, and what others have drawn since."""
    world = world_of(0.5)
    first, second = Job(world, 1), Job(world, 2)
    for _ in range(8):  # eight seconds lie between draws of the second one
        second.draw(seconds=0)
        first.draw(seconds=8)
    for _ in range(far(SAMPLES) // 8):
        first.draw(seconds=0)
    assert not is_resting(second)
    first.draw(seconds=0)
    assert not is_resting(second)
    first.draw(seconds=8)
    assert is_resting(second)
    second.draw(seconds=0)
    assert not is_resting(second)


def test_a_pacemaker_that_is_done_leads_no_longer() -> None:
    """However short the time since its last draw: a job that begins joins one that still draws."""
    world = world_of(0.5)
    first, second = Job(world, 1), Job(world, 2)
    assert world.turn.sharing is not None
    pacemakers = world.turn.sharing.pacemakers
    while first.draw(seconds=0):
        if first.position <= SAMPLES // 2:
            second.draw(seconds=0)
    assert pacemakers.pacemaker(second.run, world.now_s) == first.run
    while second.position < SAMPLES - 64:
        second.draw(seconds=0)
    assert pacemakers.pacemaker(second.run, world.now_s) == second.run
    third = Job(world, 3)
    world.settle()
    assert [(join.lap, join.front) for join in third.joins] == [divmod(pacemakers.front(second.key) or 0, SAMPLES)]


@pytest.mark.slow
def test_a_job_that_is_done_costs_others_no_more_than_one_that_has_left() -> None:
    """Its client stays connected, and the other job reads as much as if it did not: within 2 %.

    The job that is done has drawn a half of the samples, at a third of the speed of the other one.
    """
    samples, found = 2048, dict[bool, float]()
    for leaves in (False, True):
        world = World([SIZE] * samples, 32, round(0.35 * samples), 3, measures=True)
        first, second = Job(world, 1, group_chunks=16), Job(world, 2, group_chunks=16, part=2)
        for epoch in range(4):
            first = Job(world, 1, epoch=epoch, group_chunks=16) if epoch else first
            while first.draw(24, 0.001):
                if not second.draw(8, 0.001) and leaves and 2 not in world.gone:
                    world.leave(2)
        found[leaves] = sum(world.read_bytes.values())
    assert found[False] <= 1.02 * found[True]


@pytest.mark.parametrize("start", [0, 7])
def test_an_epoch_is_drawn_with_the_last_position_of_each_rank(start: int) -> None:
    """However many ranks share it, and wherever they begin."""
    world, ranks = world_of(0.5), 5
    run = world.register(1, **SHARED)
    left = [list(range(start + rank, SAMPLES, ranks)) for rank in range(ranks)]
    for rank in range(ranks):
        world.register(rank + 1, **SHARED)
        world.begin(rank + 1, run, 0, start, rank=rank, replicas=ranks)
    world.settle()
    epoch = world.epochs()[run, 0].epoch
    for rank in sorted(range(ranks), key=lambda rank: left[rank][-1]):
        for positions in (left[rank][:-1], left[rank][-1:]):
            assert not epoch.is_drawn
            world.draw(rank + 1, run, 0, positions)
            world.settle()
    assert epoch.is_drawn


@pytest.mark.slow
def test_a_slow_job_joins_at_its_pace_and_again_where_it_is_lost() -> None:
    """Not before a plan for it is made in time; what was asked for stays what it was."""
    world = world_of(0.2)
    fast, slow = Job(world, 1), Job(world, 2)
    paced(world, [fast, slow], [48, 12], 16)
    epochs = {epoch: world.joins((slow.run, epoch)) for epoch in range(slow.epoch + 1)}
    assert any(len(joins) > 1 for joins in epochs.values()), "it never joins again"
    last = [join for joins in epochs.values() for join in joins][-1]
    assert last.pace == pytest.approx(4 * UNIT, rel=0.3)
    for joins in epochs.values():
        for number, (one, next_one) in enumerate(pairwise(joins), 1):
            assert next_one.position - one.position >= number * SAMPLES // 64, "joins of an epoch do not get rarer"
    for epoch in range(slow.epoch):
        assert sorted(world.given[slow.run, epoch].values()) == list(range(SAMPLES))


def test_a_plan_that_comes_too_late_is_left_out() -> None:
    """The job has asked for positions behind the join: it goes on as before, and asks earlier the next time."""
    world = world_of()
    job, sharing = Job(world, 1), world.sharing
    job.draw()
    before = job.joins
    sharing._wanted[job.key] = (*before, Join(4, 0, 9, UNIT))
    assert sharing.wants(job.key, sharing._wanted[job.key])
    assert not sharing.take_plan(job.key, sharing._wanted[job.key], live=True)
    assert job.joins == before
    assert sharing._margin[job.key] == 8
    later = (*before, Join(64, 0, 9, UNIT))
    sharing._wanted[job.key] = later
    assert not sharing.take_plan(job.key, later, live=False)  # the epoch has made room meanwhile
    assert not sharing.wants(job.key, later)
    assert job.joins == before
    sharing._wanted[job.key] = later
    assert sharing.take_plan(job.key, later, live=True)
    assert job.joins == [*later]


def tell(world: World, client: int, key: Key, joins: Joins) -> None:
    """A client says where its run joined others."""
    world.tell(ClientJoins(ClientNumber(client), key, joins))


def test_what_clients_know_of_an_epoch_must_agree() -> None:
    """A new server takes the joins that a client knows. Others may know less of them, but nothing else."""
    world, known = world_of(), Joins((Join(0, 2, 100, UNIT), Join(50, 2, 200, UNIT)), 3)
    runs = [world.register(client, "job", **SHARED) for client in (1, 2)]
    key = runs[0], 1
    tell(world, 1, key, known)
    assert world.known(key) == known
    tell(world, 2, key, Joins(known.rows[:1]))
    assert world.known(key) == known
    with pytest.raises(UsageError, match="not as the loader state says"):
        tell(world, 2, key, Joins((Join(0, 2, 100, 0),)))
    world.begin(1, key[0], 1)
    with pytest.raises(UsageError, match="have different states of epoch 1"):
        tell(world, 2, key, Joins((*known.rows, Join(60, 2, 220, UNIT))))
    with pytest.raises(UsageError, match="beyond"):
        tell(world, 2, (key[0], 2), Joins((Join(0, 0, SAMPLES, 0),)))
    plain = world.register(3, "plain")
    with pytest.raises(UsageError, match="joins of an order that has none"):
        tell(world, 3, (plain, 0), Joins())
    world.settle()
    assert (
        world.epochs()[key].epoch.plan.sample_of.tolist()
        == world.plan(world.runs[key[0]].order, 1, known.rows).sample_of.tolist()
    )


def test_no_job_meets_a_lap_twice() -> None:
    """A state says how far a job was; beside others, it begins behind what any of them has drawn."""
    world = world_of()
    run = RunNumber(world.register(1, "job", **SHARED))
    tell(world, 1, (run, 2), Joins((), 6))
    world.begin(1, run, 2)
    world.settle()
    assert world.joins((run, 2)) == alone(7)


def test_a_job_does_not_follow_through_a_lap_that_it_knows() -> None:
    """It goes on from a state of a later lap. The others come to its laps with their next one."""
    world = world_of()
    first = Job(world, 1)
    for _ in range(10):
        first.draw()
    run = RunNumber(world.register(2, "again", **SHARED))
    tell(world, 2, (run, 3), Joins((), 5))
    world.begin(2, run, 3)
    world.settle()
    assert world.joins((run, 3)) == alone(6)
    while first.draw():
        pass
    assert world.joins((first.run, 1))[0].lap == 6


@pytest.mark.slow
@given(st.data())
@examples(8)
def test_what_is_drawn_last_makes_room(data: st.DataObject) -> None:
    """Against an obvious model: of the samples that jobs only hold early, those with the latest next draw."""
    world = world_of(0.35)
    jobs = [Job(world, 1), Job(world, 2, part=data.draw(st.integers(2, 4)))]
    for _ in range(data.draw(st.integers(1, 30))):
        data.draw(st.sampled_from(jobs)).draw()
    core, now_s = world.core, world.now_s
    assert world.turn.sharing is not None
    early = EarlyHolds(core.residents, core.epochs, world.turn.sharing.pacemakers)
    leads: dict[int, list[float]] = {}
    firm: set[int] = set(np.flatnonzero(core.residents.kept()).tolist())
    for key, live in core.epochs.lives.live():
        places = live.epoch.states.all(HELD)
        soon = early.lead(key, live, live.epoch.reads.deadlines(places), now_s)
        for place, lead in zip(places.tolist(), soon.tolist(), strict=True):
            leads.setdefault(place, []).append(lead)
    free = {place: min(each) for place, each in leads.items() if place not in firm}
    pages = data.draw(st.integers(1, 40))
    given_back = early.give_back(pages, now_s)
    gone = {place for place in free if not core.residents.present(np.array([place]))[0]}
    assert given_back == bool(free)
    assert len(gone) == min(pages, len(free))
    if gone and set(free) - gone:
        assert min(free[place] for place in gone) >= max(free[place] for place in set(free) - gone)
    world.check()
    while sum(job.draw() for job in jobs):
        pass
    assert jobs[0].given() == list(range(SAMPLES))
    assert len(jobs[1].given()) == jobs[1].draws


def test_what_is_prepared_next_follows_a_new_join() -> None:
    """A job that joins anew draws in another order from there on, and its samples are prepared in that."""
    world = world_of()
    job = Job(world, 1)
    epoch = world.epochs()[job.key].epoch if job.draw() else None
    assert epoch is not None
    ahead, order = DecodeAhead(epoch), world.runs[job.run].order
    for _ in range(3):
        before = job.position
        job.draw()
        ahead.remove(epoch.plan.sample_of[before : job.position])
    plan = order.plan(0, (*alone(0), Join(64, 0, 200, 2 * UNIT)))
    assert plan.sample_of[:64].tolist() == epoch.plan.sample_of[:64].tolist()
    assert plan.sample_of.tolist() != epoch.plan.sample_of.tolist()
    epoch.replace_plan(plan, read_of_sample(plan))
    ahead.update()
    assert ahead.positions(plan.sample_of[job.position :]).tolist() == list(range(job.position, SAMPLES))
    assert np.isinf(ahead.positions(plan.sample_of[: job.position])).all()


def test_a_job_that_is_killed_leaves_nothing_behind() -> None:
    """What it held makes room, and the other one goes on with what it needs."""
    world = world_of()
    jobs = [Job(world, number) for number in (1, 2)]
    for _ in range(20):
        jobs[0].draw()
        jobs[1].draw()
    world.draw(2, jobs[1].run, 0, range(jobs[1].position, jobs[1].position + 8))
    world.leave(2)
    assert len(world.core.facts(1.0, world.now_s)["jobs"]) == 1
    while jobs[0].draw():
        pass
    assert jobs[0].given() == list(range(SAMPLES))
    world.leave(1)
    world.quiet()
    assert world.core.facts(1.0, world.now_s)["memory"]["used"] == world.core.residents.kept_pages * 128


def test_old_epochs_of_a_job_that_shares_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its server would need more memory from epoch to epoch. A rank may return to one: it is a lap of its own."""
    monkeypatch.setattr("brand.node.decide.sharing.joins.MOST_KEPT", 3)
    world = World([SIZE] * 16, 4, 20, 3)
    run = world.register(1, **SHARED | {"group_chunks": 2})
    assert world.turn.sharing is not None
    joins, sizes = world.turn.sharing.joins, list[dict[str, int]]()
    for epoch in [*range(14), 2]:
        world.given.pop((run, epoch), None)  # a rank that returns may get another order
        world.begin(1, run, epoch)
        assert world.draw(1, run, epoch, range(16))
        world.settle()
        sizes.append({name: len(known) for name, known in vars(joins).items() if isinstance(known, dict)})
        assert len(world.joins((run, epoch))) == 1
    assert sizes[13] == sizes[9]
    assert max(sizes[13].values()) <= 3 + 3
