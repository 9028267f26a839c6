"""Hits of a node's cache: the first model's table, each rule against a slow model, and what no rule can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.papers import hits
from bench.papers.frequency import node_draws
from bench.papers.theory import HITS, STEADY, hit_figures
from brand.errors import UsageError
from brand.orders.base.random import RandomStream, permutation
from tests.rounds import examples

Draws = NDArray[np.int64]

small = st.builds(
    lambda nodes, each, epochs, seed: node_draws(nodes * each, nodes, epochs, seed),
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 7), st.integers(0, 99),
)  # fmt: skip
"""Draws of one node of some, with few samples."""


def counted(draws: Draws, answers: Callable[[int], bool]) -> list[bool]:
    """What `answers` says of each draw, in order."""
    return [answers(sample) for sample in draws.ravel().tolist()]


def best_possible(draws: Sequence[int], capacity: int) -> int:
    """The most hits that any cache can have, by trying all choices of what to hold after each draw."""

    @cache
    def most(position: int, held: frozenset[int]) -> int:
        if position == len(draws):
            return 0
        sample = draws[position]
        there = held | {sample}
        choices = [there] if len(there) <= capacity else [there - {out} for out in there]
        return (sample in held) + max(most(position + 1, choice) for choice in choices)

    return most(0, frozenset())


@pytest.mark.slow
def test_eight_nodes_have_the_hits_of_the_table() -> None:
    """29.6 % each, 50 epochs, 20,000 samples: every rule within one point of the first model's figure."""
    found, steady = hit_figures(nodes=8)
    for rule, figure in HITS.items():
        assert 100 * found[rule] == pytest.approx(figure.first, abs=1), rule
    assert 100 * steady == pytest.approx(STEADY.first, abs=1)


@pytest.mark.slow
def test_two_of_lobsters_four_hit_ratios_are_those_of_eight_caches() -> None:
    """PyTorch's 24.5 % is near least recently used, Lobster's 63.2 % near next use once the caches are full."""
    found, steady = hit_figures(nodes=8)
    assert 100 * found["lru"] == pytest.approx(24.5, abs=1)
    assert 100 * steady == pytest.approx(63.2, abs=1)


@pytest.mark.slow
def test_on_one_node_no_rule_has_more_than_its_share() -> None:
    """All samples come in each epoch, so a hit needs room over its border: 29.6 % at most, LRU far less."""
    found, _ = hit_figures(nodes=1)
    assert 100 * max(found.values()) <= 29.6 + 1e-9
    assert 100 * found["lru"] == pytest.approx(4.8, abs=1)
    assert 100 * found["static"] == pytest.approx(29.0, abs=1)
    assert 100 * found["belady"] == pytest.approx(29.0, abs=1)


@given(small, st.integers(1, 12))
def test_lru_is_a_list_in_order_of_use(draws: Draws, capacity: int) -> None:
    """Draw by draw: the oldest of a list goes."""
    recent: list[int] = []

    def answers(sample: int) -> bool:
        hit = sample in recent
        if hit:
            recent.remove(sample)
        recent.append(sample)
        del recent[:-capacity]
        return hit

    assert hits.lru(draws, capacity).ravel().tolist() == counted(draws, answers)


@given(small, st.integers(1, 12))
def test_static_keeps_what_came_first(draws: Draws, capacity: int) -> None:
    """Draw by draw: what comes is kept while there is room."""
    kept: set[int] = set()

    def answers(sample: int) -> bool:
        if sample not in kept and len(kept) < capacity:
            kept.add(sample)
            return False
        return sample in kept

    assert hits.static(draws, capacity).ravel().tolist() == counted(draws, answers)


@given(small, st.integers(1, 12))
def test_frequency_keeps_what_comes_most(draws: Draws, capacity: int) -> None:
    """The most frequent samples of all epochs hit, on demand all but the first time; the first drawn wins a tie."""
    drawn = draws.ravel().tolist()
    count = Counter(drawn)
    kept = sorted(count, key=lambda sample: (-count[sample], drawn.index(sample)))[:capacity]
    seen: set[int] = set()

    def answers(sample: int) -> bool:
        again = sample in seen
        seen.add(sample)
        return again and sample in kept

    assert hits.prefetched(draws, capacity).ravel().tolist() == [sample in kept for sample in drawn]
    assert hits.frequency(draws, capacity).ravel().tolist() == counted(draws, answers)


@given(small, st.integers(1, 12), st.integers(0, 9))
def test_a_random_cache_holds_no_more_than_its_room(draws: Draws, capacity: int, seed: int) -> None:
    """Where all samples fit, every draw but the first is a hit; and no cache has more hits than is possible."""
    found = hits.at_random(draws, capacity, seed)
    samples = len(np.unique(draws))
    assert found.sum() <= hits.belady(draws, capacity).sum()
    if samples <= capacity:
        assert found.sum() == draws.size - samples


@given(small, st.integers(1, 12), st.one_of(st.none(), st.integers(1, 8)))
def test_next_use_keeps_the_nearest_epochs(draws: Draws, capacity: int, horizon: int | None) -> None:
    """Epoch by epoch: of what is there and comes again within the horizon, what comes again first stays."""
    epochs = draws.tolist()
    tie = np.argsort(permutation(int(draws.max()) + 1, 0, RandomStream.KEPT)).tolist()
    held: list[int] = []
    expected = []
    for epoch, drawn in enumerate(epochs):
        expected.append([sample in held for sample in drawn])
        later = list(enumerate(epochs[epoch + 1 :], 1))[:horizon]
        wait = {s: next((ahead for ahead, again in later if s in again), 0) for s in {*held, *drawn}}
        held = sorted((s for s in wait if wait[s]), key=lambda s: (wait[s], tie[s]))[:capacity]
    assert hits.next_use(draws, capacity, horizon).tolist() == expected


@given(small)
def test_lobsters_rule_keeps_what_the_next_epoch_draws(draws: Draws) -> None:
    """With room for everything, a draw is a hit exactly where the epoch before drew the same sample."""
    found = hits.two_i_minus_h(draws, draws.size)
    for epoch in range(len(draws)):
        before = draws[epoch - 1] if epoch else draws[:0]
        assert found[epoch].tolist() == np.isin(draws[epoch], before).tolist()


@examples(60)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99), st.integers(1, 4))
def test_belady_has_as_many_hits_as_any_choice(nodes: int, each: int, epochs: int, seed: int, capacity: int) -> None:
    """All choices of what to hold after each of up to 16 draws give no more."""
    draws = node_draws(nodes * each, nodes, epochs, seed)
    assert hits.belady(draws, capacity).sum() == best_possible(tuple(draws.ravel().tolist()), capacity)


@given(small, st.integers(1, 12))
def test_no_rule_on_demand_has_more_hits_than_belady(draws: Draws, capacity: int) -> None:
    """Rules that hold at most `capacity` samples at any draw, and begin with none."""
    most = hits.belady(draws, capacity).sum()
    for rule in ("lru", "random", "static", "frequency"):
        assert hits.RULES[rule](draws, capacity).sum() <= most, rule


@given(small)
def test_with_room_for_everything_only_first_draws_miss(draws: Draws) -> None:
    """All rules that begin empty and keep what they can agree."""
    expected = draws.size - len(np.unique(draws))
    for rule in ("lru", "random", "static", "frequency", "next use", "belady"):
        assert hits.RULES[rule](draws, draws.size).sum() == expected, rule


def test_the_three_hit_ratios_are_shares_of_the_same_draws() -> None:
    """Five draws: two held, one sent by another node, two from storage, of which training waited for one."""
    held = np.array([True, True, False, False, False])
    sent = np.array([False, False, True, False, False])
    waited = np.array([False, False, False, False, True])
    assert hits.hit_ratios(held, waited, sent) == hits.HitRatios(demand=0.4, ready=0.8, cluster=0.6)


@pytest.mark.parametrize("rule", hits.RULES)
def test_a_cache_without_room_is_refused(rule: str) -> None:
    """The message says what to give."""
    with pytest.raises(UsageError, match="1 or more"):
        hits.RULES[rule](node_draws(8, 2, 2, 0), 0)
