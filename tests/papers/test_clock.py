"""The clocks: what an iteration waits for, against obvious models; what helps never costs time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers import clock
from bench.papers.clock import fair, in_turn, side_by_side
from bench.papers.demand import PEERS, STORAGE, Demand, Preload, by_source
from bench.papers.policies import POLICIES
from bench.papers.scene import Rules, Scene
from brand.errors import UsageError
from tests.papers.models import ThesisModel, scenes, shared_ends
from tests.rounds import examples

PLAIN = Scene(
    samples=8,
    mean_mb=10,
    sd_mb=0,
    epochs=1,
    nodes=2,
    batch=4,
    train_mb_s=100,
    decode_mb_s=math.inf,
    network_mb_s=1000,
    client_mb_s=math.inf,
    storage_mb_s=((1, 50), (2, 80)),
    threads=(1, 1),
    room_mb=(1000, 0),
    local_mb_s=(math.inf, math.inf),
)
"""Two iterations, in each of which each of two nodes draws two samples of 10 MB."""


def ends(seconds: Any, scene: Scene, policy: str) -> list[float]:
    """Ends of iterations of a policy."""
    draws = scene.draws()
    found: list[float] = seconds(scene, POLICIES[policy](scene, draws), draws).tolist()
    return found


@pytest.mark.slow
@given(scenes(), st.sampled_from(["perfect", "staging", "frequency", "minio", "next", "lobster"]))
@examples(60, deadline=None)
def test_in_turn_is_the_slow_model(scene: Scene, policy: str) -> None:
    """The ends of all iterations, for policies that load nothing first."""
    draws = scene.draws()
    demand = POLICIES[policy](scene, draws)
    assert in_turn(scene, demand, draws).tolist() == pytest.approx(ThesisModel(scene, demand, draws).ends(), rel=1e-6)


@given(scenes())
@examples(60, deadline=None)
def test_in_turn_is_the_slow_model_on_demand(scene: Scene) -> None:
    """The ends of all iterations where one thread reads a sample when it is due."""
    draws = scene.draws()
    demand = POLICIES["naive"](scene, draws)
    assert in_turn(scene, demand, draws).tolist() == pytest.approx(ThesisModel(scene, demand, draws).ends(), rel=1e-6)


@given(st.integers(1, 4), st.integers(0, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
@examples(60)
def test_side_by_side_is_the_slow_model(sources: int, iterations: int, nodes: int, ahead: int, seed: int) -> None:
    """The ends of all iterations, for random seconds of each stage."""
    rng = np.random.default_rng(seed)
    read_s = rng.random((sources, iterations, nodes))
    decode_s, train_s = rng.random((2, iterations, nodes))
    found = side_by_side(read_s, decode_s, train_s, ahead, 5.0)
    assert found.tolist() == pytest.approx(shared_ends(read_s, decode_s, train_s, ahead, 5.0))


def test_a_node_that_reads_for_another_one_does_not_train_what_it_sends() -> None:
    """Node 0 reads 40 MB in each iteration, and node 1 gets half of them from it: both decode and train 20 MB.

    `fair`: 40 MB at 80 MB/s, 0.2 s of decoding, 0.2 s of training. `in_turn`: 40 MB at 50 MB/s, then 0.2 s of decoding
    by the same thread, then the last sample is trained.
    """
    scene = replace(PLAIN, decode_mb_s=100)
    mb = np.zeros((4, 2, 2))
    mb[STORAGE, :, 0], mb[PEERS, :, 1] = 40, 20
    demand = Demand(mb, trained=np.full((2, 2), 20.0))
    first = {clock_: float(clock_(scene, demand, scene.draws())[0]) for clock_ in (fair, in_turn)}
    assert first == {fair: pytest.approx(0.9), in_turn: pytest.approx(1.1)}


def improved(scene: Scene, what: str, factor: float) -> Scene:
    """A scene with more of something."""
    tiers = range(1, scene.tiers + 1)
    changes: dict[str, Any] = {
        "storage_mb_s": tuple((readers, rate * factor) for readers, rate in scene.storage_mb_s),
        "threads": tuple(math.ceil(count * factor) for count in scene.threads),
        "staging": (scene.room_mb[0] * factor, *scene.room_mb[1:]),
        "cache": (scene.room_mb[0], *(scene.room_mb[tier] * factor for tier in tiers)),
        "local_mb_s": tuple(rate * factor for rate in scene.local_mb_s),
    }
    rates = ("train_mb_s", "decode_mb_s", "network_mb_s", "client_mb_s", "storage_ops_s")
    value = changes[what] if what in changes else getattr(scene, what) * factor
    assert what in changes or what in rates
    return replace(scene, **{"room_mb" if what in {"staging", "cache"} else what: value})


MORE = [
    "storage_mb_s",
    "threads",
    "staging",
    "local_mb_s",
    "train_mb_s",
    "decode_mb_s",
    "network_mb_s",
    "client_mb_s",
    "storage_ops_s",
]


@pytest.mark.slow
@given(scenes(), st.sampled_from(sorted(POLICIES)), st.sampled_from(MORE), st.floats(1, 10), st.floats(1, 1000))
@examples(100, deadline=None)
def test_more_threads_or_bandwidth_never_cost_time(
    scene: Scene, policy: str, what: str, factor: float, ops: float
) -> None:
    """By the clock `fair`, with the same demand, no iteration ends later."""
    scene = replace(scene, storage_ops_s=ops)
    draws = scene.draws()
    try:
        demand = POLICIES[policy](scene, draws)
    except UsageError:
        return
    before, after = fair(scene, demand, draws), fair(improved(scene, what, factor), demand, draws)
    assert (after <= before * (1 + 1e-9)).all()


@given(scenes(tiers=1), st.sampled_from(["frequency", "minio"]), st.floats(1, 10))
@examples(60, deadline=None)
def test_more_memory_never_costs_time(scene: Scene, policy: str, factor: float) -> None:
    """By the clock `fair`, where memory takes no time and the draws are the same, no iteration ends later."""
    scene = replace(scene, local_mb_s=(math.inf, math.inf))
    before, after = ends(fair, scene, policy), ends(fair, improved(scene, "cache", factor), policy)
    assert all(late <= early * (1 + 1e-9) for early, late in zip(before, after, strict=True))


def test_a_slow_cache_costs_time() -> None:
    """A disk of 1 MB/s that relieves a storage of 40 MB/s for each node makes `fair` later."""
    slow = replace(PLAIN, epochs=4, room_mb=(0, 1000), local_mb_s=(math.inf, 1))
    assert ends(fair, slow, "minio")[-1] > ends(fair, slow, "staging")[-1]


def test_fair_shares_what_storage_gives() -> None:
    """Two nodes read 20 MB each of 80 MB/s; then training hides all but the first read."""
    assert ends(fair, PLAIN, "staging") == pytest.approx([0.5 + 0.2, 1.0 + 0.2])
    assert ends(fair, PLAIN, "naive") == pytest.approx([0.5 + 0.2, 1.2 + 0.2])
    assert ends(fair, PLAIN, "perfect") == pytest.approx([0.2, 0.4])


def test_fair_never_exceeds_the_rate_of_one_client() -> None:
    """20 MB at 10 MB/s an iteration, or 40 MB before training."""
    slow = replace(PLAIN, client_mb_s=10, room_mb=(1000, 40), network_mb_s=math.inf)
    assert ends(fair, slow, "staging") == pytest.approx([2.2, 4.2])
    assert ends(fair, slow, "lbann_preload") == pytest.approx([4.2, 4.4])


def test_fair_counts_reads() -> None:
    """Four reads an iteration at 2 reads a second; DIESEL's chunks hold less than one such sample."""
    slow = replace(PLAIN, storage_ops_s=2)
    assert ends(fair, slow, "staging") == pytest.approx([2.2, 4.2])
    assert ends(fair, slow, "pool") == pytest.approx([2.2, 4.2])
    small = replace(slow, mean_mb=1)  # four samples to a chunk: one read an iteration
    assert ends(fair, small, "pool") == pytest.approx([0.52, 1.02])


def test_a_node_reads_no_further_ahead_than_its_buffer() -> None:
    """With room for one batch, a read begins when the batch before has been trained."""
    assert ends(fair, replace(PLAIN, room_mb=(20, 0)), "staging") == pytest.approx([0.7, 1.4])


def test_in_turn_the_first_node_reads_as_if_alone() -> None:
    """Node 0 reads both batches at 50 MB/s; node 1 gets 40 MB/s until node 0 is done at 0.8 s, then 50 MB/s."""
    # Node 1: 32 MB by 0.8 s, the last 8 MB at 50 MB/s.
    assert ends(in_turn, PLAIN, "staging") == pytest.approx([0.5 + 0.1, 0.96 + 0.1])


def test_readers_that_are_always_counted_share_all_the_time() -> None:
    """Without the rule, both nodes get 40 MB/s throughout."""
    literal = replace(PLAIN, rules=Rules(readers_in_turn=False))
    assert ends(in_turn, literal, "staging") == pytest.approx([0.5 + 0.1, 1.0 + 0.1])


def test_in_turn_a_second_thread_doubles_what_a_node_gets() -> None:
    """As the thesis reckons: 100 MB/s of a storage that gives one reader 50 MB/s."""
    alone = replace(PLAIN, nodes=1, batch=2, samples=4, threads=(2, 1))
    assert ends(in_turn, alone, "staging") == pytest.approx([0.2 + 0.1, 0.4 + 0.1])


def test_preloading_reads_at_the_rate_of_all_nodes() -> None:
    """Each node loads 40 MB at 40 MB/s, then trains without waiting."""
    found = ends(in_turn, replace(PLAIN, room_mb=(1000, 40)), "lbann_preload")
    assert found == pytest.approx([1.2, 1.4], abs=0.03)  # memory of the other node takes up to 0.02 s at first


def test_nodes_that_copy_everything_read_alone() -> None:
    """Rule of the thesis: 80 MB at 50 MB/s, as if there were no other node; `fair` has both share 80 MB/s."""
    roomy = replace(PLAIN, room_mb=(1000, 80))
    assert ends(in_turn, roomy, "parallel") == pytest.approx([1.8, 2.0])
    assert ends(fair, roomy, "parallel") == pytest.approx([2.2, 2.4])


def test_two_tiers_that_load_alone_share_storage() -> None:
    """The first tier loads 20 MB alone; the second gets half of 80 MB/s until then, and 50 MB/s afterwards."""
    scene = replace(PLAIN, room_mb=(1000, 20, 60), threads=(1, 1, 1), local_mb_s=(math.inf,) * 3)
    second_s = 0.4 + (60 - 0.4 * 40) / 50
    assert ends(in_turn, scene, "parallel") == pytest.approx([second_s + 0.2, second_s + 0.4])


@pytest.mark.parametrize("seconds", [in_turn, fair])
def test_iterations_train_while_their_data_are_loaded(seconds: Any) -> None:
    """The first epoch ends with the preload, or later if training takes longer."""
    scene = replace(PLAIN, epochs=2)
    draws = scene.draws()
    mb, ops = by_source(scene, draws, 1)
    for loaded_mb, first in ((40, 1.0), (4, 0.4)):
        demand = Demand(mb, ops, Preload(np.full((1, 2), loaded_mb, np.float64), iterations=2))
        assert seconds(scene, demand, draws).tolist() == pytest.approx([first / 2, first, first + 0.2, first + 0.4])


def test_what_another_node_holds_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rule `peers`, a node reads from another what that one surely holds; a node that never guesses, nothing."""
    alone = replace(PLAIN, samples=400, batch=40, epochs=3, mean_mb=1, room_mb=(50, 400), network_mb_s=1e6)
    alone = replace(alone, train_mb_s=1000)
    together = replace(alone, rules=Rules(peers=True))
    before, after = ends(in_turn, alone, "frequency"), ends(in_turn, together, "frequency")
    assert after[0] == before[0]
    assert after[-1] < before[-1]
    monkeypatch.setattr(clock, "_GUESS", 10**6)
    assert ends(in_turn, together, "frequency") == before


def test_a_naive_policy_decodes_with_one_thread() -> None:
    """20 MB at 100 MB/s, whether there are more threads or not; one that reads ahead uses all."""
    slow = replace(PLAIN, decode_mb_s=100, threads=(2, 1))
    assert ends(fair, slow, "naive") == pytest.approx([0.5 + 0.2 + 0.2, 2 * 0.9])
    assert ends(fair, slow, "staging") == pytest.approx([0.5 + 0.1 + 0.2, 1.0 + 0.1 + 0.2])


def test_storage_is_the_only_source_of_a_naive_policy() -> None:
    """All MB of all other sources are 0."""
    demand = POLICIES["naive"](PLAIN, PLAIN.draws())
    assert demand.mb[STORAGE].sum() == 80
    assert not demand.mb[1:].any()
