"""Each figure against a slow and obvious model, known good and known bad orders, and errors that name the id."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.errors import MissingExtraError, UsageError
from brand.testing.shuffling import Finding, Shuffling, main, measure, uniformity
from tests.rounds import examples
from tests.support import LIMIT_S

Order = NDArray[np.int64]
CHUNK, BATCH = 16, 64


def shuffled(samples: int, seed: int) -> Order:
    return np.random.default_rng(seed).permutation(samples)


def epochs_of(draw: Callable[[np.random.Generator], Order], epochs: int, seed: int = 0) -> list[Order]:
    generator = np.random.default_rng(seed)
    return [draw(generator) for _ in range(epochs)]


def through_buffer(samples: int, buffer: int, seed: int) -> Order:
    """Storage order through a shuffle buffer: each draw takes one of it at random, the next sample replaces it."""
    generator = np.random.default_rng(seed)
    held, order = list(range(buffer)), []
    for arriving in range(buffer, samples):
        taken = int(generator.integers(buffer))
        order.append(held[taken])
        held[taken] = arriving
    return np.array(order + generator.permutation(held).tolist())


def whole_chunks(samples: int, chunk: int, generator: np.random.Generator) -> Order:
    """Chunks in random order, their samples together."""
    return np.arange(samples).reshape(-1, chunk)[generator.permutation(samples // chunk)].ravel()


def model(places: list[int], chunk_size: int, batch: int) -> tuple[float, float, float]:
    """Collisions, chunk distance and adjacent distance by the words of their definitions, one pair after the other."""
    samples = len(places)
    position = {place: at for at, place in enumerate(places)}
    apart, beside, within, possible = [], [], 0, 0
    for a, b in combinations(range(samples), 2):
        together = position[a] // batch == position[b] // batch
        possible += together
        if a // chunk_size == b // chunk_size:
            within += together
            apart.append(abs(position[a] - position[b]) / samples)
            if b == a + 1:
                beside.append(apart[-1])
    uniform = possible * len(apart) / math.comb(samples, 2) if samples > 1 else 0
    nan = math.nan
    return within / uniform if uniform else nan, mean(apart) if apart else nan, mean(beside) if beside else nan


def figures(found: Shuffling) -> tuple[float, float, float]:
    return found.batch_collisions, found.chunk_distance, found.adjacent_distance


@pytest.mark.slow
@examples(200)
@given(st.integers(0, 40).flatmap(lambda n: st.permutations(range(n))), st.integers(1, 45), st.integers(1, 45))
def test_the_figures_are_those_of_their_definitions(order: list[int], chunk_size: int, batch: int) -> None:
    """For any order, chunk size and batch, short last chunks and batches among them."""
    found = figures(measure(order, chunk_size=chunk_size, batch=batch))
    assert found == pytest.approx(model(order, chunk_size, batch), nan_ok=True, rel=1e-12)


@pytest.mark.slow
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.permutations(range(n))] * 2)), st.integers(1, 9))
def test_place_of_says_where_an_id_lies(orders: tuple[list[int], list[int]], chunk_size: int) -> None:
    """Ids with `place_of` give what the places themselves give."""
    ids, place_of = orders
    places = [place_of[i] for i in ids]
    found = measure(ids, chunk_size=chunk_size, batch=5, place_of=place_of)
    expected = measure(places, chunk_size=chunk_size, batch=5)
    assert figures(found) == pytest.approx(figures(expected), nan_ok=True, rel=0, abs=0)


def test_a_uniform_shuffle_gives_the_uniform_values() -> None:
    """1.00, 0.333 and 0.333, within four standard errors of the mean of 20 epochs."""
    found = [measure(shuffled(20_000, seed), chunk_size=64, batch=256) for seed in range(20)]
    collisions, chunk, adjacent = np.array([figures(each) for each in found]).T
    assert abs(collisions.mean() - 1) < 4 * found[0].expected_collisions ** -0.5 / 20**0.5
    for distances in (chunk, adjacent):
        assert abs(distances.mean() - found[0].uniform_distance) < 4 * distances.std(ddof=1) / 20**0.5 < 0.002
    assert found[0].uniform_distance == pytest.approx(1 / 3, abs=1e-4)


def test_chance_moves_pairs_as_far_as_is_said() -> None:
    """The standard deviation of `batch_collisions` over epochs is 1 / sqrt(expected_collisions)."""
    found = [measure(shuffled(4096, seed), chunk_size=CHUNK, batch=BATCH) for seed in range(300)]
    assert np.std([each.batch_collisions for each in found]) == pytest.approx(
        found[0].expected_collisions ** -0.5, rel=0.1
    )


def test_storage_order_is_as_bad_as_can_be() -> None:
    """Whole chunks in a batch: (N - 1) / (batch - 1) collisions, distances of (C + 1) / 3N and 1 / N."""
    found = measure(np.arange(4096), chunk_size=CHUNK, batch=BATCH)
    assert figures(found) == pytest.approx((4095 / 63, 17 / (3 * 4096), 1 / 4096))
    assert found.expected_collisions == pytest.approx(4096 // 64 * math.comb(64, 2) * 15 / 4095)


def test_a_shuffle_buffer_keeps_mates_as_far_apart_as_it_is_long() -> None:
    """Both distances are buffer / N, and collisions about N / (2 x buffer): 25 times a uniform shuffle here."""
    found = measure(through_buffer(50_000, 1000, seed=0), chunk_size=CHUNK, batch=BATCH)
    assert found.chunk_distance == pytest.approx(1000 / 50_000, rel=0.05)
    assert found.adjacent_distance == pytest.approx(1000 / 50_000, rel=0.05)
    assert found.batch_collisions == pytest.approx(25, rel=0.1)


def test_halves_shuffled_apart_have_twice_the_pairs_and_half_the_distance() -> None:
    """What a loader does that gives each of two workers half of the storage, one after the other."""
    order = np.concatenate([shuffled(10_000, 0), 10_000 + shuffled(10_000, 1)])
    assert figures(measure(order, chunk_size=CHUNK, batch=BATCH)) == pytest.approx((2, 1 / 6, 1 / 6), rel=0.05)


def test_a_chunk_as_long_as_the_epoch_is_measured_exactly() -> None:
    """Sums over all pairs of a million samples, which no 64-bit integer holds."""
    found = measure(shuffled(1_000_000, 0), chunk_size=10**30, batch=BATCH)
    assert found.batch_collisions == 1
    assert found.chunk_distance == pytest.approx(found.uniform_distance, rel=1e-12)


@pytest.mark.parametrize(
    ("samples", "chunk_size", "batch", "defined"),
    [
        (0, 4, 4, (False, False, False)),
        (1, 4, 4, (False, False, False)),
        (9, 1, 4, (False, False, False)),
        (9, 4, 1, (False, True, True)),
        (9, 9, 4, (True, True, True)),
        (2, 2, 2, (True, True, True)),
    ],
)
def test_what_cannot_be_measured_is_nan(
    samples: int, chunk_size: int, batch: int, defined: tuple[bool, bool, bool]
) -> None:
    """No pair, no value; and the table is printed all the same."""
    found = measure(np.arange(samples), chunk_size=chunk_size, batch=batch)
    assert tuple(not math.isnan(value) for value in figures(found)) == defined
    assert math.isnan(found.uniform_distance) == (samples < 2)
    assert str(found).count("\n") == 3


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([0, 2, 3], "sequence: expected each of 3 ids once: 3 is not one of 0 to 2, 1 never comes"),
        ([0, 2, 2, 1], "3 never comes, 2 comes 2 times"),
        ([0, -1, 1], "-1 is not one of 0 to 2, 2 never comes"),
        ([0.0, 1.0], "expected integers in one dimension, found float64 of shape (2,)"),
        ([[0, 1]], "expected integers in one dimension, found int64 of shape (1, 2)"),
        (np.array([2**64 - 1, 0], np.uint64), "18446744073709551615 is not one of 0 to 1, 1 never comes"),
    ],
)
def test_an_id_that_is_missing_or_too_many_is_named(ids: list[int], told: str) -> None:
    """An epoch holds each id once; the first that it does not is in the message."""
    with pytest.raises(UsageError) as caught:
        measure(ids, chunk_size=2, batch=2)
    assert told in str(caught.value)


@pytest.mark.slow
def test_the_faulty_argument_is_named() -> None:
    """A broken `place_of`, an id that it lacks, an epoch among several, and numbers out of range."""
    with pytest.raises(UsageError, match=r"place_of: .* 0 comes 2 times"):
        measure([0, 1], chunk_size=2, batch=2, place_of=[0, 0])
    with pytest.raises(UsageError, match=r"sequence: .* 2 never comes"):
        measure([0, 1], chunk_size=2, batch=2, place_of=[2, 0, 1])
    with pytest.raises(UsageError, match=r"sequence: .* 1 comes 2 times"):
        measure([0, 1, 1], chunk_size=2, batch=2, place_of=[1, 0])
    with pytest.raises(UsageError, match=r"epoch 1: .* 2 never comes"):
        uniformity([[0, 1, 2], [0, 1]])
    with pytest.raises(UsageError, match="epoch 0: expected integers in one dimension"):
        uniformity([0, 1, 2])
    with pytest.raises(UsageError, match="chunk_size must be at least 1, not 0"):
        measure([0, 1], chunk_size=0, batch=2)
    with pytest.raises(UsageError, match="batch must be at least 1, not -3"):
        measure([0, 1], chunk_size=2, batch=-3)
    with pytest.raises(UsageError, match="bins must be 2 to 256, not 257"):
        uniformity([[0, 1]], bins=257)
    with pytest.raises(UsageError, match="blocks must be at least 8, not 7"):
        uniformity([[0, 1]], blocks=7)


def test_the_input_is_left_as_it_was() -> None:
    """Arrays are read, not sorted in place; read-only ones and any integer type will do."""
    order = shuffled(200, 0).astype(np.uint8)
    order.flags.writeable = False
    before = order.copy()
    found = measure(order, chunk_size=7, batch=9, place_of=order)
    assert found == measure(order.astype(np.int64)[order], chunk_size=7, batch=9)
    uniformity([order, order], place_of=order)
    assert np.array_equal(order, before)


def coincidences(epochs: list[Order], bins: int, blocks: int) -> tuple[list[float], list[float]]:
    """Repeats and drift of each block: samples and epochs in pairs, one after the other."""
    samples = len(epochs[0])
    parts = [{int(place): at * bins // samples for at, place in enumerate(epoch)} for epoch in epochs]
    luck = sum((list(parts[0].values()).count(part) / samples) ** 2 for part in range(bins))
    repeats, drift = [], []
    for block in range(blocks):
        places = range(samples * block // blocks, samples * (block + 1) // blocks)
        same = [one[p] == two[p] for one, two in combinations(parts, 2) for p in places]
        others = [one[p] == two[q] for one, two in combinations(parts, 2) for p in places for q in places if p != q]
        repeats.append(mean(same) / luck)
        drift.append(mean(others) / luck)
    return repeats, drift


@pytest.mark.parametrize(("samples", "bins", "blocks"), [(64, 4, 8), (101, 7, 9), (85, 2, 32)])
def test_repeats_and_drift_are_those_of_their_definitions(samples: int, bins: int, blocks: int) -> None:
    """Means over blocks of the model, with the standard error of the blocks; also for bins of unequal length."""
    epochs = [shuffled(samples, seed) for seed in range(4)]
    found = uniformity(epochs, bins=bins, blocks=blocks)
    repeats, drift = coincidences(epochs, bins, blocks)
    assert found.repeats.value == pytest.approx(mean(repeats))
    assert found.repeats.t == pytest.approx((mean(repeats) - 1) / (stdev(repeats) / blocks**0.5))
    assert found.drift.value == pytest.approx(mean(drift))
    assert found.drift.t == pytest.approx((mean(drift) - 1) / (stdev(drift) / (blocks - 1) ** 0.5))
    assert found.repeats.freedom == blocks - 1


def test_p_is_that_of_student() -> None:
    """Two-sided, from a table: t = 2.042 with 30 degrees of freedom is 0.05."""
    from brand.testing.shuffling import _student_tail

    assert 2 * _student_tail()(30, -2.0423) == pytest.approx(0.05, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 16])
def test_chance_is_called_chance(together: int) -> None:
    """p is uniform for uniform shuffles, and for chunks that travel as one, wherever they go: the point of the test."""
    generator, runs = np.random.default_rng(0), 500
    found = [uniformity([whole_chunks(8192, together, generator) for _ in range(3)]) for _ in range(runs)]
    for ps in ([each.repeats.p for each in found], [each.drift.p for each in found]):
        for limit in (0.01, 0.05, 0.5, 0.95):
            expected = pytest.approx(limit, abs=4 * (limit * (1 - limit) / runs) ** 0.5)
            assert mean(p < limit for p in ps) == expected


def test_epochs_that_tell_of_each_other_are_caught() -> None:
    """The same order, its reverse, two in turn, and halves that never mix: repeats says how often samples come back."""
    one, two = shuffled(4096, 0), shuffled(4096, 1)
    halves = epochs_of(lambda g: np.concatenate([g.permutation(one[:2048]), g.permutation(one[2048:])]), 4)
    for epochs, value in (([one] * 3, 16), ([one, one[::-1]], 0), ([one, two, one, two], 6), (halves, 2)):
        found = uniformity(epochs)
        assert found.repeats.value == pytest.approx(value, rel=0.1)
        assert found.repeats.p < 1e-6
        assert found.drift.value == pytest.approx(1, abs=0.1)


def test_an_order_that_follows_storage_is_caught() -> None:
    """A shuffle buffer, short or long, and storage order itself: drift, too."""
    for buffer in (100, 4000):
        found = uniformity([through_buffer(8192, buffer, seed) for seed in range(4)])
        assert max(found.repeats.p, found.drift.p) < 1e-5
    found = uniformity([np.arange(4096)] * 2)
    assert found.drift == Finding(16.0, math.inf, 31, 0.0)


def test_epochs_may_be_an_array_or_come_one_by_one() -> None:
    """An array of shape (epochs, N), a list and a generator are the same; ids may be indices."""
    epochs = np.stack([shuffled(600, seed) for seed in range(3)])
    place_of = shuffled(600, 9)
    found = uniformity(epochs)
    assert found == uniformity(list(epochs)) == uniformity(row for row in epochs)
    assert uniformity(epochs, place_of=place_of) == uniformity(place_of[epochs])
    assert found != uniformity(epochs, place_of=place_of)


@pytest.mark.parametrize("epochs", [[], [range(1000)], [range(127)] * 5, [[]] * 3])
def test_too_little_to_test_is_nan(epochs: list[list[int]]) -> None:
    """No epoch, one epoch, too few samples, none."""
    found = uniformity(epochs)
    assert math.isnan(found.repeats.p)
    assert math.isnan(found.drift.value)
    assert "nan" in str(found)
    assert not math.isnan(uniformity([range(128)] * 2).repeats.p)


def test_without_scipy_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any work is done; `measure` needs none."""
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'brand-data\[tools\]'"):
        uniformity([[0, 1], [0]])
    measure([0, 1], chunk_size=1, batch=1)


def test_each_measure_is_a_line_with_its_uniform_value_beside_it() -> None:
    """The tables, as people see them."""
    assert str(measure(np.arange(4096), chunk_size=CHUNK, batch=BATCH)).splitlines() == [
        "                    found  uniform",
        "batch collisions    65.00     1.00   of one chunk in a batch, over uniform (± 0.046 by chance)",
        "chunk distance      0.001    0.333   of two samples of a chunk, over the epoch",
        "adjacent distance   0.000    0.333   the same for samples stored side by side",
    ]
    assert str(uniformity([np.arange(4096)] * 2)).splitlines() == [
        "                    found  uniform      p",
        "repeats             16.00     1.00  0.000   a sample in the same 1/16 of two epochs, over uniform",
        "drift               16.00     1.00  0.000   the same for two samples that are stored not far apart",
    ]


@pytest.mark.slow
def test_files_are_measured_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An array and a text; with two epochs, the test as well; ids that are indices, with their places."""
    one, two, place_of = shuffled(500, 0), shuffled(500, 1), shuffled(500, 2)
    np.save(tmp_path / "one.npy", one)
    np.savetxt(tmp_path / "two.txt", two, "%d")
    np.save(tmp_path / "place.npy", place_of)
    files = [str(tmp_path / "one.npy"), str(tmp_path / "two.txt")]
    main([*files, "--chunk-size", "8", "--batch", "20", "--place-of", str(tmp_path / "place.npy")])
    told = capsys.readouterr().out
    for ids in (one, two):
        assert str(measure(place_of[ids], chunk_size=8, batch=20)) in told
    assert str(uniformity([place_of[one], place_of[two]])) in told
    command = [sys.executable, "-W", "error", "-m", "brand.testing.shuffling", files[0], "--chunk-size=8", "--batch=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == f"{files[0]}: 500 ids\n{measure(one, chunk_size=8, batch=20)}\n\n"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("absent.npy", None, "No such file"),
        ("empty.npy", b"", "empty.npy: "),
        ("words.txt", b"0\none\n", "words.txt: "),
        ("twice.txt", b"0\n1\n1\n", "1 comes 2 times"),
    ],
)
def test_a_file_that_is_no_epoch_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, told: str
) -> None:
    """Told in a line, with exit status 2."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / name), "--chunk-size", "2", "--batch", "2"])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err
