"""A data set with `expand=` as a member of a `Mixture`: each pair once before any comes twice, wherever a run stops."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, Mixture
from brand.errors import SchemaError, UsageError

COUNTS = [5, 0, 3, 1, 5, 2, 7, 0, 4]
PAIRS, TEXTS = sum(COUNTS), 11
FIELDS = ("captions", "label")
PAIRS_OF = Counter((f"{number}/{at}", number) for number, count in enumerate(COUNTS) for at in range(count))
TEXTS_OF = Counter((f"text {number}", 100 + number) for number in range(TEXTS))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of captions, and a data set that has one text a sample."""
    root = tmp_path_factory.mktemp("sets")
    lists = [{"captions": [f"{n}/{at}" for at in range(count)], "label": n} for n, count in enumerate(COUNTS)]
    brand.pack(lists, root / "lists", {"captions": "list[str]", "label": "int"}, chunk_size=4)
    texts = [{"captions": f"text {number}", "label": 100 + number} for number in range(TEXTS)]
    brand.pack(texts, root / "texts", {"captions": "str", "label": "int"}, chunk_size=4)
    return root


def mixed(sets: Path, first: float = 2.0, second: float = 1.0, **more: Any) -> Mixture:
    """Pairs and texts, 2 to 1."""
    pairs = BrandDataset(sets / "lists", expand="captions", fields=FIELDS, **more)
    return Mixture({pairs: first, BrandDataset(sets / "texts", fields=FIELDS, **more): second})


def arrived(batches: Iterable[Any]) -> list[tuple[str, int]]:
    """The samples of batches."""
    return [pair for texts, labels in batches for pair in zip(texts, labels.tolist(), strict=True)]


def check_laps(found: list[tuple[str, int]], every: Counter[tuple[str, int]]) -> None:
    """Each sample of a member once, then each once again, in another order."""
    own = [pair for pair in found if pair in every]
    laps = [own[at : at + len(every)] for at in range(0, len(own), len(every))]
    assert all(Counter(lap) == every for lap in laps[:-1])
    assert not Counter(laps[-1]) - every
    assert len(laps) < 3 or laps[0] != laps[1]


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_each_pair_once_before_any_comes_twice(sets: Path, workers: int | None) -> None:
    """In threads and in processes; any three samples in a row are two pairs and a text."""
    mixture = mixed(sets)
    assert len(mixture) == PAIRS + TEXTS
    sampler = BrandSampler(mixture, seed=3)
    loader: Any = BrandLoader(mixture, 4, sampler=sampler)
    if workers is not None:
        loader = DataLoader(mixture, 4, sampler=sampler, num_workers=workers)
    found = [pair for _ in range(3) for pair in arrived(loader)]
    assert len(found) == 3 * (PAIRS + TEXTS)
    check_laps(found, PAIRS_OF)
    check_laps(found, TEXTS_OF)
    whole = len(found) // 3 * 3
    assert all(sum(pair in PAIRS_OF for pair in found[at : at + 3]) == 2 for at in range(0, whole, 3))


def test_a_run_continues_exactly(sets: Path) -> None:
    """From every batch of three epochs, after a way through JSON, with another seed before."""
    mixture = mixed(sets)
    whole = BrandLoader(mixture, 4, sampler=BrandSampler(mixture, seed=1))
    expected, states = [], [whole.state_dict()]
    for _ in range(3):
        for batch in whole:
            expected.append(arrived([batch]))
            states.append(json.loads(json.dumps(whole.state_dict())))
    for at, state in list(enumerate(states[:-1]))[::5]:
        again = BrandLoader(mixture, 4, sampler=BrandSampler(mixture, seed=9))
        again.load_state_dict(state)
        assert [arrived([batch]) for batch in again] == expected[at : (at // len(whole) + 1) * len(whole)]


def test_workers_that_began_before_a_state_was_loaded(sets: Path) -> None:
    """They ask the servers of the members."""
    mixture = mixed(sets)
    sampler = BrandSampler(mixture, seed=1)
    loader = DataLoader(mixture, 4, sampler=sampler, num_workers=2, persistent_workers=True)
    assert len(arrived(loader)) == len(mixture)
    other = BrandSampler(mixture, seed=77)
    taken = arrived(islice(BrandLoader(mixture, 4, sampler=other), 5))
    sampler.load_state_dict(other.state_dict(samples=20))
    found = taken + arrived(loader) + arrived(loader)
    check_laps(found, PAIRS_OF)
    check_laps(found, TEXTS_OF)


@pytest.mark.parametrize("replicas", [2, 3])
def test_ranks_divide_the_sequence(sets: Path, replicas: int) -> None:
    """Each position on one of them."""
    mixture = mixed(sets)
    alone = sorted(BrandSampler(mixture, seed=5))
    ranks = [BrandSampler(mixture, seed=5, num_replicas=replicas, rank=rank) for rank in range(replicas)]
    found = sorted({ticket for rank in ranks for ticket in rank})
    assert set(alone) <= set(found)
    assert len(found) < len(alone) + replicas


def test_weights_change(sets: Path) -> None:
    """From a position on; one of no weight is not fetched, and continues where it was."""
    mixture = mixed(sets, 1, 0)
    sampler = BrandSampler(mixture, seed=2)
    lists, texts = mixture.members
    mixture.set_weights({lists: 0, texts: 1}, epoch=0, position=10)
    mixture.set_weights({lists: 1, texts: 1}, epoch=0, position=20)
    loader = BrandLoader(mixture, 5, sampler=sampler)
    found = arrived(loader) + arrived(loader)
    assert [pair in PAIRS_OF for pair in found[:20]] == [True] * 10 + [False] * 10
    check_laps(found, PAIRS_OF)
    check_laps(found, TEXTS_OF)


def test_two_expanded_members(sets: Path, tmp_path: Path) -> None:
    """Of the same field in two data sets."""
    more = [{"captions": [f"m{n}/{at}" for at in range(3)], "label": 200 + n} for n in range(4)]
    brand.pack(more, tmp_path / "more", {"captions": "list[str]", "label": "int"}, chunk_size=4)
    one = BrandDataset(sets / "lists", expand="captions", fields=FIELDS)
    two = BrandDataset(tmp_path / "more", expand="captions", fields=FIELDS)
    mixture = Mixture({one: 1, two: 1})
    loader = BrandLoader(mixture, 4, sampler=BrandSampler(mixture))
    found = [pair for _ in range(3) for pair in arrived(loader)]
    check_laps(found, PAIRS_OF)
    check_laps(found, Counter((f"m{n}/{at}", 200 + n) for n in range(4) for at in range(3)))


def test_states_and_members_that_do_not_fit(sets: Path) -> None:
    """A state of a mixture whose member was not expanded, and members of other codecs."""
    mixture = mixed(sets)
    state = BrandSampler(mixture).state_dict()
    stored = BrandDataset(sets / "lists", fields=FIELDS)
    with pytest.raises(SchemaError, match="samples of a Mixture have the same fields"):
        Mixture({stored: 1, BrandDataset(sets / "texts", fields=FIELDS): 1})
    labels = [BrandDataset(sets / name, fields=("label",)) for name in ("lists", "texts")]
    plain = Mixture({labels[0]: 2, labels[1]: 1}, samples=PAIRS + TEXTS)
    with pytest.raises(UsageError, match="this is no state of a Mixture"):
        BrandSampler(plain).load_state_dict(state)
    with pytest.raises(UsageError, match="open the data set as it was opened before"):
        BrandSampler(mixture).load_state_dict(BrandSampler(plain).state_dict())
