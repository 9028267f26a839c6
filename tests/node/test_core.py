"""What `Core` does in situations that trainings get into every day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from brand.errors import counted
from brand.node.decide.node_state import AT_ONCE
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.states import HELD
from tests.node.world import World

SAMPLES = 240
SIZE = 96
"""One page each, row included."""
ORDER: dict[str, Any] = {"group_chunks": 3, "stripe": 4, "seed": 1}


def world(pages: int, *, depth: int = 2) -> World:
    """Samples of one page each, in chunks of eight."""
    return World([SIZE] * SAMPLES, 8, pages + 1, depth)


def draw(world: World, client: int, run: int, epoch: int, positions: Iterable[int], *, batch: int = 5) -> float:
    """Draw in batches, letting all happen that can; which share came from memory."""
    asked, first = list(positions), len(world.answered)
    for at in range(0, len(asked), batch):
        assert world.draw(client, run, epoch, asked[at : at + batch])
        while client in world.asked:
            assert world.step(0.001) or world.jobs or world.reads
            if world.jobs:
                world.finish_job()
            elif world.reads:
                world.finish_read()
        for lease in [number for number, held in world.held.items() if held.client == client]:
            world.release(lease)
    given = [state for answer in world.answered[first:] for state in answer.state.tolist()]
    return float(sum(state > 0 for state in given) / len(given))


def test_one_rank_after_the_other() -> None:
    """A rank begins while reads for the first one are on their way: all samples of both come from memory."""
    world_ = world(SAMPLES // 2, depth=4)
    first, second = (world_.register(client, **ORDER) for client in (1, 2))
    assert first == second
    world_.begin(1, first, 0, rank=0, replicas=2)
    world_.step()
    world_.finish_plan()
    world_.step()
    assert sum(read.count for read in world_.reads) == 4
    world_.begin(2, first, 0, rank=1, replicas=2)
    for start in range(0, SAMPLES, 20):
        for rank in (0, 1):
            assert draw(world_, 1 + rank, first, 0, range(start + rank, start + 20, 2)) == 1.0


def test_clients_are_heard_between_a_few_reads() -> None:
    """A step starts some reads and leaves more to the next one; the loop does not sleep until all have started."""
    world_ = world(SAMPLES, depth=2 * AT_ONCE + 1)
    world_.begun(1, **ORDER)
    started = []
    while world_.step():
        started.append(sum(read.count for read in world_.reads))
        assert world_.turn.hurries or started[-1] == world_.depth
    assert started == [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1]
    assert not world_.turn.hurries


def test_stripes_start_together_where_the_storage_is_faster_than_the_loop() -> None:
    """One less than have ended since the last step. Where one read ends at a time, all soon start alone again."""
    world_ = world(SAMPLES, depth=5)
    run = world_.begun(1, **ORDER)
    plan = world_.epochs()[run, 0].epoch.plan

    def started(ended: int) -> list[int]:
        for _ in range(ended):
            world_.finish_read()
        world_.step()
        return [read.count for read in world_.reads]

    assert started(0) == [1, 1, 1, 1, 1]
    assert started(1) == [1, 1, 1, 1, 1]
    assert started(5) == [4, 1]
    together = world_.reads[0]
    assert len(together.pieces) == 4
    numbers = (6, 7, 8, 9)
    assert together.places.tolist() == [place for number in numbers for place in plan.places_held(number).tolist()]
    assert [started(1) for _ in range(6)] == [
        [1, 3, 1],
        [3, 1, 1],
        [1, 1, 2, 1],
        [1, 2, 1, 1],
        [2, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]


def test_what_another_run_has_brought_into_memory_is_given_at_once() -> None:
    """Two trainings with the same order: the second finds everything there, and nothing that is kept is given up."""
    world_ = world(SAMPLES // 2 + 40)
    first = world_.register(1, "one", **ORDER)
    world_.begin(1, first, 0)
    world_.quiet()
    ahead = set(world_.epochs()[first, 0].epoch.states.all(HELD).tolist())
    kept = world_.core.residents.kept_pages
    assert ahead
    assert kept
    second = world_.register(2, "two", **ORDER)
    world_.begin(2, second, 0)
    world_.step()
    world_.finish_plan()  # no read can begin, and the planner has not chosen the cached samples again
    sample_of = world_.plan(world_.runs[second].order, 0).sample_of
    there = [p for p in range(SAMPLES) if int(sample_of[p]) in ahead][:5]
    assert world_.draw(2, second, 0, there)
    world_.step(1.5)
    assert 2 not in world_.asked
    assert (world_.answered[-1].state > 0).all()
    assert world_.core.residents.kept_pages == kept


@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_the_next_epoch_is_read_ahead_where_other_ranks_draw_elsewhere(replicas: int) -> None:
    """One rank of several has this server to itself: at the end of its epoch, the next one has begun to be read."""
    world_ = world(SAMPLES // 3)
    run = world_.register(1, **ORDER)
    world_.begin(1, run, 0, rank=0, replicas=replicas)
    assert draw(world_, 1, run, 0, range(0, SAMPLES, replicas)) == 1.0
    world_.quiet()
    assert (run, 1) in world_.epochs()
    assert len(world_.epochs()[run, 1].epoch.states.all(HELD))


@pytest.mark.slow
def test_a_run_that_pauses_goes_on_from_memory() -> None:
    """A validation takes minutes, another run needs the room meanwhile; after it, reading ahead goes on."""
    world_ = world(SAMPLES // 3)
    first, second = world_.register(1, "one", **ORDER), world_.register(2, "two", **{**ORDER, "seed": 2})
    world_.begin(1, first, 0)
    draw(world_, 1, first, 0, range(40))
    world_.now_s += 60
    world_.begin(2, second, 0)
    assert draw(world_, 2, second, 0, range(SAMPLES)) > 0.9
    world_.leave(2)
    assert draw(world_, 1, first, 0, range(40, SAMPLES)) > 0.5


def test_a_run_that_has_just_begun_is_not_idle() -> None:
    """What is read ahead for a run that will draw at once stays, though another one needs room."""
    world_ = world(60)
    first, second = world_.register(1, "one", **ORDER), world_.register(2, "two", **{**ORDER, "seed": 2})
    world_.begin(2, second, 0)
    world_.quiet()
    assert world_.allocator.free < 8
    world_.begin(1, first, 0)
    draw(world_, 1, first, 0, range(20))
    assert draw(world_, 2, second, 0, range(SAMPLES)) > 0.5


def test_where_everything_fits_each_sample_is_read_once() -> None:
    """Three epochs, storage slower than training: reads of the first are on their way when the second is planned."""
    world_ = world(SAMPLES, depth=8)
    run = world_.register(1, **ORDER)
    for epoch in range(3):
        world_.begin(1, run, epoch)
        assert draw(world_, 1, run, epoch, range(SAMPLES)) == 1.0
    assert world_.core.counters.reads.read_samples == SAMPLES


def test_where_everything_fits_what_is_drawn_while_the_planner_chooses_stays() -> None:
    """The planner is slower than storage and training: nothing is read a second time."""
    world_ = world(SAMPLES)
    run = world_.register(1, **ORDER)
    world_.begin(1, run, 0)
    world_.step()
    world_.finish_plan()
    for first in range(0, SAMPLES, 20):
        assert world_.draw(1, run, 0, range(first, first + 20))
        while 1 in world_.asked:
            assert world_.step() or world_.reads
            if world_.reads:
                world_.finish_read()
        world_.release(next(iter(world_.held)))
    (choice, *_) = world_.jobs
    assert isinstance(choice, ChooseCached)
    world_.finish_job()
    world_.begin(1, run, 1)
    assert draw(world_, 1, run, 1, range(SAMPLES)) == 1.0
    assert world_.core.counters.reads.read_samples == SAMPLES


def test_chunks_in_the_page_cache_are_left_there_as_a_whole() -> None:
    """Clients read them exactly, in this epoch and later; the server looks at one read of each chunk."""
    world_, looked = world(SAMPLES, depth=1), list[int]()
    run = world_.register(1, **ORDER)
    for epoch in range(2):
        world_.begin(1, run, epoch)
        while world_.step() or world_.reads or world_.jobs:
            if world_.jobs:
                world_.finish_job()
            elif world_.reads:
                looked += world_.reads[0].pieces["chunk"].tolist()
                world_.finish_read(left={0}, whole=True)
    assert sorted(looked) == list(range(SAMPLES // 8))
    assert draw(world_, 1, run, 1, range(SAMPLES)) == 0.0
    assert world_.core.counters.reads.reads == 0


def test_chunks_that_were_found_ahead_need_no_read() -> None:
    """Of any chunk that the epoch has not begun to read."""
    world_ = world(SAMPLES, depth=1)
    run = world_.begun(1, **ORDER)
    world_.step()
    world_.finish_read(left={0}, whole=True, ahead=range(SAMPLES // 8))
    world_.step()
    assert not world_.reads
    assert draw(world_, 1, run, 0, range(SAMPLES)) == 0.0
    assert world_.core.counters.reads.reads == 0


@pytest.mark.slow
def test_what_is_kept_grows_again_when_a_second_run_has_ended() -> None:
    """A short run beside a long one: afterwards as much is kept as before."""
    world_ = world(SAMPLES // 2)
    first = world_.register(1, "one", **ORDER)
    world_.begin(1, first, 0)
    draw(world_, 1, first, 0, range(SAMPLES))
    kept = world_.core.residents.kept_pages
    assert kept
    second = world_.register(2, "two", **{**ORDER, "seed": 2})
    world_.begin(2, second, 0)
    draw(world_, 2, second, 0, range(SAMPLES))
    world_.leave(2)
    for epoch in (1, 2):
        world_.begin(1, first, epoch)
        draw(world_, 1, first, epoch, range(SAMPLES))
    assert world_.core.residents.kept_pages >= kept


def test_an_epoch_that_is_begun_again_comes_from_memory() -> None:
    """An early break, and the same epoch from its beginning: `set_epoch(0)` each time."""
    world_ = world(SAMPLES // 3)
    run = world_.register(1, **ORDER)
    for _ in range(4):
        world_.begin(1, run, 0)
        assert draw(world_, 1, run, 0, range(60)) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "pages"),
    [
        (5, SAMPLES // 3),
        (40, SAMPLES // 2),
        (100, SAMPLES // 3 + 12),
        (119, SAMPLES // 3),
        (125, SAMPLES // 3 + 12),
        (200, SAMPLES // 2),
    ],
)
def test_the_epoch_after_a_break_comes_from_memory(stop: int, pages: int) -> None:
    """Before or after the next epoch is planned: what is kept stays, and nothing is read exactly."""
    world_ = world(pages)
    run = world_.register(1, **ORDER)
    for epoch in range(6):
        world_.begin(1, run, epoch)
        assert draw(world_, 1, run, epoch, range(SAMPLES if epoch % 2 else stop)) == 1.0


def test_a_run_that_ends_while_another_is_between_two_epochs_leaves_its_memory() -> None:
    """What is kept is chosen anew as soon as the other one's next epoch is planned."""
    world_ = world(SAMPLES // 2)
    first = world_.register(1, "one", **ORDER)
    world_.begin(1, first, 0)
    draw(world_, 1, first, 0, range(20))
    kept = world_.core.residents.kept_pages
    second = world_.register(2, "two", **{**ORDER, "seed": 2})
    world_.begin(2, second, 0)
    draw(world_, 2, second, 0, range(20))
    world_.begin(1, first, 1)
    world_.leave(2)
    for epoch in (1, 2):
        world_.begin(1, first, epoch)
        draw(world_, 1, first, epoch, range(SAMPLES))
    assert world_.core.residents.kept_pages >= kept


def test_an_epoch_that_was_drawn_before_the_one_before_it_comes_from_memory() -> None:
    """A run goes back: what it has drawn of the later epoch is read again when it comes there."""
    world_ = world(SAMPLES // 3)
    run = world_.register(1, **ORDER)
    for epoch in (0, 1, 0, 1, 2, 0, 1, 2):
        world_.begin(1, run, epoch)
        assert draw(world_, 1, run, epoch, range(SAMPLES)) == 1.0


def test_a_run_goes_on_in_an_epoch_and_nothing_is_read_again() -> None:
    """Short epochs of a mixture are parts of one epoch of a member: each goes on where the one before ended."""
    world_ = world(SAMPLES // 3)
    run = world_.register(1, **ORDER)
    world_.begin(1, run, 0)
    for start in range(0, SAMPLES, 30):
        world_.begin(1, run, 0, start, processes=0 if start else 1)
        assert draw(world_, 1, run, 0, range(start, start + 30)) == 1.0
    assert world_.core.counters.reads.read_samples <= SAMPLES * 1.5


def test_processes_of_a_rank_come_to_the_next_epoch_one_after_the_other() -> None:
    """Two processes share the draws of a mixture's member: each says so when it comes to the next epoch."""
    world_ = world(SAMPLES // 2)
    for client in (1, 2):
        run = world_.register(client, **ORDER)
        world_.begin(client, run, 0, processes=2)
    for number in range(49):  # the second is a batch behind
        for client, at in ((1, number), (2, number - 1)):
            epoch, first = divmod(at * 20, SAMPLES)
            if 0 <= at < 48:
                if epoch and not first:
                    world_.begin(client, run, epoch, processes=0)
                assert draw(world_, client, run, epoch, range(first + client - 1, first + 20, 2)) == 1.0


def test_a_draw_that_waits_when_its_rank_goes_back_is_answered() -> None:
    """A worker waits for the next epoch while another process of its training begins the former one again."""
    world_ = world(SAMPLES // 2, depth=1)
    run = world_.register(1, **ORDER)
    world_.begin(1, run, 1)
    world_.settle()
    world_.draw(1, run, 1, [SAMPLES - 1])
    assert world_.core.draws.waiting
    world_.begin(1, run, 0)
    world_.settle()
    assert not world_.core.draws.waiting


def test_a_rewind_and_a_skip_come_from_memory() -> None:
    """A state from before or after where the run is."""
    world_ = world(SAMPLES // 3)
    run = world_.register(1, **ORDER)
    for start in (0, 100, 40, 200):
        world_.begin(1, run, 0, start)
        assert draw(world_, 1, run, 0, range(start, min(SAMPLES, start + 60))) == 1.0


@pytest.mark.parametrize(
    ("samples", "chunk_size", "pages", "said"),
    [
        (1200, 1200, 240, "in epoch 0, at least 1,200 of 1,200 samples are read one by one"),  # no stripe ever fits
        (1200, 300, 240, "of 1,200 samples are read one by one"),
        (1200, 8, 240, None),
        (1200, 1200, 1200, None),
    ],
)
def test_too_little_memory_for_the_stripes_is_told_once(
    samples: int, chunk_size: int, pages: int, said: str | None
) -> None:
    """With the chunks and a way out, when half of an epoch is fetched."""
    world_ = World([SIZE] * samples, chunk_size, pages + 1, 2)
    run = world_.begun(1, group_chunks=min(3, samples // chunk_size), stripe=max(1, chunk_size // 4), seed=1)
    notices = []
    for epoch in range(2):
        if epoch:
            world_.begin(1, run, epoch)
        direct = 1 - draw(world_, 1, run, epoch, range(samples), batch=20)
        assert direct > 0.1 if said else direct < 0.1
        notices += world_.core.epochs.runs.take_notices()
    assert len(notices) == bool(said)
    if said:
        assert said in notices[0]
        assert f"smaller --chunk-size: the data set has {counted(samples // chunk_size, 'chunk')} of" in notices[0]
