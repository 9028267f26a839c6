"""Several nodes take the plan of an epoch in windows, and exchange the same samples as with the whole plan."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.peers.receiving import HURRY_S, SILENCE_S
from brand.node.decide.state import windowed
from brand.node.decide.state.connected import ConnectedEpoch
from brand.node.decide.state.states import HELD
from brand.orders.base.owners import owner_of_chunk
from tests.node.test_windows import NAMES
from tests.rounds import Chance, rounds
from tests.several_nodes.world import Cluster, Rank, Walk, _walk

SAMPLES, CHUNK = 240, 8
ORDER: dict[str, Any] = {"seed": 1, "group_chunks": 3, "stripe": 2}
OTHERS: list[dict[str, Any]] = [{"part": 3}, {"part": -7}, {"protocol": "uniform"}, {"protocol": "storage"}]
"""Two subsets (`World.register`), and other orders."""
IN_MEMORY: dict[str, Any] = {"all_cached": 1, "pages": 2 * SAMPLES}
"""From the second epoch on it needs memory for all samples."""
SIZES = [(1, 1, 0, 1), (3, 8, 4, 5), (16, 64, 16, 32)]
"""As in `tests.node.test_windows`."""


@pytest.fixture(params=SIZES, ids=["single", "few", "many"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, positions in zip(NAMES, request.param, strict=True):
        monkeypatch.setattr(windowed, name, positions)


def cluster(*, nodes: int = 2, on_each: int = 1, pages: int = 120, start: int = 0, **order: Any) -> Cluster:
    """Samples of one page each."""
    order = ORDER | order
    if order.get("protocol") == "uniform":
        del order["stripe"]
    made = Cluster([96] * SAMPLES, CHUNK, pages, pages // 3, nodes, on_each, batch=4, order=order, start=start)
    made.join()
    return made


def release(rank: Rank) -> None:
    for number in [number for number, lease in rank.world.held.items() if lease.client == rank.client]:
        rank.world.release(number)


def train(made: Cluster, ranks: list[Rank], epochs: int = 1, batches: int | None = None) -> None:
    """Have ranks draw, at most one batch apart, until they have drawn these epochs or so many batches of one."""
    for _ in range(5000):
        left = [rank for rank in ranks if rank.epoch < epochs and (batches is None or rank.steps < batches)]
        if not left and not any(rank.waits for rank in ranks):
            return
        slowest = min((rank.steps for rank in left), default=0)
        for rank in left:
            if not rank.waits and rank.steps == slowest:
                release(rank)
                rank.go_on()
        if not made.round():
            made.later(0.05)
    raise AssertionError("a draw is never answered")


def apart(made: Cluster) -> None:
    """No node reaches another one."""
    for pair in made.pairs:
        made.network.cut(*pair)
    made.talk()


def drawn(made: Cluster) -> tuple[int, int]:
    """Samples that ranks got from memory, and by direct reads."""
    counters = [world.core.counters.draws for world in made.worlds]
    return sum(each.from_memory for each in counters), sum(each.direct for each in counters)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("nodes", "on_each", "start", "order"),
    [
        (2, 1, 0, {}),
        (2, 1, 100, {}),
        (3, 2, 0, {}),
        (3, 2, 96, {}),
        *[(3, 2, 0, order) for order in (*OTHERS, IN_MEMORY)],
    ],
)
def test_all_samples_come_from_memory(nodes: int, on_each: int, start: int, order: dict[str, Any]) -> None:
    """Each node reads the stripes of its own chunks, each once an epoch, and sends them without a request."""
    made = cluster(nodes=nodes, on_each=on_each, start=start, **order)
    train(made, made.ranks, epochs=2)
    for world in made.worlds:
        assert all(isinstance(live.epoch, ConnectedEpoch) for live in world.epochs().values())
    assert drawn(made) == (2 * made.worlds[0].draws(made.ranks[0].run) - start, 0)
    for world in made.worlds:
        own = (owner_of_chunk(SAMPLES // CHUNK, 3, nodes) == world.members.node).sum() * CHUNK
        counters = world.core.counters
        assert counters.nodes.requests == 0
        # The next epoch is read ahead, as far as memory reaches.
        assert counters.reads.read_samples <= 3 * own
    made.end()


@pytest.mark.usefixtures("small")
def test_a_node_that_begins_late_gets_all_its_samples() -> None:
    """The other node has forgotten these windows. It says so, instead of being waited for in vain."""
    made = cluster(pages=30, group_chunks=15)
    first, second = made.ranks
    apart(made)
    train(made, [first], batches=25)
    assert made.worlds[0].epochs()[first.run, 0].epoch.known.start > 10
    made.join()
    began = made.worlds[1].now_s
    train(made, [second], batches=20)
    assert made.worlds[1].now_s - began < 20 * 2 * HURRY_S
    train(made, made.ranks)
    assert sorted(made.given("run", 0)) == list(range(SAMPLES))
    made.end()


@pytest.mark.usefixtures("small")
def test_a_node_asks_for_positions_that_its_owner_does_not_know_yet() -> None:
    """Its rank is far ahead of the ranks of the owner."""
    made = cluster(pages=60)
    first, second = made.ranks
    for rank in made.ranks:
        rank.go_on()
    made.rest()
    began = made.worlds[1].now_s
    train(made, [second], batches=20)
    assert first.steps == 0
    assert made.worlds[1].now_s - began < 20 * 2 * HURRY_S
    train(made, [first], batches=20)
    assert drawn(made)[0] > SAMPLES // 4
    train(made, made.ranks)
    assert sorted(made.given("run", 0)) == list(range(SAMPLES))
    made.end()


@pytest.mark.usefixtures("small")
def test_a_node_that_is_lost_is_not_waited_for_and_sends_again_later() -> None:
    """In windows that are made while it is away, and in those that are made when it is back."""
    made = cluster()
    train(made, made.ranks, batches=6)
    before = drawn(made)
    assert before[1] == 0
    apart(made)
    began = made.worlds[0].now_s
    train(made, made.ranks, batches=12)
    assert made.worlds[0].now_s - began < SILENCE_S
    away = drawn(made)
    assert away[1] > 0
    made.join()
    train(made, made.ranks, batches=16)
    made.settle()
    back = drawn(made)
    train(made, made.ranks)
    assert drawn(made)[1] == back[1], "a sample is not sent again"
    assert sorted(made.given("run", 0)) == list(range(SAMPLES))
    made.end()


@pytest.mark.usefixtures("small")
def test_samples_of_ranks_that_never_begin_leave_memory() -> None:
    made = cluster()
    first, _ = made.ranks
    first.go_on()
    first.go_on()
    made.rest()
    made.later(LONGEST_WAIT_S + 1)
    train(made, [first])
    made.settle()
    epoch = made.worlds[0].epochs().get((first.run, 0))
    assert epoch is None or not len(epoch.epoch.states.all(HELD))
    made.end()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@rounds(2)
def test_nothing_is_lost_on_any_node(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    walks = [Walk(seed, large=seed % 3 == 2) for seed in chance.seeds(24)]
    found = [walk for walk in walks if "protocol" not in walk.cluster.order]  # a quarter of them
    assert found
    for walk in found:
        _walk(walk, 350)
