"""`BrandLoader(num_workers="auto")`: the ladder against synthetic machines, windows, and the same batches as ever."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import UsageError
from brand.torch.data.dataset import BrandDataset
from brand.torch.loader.loader import BrandLoader
from brand.torch.loader.threads import FORGOTTEN, RAMP, RUNGS, WINDOW_BATCHES, WINDOW_S, PaceWindows, ThreadTuner
from brand.torch.sampler.sampler import BrandSampler
from tests.rounds import examples
from tests.torch.support import equal, served
from tests.torch.test_data_loader import pixels

PEAK_AT_6: dict[int, float] = {1: 95, 2: 178, 3: 270, 4: 370, 6: 500, 8: 480, 12: 440, 16: 400}
"""Samples a second of a machine with 16 processors, by the number of threads: most with six."""


def windows(ladder: ThreadTuner, rates: dict[int, float], need: float, count: int, noise: random.Random) -> list[float]:
    """Run so many windows of a loop that needs so much; the rates vary by 5 %. The share of waiting in each."""
    waits = []
    for _ in range(count):
        rate = rates[ladder.threads] * noise.gauss(1, 0.05)
        waits.append(max(0.0, 1 - rate / need))
        ladder.window(rate, need, waits[-1])
    return waits


@pytest.mark.parametrize(("need", "threads"), [(80, 1), (180, 3), (330, 4), (420, 6), (900, 6)])
def test_the_fewest_threads_that_feed_the_loop_or_reach_the_peak(need: float, threads: int) -> None:
    """The median of 30 machines after ten windows; then the loop waits hardly more than with the best number."""
    found, waits = [], []
    for seed in range(30):
        ladder, noise = ThreadTuner(16), random.Random(seed)
        windows(ladder, PEAK_AT_6, need, 10, noise)
        found.append(ladder.threads)
        waits.append(fmean(windows(ladder, PEAK_AT_6, need, 40, noise)))
    assert median(found) == threads
    assert fmean(waits) < (0.46 if need == 900 else 0.005)


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_the_ladder_ends_at_the_processors(most: int) -> None:
    """A loop that always waits climbs to the last rung where each is better; a lazy one goes down to one thread."""
    ladder = ThreadTuner(most)
    assert ladder.threads == min(2, most)
    assert [ladder.window(100.0 * ladder.threads, 1e6, 0.9) for _ in range(20)][-1] == most
    assert [ladder.window(100.0 * ladder.threads, 1.0, 0.0) for _ in range(40)][-1] == 1


@pytest.mark.slow
@examples(100)
@given(st.lists(st.tuples(*[st.floats(1e-9, 1e9)] * 2, st.floats(0, 1)), max_size=200), st.integers(1, 100))
def test_any_figures_lead_to_a_rung_next_to_the_last(figures: Sequence[tuple[float, float, float]], most: int) -> None:
    """No window moves by more than a rung, whatever it shows; a fixed number never moves."""
    rungs = [*(rung for rung in RUNGS if rung < most), most]
    ladder, fixed = ThreadTuner(most), ThreadTuner(most, fixed=True)
    for rate, need, waits in figures:
        before = rungs.index(ladder.threads)
        assert abs(rungs.index(ladder.window(rate, need, waits)) - before) <= 1
        assert fixed.window(rate, need, waits) == most


def test_steps_down_that_fail_become_rare() -> None:
    """One thread decodes enough by its rate, and yet the loop waits: after 400 windows it tries every hundredth."""
    ladder, at_one = ThreadTuner(2), []
    for _ in range(1000):
        at_one.append(ladder.threads == 1)
        ladder.window(100.0 * ladder.threads, 80, 0.1 if ladder.threads == 1 else 0.0)
    assert sum(at_one[:400]) <= 9
    assert sum(at_one[400:]) <= 6


def test_a_wrong_figure_is_forgotten() -> None:
    """The rung above looked worse once: the ladder looks again, after `FORGOTTEN` windows."""
    ladder = ThreadTuner(4)
    for _ in range(2):
        ladder.window(200, 900, 0.5)  # two threads, then three
    ladder.window(300, 900, 0.5)
    assert ladder.threads == 4
    ladder.window(10, 900, 0.5)
    assert [ladder.window(300, 900, 0.5) for _ in range(FORGOTTEN + 2)].count(4) >= 1


def totals(decoded: float, busy_s: float, waits_s: float, training_s: float) -> dict[str, float]:
    """Sums as a `Stages` has them."""
    return {
        "decoded": decoded,
        "decode": 0.75 * busy_s,
        "collate": 0.25 * busy_s,
        "loop_waits": waits_s,
        "training": training_s,
    }


def test_a_window_is_long_enough_and_has_rate_and_need() -> None:
    """Eight batches and 0.3 s; two threads that took 4 s for 100 samples decode 50 a second."""
    pace = PaceWindows(ThreadTuner(2))
    assert pace.to_json() == {"threads": 2, "decode_rate": None, "need": None}
    pace.begin()
    for number in range(RAMP):  # waits that do not count
        assert pace.batch(7.0 + number, 10, totals(50, 1.0, number, 1.0)) == 2
    for _ in range(WINDOW_BATCHES - 1):
        pace.batch(12.0, 10, totals(150, 5.0, 3.0, 2.0))
    assert pace.to_json()["decode_rate"] is None
    assert pace.batch(10.0 + WINDOW_S / 2, 10, totals(150, 5.0, 3.0, 2.0)) == 2
    assert pace.to_json()["decode_rate"] is None
    assert pace.batch(12.0, 10, totals(150, 5.0, 3.0, 2.0)) == 2
    assert pace.to_json() == {"threads": 2, "decode_rate": 50.0, "need": 90.0}


def test_a_window_without_samples_goes_on() -> None:
    """Where all batches were ready before, nothing is known of the rate."""
    pace = PaceWindows(ThreadTuner(2))
    pace.begin()
    for number in range(20):
        pace.batch(number, 10, totals(0, 0, 0, number))
    assert pace.to_json()["decode_rate"] is None


class Restless(ThreadTuner):
    """A ladder that takes another number of threads after each window."""

    def window(self, rate: float, need: float, waits: float) -> int:
        """Up and down, at random."""
        self._rung = random.Random(rate).randrange(len(self._rungs))
        return self.threads


@pytest.mark.slow
@pytest.mark.parametrize("restless", [False, True])
def test_batches_do_not_depend_on_the_number_of_threads(
    fashion_set: Path, monkeypatch: pytest.MonkeyPatch, *, restless: bool
) -> None:
    """The same batches in the same order as with one thread, also where the number changes with each batch."""
    monkeypatch.setattr("brand.torch.loader.threads.WINDOW_S", 0.0)
    monkeypatch.setattr("brand.torch.loader.threads.WINDOW_BATCHES", 1)
    with served(fashion_set, fields=("image", "label"), transform={"image": pixels}) as data_set:
        sampler = BrandSampler(data_set)
        expected = list(BrandLoader(data_set, 50, sampler=sampler, num_workers=1))
        sampler.set_epoch(0)
        loader = BrandLoader(data_set, 50, sampler=sampler, num_workers="auto")
        loader.num_workers = 8
        loader._instruments = replace(
            loader._instruments, pace=PaceWindows(Restless(8) if restless else ThreadTuner(8))
        )
        assert equal(list(loader), expected)
        stats = loader.stats()
        assert 1 <= stats["threads"] <= 8
        assert stats["decode_rate"] > 0
        assert stats["need"] > 0


def test_the_number_is_fixed_unless_auto(fashion_set: Path) -> None:
    """Given, or all processors; a copy in another process begins anew."""
    data_set = BrandDataset(fashion_set)
    assert BrandLoader(data_set, num_workers=7)._instruments.pace.threads == 7
    assert BrandLoader(data_set).stages.threads == BrandLoader(data_set).num_workers
    copy = pickle.loads(pickle.dumps(BrandLoader(data_set, num_workers="auto")))
    assert copy._instruments.pace.threads == min(2, copy.num_workers)
    with pytest.raises(UsageError, match=r'num_workers=.many.: give a whole number, at least 1, or "auto"'):
        BrandLoader(data_set, num_workers="many")  # type: ignore[arg-type]
