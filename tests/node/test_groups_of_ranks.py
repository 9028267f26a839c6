"""Ranks of a model-parallel group draw the same positions: the server reads each sample once for all of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from brand.errors import ProtocolError
from brand.node.decide.state.account import Account, Conduct
from brand.node.decide.state.epoch import Division
from brand.node.decide.state.states import HELD
from brand.node.decide.state.takes import Deliveries, Takes
from brand.node.memory.residents import MAX_LEASES
from brand.node.wire.drawing import Announcement, Drawer
from brand.node.wire.numbers import NodeNumber, RunNumber
from tests.node.test_core import ORDER, SAMPLES, draw, world
from tests.node.world import World, some_pieces
from tests.rounds import Chance, rounds


def begun(world_: World, copies: int, groups: int = 1, **order: Any) -> int:
    """The ranks of some groups begin the first epoch. Client 1 + g * copies + c is member c of group g."""
    run = 0
    for client in range(1, 1 + copies * groups):
        run = world_.register(client, **(ORDER | order))
    begin(world_, run, 0, copies, groups)
    return run


def begin(world_: World, run: int, epoch: int, copies: int, groups: int) -> None:
    for client in range(copies * groups):
        world_.begin(1 + client, run, epoch, rank=client // copies, replicas=groups, copies=copies)
    world_.step()
    while world_.jobs:
        world_.finish_job()
        world_.step()


def loaded(copies: int, groups: int) -> int:
    """The samples that two epochs load into memory for a third of them; all are drawn from there."""
    world_ = world(SAMPLES // 3)
    run = begun(world_, copies, groups)
    for epoch in range(2):
        if epoch:
            begin(world_, run, epoch, copies, groups)
        for start in range(0, SAMPLES, 5 * groups):
            for client in range(copies * groups):
                positions = range(start + client // copies, start + 5 * groups, groups)
                assert draw(world_, 1 + client, run, epoch, positions) == 1.0
    return world_.core.epochs.runs[RunNumber(run)].loaded


@pytest.mark.parametrize(("copies", "groups"), [(2, 1), (4, 1), (4, 2)])
def test_samples_are_read_once_for_all_members_in_step(copies: int, groups: int) -> None:
    """As many reads as for single ranks, and the same samples stay cached."""
    assert loaded(copies, groups) == loaded(1, groups)


def test_a_sample_is_held_until_the_last_member_has_drawn_it() -> None:
    """And not longer."""
    world_ = world(SAMPLES // 2)
    run = begun(world_, 3)
    [live] = world_.epochs().values()
    places = live.epoch.plan.sample_of[:5]
    for client in (1, 2, 3):
        assert draw(world_, client, run, 0, range(5)) == 1.0
        assert live.epoch.states.are(HELD, places).all() == (client < 3)
    assert not live.epoch.states.are(HELD, places).any()


def test_a_member_that_stays_away_does_not_stop_the_others() -> None:
    """Memory gives its samples up. It reads them directly when it comes, and the rest of the epoch from memory."""
    world_ = world(SAMPLES // 3)
    run = begun(world_, 2)
    from_memory = draw(world_, 1, run, 0, range(SAMPLES // 2))
    assert from_memory > 0.5
    assert draw(world_, 2, run, 0, range(SAMPLES // 2)) < 1.0
    for start in range(SAMPLES // 2, SAMPLES, 5):
        for client in (1, 2):
            draw(world_, client, run, 0, range(start, start + 5))
    begin(world_, run, 1, 2, 1)
    for start in range(0, SAMPLES, 5):
        for client in (1, 2):
            assert draw(world_, client, run, 1, range(start, start + 5)) == 1.0


@pytest.mark.parametrize("in_group", [False, True])
def test_members_do_not_repeat_each_other_by_mistake(in_group: bool) -> None:
    """They draw the same positions on purpose. Processes without a group that do so are told."""
    notices = list[str]()
    conduct, account = Conduct(notices), Account(Division(100))
    for training in (1, 2):
        drawer = Drawer(training)
        conduct.on_begin(drawer, 1, again=True, in_group=in_group)
        for start in range(0, 100, 10):
            conduct.note(account, drawer, np.arange(start, start + 10), asked=True)
    conduct.judge(account, 0)
    assert any("replication=" in notice for notice in notices) == (not in_group)


def test_how_often_samples_were_drawn() -> None:
    """The same sample may be drawn once more, as a sampler fills up an epoch."""
    takes = Takes(5, 2)
    assert takes.note(np.array([0, 3])).tolist() == [False, False]
    assert takes.note(np.array([3, 4])).tolist() == [True, False]
    assert takes.note(np.array([3, 0])).tolist() == [True, True]


@pytest.mark.parametrize("nodes", [2, 8, 9, 40, 64])
def test_which_nodes_have_got_samples(nodes: int) -> None:
    """A group has two nodes. A node that gets its samples again counts once."""
    got, last = Deliveries(5, nodes, 2), NodeNumber(nodes - 1)
    assert got.note(NodeNumber(0), np.array([0, 3])).tolist() == [False, False]
    assert got.note(NodeNumber(0), np.array([3])).tolist() == [False]
    assert got.note(last, np.array([3, 4])).tolist() == [True, False]
    got.forget(NodeNumber(0), np.array([3]))
    assert got.note(last, np.array([3, 0])).tolist() == [False, True]


@pytest.mark.parametrize("copies", [0, 256])
def test_a_group_of_that_many_ranks_is_refused(copies: int) -> None:
    with pytest.raises(ProtocolError, match=r"ranks of a group: there are 1 to 255"):
        Announcement(0, copies=copies).check()


@pytest.mark.parametrize(("spans", "part"), [(0, 0), (2, 2), (1 << 31, 0)])
def test_a_seat_that_no_group_has_is_refused(spans: int, part: int) -> None:
    with pytest.raises(ProtocolError, match="nodes of a group"):
        Announcement(0, spans=spans, part=part).check()


@pytest.mark.slow
@rounds(1)
def test_every_draw_of_a_group_is_answered(chance: Chance) -> None:
    """Members at any distance of each other, reads that fail, any memory: each member gets each position."""
    for seed in chance.seeds(30):
        rng = random.Random(seed)
        copies, groups, lead = rng.choice([2, 3, 4]), rng.choice([1, 2]), rng.choice([1, 3, 100])
        sizes = [rng.choice([40, 96, 200]) for _ in range(rng.randint(20, 90))]
        world_ = World(sizes, rng.randint(2, 8), rng.randint(12, 200), rng.randint(1, 3))
        order = {"group_chunks": rng.randint(1, 3), "stripe": rng.randint(1, 4), "all_cached": rng.randint(0, 1)}
        run, at = begun(world_, copies, groups, **order), dict.fromkeys(range(copies * groups), (0, 0))
        for _ in range(400):
            world_.now_s += 0.01
            what = rng.choice(["draw", "draw", "release", "read", "job", "step"])
            client = rng.randrange(copies * groups)
            epoch, number = at[client]
            if what == "draw" and 1 + client not in world_.asked:
                if number - min(n + (e - epoch) * 1000 for e, n in at.values()) >= lead:
                    continue
                positions = list(range(client // copies, len(sizes), groups))[3 * number : 3 * number + 3]
                if not positions:
                    world_.begin(1 + client, run, epoch + 1, rank=client // copies, replicas=groups, copies=copies)
                    at[client] = epoch + 1, 0
                    continue
                held = [lease for lease, of in world_.held.items() if of.client == 1 + client]
                if len(held) == MAX_LEASES:
                    world_.release(held[0])
                assert world_.draw(1 + client, run, epoch, positions)
                at[client] = epoch, number + 1
            elif what == "release" and world_.held:
                world_.release(rng.choice(list(world_.held)))
            elif what == "read" and world_.reads:
                read = rng.randrange(len(world_.reads))
                world_.finish_read(read, failed=some_pieces(rng, world_.reads[read], 0.02))
            elif what == "job" and world_.jobs:
                world_.finish_job()
            else:
                world_.step()
        world_.settle()
        assert not world_.asked
        for client in range(copies * groups):
            world_.leave(1 + client)
        assert not world_.epochs()
