"""For which rank a preparer works next: preparers are divided as `least` does it, and no rank is left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.allotment import greedy, least
from brand.node.decide.decoding.ahead import NextToDecode
from brand.node.decide.decoding.allotment import BY_NAME, Queues, WorkerAllotment, by_requests, equal
from brand.node.decide.decoding.queues import SLACK, Allotting, next_queue, waiting_first
from brand.node.decide.state.epoch import Division
from brand.node.wire.messages import PREPARED
from brand.node.wire.numbers import RunNumber
from tests.node.preparing import WANTS, PreparingWorld
from tests.node.world import World
from tests.rounds import examples


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[list[float]], list[float], list[int]]:
    """Seconds by preparers, in quarters so that sums are exact, when each queue is due, and who works for which."""
    count, budget = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    quarters = st.integers(0, 40).map(lambda each: each / 4)
    seconds = [sorted(draw(st.lists(quarters, min_size=budget, max_size=budget)), reverse=True) for _ in range(count)]
    due_s = draw(st.lists(quarters, min_size=count, max_size=count))
    working = [0] * count
    for queue in draw(st.lists(st.integers(0, count - 1), max_size=budget - 1)):
        working[queue] += 1
    return seconds, due_s, working


@given(scenes())
@examples(200)
def test_preparers_that_come_one_after_the_other_are_divided_as_least_does_it(
    scene: tuple[list[list[float]], list[float], list[int]],
) -> None:
    """Each queue has the fewest that are in time before any has more; where they are too few, as `greedy` does it."""
    seconds, due_s = np.array(scene[0]), np.array(scene[1])
    known = Queues(seconds[None], np.ones((1, len(seconds))), due_s[None])
    early = Queues(seconds[None], np.ones((1, len(seconds))), due_s[None] * (1 - SLACK))
    fewest = (early.seconds <= early.due[..., None]).argmax(axis=2)[0] + 1
    enough = bool((early.seconds[0, :, -1] <= early.due[0]).all()) and fewest.sum() <= known.budget
    expected = (least(known) if enough else greedy(early))[0]
    threads = np.zeros(len(seconds), np.int64)
    for _ in range(int(expected.sum())):
        threads[next_queue(seconds, due_s, threads)] += 1
    assert threads.tolist() == expected.tolist()


@given(scenes())
@examples(200)
def test_the_next_queue_is_the_latest_one(scene: tuple[list[list[float]], list[float], list[int]]) -> None:
    """With the preparers that it has; of those that have none, the one that would be the latest with one."""
    seconds, due_s, working = scene

    def late(queue: int) -> tuple[bool, float]:
        return not working[queue], seconds[queue][max(working[queue], 1) - 1] - due_s[queue] * (1 - SLACK)

    chosen = next_queue(np.array(seconds), np.array(due_s), np.array(working))
    first, others = late(chosen), [late(queue) for queue in range(len(seconds))]
    assert first[0] == max(others)[0]
    assert first[1] == pytest.approx(max(others)[1], abs=1e-9)


@given(scenes())
@examples(100)
def test_a_queue_without_a_preparer_comes_before_those_that_have_one(
    scene: tuple[list[list[float]], list[float], list[int]],
) -> None:
    """Where there are as many preparers as queues: so none is left out, however late another is."""
    seconds, due_s, working = scene
    if len(seconds) <= len(seconds[0]) and 0 in working:
        assert working[next_queue(np.array(seconds), np.array(due_s), np.array(working))] == 0


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=2, max_size=4), st.integers(1, 3))
@examples(30)
def test_no_rank_is_left_out_for_ever(ranks: list[tuple[int, int]], budget: int) -> None:
    """Ranks of any speeds and costs, too much for the preparers: who waits becomes later, so its turn comes.

    (draws a second, milliseconds a sample) of each; each batch is of 16 samples, each draw of one.
    """
    due_s, turns = np.zeros(len(ranks)), np.zeros(len(ranks), np.int64)
    seconds = np.array([[0.064 * cost / k for k in range(1, budget + 1)] for _, cost in ranks])
    for _ in range(150):
        chosen = next_queue(seconds, due_s, np.zeros(len(ranks), np.int64))
        turns += 1
        turns[chosen] = 0
        due_s -= 0.016 * ranks[chosen][1] / budget
        due_s[chosen] = max(due_s[chosen], 0) + 16 / ranks[chosen][0]
        assert turns.max() < 100


def test_a_slow_preparation_gets_more_preparers_once_that_is_known() -> None:
    """Two ranks want as many bytes at the same time; the one whose samples take longer is served first."""
    allotting, sizes = Allotting(), np.full(64, 10_000)
    one, two = (NextToDecode((RunNumber(1), want), want, np.arange(64), 0.0, 0.5) for want in (1, 2))
    for _ in range(20):
        allotting.record(1, sizes, 64 * 0.001)
        allotting.record(2, sizes, 64 * 0.010)
    assert allotting.choose([one, two], [sizes, sizes], {}, 4) is two
    assert allotting.choose([one, two], [sizes, sizes], {two.queue: 1}, 4) is one
    assert allotting.choose([one, two], [sizes, sizes], {one.queue: 1, two.queue: 1}, 4) is two
    allotting.forget(2)
    allotting.record(1, sizes, 64 * 0.020)
    assert allotting.choose([one, two], [sizes, sizes], {}, 4) is one


@given(st.integers(0, 30), st.integers(1, 5), st.integers(0, 1 << 32), st.booleans())
@examples(100)
def test_ranks_of_positions(start: int, replicas: int, seed: int, own: bool) -> None:
    """All at once as one by one."""
    random = np.random.default_rng(seed)
    rank_at = random.integers(0, replicas, 40 - start) if own else None
    division, positions = Division(40, start, replicas, 4, rank_at), random.integers(0, 45, 20)
    assert division.ranks_of(positions).tolist() == [division.rank_of(position) for position in positions.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_ranks_and_jobs_of_any_speed_are_all_prepared_for(count: int) -> None:
    """Two ranks of one run and a slower job of another want: every draw gets what it would get alone, prepared."""
    world = PreparingWorld([60] * 240, 8, 800, second=4000, count=count)
    run = world.register(1, group_chunks=3, stripe=4, seed=1)
    slow = world.register(3, "slow", group_chunks=3, stripe=4, seed=2)
    for client in (1, 2):
        if client == 2:
            assert world.register(2, group_chunks=3, stripe=4, seed=1) == run
        world.want(client, run, WANTS[:1])
        world.begin(client, run, 0, rank=client - 1, replicas=2)
    world.want(3, slow, WANTS[1:2])
    world.begin(3, slow, 0)
    for turn in range(40):
        for client, which, positions in (
            (1, run, range(6 * turn, 6 * turn + 6, 2)),
            (2, run, range(6 * turn + 1, 6 * turn + 6, 2)),
            (3, slow, range(turn, turn + 1)),
        ):
            assert world.draw(client, which, 0, positions)
            world.settle()
            world.now_s += 0.1
            assert np.count_nonzero(world.answered[-1].state & PREPARED) == len(positions)
    facts = world.preparing.facts()
    assert (facts["fetched_decoded"], facts["fetched_encoded"]) == (280, 0)


def test_two_ranks_that_wait_are_both_prepared_for() -> None:
    """Two preparers start while both wait: each works for another rank, not both for the one that asked first."""
    world = PreparingWorld([60] * 240, 8, 800, second=4000, count=2)
    run = world.register(1, group_chunks=3, stripe=4, seed=1)
    world.register(2, group_chunks=3, stripe=4, seed=1)
    for client in (1, 2):
        world.want(client, run, WANTS[:1])
        world.begin(client, run, 0, rank=client - 1, replicas=2)
    for client in (1, 2):
        assert world.draw(client, run, 0, range(client - 1, 80, 2))
    while world.step() or world.reads or world.jobs:
        World._finish_one(world)  # of the reads only: no preparer starts yet
    assert len(world.starting) == 2
    world.is_ready()
    world.is_ready()
    world.step()
    plan = world.core.epochs.lives[RunNumber(run), 0].live
    assert plan is not None
    ranks = {plan.epoch.plan.sample_of[:].tolist().index(world.places(task)[0]) % 2 for task in world.tasks.values()}
    assert ranks == {0, 1}


def ranks_of_tasks(world: PreparingWorld, run: RunNumber) -> list[int]:
    """The rank for which each preparer works now, of four."""
    plan = world.core.epochs.lives[run, 0].live
    assert plan is not None
    order = plan.epoch.plan.sample_of[:].tolist()
    return [order.index(world.places(task)[0]) % 4 for task in world.tasks.values()]


@pytest.mark.parametrize(("allotment", "works"), [("least", 8), ("lobster", 4), ("equal", 8)])
def test_preparers_are_divided_by_the_allotment(allotment: str, works: int) -> None:
    """Four ranks that are early, eight preparers: `equal` gives each two. Algorithm 1 leaves those in excess idle.

    Each rank draws what it would draw with another allotment, and each sample is prepared once.
    """
    world = PreparingWorld([60] * 256, 8, 400, second=800, count=8, allotment=allotment)
    for client in range(1, 5):
        run = world.register(client, group_chunks=3, stripe=4, seed=1)
        world.want(client, run, WANTS[:1])
        world.begin(client, run, 0, rank=client - 1, replicas=4)
    while world.step() or world.reads:
        World._finish_one(world)  # of the reads only
    for _ in range(8):
        world.is_ready()
    while world.step():
        pass
    counts = np.bincount(ranks_of_tasks(world, run), minlength=4)
    assert counts.sum() == works
    if allotment != "least":
        assert counts.tolist() == [works // 4] * 4
    for turn in range(8):
        for client in range(1, 5):
            assert world.draw(client, run, 0, range(32 * turn + client - 1, 32 * turn + 32, 4))
            world.settle()
            world.now_s += 0.05
            assert np.count_nonzero(world.answered[-1].state & PREPARED) == 8
    assert set(world.made.values()) == {1}
    facts = world.preparing.facts()
    assert facts["allotment"] == allotment
    assert sum(rank["decoded"] for rank in facts["ranks"]) == facts["decoded"] == 256


def test_shares_by_queue_count_samples_beyond_the_window() -> None:
    """Equal windows of 64 samples, 700 and 100 that are not prepared: seven of eight preparers, and one."""
    allotting, sizes = Allotting(WorkerAllotment(by_requests)), [np.full(64, 10_000)] * 2
    one, two = (NextToDecode((RunNumber(1), rank), 1, np.arange(64), 0.0, 0.5) for rank in (0, 1))
    pending, working = {one.queue: 700, two.queue: 100}, {one.queue: 0, two.queue: 0}
    while (chosen := allotting.choose([one, two], sizes, working, 8, pending)) is not None:
        working[chosen.queue] += 1
    assert list(working.values()) == [7, 1]


def test_ranks_take_turns_if_preparers_are_fewer() -> None:
    """Of `equal`: each rank is chosen as often as another."""
    equally, names = WorkerAllotment(equal), [(RunNumber(1), rank) for rank in range(4)]
    seconds, none = np.full((4, 1), 0.5), np.zeros(4, np.int64)
    chosen = [equally.next_queue(names, seconds, np.ones(4, np.int64), np.ones(4), none) for _ in range(12)]
    assert chosen == [0, 1, 2, 3] * 3


@given(scenes(), st.sampled_from(list(BY_NAME)), st.integers(0, 1 << 32))
@examples(100)
def test_no_queue_gets_more_preparers_than_it_is_allotted(
    scene: tuple[list[list[float]], list[float], list[int]], name: str, seed: int
) -> None:
    """Preparers that come one after the other, until none may have one more: then each has what the allotment says."""
    seconds, due_s = np.array(scene[0]), np.array(scene[1])
    pending = np.random.default_rng(seed).integers(1, 100, len(seconds))
    names = [(RunNumber(1), rank) for rank in range(len(seconds))]
    divided, working = WorkerAllotment(BY_NAME[name]), np.zeros(len(seconds), np.int64)
    expected = BY_NAME[name](Queues(seconds[None], pending[None].astype(np.float64), due_s[None]))[0]
    for _ in range(seconds.shape[1]):
        chosen = divided.next_queue(names, seconds, pending, due_s, working)
        if chosen is None:
            break
        working[chosen] += 1
    assert working.sum() == expected.sum()
    if len(seconds) <= seconds.shape[1] and name == "equal":
        assert working.min() >= seconds.shape[1] // len(seconds)


def test_samples_that_a_draw_waits_for_come_first_in_their_queue() -> None:
    """The other queues keep their samples; a queue with no other samples has those that are waited for."""
    queues = [(RunNumber(1), rank) for rank in range(3)]
    ahead = [NextToDecode(queue, 1, np.array([4, 5, 6]) + 10 * queue[1], 8.0, 1.0) for queue in queues[:2]]
    waiting = [NextToDecode(queue, 1, np.array([6, 9]) + 10 * queue[1], 0.0, -0.5) for queue in queues[1:]]
    found = list(waiting_first(ahead, waiting))
    assert [each.places.tolist() for each in found] == [[4, 5, 6], [16, 19, 14, 15], [26, 29]]
    assert [(each.lead, each.due_s) for each in found] == [(8.0, 1.0), (0.0, -0.5), (0.0, -0.5)]
