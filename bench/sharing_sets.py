"""Do jobs that share a data server ever read more than each of them with a server of its own? Random sets of jobs.

    python -m bench.sharing_sets [--simulated 300] [--served 20] [--connected] [--seed 43] [--work SCRATCH] [--out FILE]

A set has two to four jobs over records of 600 bytes, in chunks of 64 or 256. Each job has 1, 1/2, 1/3 or 1/4 of the
speed of the first, may begin up to an epoch late, and may draw a random subset of 30 % or more. Memory holds 1/16 to
1/2 of the data. All jobs of a set have the order `shared` (`follow` in the simulator), `joader`, or `coordl`, which
takes jobs without subsets only, and all of one length.

    simulated   `brand.simulate.together` over 20,000 samples: samples read for each one drawn, with the rule, and by
                separate jobs
    served      a real server over 20,000 samples, whose jobs take their batches in the order of their speeds; and for
                each job alone, a server with as much memory as the common one. A job of the first's speed draws four
                epochs, the others as many as fit into that time, those of `coordl` two. A job that is done
                disconnects; with `--connected`, all stay connected until the last one is done

The columns: sets; the median and the largest ratio of reads a draw to that of separate jobs; sets above 1.02; and for
real servers the largest part of the samples that were read one by one (`direct`).
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness
from brand import BrandDataset, BrandLoader, BrandSampler, pack
from brand.node.setup.choose import Facts
from brand.orders.baselines import CoorDL, Joader
from brand.orders.policies.registry import OrderOption
from brand.simulate.together import PlannedJob, Policy, Together
from brand.testing.node import running_server

SAMPLES, RECORD_BYTES = 20_000, 600
CHUNK_SIZES: Final = (64, 256)
EPOCHS, LOCKED_EPOCHS = 4, 2
BATCH = 50
MOST: Final = 1.02
"""The largest ratio that is no more than separate jobs read."""
RULES: Final[dict[str, Policy]] = {"shared": "follow", "joader": "joader", "coordl": "coordl"}


@dataclass(frozen=True)
class JobSet:
    """Jobs that draw at the same time."""

    memory: float
    """Fraction of the data."""
    chunk_size: int
    jobs: tuple[PlannedJob, ...]

    @property
    def rules(self) -> list[str]:
        """The orders that these jobs can have."""
        return [rule for rule in RULES if rule != "coordl" or all(job.subset == 1 for job in self.jobs)]

    def epochs(self, rule: str) -> list[int]:
        """Return the epochs that each job draws from a real server."""
        return [LOCKED_EPOCHS if rule == "coordl" else max(1, int(EPOCHS * job.speed)) for job in self.jobs]

    def __str__(self) -> str:
        jobs = "; ".join(f"speed {job.speed:.2f}, start {job.start:.2f}, part {job.subset:.2f}" for job in self.jobs)
        return f"memory {self.memory:.3f}, chunks of {self.chunk_size}: {jobs}"


def job_sets(count: int, seed: int) -> Iterator[JobSet]:
    """Yield random sets of jobs. Half of them have no subsets."""
    rng = random.Random(seed)
    for number in range(count):
        parts = [1.0] if number % 2 else [1.0, rng.uniform(0.3, 1)]
        jobs = [PlannedJob(1.0)]
        jobs += [
            PlannedJob(1 / rng.choice([1, 2, 3, 4]), rng.choice([0.0, rng.random()]), rng.choice(parts))
            for _ in range(rng.randint(1, 3))
        ]
        yield JobSet(rng.choice([1 / 16, 1 / 2, rng.uniform(1 / 16, 1 / 2)]), rng.choice(CHUNK_SIZES), tuple(jobs))


def simulated(jobs: JobSet) -> dict[str, float]:
    """Return, by rule, the reads a draw in the simulator, divided by those of separate jobs."""
    facts = Facts("0" * 32, SAMPLES, jobs.chunk_size, float(RECORD_BYTES), 1 << 20)
    together = Together(facts, jobs.jobs, epochs=2)
    alone = together.sharing("alone", jobs.memory).per_draw
    return {rule: together.sharing(RULES[rule], jobs.memory).per_draw / alone for rule in jobs.rules}


@dataclass(frozen=True)
class Read:
    """The facts of one or more servers: numbers of samples."""

    drawn: float
    read: float
    direct: float

    def __add__(self, other: Read) -> Read:
        return Read(self.drawn + other.drawn, self.read + other.read, self.direct + other.direct)


def batches(dataset: BrandDataset, job: PlannedJob, epochs: int, number: int) -> Iterator[int]:
    """Yield the size of each batch of a job."""
    every = np.random.default_rng(number).permutation(len(dataset))
    part = np.sort(every[: round(job.subset * len(dataset))]) if job.subset < 1 else None
    loader = BrandLoader(dataset, BATCH, sampler=BrandSampler(dataset, subset=part), prefetch_batches=2)
    for _ in range(epochs):
        for (indices,) in loader:
            yield len(indices)


def run(
    data: Path,
    memory: float,
    order: OrderOption,
    jobs: Sequence[PlannedJob],
    epochs: Sequence[int],
    *,
    connected: bool = False,
) -> Read:
    """Draw all epochs of some jobs, batch by batch in the order of their speeds, and return what the server read.

    `connected`: jobs that are done stay connected.
    """
    with running_server(data, memory=memory) as server:
        datasets = [
            BrandDataset(server.path, fields=("index",), order=order, server=server.address, job=f"job {number}")
            for number in range(len(jobs))
        ]
        each = zip(datasets, jobs, epochs, strict=True)
        drawing = [batches(dataset, job, many, number) for number, (dataset, job, many) in enumerate(each)]
        if not connected:
            datasets.clear()
        if isinstance(order, CoorDL):  # a job waits for the others, whatever its speed
            with ThreadPoolExecutor(len(jobs)) as pool:
                list(pool.map(sum, drawing))
        else:
            _in_turns(drawing, jobs)
        facts = server.facts()
    read = facts["read_bytes"] / facts["data_bytes"] * SAMPLES + facts["direct"]
    return Read(facts["fetched"], read, facts["direct"])


def _in_turns(drawing: Sequence[Iterator[int]], jobs: Sequence[PlannedJob]) -> None:
    due = [(job.start * SAMPLES, number) for number, job in enumerate(jobs)]
    heapq.heapify(due)
    while due:
        now, number = heapq.heappop(due)
        if size := next(drawing[number], 0):
            heapq.heappush(due, (now + size / jobs[number].speed, number))
        else:
            gc.collect()  # a job that is done disconnects, unless its data set is kept


def served(jobs: JobSet, folder: Path, *, connected: bool) -> dict[str, tuple[float, float]]:
    """Return, by rule, the ratio of reads a draw to those of separate jobs, and the part of direct reads."""
    data = _data_set(folder, jobs.chunk_size)
    orders: dict[str, OrderOption] = {"shared": "shared", "joader": Joader(), "coordl": CoorDL(jobs=len(jobs.jobs))}

    @cache
    def alone(job: PlannedJob, epochs: int) -> Read:
        return run(data, jobs.memory, "stripes", [job], [epochs])

    found = {}
    for rule in jobs.rules:
        epochs = jobs.epochs(rule)
        shared = run(data, jobs.memory, orders[rule], jobs.jobs, epochs, connected=connected)
        separate = sum(map(alone, (replace(job, start=0.0, speed=1.0) for job in jobs.jobs), epochs), Read(0, 0, 0))
        found[rule] = (shared.read / shared.drawn) / (separate.read / separate.drawn), shared.direct / shared.drawn
    return found


def _data_set(folder: Path, chunk_size: int) -> Path:
    path = folder / f"{chunk_size}.brand"
    if not path.exists():
        rng = np.random.default_rng(0)
        records = ({"data": rng.bytes(RECORD_BYTES)} for _ in range(SAMPLES))
        pack(records, path, {"data": "bytes"}, chunk_size=chunk_size)
    return path


def main() -> None:
    """Draw sets of jobs, and print what they read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=int, default=300)
    parser.add_argument("--served", type=int, default=20)
    parser.add_argument("--connected", action="store_true")
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = list[dict[str, Any]]()
    for jobs in job_sets(given.simulated, given.seed):
        ratios = simulated(jobs)
        results += [{"by": "simulated", "set": str(jobs), "rule": rule, "ratio": ratios[rule]} for rule in ratios]
        _tell(results, jobs)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        for jobs in job_sets(given.served, given.seed + 1):
            for rule, (ratio, direct) in served(jobs, Path(folder), connected=given.connected).items():
                results.append({"by": "served", "set": str(jobs), "rule": rule, "ratio": ratio, "direct": direct})
            _tell(results, jobs)
    harness.show(harness.table(["by, rule", "sets", "ratio", "at most", "above 1.02", "direct, %"], _rows(results)))
    if given.out is not None:
        settings = {"samples": SAMPLES, "seed": given.seed, "connected": given.connected}
        harness.save(given.out, __doc__, settings, [], results)


def _tell(results: Sequence[dict[str, Any]], jobs: JobSet) -> None:
    mine = [each for each in results if each["set"] == str(jobs)]
    harness.progress(f"{jobs}: " + ", ".join(f"{each['rule']} {each['ratio']:.3f}" for each in mine))


def _rows(results: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for by in ("simulated", "served"):
        for rule in RULES:
            mine = [each for each in results if (each["by"], each["rule"]) == (by, rule)]
            if mine:
                ratios = [each["ratio"] for each in mine]
                above = sum(ratio > MOST for ratio in ratios)
                direct = f"{100 * max(each['direct'] for each in mine):.2f}" if by == "served" else ""
                numbers = [f"{statistics.median(ratios):.3f}", f"{max(ratios):.3f}", str(above)]
                yield [f"{by}, {rule}", str(len(mine)), *numbers, direct]


if __name__ == "__main__":
    main()
