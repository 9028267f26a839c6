"""The simulated work of servers that are alone is what such servers do."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand import Cache
from brand.node.decide.cache.keeping import AHEAD_SHARE
from brand.node.decide.state.choosing import ON_TOP, SLACK_SHARE, Placement
from brand.node.decide.state.members import ALONE
from brand.node.setup.measure import lay_out, measure_pages, stored_sizes
from brand.orders.base.placement import choose_kept
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import MAX_EPOCH, Order
from brand.orders.policies.uniform import UniformPolicy
from brand.simulate.running import SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.profile.profile import busy_bytes, load_profile
from brand.testing.node import RunningServer, running_server
from tests.made_orders import order_of
from tests.node.test_alone import SIZE, UNIFORM, Player
from tests.rounds import examples
from tests.several_nodes.support import Rank, draw_in_step, node_of
from tests.simulate.test_running import runs
from tests.support import wait_until

SAMPLES, EPOCHS, NODES = 960, 6, 3
ROOM, MEMORY = SAMPLES // 5, SAMPLES // 10
"""Samples for which the folder and the memory of a server have space."""
PLACEMENTS: tuple[Placement, ...] = ("even", "frequency", "next")


def _run(placement: Placement | None, ranks: int = NODES) -> SimulatedRun:
    """Three servers that are alone. There is no folder if the placement is None."""
    order = Order("0" * 32, SAMPLES, 64, 1, UNIFORM)
    limit = ROOM * (SIZE + ON_TOP) * SLACK_SHARE // (SLACK_SHARE - 1) + ON_TOP
    return SimulatedRun(
        np.full(SAMPLES, SIZE, np.uint32),
        order,
        f"{MEMORY * (SIZE + 4096)}B",
        nodes=NODES,
        ranks=ranks,
        batch=4,
        cache_bytes=0 if placement is None else limit,
        connected=False,
        placement=placement or "auto",
        epochs=EPOCHS,
    )


def _reads(run: SimulatedRun, node: int, epochs: range = range(EPOCHS)) -> list[tuple[int, int]]:
    """The samples that a node reads from its folder and from the storage, epoch by epoch."""
    works = [works[node] for works in work_of(run, epochs)]
    assert all(work.direct == work.sent == work.received == 0 for work in works)
    return [(work.cache_reads, work.reads) for work in works]


def _rest(server: RunningServer) -> dict[str, Any]:
    """Wait until a server that no rank draws from reads and writes nothing more. Return its facts."""
    names = "reading", "reads", "memory", "cache"

    def facts() -> list[Any]:
        found = server.facts()
        return [found[name] for name in names]

    def rests() -> bool:
        before = facts()
        return before[0] == 0 and (before[-1] is None or before[-1]["state"] == "full") and facts() == before

    wait_until(rests, "memory and folder hold all that has a place")
    return server.facts()


def _memory(run: SimulatedRun, key: NDArray[np.int64] | None = None) -> set[int]:
    """The samples that memory caches: an eighth of it stays free."""
    page, pages_of = measure_pages(run.sizes)
    layout = lay_out(page, pages_of, run.memory, None, ALONE)
    pages = layout.allocator.count - 1
    kept = choose_kept(run.order.plan(0), pages_of, pages - pages // AHEAD_SHARE, 1, run.order.seed, key=key)
    return set(np.flatnonzero(kept).tolist())


def _slow_model(run: SimulatedRun, node: int) -> list[tuple[int, int]]:
    """The samples that a node reads from its folder and from the storage, sample by sample."""
    per_node = run.ranks // NODES
    orders = [run.order.plan(epoch).sample_of.tolist() for epoch in range(EPOCHS)]
    draws = [[each for at, each in enumerate(order) if at % run.ranks // per_node == node] for order in orders]
    count = [sum(each in drawn for drawn in draws) for each in range(SAMPLES)]
    first = [next((epoch for epoch, drawn in enumerate(draws) if each in drawn), EPOCHS) for each in range(SAMPLES)]
    rarity = [first[each] - 100 * count[each] for each in range(SAMPLES)]
    turn = np.argsort(permutation(SAMPLES, run.order.seed, RandomStream.KEPT)).tolist()
    random, often = _memory(run), _memory(run, np.array(rarity))

    def best(wanted: set[int], key: list[int], room: int = ROOM) -> set[int]:
        return set(sorted(wanted, key=lambda each: (key[each], turn[each]))[:room])

    early = set(draws[0][: len(draws[0]) // 2])
    memory, folder, held, found = set[int](), set[int](), set[int](), list[tuple[int, int]]()
    for epoch, drawn in enumerate(draws):
        due = set(drawn) - memory - held
        found.append((len(due & folder), len(due - folder)))
        match run.placement if run.cache_bytes else None:
            case None:
                memory |= due & random
            case "even":
                memory |= due & random
                folder |= due & best(set(range(SAMPLES)) - random, [0] * SAMPLES, run.cache_bytes // SIZE)
            case "next":
                memory |= due & random
                later = draws[epoch + 1 :]
                until = [next((at for at, more in enumerate(later) if each in more), EPOCHS) for each in range(SAMPLES)]
                folder = best({each for each in (folder | due) - random if until[each] < EPOCHS}, until)
            case "frequency":
                place = best({each for each in range(SAMPLES) if count[each]} - often, rarity)
                if epoch == 0:  # all samples have a place until its middle, and the next epoch needs some of them
                    memory, held = (due & early & random & often) | ((due - early) & often), early & random - often
                    folder = ((early - random) & (place | set(draws[1]))) | ((due - early) & place)
                else:
                    memory, held = memory | due & often, set()
                    folder = (folder | due) & place
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [NODES, 2 * NODES])
@pytest.mark.parametrize("placement", [None, *PLACEMENTS])
def test_each_epoch_reads_what_a_slow_model_reads(placement: Placement | None, ranks: int) -> None:
    """Sample by sample, on each of three nodes, with one rank and with two."""
    run = _run(placement, ranks)
    for node in range(NODES):
        assert _reads(run, node) == _slow_model(run, node)


@examples(40)
@given(runs(), st.floats(0, 1))
def test_a_single_server_is_alone(run: SimulatedRun, share: float) -> None:
    """It draws everything. Reads, bytes and contents are those of one node of a cluster of one."""
    run = replace(run, cache_bytes=int(share * run.sizes.sum()))
    both = [[work for (work,) in work_of(replace(run, connected=alone), range(3))] for alone in (True, False)]
    for cluster, alone in zip(*both, strict=True):
        assert (alone.reads, alone.read_bytes) == (cluster.reads, cluster.read_bytes)
        assert (alone.cache_reads, alone.cache_bytes) == (cluster.cache_reads, cluster.cache_bytes)
        assert (alone.direct, alone.kept_bytes, alone.cached_bytes) == (
            cluster.direct,
            cluster.kept_bytes,
            cluster.cached_bytes,
        )


@examples(40)
@given(runs(), st.floats(0, 1), st.sampled_from(["auto", "even", "next"]), st.integers(2, 4))
def test_a_folder_changes_the_source_of_reads_only(
    run: SimulatedRun, share: float, placement: Placement, nodes: int
) -> None:
    """Each node makes the reads that it makes without a folder, and the folder stays within its size."""
    run = replace(run, nodes=nodes, ranks=nodes, connected=False, placement=placement)
    room = int(share * run.sizes.sum())
    without, found = (list(work_of(replace(run, cache_bytes=cache), range(4))) for cache in (0, room))
    for before, after in zip(without, found, strict=True):
        for none, some in zip(before, after, strict=True):
            assert some.reads + some.cache_reads == none.reads
            assert some.read_bytes + some.cache_bytes == none.read_bytes
            assert some.cached_bytes <= room
            assert some.kept_bytes == none.kept_bytes


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_decisions_of_a_server_that_is_played_read_as_much(placement: Placement) -> None:
    """Within 3 % of the fetches, epoch by epoch on average: a server also reads ahead for the next epoch."""
    player = Player(SAMPLES, ROOM, placement, EPOCHS, replicas=NODES, memory=MEMORY)
    played = np.array(player.play(1, range(EPOCHS)))[1:].mean(axis=0)
    simulated = np.array(_reads(replace(_run(placement), order=player.order), 1))[1:].mean(axis=0)
    assert played == pytest.approx(simulated, abs=0.03 * SAMPLES / NODES)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_real_server_that_is_alone_counts_the_same(texts: Path, tmp_path: Path, share: float, rank: int) -> None:
    """Exactly, in the last epoch that there is, when memory and folder hold all that has a place."""
    data, warm = StoredDataSet(texts), 40
    sizes, order = stored_sizes(data), order_of(texts, UniformPolicy(2))
    room = int(share * sizes.sum())
    busy = busy_bytes(load_profile(data.name))
    run = SimulatedRun(sizes, order, 0.4, None, NODES, NODES, 16, room, busy_bytes=busy, connected=False)
    *_, works = work_of(run, [*range(warm), MAX_EPOCH])
    cache = Cache(tmp_path, f"{room}B") if room else None
    with running_server(texts, memory=0.4, cache=cache) as server, closing(node_of(texts, server.address)) as client:
        draw_in_step([Rank(client, order, rank, NODES)], range(warm))
        before = _rest(server)
        draw_in_step([Rank(client, order, rank, NODES)], [MAX_EPOCH])
        after = server.facts()
    work = works[rank]
    assert before["memory"]["cached"] == work.kept_bytes
    assert after["reads"] - before["reads"] == work.reads > 0
    assert after["read_bytes"] - before["read_bytes"] == work.read_bytes
    assert after["direct"] == work.direct == 0
    if room:
        assert after["cache"]["reads"] - before["cache"]["reads"] == work.cache_reads > 0
        assert after["cache"]["read_bytes"] - before["cache"]["read_bytes"] == work.cache_bytes
