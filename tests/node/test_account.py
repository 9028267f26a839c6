"""Were positions left out? Told where it is so, and never where a loop was merely left early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.node.decide.state.account import Account, Conduct, LeftOut
from brand.node.decide.state.epoch import Division
from brand.node.decide.stimuli import ClientBegins, ClientDraws, ClientTakes
from brand.node.wire.drawing import Announcement, Drawer
from brand.node.wire.messages import UNTOLD
from brand.node.wire.numbers import ClientNumber
from tests.node.world import Asked, World

BATCH = 4


def positions(rank: int, ranks: int, batch: int) -> np.ndarray:
    """A batch of a rank."""
    return rank + ranks * np.arange(batch * BATCH, (batch + 1) * BATCH, dtype=np.int64)


@pytest.mark.slow
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.randoms(use_true_random=False))
def test_a_loop_that_is_left_early_leaves_nothing_out(
    ranks: int, workers: int, prefetch: int, trained: int, random: object
) -> None:
    """Workers stop at different places: each has drawn a beginning of what it was given, some of them nothing."""
    account = Account(Division(ranks * 20 * BATCH, 0, ranks))
    for rank in range(ranks):
        given_out = min(20, trained + workers * prefetch)
        for worker in range(workers):
            batches = list(range(worker, given_out, workers))
            for batch in batches[: random.randint(0, len(batches))]:  # type: ignore[attr-defined]
                if batch < trained or random.random() < 0.9:  # type: ignore[attr-defined]
                    account.note(Drawer(100 + rank, worker, workers), positions(rank, ranks, batch))
                else:
                    break
    assert account.left_out(1) is None


def test_a_shard_of_a_shard_is_told() -> None:
    """Two ranks, each of which draws every second of its batches."""
    account = Account(Division(80, 0, 2))
    for rank in range(2):
        for batch in range(rank, 10, 2):
            account.note(Drawer(100 + rank), positions(rank, 2, batch))
    assert account.left_out(1) == LeftOut(36, 76, 4, (0, 1))


def test_batches_that_are_skipped_at_the_beginning_are_told() -> None:
    """Three batches of ten, by two workers."""
    account = Account(Division(40))
    for batch in range(3, 10):
        account.note(Drawer(1, batch % 2, 2), positions(0, 1, batch))
    assert account.left_out(1) == LeftOut(12, 36, 12, (0,))


def test_processes_that_share_a_rank_are_judged_together() -> None:
    """Accelerate deals batches out: one process alone says nothing, both together draw all."""
    account = Account(Division(40))
    for batch in range(0, 10, 2):
        account.note(Drawer(1), positions(0, 1, batch))
    assert account.left_out(2) is None
    for batch in range(1, 10, 2):
        account.note(Drawer(2), positions(0, 1, batch))
    assert account.left_out(2) is None


def test_a_worker_that_has_not_drawn_yet_is_waited_for() -> None:
    """What a worker was given and has not begun is not left out."""
    account = Account(Division(40))
    account.note(Drawer(1, 0, 2), positions(0, 1, 0))
    account.note(Drawer(1, 0, 2), positions(0, 1, 2))
    assert account.left_out(1) is None


def test_the_end_of_an_epoch_that_is_filled_up_is_no_other_order() -> None:
    """Three ranks of ten samples: two of them end with what the first ones had."""
    account = Account(Division(10, 0, 3))
    for rank in range(3):
        account.note(Drawer(100 + rank), np.array([rank, rank + 3]))
        account.note(Drawer(100 + rank), np.array([rank + 6, (rank + 9) % 10]))
    assert account.left_out(1) is None
    assert account.repeated == 2
    assert not account.mostly_repeated(1)


def test_a_small_set_that_is_filled_up_is_no_repetition() -> None:
    """More ranks than samples, and batches of Accelerate that are larger than the share of a process."""
    ranks = Account(Division(3, 0, 8))
    for rank in range(8):
        ranks.note(Drawer(100 + rank), np.array([rank % 3]))
    dealt = Account(Division(40))
    dealt.note(Drawer(1), np.arange(32))
    dealt.note(Drawer(2), np.arange(32, 64) % 40)
    assert (ranks.repeated, ranks.mostly_repeated(1)) == (5, False)
    assert (dealt.repeated, dealt.mostly_repeated(2), dealt.mostly_repeated(1)) == (24, False, True)


def test_two_processes_that_draw_the_same_are_told_of_once() -> None:
    """Each says that it is rank 0 of 1."""
    notices: list[str] = []
    conduct, account = Conduct(notices), Account(Division(40))
    for training in (1, 2):
        conduct.on_begin(Drawer(training), 1, again=True)
    for batch in range(10):
        for training in (1, 2):
            conduct.note(account, Drawer(training), positions(0, 1, batch), asked=True)
    for _ in range(2):
        conduct.judge(account, 0)
        conduct.check()
    assert [notice.startswith("in epoch 0, 40 positions were fetched") for notice in notices] == [True]


def test_what_is_drawn_by_others_is_not_judged() -> None:
    """A process that has not begun draws some of the positions: what is missing may be with it."""
    notices: list[str] = []
    conduct, account = Conduct(notices), Account(Division(40))
    conduct.on_begin(Drawer(1), 1, again=True)
    conduct.note(account, Drawer(9), positions(0, 1, 0), asked=True)
    for batch in range(1, 9):
        conduct.note(account, Drawer(1), positions(0, 1, batch), asked=True)
    conduct.judge(account, 0)
    assert notices == []


def test_planned_batches_are_not_judged() -> None:
    """Which processes share which positions is not known: batches that lie apart leave nothing out."""
    for processes in (UNTOLD, 1):
        notices: list[str] = []
        conduct, account = Conduct(notices), Account(Division(40))
        conduct.on_begin(Drawer(1), processes, again=True)
        for batch in (1, 3, 5, 7):
            conduct.note(account, Drawer(1), positions(0, 1, batch), asked=True)
        conduct.judge(account, 0)
        assert (notices == []) == (processes == UNTOLD)


def test_threads_that_draw_in_turns_are_not_judged() -> None:
    """Each through a connection of its own; the one that has the first batch is late. One thread would be judged."""
    for threads in (1, 5):
        account = Account(Division(40))
        for batch in range(1, 9):
            account.note(Drawer(1, connection=ClientNumber(batch % threads)), positions(0, 1, batch))
        assert (account.left_out(1) is None) == (threads > 1)


@pytest.mark.parametrize("asks", [True, False])
def test_a_late_report_of_an_epoch_that_begins_again_is_not_judged(asks: bool) -> None:
    """A loop has left the epoch early, and its last samples, which it took itself, are reported in the next pass.

    If the connection has asked in this pass, as each one does at first, the missing batch was left out.
    """
    world = World([96] * 64, 8, pages=200)
    run, drawer = world.register(1), Drawer(101, connection=ClientNumber(1))
    world.tell(ClientBegins(ClientNumber(1), run, Announcement(0), drawer))
    world.settle()
    for batch in range(2 if asks else 1, 9):
        found = positions(0, 1, batch)
        if asks and batch == 2:
            world.asked[1] = Asked((run, 0), found)
            world.tell(ClientDraws(ClientNumber(1), (run, 0), found, drawer))
            world.settle()
        elif not asks or batch < 6:
            world.tell(ClientTakes(ClientNumber(1), (run, 0), found, found[:0], drawer))
    assert [notice.startswith("epoch 0 left out 8 of") for notice in world.core.epochs.runs.take_notices()] == (
        [True] if asks else []
    )


def test_an_epoch_that_made_room_leaves_nothing_out() -> None:
    """A rank pauses, another run needs the memory, and a second rank begins the epoch before the first one goes on."""
    world = World([96] * 64, 8, pages=64)
    run = world.register(1)
    world.register(2)
    drawers = {client: Drawer(100 + client, connection=ClientNumber(client)) for client in (1, 2)}

    def begin(client: int) -> None:
        announcement = Announcement(0, 0, client - 1, 2)
        world.tell(ClientBegins(ClientNumber(client), run, announcement, drawers[client]))

    def draw(client: int, batch: int) -> None:
        found = positions(client - 1, 2, batch)
        world.asked[client] = Asked((run, 0), found)
        world.tell(ClientDraws(ClientNumber(client), (run, 0), found, drawers[client]))
        world.settle()

    begin(1)
    for batch in range(2):
        draw(1, batch)
    world.now_s += 60.0
    assert world.core.epochs.drop_idle(world.now_s)
    begin(2)
    for batch in range(2, 8):
        draw(1, batch)
    for batch in range(8):
        draw(2, batch)
    assert sorted(world.given[run, 0]) == list(range(64))
    assert world.core.epochs.runs.take_notices() == []


def test_a_rank_whose_epoch_was_lost_leaves_nothing_out() -> None:
    """Its connection has ended, and another rank begins the epoch before the plan of its next draw is made."""
    world = World([96] * 64, 8, pages=64)
    run, drawer = world.register(2), Drawer(102, connection=ClientNumber(2))

    def begin(client: int, rank: int) -> None:
        world.tell(ClientBegins(ClientNumber(client), run, Announcement(0, 0, rank, 2), Drawer(100 + client)))

    def ask(client: int, batch: int) -> None:
        found = positions(1, 2, batch)
        world.asked[client] = Asked((run, 0), found)
        world.tell(ClientDraws(ClientNumber(client), (run, 0), found, drawer))

    begin(2, rank=1)
    for batch in range(2):
        ask(2, batch)
        world.settle()
    for client in (1, 3):
        world.register(client)
    world.leave(2)
    ask(3, 2)
    begin(1, rank=0)
    world.settle()
    for batch in range(3, 8):
        ask(3, batch)
        world.settle()
    assert len(world.given[run, 0]) == 32
    assert world.core.epochs.runs.take_notices() == []
