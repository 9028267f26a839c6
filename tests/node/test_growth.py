"""Jobs whose orders grow: what one read serves, what makes room, what a new server learns, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.errors import UsageError
from brand.node.decide.epochs.pacing import IDLE_S
from brand.node.decide.online.online_epoch import OnlineEpoch
from brand.node.decide.online.online_orders import RECOVERY_S
from brand.node.decide.online.order_table import MOST_KEPT
from brand.node.decide.sharing.job_sharing import EarlyHolds
from brand.node.decide.sharing.joins import Pacemakers
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.states import HELD
from brand.node.decide.stimuli import ClientOrders
from brand.node.wire.client_messages import OrderDecided
from brand.node.wire.numbers import ClientNumber, RunNumber
from tests.node.world import World
from tests.rounds import examples

SIZE = 96
JOADER: dict[str, Any] = {"protocol": "joader", "group_chunks": 2, "seed": 1}


def world_of(samples: int, share: float, *, measures: bool = False) -> World:
    """A server of samples of one page each, whose memory holds a share of them."""
    return World([SIZE] * samples, 32, int(samples * share) + 2, 3, measures=measures)


class Job:
    """A job with one process, which draws epochs in batches."""

    def __init__(self, world: World, number: int, *, epoch: int = 0, batch: int = 8, **order: int) -> None:
        self.world, self.client, self.epoch, self.batch = world, number, epoch, batch
        self.run = world.register(number, f"job {number}", **JOADER | order)
        self.draws = world.draws(self.run)
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch, self.position = epoch, 0
        self.world.begin(self.client, self.run, epoch)

    @property
    def key(self) -> Key:
        """Its epoch."""
        return self.run, self.epoch

    def ask(self) -> None:
        """Ask for the next batch, in this epoch or the next one."""
        if self.position == self.draws:
            assert self.given() == sorted(self.wanted())
            self.begin(self.epoch + 1)
        end = min(self.draws, self.position + self.batch)
        assert self.world.draw(self.client, self.run, self.epoch, range(self.position, end))
        self.position = end

    def given(self) -> list[int]:
        """The places that it got in its epoch, sorted."""
        return sorted(self.world.given[self.key].values())

    def wanted(self) -> list[int]:
        """The places of its part."""
        part = self.world.runs[self.run].order.ever
        every = np.arange(len(self.world.sizes))
        found: list[int] = (every if part is None else every[part.mask]).tolist()
        return found


def together(jobs: Sequence[Job], world: World, seconds: float = 0.01) -> None:
    """Each job draws a batch, all at about the same time."""
    for job in jobs:
        job.ask()
    world.now_s += seconds
    world.settle()


def read(world: World) -> int:
    """Samples that were read in large reads."""
    return sum(world.read_bytes.values()) // SIZE


@pytest.mark.slow
def test_jobs_in_step_read_half_a_sample_a_draw() -> None:
    """With memory for a sixteenth of the data set, three epochs long; and everything comes from memory."""
    world = world_of(1024, 1 / 16, measures=True)
    jobs = [Job(world, number, batch=16) for number in (1, 2)]
    for _ in range(3 * 1024 // 16):
        together(jobs, world)
    assert [job.given() for job in jobs] == 2 * [list(range(1024))]
    assert world.core.counters.draws.direct == 0
    assert read(world) / (6 * 1024) == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
def test_a_job_half_an_epoch_late_shares_what_the_law_allows() -> None:
    """(1 + H(1/2)) / 2 = 0.847 reads a draw, with hardly any memory (JOADER's rule; `docs/guides/simulate.md`)."""
    samples, batch = 1024, 16
    world = world_of(samples, 1 / 24, measures=True)
    first = Job(world, 1, batch=batch)
    for _ in range(samples // 2 // batch):
        together([first], world)
    jobs, before = [first, Job(world, 2, batch=batch)], read(world)
    for _ in range(3 * samples // batch):
        together(jobs, world)
    assert (read(world) - before) / (6 * samples) == pytest.approx(0.847, abs=0.03)
    assert world.core.counters.draws.direct == 0


@pytest.mark.slow
def test_memory_holds_what_other_jobs_still_need() -> None:
    """With a quarter of the data set in memory, a late job reads far less than the rule alone would."""
    world = world_of(1024, 1 / 4, measures=True)
    first = Job(world, 1, batch=16)
    for _ in range(512 // 16):
        together([first], world)
    jobs, before = [first, Job(world, 2, batch=16)], read(world)
    for _ in range(3 * 1024 // 16):
        together(jobs, world)
    assert (read(world) - before) / (6 * 1024) < 0.75


@pytest.mark.slow
def test_a_job_alone_reads_what_memory_does_not_hold() -> None:
    """What its next epoch needs stays as long as there is room; where all fits, nothing is read twice."""
    for share, most in ((0.25, 0.85), (1.2, 0.01)):
        world = world_of(512, share, measures=True)
        job = Job(world, 1)
        for _ in range(512 // 8):
            together([job], world)
        before = read(world)
        for _ in range(2 * 512 // 8):
            together([job], world)
        assert (read(world) - before) / 1024 < most


@pytest.mark.slow
def test_jobs_of_all_kinds_draw_their_parts_once() -> None:
    """Own parts, batches and beginnings, in memory for a third."""
    world = world_of(160, 1 / 3)
    jobs = [Job(world, 1), Job(world, 2, part=3, batch=5)]
    for turn in range(60):
        if turn == 7:
            jobs.append(Job(world, 3, part=2, batch=12))
        together(jobs, world)
    assert [job.epoch for job in jobs] == [2, 2, 7]
    assert world.core.counters.draws.direct == 0


@pytest.mark.slow
def test_a_job_that_is_killed_leaves_nothing_behind() -> None:
    """The other one goes on, and memory is empty when it has left, too."""
    world = world_of(128, 1 / 4)
    jobs = [Job(world, number) for number in (1, 2)]
    for _ in range(5):
        together(jobs, world)
    jobs[1].ask()
    world.leave(2)
    while jobs[0].position < 128:
        together(jobs[:1], world)
    assert jobs[0].given() == list(range(128))
    assert "Tree" in repr(world.online)
    world.leave(1)
    world.quiet()
    assert world.core.facts(1.0, world.now_s)["memory"]["used"] == 0
    assert repr(world.online) == "OnlineOrders(orders={}, rounds=Rounds())"


@pytest.mark.slow
def test_what_is_told_of_a_job() -> None:
    """Nobody makes a pace, and nobody joins."""
    world = world_of(128, 1 / 4)
    jobs = [Job(world, number) for number in (1, 2)]
    for _ in range(12):
        together(jobs, world)
    (told, other) = world.core.facts(1.0, world.now_s)["jobs"]
    assert (told["job"], told["position"], told["pace"], told["joins"], told["behind"]) == ("job 1", 96, None, [], None)
    assert not told["sets_the_pace"]
    assert told["shared"] + other["shared"] > 0.6


@pytest.mark.slow
@given(st.data())
@examples(6)
def test_what_the_fewest_jobs_need_makes_room_then_the_oldest(data: st.DataObject) -> None:
    """Against an obvious model. What is decided goes last, and not before what is to be read; idle jobs go first."""
    world = world_of(128, 0.4)
    jobs = [Job(world, 1), Job(world, 2, part=2), Job(world, 3, part=3)]
    arrival: dict[int, int] = {}
    for _ in range(data.draw(st.integers(2, 12))):
        together(data.draw(st.lists(st.sampled_from(jobs), min_size=1, unique_by=lambda job: job.client)), world)
    if data.draw(st.booleans()):
        world.now_s += IDLE_S + 1
    core, now_s = world.core, world.now_s
    assert world.turn.sharing is not None
    early = world.turn.sharing.early
    arrival = dict(enumerate(early._came.tolist()))
    holds: dict[int, int] = {}
    soonest: dict[int, float] = {}
    for key, live in core.epochs.lives.live():
        assert isinstance(live.epoch, OnlineEpoch)
        idle = core.epochs.pacing.idle(key[0], now_s)
        for place in live.epoch.states.all(HELD).tolist():
            position = int(live.epoch.growing.position_of[place])
            known = position < live.epoch.growing.decided and not idle
            lead = float(early.lead(key, live, position, now_s)) if known else np.inf
            holds[place] = holds.get(place, 0) + 1
            soonest[place] = min(soonest.get(place, np.inf), lead)
    beyond = data.draw(st.sampled_from([-np.inf, 4.0, 20.0, 1e9]))
    leaves = [place for place in holds if soonest[place] > beyond]
    leaves.sort(key=lambda place: (-soonest[place], holds[place], arrival[place], place))
    pages = data.draw(st.integers(1, 40))
    assert early.give_back(pages, now_s, beyond) == bool(leaves)
    gone = [place for place in holds if not core.residents.present(np.array([place]))[0]]
    assert sorted(gone) == sorted(leaves[:pages])
    world.check()
    for job in jobs:
        while job.position < job.draws:
            together([job], world)
        assert job.given() == job.wanted()


def tell(
    world: World, client: int, key: Key, first: int, places: Sequence[int], sure: int = 0, wanted: int = 0
) -> OrderDecided:
    """A client says what it knows of an order. Returns the answer."""
    told = ClientOrders(ClientNumber(client), key, first, np.array(places, np.int32), sure, wanted)
    (answer,) = world.tell(told)
    assert isinstance(answer, OrderDecided)
    world.check()
    return answer


def order_of(world: World, key: Key) -> list[int]:
    """What is decided of an epoch."""
    found: list[int] = world.online.orders.publish(key, 0, 1 << 16).tolist()
    return found


def test_a_new_server_learns_the_order_and_goes_on() -> None:
    """What clients know stands, and is answered at once; the rest waits for other processes."""
    world = world_of(64, 1 / 2)
    run = world.register(1, "job", **JOADER)
    world.register(2, "job", **JOADER)
    key = (run, 0)
    known = [5, 60, 3, 8, 13, 40, 41, 2]
    answer = tell(world, 1, key, 0, known, sure=4)
    assert (answer.decided, answer.places.tolist()) == (8, known)
    assert world.draw(1, run, 0, [4, 5])
    world.quiet()
    assert not world.asked
    assert [world.given[key][position] for position in (4, 5)] == known[4:6]
    assert world.draw(1, run, 0, [6, 7, 8, 9])
    world.quiet()
    assert world.asked
    more = [*known, 11, 12]
    assert tell(world, 2, key, 0, more, sure=10).places.tolist() == more  # another process knows more
    world.quiet()
    assert not world.asked
    assert [world.given[key][position] for position in (8, 9)] == [11, 12]
    assert world.draw(2, run, 0, range(10, 20))
    world.quiet()
    assert world.asked
    world.now_s += RECOVERY_S
    world.quiet()
    assert not world.asked
    world.settle()
    world.draw(2, run, 0, range(20, 64))
    world.settle()
    assert sorted(order_of(world, key)) == list(range(64))
    assert order_of(world, key)[:10] == more


def test_a_late_process_that_knows_otherwise_is_refused() -> None:
    """A sample would be drawn twice. What no client of the old server was answered does not count."""
    world = world_of(64, 1 / 2)
    run = world.register(1, "job", **JOADER)
    world.register(2, "job", **JOADER)
    key = (run, 0)
    world.draw(1, run, 0, [0, 1])
    world.settle()
    decided = order_of(world, key)
    other = decided[::-1]
    assert tell(world, 2, key, 0, [*decided[:2], *other], sure=2).places[:2].tolist() == decided[:2]
    assert order_of(world, key)[: len(decided)] == decided
    with pytest.raises(UsageError, match="load the last state"):
        tell(world, 2, key, 0, other, sure=1)


def test_what_nobody_was_told_may_still_change() -> None:
    """A server has decided ahead when a process says what another server has answered."""
    world = world_of(64, 1 / 2)
    job = Job(world, 1)
    world.quiet()
    ahead = order_of_untold(world, job.key)
    assert ahead
    known = [place for place in range(64) if place not in ahead][:9]
    assert tell(world, 1, job.key, 0, known, sure=9).places[:9].tolist() == known
    while job.position < 64:
        together([job], world)
    assert job.given() == list(range(64))
    assert order_of(world, job.key)[:9] == known


def order_of_untold(world: World, key: Key) -> list[int]:
    """What is decided of an epoch, without asking for it."""
    epoch = world.epochs()[key].epoch
    assert isinstance(epoch, OnlineEpoch)
    found: list[int] = epoch.growing.sample_of[: epoch.growing.decided].tolist()
    return found


def test_a_run_goes_on_from_a_state() -> None:
    """It has drawn some samples, in any order, and draws the others; ranks say the same."""
    world = world_of(64, 1 / 2)
    run = world.register(1, "job", **JOADER)
    world.register(2, "job", **JOADER)
    drawn = list(range(0, 40, 2))
    for client in (1, 2):
        tell(world, client, (run, 3), 0, drawn, sure=20)
        world.begin(client, run, 3, 20, rank=client - 1, replicas=2)
    for client in (1, 2):
        assert world.draw(client, run, 3, range(19 + client, 64, 2))
    world.settle()
    assert sorted(world.given[run, 3].values()) == sorted(set(range(64)) - set(drawn))


def test_a_state_may_want_more_than_is_drawn() -> None:
    """A sampler is ahead of the draws. Not where another server has begun the epoch: other processes know more."""
    world = world_of(512, 1 / 2)
    job = Job(world, 1)
    world.quiet()
    before = len(order_of_untold(world, job.key))
    tell(world, 1, job.key, 0, [], wanted=300)
    world.quiet()
    for _ in range(4):
        world.step()
    assert before < 300 <= len(order_of_untold(world, job.key))
    lost = world.register(2, "lost", **JOADER)
    assert tell(world, 2, (lost, 0), 0, range(8), sure=8, wanted=300).decided == 8
    world.now_s += 2 * RECOVERY_S
    world.quiet()
    assert tell(world, 2, (lost, 0), 0, []).decided == 8


def after_many_epochs() -> tuple[World, Job]:
    """A job that has drawn so many epochs, each by one draw, that the orders of the first ones are forgotten."""
    world = world_of(32, 1 / 2)
    job = Job(world, 1, batch=32)
    for _ in range(MOST_KEPT + 4):
        together([job], world)
    return world, job


def test_old_orders_are_forgotten_and_not_made_up_anew() -> None:
    """A draw of such an epoch is refused, until a rank begins it again."""
    world, job = after_many_epochs()
    orders = world.online.orders
    assert orders.is_over((job.run, 0))
    assert not orders.is_over((job.run, job.epoch - 1))
    assert not world.draw(1, job.run, 0, [0])  # `World` knows that it is refused
    with pytest.raises(UsageError, match="epoch 0 of job job 1 is over"):
        tell(world, 1, (job.run, 0), 0, [], wanted=1)
    job.begin(0)
    together([job], world)
    assert job.given() == list(range(32))


def test_a_forgotten_order_is_not_read_ahead() -> None:
    """A rank goes back to the epoch before it, and draws all of that. A slow process may still draw what is over."""
    world, job = after_many_epochs()
    orders = world.online.orders
    assert orders.is_over((job.run, 1))
    job.begin(0)
    together([job], world)
    assert orders.is_over((job.run, 1))
    assert not world.draw(1, job.run, 1, [0])


def test_positions_that_are_left_out_stay_left_out() -> None:
    """A rank begins behind what is decided: what it leaves out is any choice, and not drawn."""
    world = world_of(64, 1 / 2)
    job = Job(world, 1)
    together([job], world)
    world.begin(1, job.run, 0, 48)
    world.draw(1, job.run, 0, range(48, 64))
    world.settle()
    given_places = list(world.given[job.key].values())
    assert len(set(given_places)) == len(given_places) == 24


@pytest.mark.parametrize(
    ("first", "places", "sure", "message"),
    [
        (0, [64], 0, "beyond"),
        (0, [-1], 0, "beyond"),
        (60, [1, 2, 3, 4, 5], 0, "beyond"),
        (0, [1], 65, "beyond"),
        (9, [1], 0, "only 0 positions are decided"),
        (0, [1, 1], 2, "another order"),
        (0, [4, 0], 2, "another order"),  # place 0 is not of the part
    ],
)
def test_a_lying_client_is_refused(first: int, places: list[int], sure: int, message: str) -> None:
    """And everybody else goes on."""
    world = world_of(64, 1 / 2)
    run = world.register(1, "job", **JOADER, part=4)
    plain = world.register(2, "plain")
    with pytest.raises(UsageError, match=message):
        tell(world, 1, (run, 0), first, places, sure)
    with pytest.raises(UsageError, match="does not grow"):
        tell(world, 2, (plain, 0), 0, [1], 1)
    world.leave(1)
    job = Job(world, 3, part=4)
    together([job], world)
    assert RunNumber(job.run) in world.core.epochs.runs


def test_early_tells_itself() -> None:
    """For a log."""
    world = world_of(8, 1)
    epochs = world.core.epochs
    pacemakers = Pacemakers(epochs.runs, epochs.lives, epochs.pacing)
    assert "EarlyHolds(" in repr(EarlyHolds(world.core.residents, epochs, pacemakers))
