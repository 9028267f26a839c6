"""How many samples a second does a slow transform in pure Python allow, in threads and in processes?

    python -m bench.worker_types --work DIR [--turns N] [--out FILE]

Each sample costs 5 ms of processor time in a loop of Python, which holds the interpreter lock. `BrandLoader` with 1 and
2 threads, with 1 and 2 processes (fork), and a `DataLoader` with a `BrandSampler` and 2 workers take turns within the
run. The rate counts from the first batch of an epoch. `/ 1 thread` compares turn by turn. All figures are medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from bench.harness import progress, save, show, table
from brand import BrandDataset, BrandLoader, BrandSampler, pack

SAMPLES, BATCH = 480, 16
COST_S = 0.005


def slow(sample: Any) -> Any:
    """Return the sample after 5 ms of work."""
    end_s = time.thread_time() + COST_S
    while time.thread_time() < end_s:
        sum(range(50))
    return sample


def rate(loader: Iterable[Any]) -> float:
    """Train an epoch, and return its samples per second after the first batch."""
    batches = iter(loader)
    next(batches)
    start_s = time.perf_counter()
    rest = sum(len(batch[0]) for batch in batches)
    return rest / (time.perf_counter() - start_s)


def main() -> None:
    """Measure all loaders in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a scratch folder")
    parser.add_argument("--turns", type=int, default=7, help="epochs of each loader (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    path = given.work / "slow.brand"
    shutil.rmtree(path, ignore_errors=True)
    pack(({"n": number} for number in range(SAMPLES)), path, {"n": "int"}, jobs=1)
    data = BrandDataset(path, fields=("n",), transform=slow, memory=1.0)
    processes = {"worker_type": "process", "multiprocessing_context": "fork"}
    arms: dict[str, Any] = {
        "1 thread": BrandLoader(data, BATCH, num_workers=1),
        "2 threads": BrandLoader(data, BATCH, num_workers=2),
        "1 process": BrandLoader(data, BATCH, num_workers=1, **processes),  # type: ignore[arg-type]
        "2 processes": BrandLoader(data, BATCH, num_workers=2, **processes),  # type: ignore[arg-type]
        "DataLoader, 2 workers": DataLoader(
            data, BATCH, sampler=BrandSampler(data), num_workers=2, multiprocessing_context="fork"
        ),
    }
    runs: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(given.turns):
        for name, loader in arms.items():
            progress(f"{name}, {turn + 1} of {given.turns}")
            runs[name].append(rate(loader))
    rows = []
    for name, rates in runs.items():
        ratios = [one / other for one, other in zip(rates, runs["1 thread"], strict=True)]
        spread = (f"{each(rates):.0f}" for each in (statistics.median, min, max))
        rows.append([name, *spread, f"{statistics.median(ratios):.2f}"])
    show("a transform of 5 ms\n" + table(["loader", "samples/s", "least", "most", "/ 1 thread"], rows))
    if given.out:
        settings = {"samples": SAMPLES, "batch": BATCH, "cost_s": COST_S, "turns": given.turns}
        save(given.out, __doc__, settings, [], runs)


if __name__ == "__main__":
    main()
