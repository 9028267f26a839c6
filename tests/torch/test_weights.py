"""A `BrandSampler` with `weights=`: each sample as often as its weight says, wherever a run stops, on any loader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, Mixture
from brand.collect import NamedSamples, append_samples, delete
from brand.errors import UsageError
from brand.node.decide.stimuli import ClientBegins, ClientRegisters
from brand.orders import Stripes
from brand.testing.node import running_server
from tests.torch.support import served
from tests.torch.training import two_ranks

SIZES = {"cat": 40, "dog": 12, "owl": 3, "yak": 1}
LABELS = np.repeat(np.arange(4), list(SIZES.values()))
SAMPLES = len(LABELS)
RNG = np.random.default_rng(4)
WEIGHTS = RNG.permutation(np.concatenate([RNG.pareto(1.0, SAMPLES - 5), np.zeros(5)]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of very different sizes, in seven chunks."""
    target = tmp_path_factory.mktemp("weights") / "animals.brand"
    samples = ({"label": int(label), "data": bytes([n]) * 40 * n} for n, label in enumerate(LABELS))
    brand.pack(samples, target, {"label": "int", "data": "bytes"}, chunk_size=8, jobs=1, classes=list(SIZES))
    return target


def opened(path: Path, **more: Any) -> BrandDataset:
    """Index, label and bytes of each sample."""
    given: dict[str, Any] = {"fields": ("index", "label", "data"), "memory": 0.3}
    return BrandDataset(path, **(given | more))


def arrived(batches: Iterable[Any]) -> list[int]:
    """The indices of batches; each has the label and the bytes of its own."""
    found = []
    for indices, labels, data in batches:
        for index, label, content in zip(indices.tolist(), labels.tolist(), data, strict=True):
            assert (label, content) == (LABELS[index], bytes([index]) * 40 * index)
            found.append(index)
    return found


def check_counts(found: Iterable[int], weights: np.ndarray[Any, Any], draws: int) -> None:
    """Each sample its expectation, rounded up or down, and all of them together `draws` times."""
    counts = Counter(found)
    assert sum(counts.values()) == draws
    for index, expected in enumerate((draws * weights / weights.sum()).tolist()):
        assert np.floor(expected - 1e-6) <= counts[index] <= np.ceil(expected + 1e-6)


def check_balance(found: list[int]) -> None:
    """Each class a fourth of the epoch, or one more or less."""
    assert len(found) == SAMPLES
    assert np.abs(np.bincount(LABELS[found], minlength=4) - SAMPLES // 4).max() <= 1


def loaders(data: BrandDataset, **more: Any) -> Iterator[Any]:
    """Every way to make batches."""
    yield BrandLoader(data, 7, sampler=BrandSampler(data, **more))
    for count in (0, 1, 2):
        yield DataLoader(data, 7, sampler=BrandSampler(data, **more), num_workers=count)


@pytest.mark.parametrize("order", ["stripes", "slots", "uniform", Stripes(buffer=0.1)])
@pytest.mark.parametrize("memory", [0.3, 1.0])
def test_each_sample_as_often_as_its_weight_says(path: Path, order: Any, memory: float) -> None:
    """In several epochs, each with an order of its own; many of them have some samples more often than others."""
    data = opened(path, memory=memory, order=order)
    sampler = BrandSampler(data, weights=WEIGHTS, num_samples=100, seed=2)
    assert len(sampler) == 100
    epochs = [arrived(BrandLoader(data, 7, sampler=sampler)) for _ in range(4)]
    for epoch in epochs:
        check_counts(epoch, WEIGHTS, 100)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({tuple(sorted(epoch)) for epoch in epochs}) > 1  # samples that are due less than once
    assert not set(np.flatnonzero(WEIGHTS == 0)) & {index for epoch in epochs for index in epoch}


def test_every_loader_has_the_same_order(path: Path) -> None:
    """With threads and with worker processes, for several epochs."""
    data = opened(path)
    found = [[arrived(loader) for _ in range(3)] for loader in loaders(data, weights="balanced", seed=3)]
    assert all(epochs == found[0] for epochs in found)
    for epoch in found[0]:
        assert len(epoch) == SAMPLES
        check_balance(epoch)


@pytest.mark.slow
def test_workers_that_are_spawned(path: Path) -> None:
    """The data set is pickled; they stay for all epochs."""
    data = opened(path)
    spawned: Any = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(data, 7, sampler=BrandSampler(data, weights="balanced"), **spawned)
    for _ in range(3):
        check_balance(arrived(loader))


def test_weights_of_classes(path: Path) -> None:
    """By name and by number; each sample of a class has its weight."""
    data = opened(path)
    by_name = {"cat": 1, "dog": 2.5, "owl": 0, "yak": 9}
    by_number = {0: 1, 1: 2.5, 2: 0, 3: np.float32(9)}
    every: tuple[Any, ...] = (by_name, by_number, torch.tensor([1, 2.5, 0, 9])[LABELS])
    for weights in every:
        found = arrived(BrandLoader(data, 7, sampler=BrandSampler(data, weights=weights)))
        check_counts(found, np.array([1, 2.5, 0, 9])[LABELS], SAMPLES)


def test_copies_are_spread_over_the_epoch(path: Path) -> None:
    """Those of a sample that comes 14 times, of 56: as far apart as in a random order, or farther."""
    data = opened(path)
    sampler = BrandSampler(data, weights="balanced")
    gaps = []
    for _ in range(20):
        gaps += np.diff(np.flatnonzero(np.array(arrived(BrandLoader(data, 7, sampler=sampler))) == 55)).tolist()
    assert 3.3 < np.mean(gaps) < 4.5  # 57 / 15 in a random order
    assert max(gaps) < 20


def test_a_run_continues_exactly(path: Path) -> None:
    """From every batch of two epochs, after a way through JSON, in a loader of another kind."""
    data = opened(path)
    given: Any = {"weights": WEIGHTS, "num_samples": 60}
    whole = BrandLoader(data, 7, sampler=BrandSampler(data, seed=1, **given))
    expected, states = [], [whole.state_dict()]
    for _ in range(2):
        for batch in whole:
            expected.append(arrived([batch]))
            states.append(json.loads(json.dumps(whole.state_dict())))
    for at, state in enumerate(states[:-1]):
        sampler = BrandSampler(data, seed=9, **given)
        sampler.load_state_dict(state)
        again: Any = BrandLoader(data, 7, sampler=sampler) if at % 2 else DataLoader(data, 7, sampler=sampler)
        assert [arrived([batch]) for batch in again] == expected[at : (at // len(whole) + 1) * len(whole)]


def test_workers_that_began_before_a_state_was_loaded(path: Path) -> None:
    """They do not know the sampler's orders, and ask the server."""
    data = opened(path)
    sampler, other = (BrandSampler(data, weights="balanced", seed=seed) for seed in (1, 77))
    loader = DataLoader(data, 7, sampler=sampler, num_workers=2, persistent_workers=True)
    arrived(loader)
    taken = arrived(islice(BrandLoader(data, 7, sampler=other), 3))
    sampler.load_state_dict(other.state_dict(samples=21))
    for found in (taken + arrived(loader), arrived(loader)):
        check_balance(found)


RANK = """
import json, sys
from brand import BrandDataset, BrandLoader, BrandSampler
data = BrandDataset(sys.argv[1], fields=("index",), memory=0.3)
loader = BrandLoader(data, 4, sampler=BrandSampler(data, weights="balanced", num_samples=80))
if len(sys.argv) > 2:
    loader.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([[int(i) for (indices,) in loader for i in indices] for _ in range(2)]))
"""


@pytest.mark.slow
def test_two_ranks_divide_an_epoch(path: Path) -> None:
    """Together they have what one rank has; they continue from the state of one rank."""
    data = opened(path)
    alone = BrandLoader(data, 4, sampler=BrandSampler(data, weights="balanced", num_samples=80))
    epochs = [sorted(arrived(alone)) for _ in range(2)]
    for batches in (0, 3):
        loader = BrandLoader(data, 4, sampler=BrandSampler(data, weights="balanced", num_samples=80))
        begun = arrived(islice(loader, batches))
        told = two_ranks(RANK, path, *([json.dumps(loader.state_dict())] if batches else []))
        assert [status for status, _, _ in told] == [0, 0], told
        one, other = (json.loads(out) for _, out, _ in told)
        assert sorted(begun + one[0] + other[0]) == epochs[0]
        assert sorted(one[1] + other[1]) == epochs[1]


def test_a_subset_and_deleted_samples_have_no_weight(path: Path, tmp_path: Path) -> None:
    """The rest has the whole epoch, which is as long as the rest has samples."""
    data = opened(path)
    sampler = BrandSampler(data, weights="balanced", subset="label != 0")
    assert len(sampler) == SAMPLES - 40
    found = arrived(BrandLoader(data, 7, sampler=sampler))
    assert max(np.abs(np.bincount(LABELS[found], minlength=4)[1:] - (SAMPLES - 40) / 3)) < 1
    samples = [{"label": int(label), "data": bytes([n]) * 40 * n} for n, label in enumerate(LABELS)]
    append_samples(samples[:30], tmp_path / "grown", {"label": "int", "data": "bytes"})
    append_samples(samples[30:], tmp_path / "grown")
    delete(tmp_path / "grown", NamedSamples(indices=range(0, 40, 2)))
    grown = opened(tmp_path / "grown")
    some = BrandSampler(grown, weights=np.ones(SAMPLES))
    assert sorted(arrived(BrandLoader(grown, 7, sampler=some))) == [n for n in range(SAMPLES) if n >= 40 or n % 2]


def test_random_numbers_of_copies_differ(path: Path) -> None:
    """A transform has others for each of them, and the same ones after a resume."""
    data = BrandDataset(path, fields=("index", "label"), transform=with_number, memory=0.3)
    loader = BrandLoader(data, 7, sampler=BrandSampler(data, weights="balanced"))
    pairs = [pair for indices, numbers in loader for pair in zip(indices.tolist(), numbers.tolist(), strict=True)]
    assert Counter(index for index, _ in pairs)[55] == 14
    assert len({number for _, number in pairs}) == SAMPLES
    again = BrandLoader(data, 7, sampler=BrandSampler(data, weights="balanced"))
    again.load_state_dict({**again.state_dict(), "position": 21})
    assert [pair for i, n in again for pair in zip(i.tolist(), n.tolist(), strict=True)] == pairs[21:]


def with_number(sample: tuple[int, int]) -> tuple[int, int]:
    """Take a random number in place of the label."""
    return sample[0], int(torch.randint(1 << 60, ()))


def test_memory_for_the_samples_that_repeat(tmp_path: Path) -> None:
    """Memory for them and a little more: later epochs read the storage once, for the samples that do not repeat."""
    samples = 1200
    often = np.arange(samples) % 4 == 0
    rows = ({"data": np.random.default_rng(n).bytes(2000)} for n in range(samples))
    brand.pack(rows, tmp_path / "set", {"data": "bytes"}, chunk_size=60, jobs=1)
    weights = np.where(often, 4.0, 0.5)  # 1.0 for each of the others would be 1,200 draws more
    draws = int(weights.sum())
    with running_server(tmp_path / "set", memory=0.4) as server:
        data = BrandDataset(tmp_path / "set", server=server.address, fields=("index",))
        sampler = BrandSampler(data, weights=weights, num_samples=draws)
        counts = []
        for _ in range(4):
            found = [int(i) for (indices,) in BrandLoader(data, 20, sampler=sampler) for i in indices]
            check_counts(found, weights, draws)
            counts.append(data.stats()["read_samples"])
        assert max(np.diff(counts)) < samples
        assert data.stats()["direct"] == 0


@pytest.mark.slow
def test_samples_stay_cached_while_epochs_are_planned(tmp_path: Path) -> None:
    """Epochs of 30 to 3,000 draws: a draw often waits while another epoch is planned, and nothing is evicted for it."""
    samples = 30_000
    labels, rng = np.arange(samples) % 10, np.random.default_rng(0)
    rows = ({"label": int(label), "data": rng.bytes(600)} for label in labels)
    brand.pack(rows, tmp_path / "set", {"label": "int", "data": "bytes"}, chunk_size=64, jobs=1)
    left = np.arange(samples) // 10 < (samples // 10 * 100 ** (-labels / 9)).astype(int)  # classes of 3,000 to 30
    data = BrandDataset(tmp_path / "set", memory=0.1, fields=("index",))
    sampler = BrandSampler(data, weights="balanced", subset=left)
    for _ in range(3):
        found = [int(i) for (indices,) in BrandLoader(data, 64, sampler=sampler) for i in indices]
        assert len(found) == left.sum()
    memory = data.stats()["memory"]
    assert memory["cached"] > 0.5 * memory["limit"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": np.ones(5)}, r"weights= has the shape \(5,\); this data set has 56 samples"),
        ({"weights": np.ones((SAMPLES, 2))}, r"weights= has the shape \(56, 2\)"),
        ({"weights": np.where(np.arange(SAMPLES) == 7, -1, 1)}, "that of sample 7 is -1, below 0"),
        ({"weights": np.where(np.arange(SAMPLES) == 9, np.nan, 1)}, "that of sample 9 is nan, not a finite number"),
        ({"weights": np.zeros(SAMPLES)}, "all are 0, so no sample could be fetched"),
        ({"weights": "class"}, "weights='class': the text 'balanced' is possible, or give a number for each sample"),
        ({"weights": ["a"] * SAMPLES}, "weights= is a list: give a number for each sample"),
        ({"weights": {"cat": 1, "cow": 2}}, "no class is called 'cow'; classes: cat, dog, owl, yak"),
        ({"weights": {"cat": 1, "dog": 2}}, "weights= has nothing for 2 classes: 'owl', 'yak'; 0 leaves out a class"),
        ({"weights": {"cat": "1", "dog": 2, "owl": 1, "yak": 1}}, "that of class 'cat' is '1', not a number"),
        (
            {"weights": "balanced", "num_samples": 20000},
            r"sample 55 \(class 'yak'\) would be fetched 5,000 times an epoch",
        ),
        ({"weights": "balanced", "num_samples": -1}, "num_samples=-1: a whole number"),
        ({"weights": "balanced", "num_samples": 0}, "num_samples=0: an epoch has at least one sample"),
        ({"weights": "balanced", "shuffle": False}, "shuffle=False has each sample once, in order"),
        ({"num_samples": 20}, "num_samples= is the length of an epoch with weights="),
    ],
)
def test_weights_that_are_refused(path: Path, given: dict[str, Any], message: str) -> None:
    """The message names the sample or the class, and what is possible."""
    with pytest.raises(UsageError, match=message):
        BrandSampler(opened(path), **given)


def test_uses_that_are_refused(path: Path, tmp_path: Path) -> None:
    """Mixtures, jobs that share, data sets without labels or with samples that have none; states of other weights."""
    data = opened(path)
    with pytest.raises(UsageError, match="a Mixture has a weight for each member"):
        BrandSampler(Mixture({data: 1.0}), weights="balanced")
    with pytest.raises(UsageError, match="shares reads with other jobs, and weights= does not: give order='stripes'"):
        BrandSampler(opened(path, order="shared"), weights="balanced")
    brand.pack([{"n": 1}, {"n": 2}], tmp_path / "plain", {"n": "int"})
    for weights in ("balanced", {"cat": 1}):
        with pytest.raises(UsageError, match="needs the field 'label' with the number of each sample's class"):
            BrandSampler(BrandDataset(tmp_path / "plain"), weights=weights)
    brand.pack([{"label": -1}, {"label": 0}, {"label": -1}], tmp_path / "some", {"label": "int"})
    with pytest.raises(UsageError, match=r'2 samples have no class .* Leave them out with subset="label >= 0"'):
        BrandSampler(BrandDataset(tmp_path / "some"), weights="balanced")
    assert len(BrandSampler(BrandDataset(tmp_path / "some"), weights="balanced", subset="label >= 0")) == 1
    weighted, plain = BrandSampler(data, weights="balanced"), BrandSampler(data)
    with pytest.raises(UsageError, match="the state is of a sampler with weights=: give the same weights= as before"):
        plain.load_state_dict(weighted.state_dict())
    with pytest.raises(UsageError, match="the state is of other weights: give the sampler the same weights="):
        weighted.load_state_dict(plain.state_dict())
    others: list[dict[str, Any]] = [{"weights": WEIGHTS}, {"weights": "balanced", "num_samples": 9}]
    for other in (*others, {"weights": "balanced", "subset": [1]}):
        with pytest.raises(UsageError, match="the state is of other weights"):
            weighted.load_state_dict(BrandSampler(data, **other).state_dict())


def test_a_server_that_was_started_apart(path: Path) -> None:
    """It has the memory; the orders are told to it."""
    with served(path, memory=0.3, fields=("index", "label", "data")) as data:
        sampler = BrandSampler(data, weights=WEIGHTS, num_samples=100, seed=2)
        check_counts(arrived(BrandLoader(data, 7, sampler=sampler)), WEIGHTS, 100)
        assert data.stats()["fetched"] == 100


def test_without_a_server(path: Path) -> None:
    """The same order, read directly."""
    given: Any = {"weights": WEIGHTS, "num_samples": 100, "seed": 2}
    epochs = [
        [arrived(BrandLoader(data, 7, sampler=sampler)) for _ in range(2)]
        for data in (opened(path), opened(path, server="none"))
        for sampler in [BrandSampler(data, **given)]
    ]
    assert epochs[0] == epochs[1]
    check_counts(epochs[1][1], WEIGHTS, 100)


def test_all_orders_are_known_before_one_begins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the server fills its memory with samples of the first order before it knows the others."""
    with running_server(path, memory=0.3) as server:
        told, state = list[type[Any]](), server.node._state
        handle = state.handle

        def noted(stimulus: Any, now_s: float) -> Any:
            told.append(type(stimulus))
            return handle(stimulus, now_s)

        monkeypatch.setattr(state, "handle", noted)
        data = opened(path, server=server.address)
        assert next(iter(BrandLoader(data, 8, sampler=BrandSampler(data, weights="balanced"))))
    told = [kind for kind in told if kind in (ClientRegisters, ClientBegins)]
    orders = told.index(ClientBegins)
    assert orders > 1
    assert told[orders : 2 * orders] == [ClientBegins] * orders
