"""Random numbers: the same for ever, any word by itself, and permutations that are uniform."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.random import RandomStream, Words, bits, group_positions, low_mask, permutation, ranked, words_at
from tests.orders.models import chi_square, epochs, seeds

streams = st.sampled_from(list(RandomStream))


def close_to_uniform(found: float, freedom: int) -> bool:
    """Whether a chi-square is within four standard deviations of what chance gives."""
    return abs(found - freedom) < 4 * math.sqrt(2 * freedom)


def test_the_numbers_of_the_streams_are_fixed() -> None:
    """WARNING: a change here changes the order of every run that users resume. Add numbers, never change one."""
    assert {stream.name: stream.value for stream in RandomStream} == {
        "ACCESS": 1,
        "STRIPE_ORDER": 2,
        "STRIPE_MATES": 3,
        "REFILL": 4,
        "KEPT": 5,
        "POOL": 6,
        "ROUNDS": 7,
        "FOLLOW": 8,
        "FOLLOW_REST": 9,
        "FOLLOW_MATES": 10,
        "MIXED_RANKS": 11,
        "BATCH_TIES": 12,
        "BATCH_TURNS": 13,
        "ACCESS_HALVES": 14,
        "STRIPE_KEYS": 15,
        "SHIFTS": 16,
        "CHANCES": 17,
        "STRIPE_TURNS": 18,
    }


@given(seeds, streams, epochs, st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 70))
def test_any_words_are_a_slice_of_the_stream(
    seed: int, stream: RandomStream, epoch: int, step: int, block: int, count: int
) -> None:
    """Words `first` and on are those that the whole stream has there."""
    whole = bits(4 * block + count, seed, stream, epoch, step)
    assert whole.dtype == np.uint64
    assert bits(count, seed, stream, epoch, step, first=4 * block).tolist() == whole[4 * block :].tolist()


@pytest.mark.parametrize("first", [1, 2, 3, 5, 1001])
def test_a_slice_begins_with_a_block(first: int) -> None:
    """Words come in fours; another beginning is refused, with its number."""
    with pytest.raises(ValueError, match=f"word {first} "):
        bits(4, 0, RandomStream.ACCESS, first=first)


def test_each_name_has_a_stream_of_its_own() -> None:
    """Seeds that differ in any bit, purposes, epochs and steps share no word."""
    names = itertools.product((0, 1, 1 << 63, 1 << 64, 1 << 127), RandomStream, (0, 1, 2**16 - 1), (0, 1, 2**20))
    words = np.concatenate([bits(64, seed, stream, epoch, step) for seed, stream, epoch, step in names])
    assert len(np.unique(words)) == len(words)


@given(seeds, streams, st.integers(0, 3000))
def test_words_one_after_another_are_those_of_the_stream(seed: int, stream: RandomStream, count: int) -> None:
    """Also beyond what is made at a time."""
    words = Words(seed, stream)
    assert [words.next() for _ in range(count)] == bits(count, seed, stream).tolist()
    assert words.used == count


def test_numbers_below_a_limit_are_uniform() -> None:
    """Also below one that is no power of two."""
    words = Words(1, RandomStream.ROUNDS)
    for limit in (2, 3, 100):
        assert close_to_uniform(
            chi_square(np.bincount([words.below(limit) for _ in range(20_000)], minlength=limit)), limit - 1
        )


def test_words_have_equally_many_of_each_byte() -> None:
    """All eight bytes of the words are uniform."""
    words = bits(100_000, 5, RandomStream.ACCESS).view(np.uint8).reshape(-1, 8)
    for place in range(8):
        assert close_to_uniform(chi_square(np.bincount(words[:, place], minlength=256)), 255)


@given(st.lists(st.integers(0, 2**48), max_size=40), seeds, streams, epochs)
def test_scattered_words_have_numbers(numbers: list[int], seed: int, stream: RandomStream, epoch: int) -> None:
    """The word of a number does not depend on which others are asked for with it."""
    words = words_at(np.array(numbers, np.int64), seed, stream, epoch).tolist()
    assert words == [words_at(np.array([number]), seed, stream, epoch).tolist()[0] for number in numbers]


def test_scattered_words_are_splitmix() -> None:
    """Those of SplitMix64 (Steele, Lea and Flood 2014), with one more word between its two products."""
    start, more = map(int, bits(2, 3, RandomStream.STRIPE_KEYS, 1, 2**64 - 1))
    mask = 2**64 - 1
    for number in (0, 1, 77, 2**40):
        word = (number * 0x9E3779B97F4A7C15 + start) & mask
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask) ^ more
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        assert words_at(np.array([number]), 3, RandomStream.STRIPE_KEYS, 1).tolist() == [word ^ word >> 31]


def test_scattered_words_have_equally_many_of_each_byte() -> None:
    """In each of their eight bytes; so have the differences of words with neighbouring numbers, seeds and epochs."""
    at = np.arange(100_000)
    words = words_at(at, 5, RandomStream.STRIPE_KEYS, 1)
    others = [
        np.append(words[1:], words[:1]),
        words_at(at, 6, RandomStream.STRIPE_KEYS, 1),
        words_at(at, 5, RandomStream.STRIPE_KEYS, 2),
        words_at(at, 5, RandomStream.STRIPE_MATES, 1),
    ]
    for each in (words, *(words ^ other for other in others)):
        assert len(np.unique(each)) == len(each)
        for place in range(8):
            counts = np.bincount(each.view(np.uint8).reshape(-1, 8)[:, place], minlength=256)
            assert close_to_uniform(chi_square(counts), 255)


@given(st.integers(1, 400), seeds, streams, epochs)
def test_a_permutation_has_each_number_once(count: int, seed: int, stream: RandomStream, epoch: int) -> None:
    """Every number below `count` is there."""
    assert sorted(permutation(count, seed, stream, epoch).tolist()) == list(range(count))


@pytest.mark.slow
@given(st.integers(1, 400), seeds, streams, epochs)
def test_a_permutation_sorts_by_the_words_of_its_stream(
    count: int, seed: int, stream: RandomStream, epoch: int
) -> None:
    """Numbers in the order of their words; of the words only the low bits, which hold the number, do not count."""
    words = bits(count, seed, stream, epoch).tolist()
    low = 2 ** max(0, math.ceil(math.log2(count)))
    assert permutation(count, seed, stream, epoch).tolist() == sorted(range(count), key=lambda k: (words[k] // low, k))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["seed", "epoch"])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_permutations_are_equally_likely(count: int, by: str) -> None:
    """Over many seeds, and over many epochs, each order of a few numbers comes equally often."""
    number = {order: k for k, order in enumerate(itertools.permutations(range(count)))}
    found = [0] * len(number)
    for k in range(60 * len(number)):
        seed, epoch = (k, 0) if by == "seed" else (0, k)
        found[number[tuple(permutation(count, seed, RandomStream.ACCESS, epoch).tolist())]] += 1
    assert close_to_uniform(chi_square(found), len(number) - 1)


def test_every_number_is_equally_likely_at_every_position() -> None:
    """The same for more numbers, position by position."""
    count, times = 40, 4000
    orders = np.array([permutation(count, seed, RandomStream.KEPT) for seed in range(times)])
    for position in range(count):
        assert close_to_uniform(chi_square(np.bincount(orders[:, position], minlength=count)), count - 1)


@given(st.integers(1, 2**63))
def test_the_low_mask_holds_all_numbers_and_no_more_bits_than_it_must(count: int) -> None:
    """A mask of the low bits: the last number fits, and half the mask would not hold it."""
    mask = int(low_mask(count))
    assert mask & (mask + 1) == 0
    assert count - 1 <= mask
    assert mask == 0 or count - 1 > mask // 2


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 2**50), min_size=5, max_size=5), min_size=1, max_size=5))
def test_ranked_puts_numbers_in_the_order_of_keys(rows: list[list[int]]) -> None:
    """Row by row: what the low bits say, sorted by what the high bits say."""
    keys = np.array([[key * 8 + k for k, key in enumerate(row)] for row in rows], np.uint64)
    expected = [sorted(range(5), key=lambda k, row=row: (row[k], k)) for row in rows]  # type: ignore[misc]
    assert ranked(keys, low_mask(5)).tolist() == expected


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_group_positions_are_each_groups_positions_ascending(group: list[int]) -> None:
    """Group after group, where it occurs, from the first to the last."""
    expected = [k for wanted in sorted(set(group)) for k, found in enumerate(group) if found == wanted]
    assert group_positions(np.array(group)).tolist() == expected
