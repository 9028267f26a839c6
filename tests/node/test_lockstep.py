"""Jobs in lock step: who waits for whom, for how long, and what they read together."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.node.decide.sharing.job_sharing import AWAY_S, GATHER_S
from brand.orders.base.joins import alone
from tests.node.world import World
from tests.rounds import examples

SAMPLES, SIZE, WINDOW = 192, 96, 24


def world_of(share: float = 0.5) -> World:
    """A server of samples of one page each, in chunks of 32, whose memory holds a share of them."""
    return World([SIZE] * SAMPLES, 32, int(SAMPLES * share) + 1, 3)


class Job:
    """A job with one process."""

    def __init__(
        self,
        world: World,
        client: int,
        jobs: int,
        *,
        batch: int = 8,
        position: int = 0,
        epoch: int = 0,
        begins: bool = True,
    ) -> None:
        order: dict[str, Any] = {"group_chunks": 6, "stripe": 4, "seed": 1, "jobs": jobs, "window": WINDOW}
        self.world, self.client, self.batch, self.position, self.epoch = world, client, batch, position, epoch
        self.run = world.register(client, f"job {client}", protocol="coordl", **order)
        self.asked = position
        if begins:
            world.begin(client, self.run, epoch, position)

    def ask(self) -> None:
        """Ask for the next samples, where nothing is asked for; begin the next epoch at an end."""
        if self.client in self.world.asked:
            return
        self.position = self.asked
        if self.position == SAMPLES:
            self.position, self.epoch = 0, self.epoch + 1
            self.world.begin(self.client, self.run, self.epoch)
        self.asked = min(SAMPLES, self.position + self.batch)
        assert self.world.draw(self.client, self.run, self.epoch, range(self.position, self.asked))

    @property
    def drawn(self) -> int:
        """The coordinate behind all that it was given."""
        return self.epoch * SAMPLES + (self.position if self.client in self.world.asked else self.asked)

    def given(self, epoch: int = 0) -> list[int]:
        """The places that it got in an epoch, sorted."""
        return sorted(self.world.given[self.run, epoch].values())


def rest(world: World) -> None:
    """Let everything happen that can happen without time going on."""
    while True:
        world.quiet()
        if not world.held:
            return
        world.release(next(iter(world.held)))


def test_nobody_begins_before_all_are_there() -> None:
    """The first two of three get nothing; with the third, all do."""
    world = world_of()
    jobs = [Job(world, 1, 3), Job(world, 2, 3)]
    for job in jobs:
        job.ask()
    rest(world)
    assert [job.drawn for job in jobs] == [0, 0]
    jobs.append(Job(world, 3, 3))
    jobs[2].ask()
    rest(world)
    assert [job.drawn for job in jobs] == [8, 8, 8]


def test_who_never_comes_is_told_of() -> None:
    """After a minute, by an error that names who is there."""
    world = world_of()
    Job(world, 1, 3).ask()
    Job(world, 2, 3).ask()
    rest(world)
    world.now_s += GATHER_S - 1
    rest(world)
    assert not world.refused
    world.now_s += 2
    rest(world)
    assert set(world.refused) == {1, 2}
    assert "2 of 3 jobs in lock step (job 1, job 2) have begun within 60 s" in world.refused[1]


@pytest.mark.slow
@given(st.integers(2, 4), st.integers(0, 1 << 30), st.sampled_from([0.2, 0.5, 1.2]))
@examples(4)
def test_all_draw_the_same_order_and_nobody_is_far_ahead(count: int, seed: int, share: float) -> None:
    """Whatever their batches and in whatever order they ask: each draws each lap once."""
    rng, world = random.Random(seed), world_of(share)
    jobs = [Job(world, client, count, batch=rng.choice([3, 8, 32])) for client in range(1, count + 1)]
    for job in jobs:
        job.ask()
    while min(job.drawn for job in jobs) < 2 * SAMPLES:
        job = rng.choice([job for job in jobs if job.drawn < 2 * SAMPLES] * 3 + jobs)
        if job.drawn < 2 * SAMPLES or job.client in world.asked:
            job.ask()
        rest(world)
        world.now_s += 0.01
        drawn = [job.drawn for job in jobs]
        assert max(drawn) - min(drawn) <= WINDOW + 32
    for epoch in (0, 1):
        assert [job.given(epoch) for job in jobs] == count * [list(range(SAMPLES))]
        orders = [[world.given[job.run, epoch][at] for at in range(SAMPLES)] for job in jobs]
        assert orders == count * orders[:1]
        assert {world.joins((job.run, epoch)) for job in jobs} <= {(), alone(epoch)}


def test_each_lap_is_read_once_for_all() -> None:
    """However unevenly they ask, with memory for what they mix and for the window."""
    world = world_of(0.8)
    jobs = [Job(world, client, 3) for client in (1, 2, 3)]
    while min(job.drawn for job in jobs) < SAMPLES:
        for job, often in zip(jobs, (1, 2, 4), strict=True):
            for _ in range(often):
                if job.drawn < SAMPLES:
                    job.ask()
                rest(world)
    numbers = {world.epochs()[job.run, 0].epoch.number for job in jobs}
    once = sum(size for (number, _), size in world.read_bytes.items() if number in numbers)
    assert SAMPLES * SIZE <= once < 1.05 * SAMPLES * SIZE  # a stripe or two that made room
    assert world.core.counters.draws.direct == 0


@pytest.mark.parametrize("killed", [True, False])
def test_a_job_that_is_gone_or_away_is_not_waited_for(*, killed: bool) -> None:
    """A killed one at once, a stopped one after a while. When this one comes back it goes by itself."""
    world = world_of()
    one, other = Job(world, 1, 2), Job(world, 2, 2)
    for _ in range(3):
        one.ask()
        other.ask()
        rest(world)
    for _ in range(10):
        one.ask()
        rest(world)
    assert one.drawn <= other.drawn + WINDOW + 8
    held_at = one.drawn
    if killed:
        world.leave(2)
    else:
        world.now_s += AWAY_S - 5
        rest(world)
        assert one.drawn == held_at
        world.now_s += 6
    rest(world)
    for _ in range(10):
        one.ask()
        rest(world)
    assert one.drawn == held_at + 10 * 8 + 8
    if not killed:
        for _ in range(30):
            other.ask()
            one.ask()
            rest(world)
        assert other.given() == list(range(SAMPLES))


def test_a_job_that_is_away_within_the_window_is_waited_for_once() -> None:
    """The other one wants what lies beyond the window, although its own front is not: one of its ranks is behind."""
    world = world_of()
    one, other = Job(world, 1, 2), Job(world, 2, 2)
    for _ in range(2):
        one.ask()
        other.ask()
        rest(world)
    assert world.draw(1, one.run, 0, [2 * 8 + WINDOW + 1])
    rest(world)
    assert 1 in world.asked
    for _ in range(5):
        world.now_s += AWAY_S / 4
        rest(world)
    assert 1 not in world.asked


def test_a_job_that_comes_later_goes_by_itself_until_it_is_near() -> None:
    """Begun again from a state, it draws the same lap. Until it is near, it waits for nobody, and nobody for it."""
    world = world_of()
    one, other = Job(world, 1, 2), Job(world, 2, 2)
    for _ in range(8):
        one.ask()
        other.ask()
        rest(world)
    world.leave(2)
    for _ in range(10):
        one.ask()
        rest(world)
    late = Job(world, 3, 2)
    one.ask()
    rest(world)
    assert one.drawn == 8 * 19
    while late.drawn < one.drawn - WINDOW:
        late.ask()
        rest(world)
    for _ in range(10):
        one.ask()
        rest(world)
    assert one.drawn <= late.drawn + WINDOW + 8
    assert world.joins((late.run, 0)) == alone(0)


def test_on_another_server_a_job_goes_on_in_its_epoch() -> None:
    """Alone, and at once: the server that was killed had them all. Who begins the next epoch waits for nobody."""
    world = world_of()
    one, other = Job(world, 1, 3, begins=False, position=40), Job(world, 2, 3, begins=False, position=SAMPLES - 8)
    one.ask()
    other.ask()
    rest(world)
    assert (one.drawn, other.drawn) == (48, SAMPLES)
    other.ask()
    rest(world)
    assert other.drawn == SAMPLES + 8
    while one.drawn < SAMPLES:
        one.ask()
        rest(world)
    assert len(one.given()) == SAMPLES - 40


@pytest.mark.parametrize("start", [(1, 0), (0, 64)])
def test_a_job_that_has_drawn_elsewhere_waits_a_minute_for_the_others(start: tuple[int, int]) -> None:
    """They may have ended with the server before, or before the state was saved."""
    world = world_of()
    epoch, position = start
    one = Job(world, 1, 2, epoch=epoch, position=position)
    one.ask()
    rest(world)
    world.now_s += GATHER_S - 1
    rest(world)
    assert one.drawn == epoch * SAMPLES + position
    world.now_s += 2
    rest(world)
    assert not world.refused
    assert one.drawn == epoch * SAMPLES + position + 8


def test_the_order_says_how_many_there_are() -> None:
    """Jobs that name other numbers do not go together."""
    world = world_of()
    one, two = Job(world, 1, 1), Job(world, 2, 2)
    one.ask()
    two.ask()
    rest(world)
    assert (one.drawn, two.drawn) == (8, 0)
