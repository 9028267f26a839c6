"""What is prepared next, what waits for it, and what becomes of it: decisions, without a process or a clock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import initialize, precondition, rule

from brand.formats.preparation import DecodeImage
from brand.node.decide.decoding.server_decoding import BATCH
from brand.node.decide.decoding.specs import MOST
from brand.node.decide.decoding.workers import MOST_ENDS, START_S
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.stimuli import ClientPrepares
from brand.node.wire.client_messages import Numbers
from brand.node.wire.decoding import BATCH_S, DecodeSpec
from brand.node.wire.messages import PREPARED
from brand.node.wire.numbers import ClientNumber
from tests.node.preparing import WANTS, PreparingWorld
from tests.node.test_core_machine import ORDERS, SIZES, CoreMachine
from tests.rounds import examples

ORDER: dict[str, Any] = {"group_chunks": 3, "stripe": 4, "seed": 2}
WANT = WANTS[:1]


def small(**more: Any) -> PreparingWorld:
    """A node with all of 120 samples in memory, and a client that wants one thing of run 1."""
    world = PreparingWorld([60] * 120, 8, 400, **more)
    run = world.register(1, **ORDER)
    world.want(1, run, WANT)
    world.begin(1, run, 0)
    return world


def read_all(world: PreparingWorld) -> None:
    """Have all samples read, and let preparers do nothing."""
    while world.step() or world.reads or world.jobs:
        super(PreparingWorld, world)._finish_one()


def prepared(world: PreparingWorld) -> int:
    """How many samples of the last answer were prepared."""
    return int(np.count_nonzero(world.answered[-1].state & PREPARED))


class PreparingMachine(CoreMachine):
    """As `CoreMachine`, and preparers that work, fail and end."""

    world: PreparingWorld

    @initialize(
        sizes=SIZES,
        chunk_size=st.integers(1, 9),
        pages=st.one_of(st.integers(2, 60), st.integers(12, 200)),
        depth=st.integers(1, 4),
        second=st.sampled_from([2, 5, 20, 80, 400]),
        count=st.integers(1, 3),
        least=st.sampled_from([1, 1, 2]),
    )
    def start(
        self,
        sizes: list[int],
        chunk_size: int,
        pages: int,
        depth: int,
        second: int = 20,
        count: int = 1,
        least: int = 1,
    ) -> None:
        self.world = PreparingWorld(sizes, chunk_size, pages, depth, second=second, count=count, least_runs=least)
        self.clients = list(range(5))
        self.fronts = {}
        for client in self.clients:
            self.world.register(client, **ORDERS[0])

    @rule(client=st.sampled_from([0, 0, 1, 2]), run=st.sampled_from([0, 0, 1]), wants=st.sets(st.integers(0, 2)))
    def want(self, client: int, run: int, wants: set[int]) -> None:
        number = self.clients[client]
        listed = [WANTS[want] for want in sorted(wants)] or [WANTS[0]]
        self.world.want(number, self.run_of(number, run), listed)

    @precondition(lambda self: self.world.starting)
    @rule()
    def preparer_starts(self) -> None:
        self.world.is_ready()

    @precondition(lambda self: self.world.tasks)
    @rule(which=st.integers(0, 2), cannot=st.sets(st.integers(0, 39), max_size=5), untried=st.integers(0, 3))
    def finish_batch(self, which: int, cannot: Collection[int], untried: int) -> None:
        numbers = sorted(self.world.tasks)
        self.world.finish_batch(numbers[which % len(numbers)], cannot=cannot, untried=untried)

    @precondition(lambda self: self.world.fills)
    @rule(which=st.integers(0, 2))
    def finish_fill(self, which: int) -> None:
        self.world.finish_fill(which % len(self.world.fills))

    @precondition(lambda self: self.world.running or self.world.starting)
    @rule(which=st.integers(0, 2))
    def preparer_ends(self, which: int) -> None:
        numbers = sorted(self.world.running | set(self.world.starting))
        self.world.end(numbers[which % len(numbers)])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            while self.world.fills:
                self.world.finish_fill()
        super().teardown()


PreparingMachine.TestCase.settings = examples(40, stateful_step_count=50)
TestPreparing = pytest.mark.slow(PreparingMachine.TestCase)


def test_samples_are_prepared_in_draw_order_and_once() -> None:
    """Every draw of an epoch is answered with prepared samples, and each sample was prepared once."""
    world = small(second=2000)
    for first in range(0, 120, 6):
        assert world.draw(1, 1, 0, range(first, first + 6))
        world.settle()
        assert prepared(world) == 6
    assert set(world.made.values()) == {1}
    assert len(world.made) == 120
    facts = world.preparing.facts()
    assert (facts["decoded"], facts["fetched_decoded"], facts["fetched_encoded"]) == (120, 120, 0)


@pytest.mark.slow
def test_a_memory_for_all_is_prepared_once_for_all_epochs_and_runs() -> None:
    """Of another run and a later epoch nothing is prepared anew: a sample stays until its room is needed."""
    world = small(second=2000)
    other = world.register(2, "other", **ORDER)
    world.want(2, other, WANT)
    for epoch in range(3):
        for client, run in ((1, 1), (2, other)):
            world.begin(client, run, epoch)
        for first in range(0, 120, 6):
            for client, run in ((1, 1), (2, other)):
                assert world.draw(client, run, epoch, range(first, first + 6))
                world.settle()
                assert prepared(world) == 6
    assert set(world.made.values()) == {1}


def test_a_small_memory_is_used_again() -> None:
    """Memory for a tenth: each sample is prepared in time, and makes room once it was drawn."""
    world = small(second=40)
    for first in range(0, 120, 6):
        assert world.draw(1, 1, 0, range(first, first + 6))
        world.settle()
        world.now_s += 0.2
        world.quiet()
    assert world.preparing.facts()["fetched_encoded"] < 40
    assert len(world.made) > 80


def test_what_a_client_copies_stays_until_it_is_released() -> None:
    """Though memory is full, and no epoch will draw it."""
    world = small(second=40)
    while not world.held:
        world.step()
        world._finish_one()
        if not world.asked and not world.answered:
            world.draw(1, 1, 0, range(6))
    assert prepared(world) == 6
    for _ in range(5):
        world.now_s += 2.0
        world.quiet()
    assert world.preparing.facts()["decoded"] > 12
    world.release(next(iter(world.held)))  # compares what was copied with what is there now


def test_a_draw_waits_for_what_is_being_prepared_and_no_longer_than_it_may() -> None:
    """A preparer that never answers is ended, and the draw is answered raw."""
    world = small(count=1, second=2000)
    read_all(world)
    world.is_ready()
    world.step()
    world.finish_batch(0)  # of one sample, as nothing is known of their size
    world.finish_fill()
    world.step()
    assert len(world.places(world.tasks[0])) == BATCH
    world.draw(1, 1, 0, range(4))
    world.step()
    assert not world.answered
    world.step(BATCH_S + 1)
    assert not world.tasks
    assert world.starting == [0]
    assert len(world.answered) == 1
    assert prepared(world) == 1


def test_without_hope_nothing_waits() -> None:
    """A preparer that ends too often is not started again; when none is left, draws go out raw at once."""
    world = small(count=2)
    for number in (0, 1):
        for _ in range(MOST_ENDS):
            world.step()
            world.end(number)
    world.step()
    assert not world.starting
    assert not world.preparing.workers.hopeful
    world.draw(1, 1, 0, range(4))
    world.settle()
    assert prepared(world) == 0
    (notice, last) = world.core.epochs.runs.take_notices()
    assert notice.endswith("the other workers continue")
    assert last.startswith("decode worker 1 has ended too often")
    assert last.endswith("clients decode these samples themselves")


def test_ends_that_are_far_apart_are_forgiven() -> None:
    """Three ends, but not within a minute."""
    world = small(count=1)
    for _ in range(3 * MOST_ENDS):
        world.step(40.0)
        world.is_ready()
        world.end(0)
    assert world.preparing.workers.hopeful


def test_a_preparer_that_never_starts_is_ended() -> None:
    """After a while, and the draw that waits for it is answered."""
    world = small(count=1)
    world.step()
    assert world.starting == [0]
    read_all(world)
    world.draw(1, 1, 0, range(4))
    assert not world.answered
    world.step(START_S + 1)
    assert len(world.answered) == 1
    assert not world.starting
    assert not world.preparing.workers.hopeful


def test_a_sample_over_which_two_preparers_ended_is_not_sent_again() -> None:
    """The first time its whole batch is suspected, then each goes alone, and only the one at fault is given up."""
    world = small(count=1, second=2000)
    hostile = 17
    deaths = 0
    for _ in range(2000):
        world.step(0.3)
        if world.starting:
            world.is_ready()
        elif world.tasks and hostile in world.places(world.tasks[0]):
            if deaths:
                assert world.places(world.tasks[0]) == [hostile]
            world.end(0)
            deaths += 1
        elif not world._finish_one():
            break
    assert deaths == 2
    assert len(world.made) == 119
    where = world.plan(world.runs[1].order, 0).sample_of.tolist().index(hostile)
    world.draw(1, 1, 0, [where])
    world.settle()
    assert prepared(world) == 0


def test_what_cannot_be_prepared_goes_out_raw_at_once() -> None:
    """And is not tried again."""
    world = small(second=2000)
    while world._finish_one() or world.step():
        for number in list(world.tasks):
            world.finish_batch(number, cannot=range(0, 120, 2))
    world.draw(1, 1, 0, range(120))
    assert len(world.answered) == 1
    assert prepared(world) == 60
    assert set(world.made.values()) == {1}


def test_clients_without_wants_do_not_wait() -> None:
    """A run whose client wants nothing is served as before, beside one that does."""
    world = small()
    other = world.register(2, "plain", **ORDER)
    world.begin(2, other, 0)
    while not (world.tasks or world.starting):
        world.step()
    world.draw(2, other, 0, range(8))
    read_all(world)
    assert len(world.answered) == 1
    assert not len(world.answered[-1].prepared)


@pytest.mark.parametrize(("second", "most"), [(40, 375), (90, 300), (120, 145), (250, 120)])
def test_a_next_epoch_does_not_keep_this_one_from_being_prepared(second: int, most: int) -> None:
    """All raw samples are kept, so the next epoch wants all that is prepared: what it draws last makes room.

    The more memory there is, the less is prepared twice; what has just gone is not prepared at once again.
    """
    world = small(second=second)
    for number in range(3):
        world.begin(1, 1, number)
        for first in range(0, 120, 6):
            assert world.draw(1, 1, number, range(first, first + 6))
            world.settle()
            world.quiet()
    facts = world.preparing.facts()
    assert facts["fetched_encoded"] == 0
    assert facts["decoded"] <= most


def test_one_job_alone_prepares_for_itself_until_another_wants_the_same() -> None:
    """With `least_runs=2` no preparer starts and no draw waits for one; with a second job all draws come prepared.

    Another job that wants something else changes nothing, and when the second one has left, the first is alone again.
    """
    world = small(second=2000, least_runs=2)
    read_all(world)

    def draws(client: int, run: int, first: int) -> int:
        assert world.draw(client, run, 0, range(first, first + 6))
        answers = len(world.answered)
        world.settle()
        assert len(world.answered) > answers or not world.asked
        return prepared(world)

    assert draws(1, 1, 0) == 0
    other, same = world.register(2, "other", **ORDER), world.register(3, "same", **ORDER)
    world.want(2, other, WANTS[1:2])
    assert draws(1, 1, 6) == 0
    assert not world.starting
    assert not world.running
    world.want(3, same, WANT)
    world.begin(3, same, 0)
    assert draws(1, 1, 12) == 6
    assert draws(3, same, 0) == 6
    world.leave(3)
    made = dict(world.made)
    while world._finish_one() or world.step():
        pass
    draws(1, 1, 60)
    assert set(world.made) == set(made)


def test_a_run_that_pauses_makes_room_for_another() -> None:
    """Samples that it has not drawn go, once another run needs their room."""
    world = small(second=40)
    world.draw(1, 1, 0, range(4))
    world.settle()
    world.quiet()
    other = world.register(2, "other", **{**ORDER, "seed": 5})
    world.want(2, other, WANT)
    world.now_s += 5.0
    world.begin(2, other, 0)
    world.quiet()
    for first in range(0, 40, 4):
        world.draw(2, other, 0, range(first, first + 4))
        world.settle()
        world.now_s += 1.1
    assert prepared(world) == 4


def test_the_second_memory_holds_as_many_wants_as_it_may() -> None:
    """The wants of clients that have left make place for others."""
    world = small()
    run = world.register(7, **ORDER)

    def asks(client: int, shorter: int) -> tuple[int, ...]:
        (numbers,) = world.tell(
            ClientPrepares(ClientNumber(client), run, (DecodeSpec("image", DecodeImage(shorter=shorter)),))
        )
        assert isinstance(numbers, Numbers)
        return numbers.numbers

    found = [asks(100 + number, 1000 + number) for number in range(MOST + 3)]
    assert found[MOST - 1 :] == [()] * 4
    assert len(set(found[: MOST - 1])) == MOST - 1
    world.leave(100)
    assert asks(200, 5000) == (MOST + 1,)


def test_constants() -> None:
    """A draw outlasts a preparer that is late."""
    assert BATCH_S < LONGEST_WAIT_S
    assert BATCH >= 1
