"""A round of chance can be had again, and is unlike all others."""

from __future__ import annotations

from hypothesis import settings

from tests.rounds import Chance, examples


def test_seed_and_number_fix_the_random_numbers() -> None:
    """The same ones, in any process; others in any other round."""
    numbers = {
        (seed, number): Chance(seed, number).rng.getrandbits(64) for seed in (0, 1, 2**32 - 1) for number in range(100)
    }
    assert len(set(numbers.values())) == 300
    assert all(Chance(*which).rng.getrandbits(64) == drawn for which, drawn in numbers.items())
    assert Chance(1, 11).rng.random() == 0.717111352107885


def test_seeds_of_walks_do_not_repeat() -> None:
    """In no two rounds; the usual ones count from 0."""
    seeds = [seed for run in (0, 7) for number in range(100) for seed in Chance(run, number).seeds(12)]
    assert len(set(seeds)) == len(seeds)
    assert seeds[:48] == list(range(48))


def test_examples_grow_with_the_profile() -> None:
    """A test has 30 % of the number that it states under the usual profile, and a few at least; other settings stay."""
    usual, explore = settings.get_profile("brand"), settings.get_profile("explore")
    assert (usual.max_examples, explore.max_examples) == (30, 2000)
    assert examples(60).max_examples == 60 * settings().max_examples // 100
    assert [examples(count).max_examples for count in (1, 4)] in ([1, 4], [20, 80])
    assert (usual.derandomize, explore.derandomize) == (True, False)
    assert examples(60, stateful_step_count=7).stateful_step_count == 7
