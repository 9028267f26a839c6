"""How many samples a second does one process get that asks for batches of 256 given samples, in random order, warm?

    python -m bench.exact_reads --data DATA --work SCRATCH [--out bench/results/exact_reads.json]

Tasks: `records` (397,592 JSON lines, one bytes field each) and `images` (8,147 images and labels, nothing decoded).
All do the same work: the same bytes are stored, and Python `bytes` are returned, without worker processes. Each library
uses its fastest official call, found by trying; readers.py names it.

1. Every library builds its data set once, in a fresh process. The data set is left in SCRATCH for later runs.
2. A fresh process reads all files once (warm page cache), opens the data set, and reads one pass that is not timed: the
   checksum of every sample must be that of the source.
3. Then it times `--passes` passes over new random batches. The median pass of a process counts, and the median of
   several processes.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import time
import zlib
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness, system
from bench.harness import Outcome, Rival
from bench.readers import BRAND, LIBRARIES, Library, Reader, Sample
from bench.sources import list_images, load_lines

BATCH: Final = 256
BATCHES_A_PASS: Final = {"records": 100, "images": 30}
FIELDS: Final = {"records": ("line",), "images": ("image", "label")}


def source_of(task: str, data: Path) -> list[Sample]:
    """Return all samples, in source order."""
    if task == "records":
        return [{"line": line} for line in load_lines(data / "text")]
    return [{"image": file.path.read_bytes(), "label": file.label} for file in list_images(data / "images")]


def checksum(sample: Sample) -> int:
    """Return one number for all fields of a sample."""
    content = sample.get("line") or sample["image"]
    return zlib.crc32(content, sample.get("label", 0))


def build_once(library: Library, task: str, data: Path, store: Path) -> dict[str, Any]:
    """Write the data set, and next to it the checksums of the source's samples."""
    samples = source_of(task, data)
    started = time.perf_counter()
    library.build(samples, store / "data")
    built_s = time.perf_counter() - started
    (store / "checksums").write_bytes(array("L", map(checksum, samples)).tobytes())
    (store / "done").touch()
    return {"build_s": built_s}


def read_once(library: Library, task: str, store: Path, passes: int) -> dict[str, Any]:
    """Open a data set, check every sample, and time the passes."""
    checksums = array("L", (store / "checksums").read_bytes())
    system.warm(store / "data")
    reader = library.open(store / "data", FIELDS[task])
    batches, count = random_batches(len(checksums)), BATCHES_A_PASS[task]
    checked = sum(check(reader, next(batches), checksums) for _ in range(count))
    rates = [rate_of_pass(reader, list(itertools.islice(batches, count))) for _ in range(passes)]
    return {
        "samples_per_s": statistics.median(rates),
        "passes_samples_per_s": rates,
        "samples_checked": checked,
        "disk_bytes": system.disk_usage(store / "data")[1],
    }


def build_or_read(arguments: argparse.Namespace) -> dict[str, Any]:
    """Build or read in the child, as the command line says."""
    library = next(library for library in LIBRARIES if library.rival.name == arguments.rival)
    store = store_of(arguments.work, arguments.task, library.rival)
    if arguments.build:
        return build_once(library, arguments.task, arguments.data, store)
    return read_once(library, arguments.task, store, arguments.passes)


def random_batches(samples: int) -> Iterator[list[int]]:
    """Yield endless permutations of all samples, cut into batches, equal for every library."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - BATCH + 1, BATCH):
            yield order[start : start + BATCH].tolist()


def check(reader: Reader, indices: list[int], checksums: Sequence[int]) -> int:
    """Read one batch, compare each sample with the source, and return the number of samples."""
    found = [checksum(sample) for sample in reader.samples(reader.read(indices))]
    if found != [checksums[i] for i in indices]:
        wrong = next(i for i, sum_ in zip(indices, found, strict=False) if checksums[i] != sum_)
        raise RuntimeError(f"sample {wrong} differs from the stored sample")
    return len(found)


def rate_of_pass(reader: Reader, batches: list[list[int]]) -> float:
    """Read all batches, and return the samples a second."""
    started = time.perf_counter()
    for indices in batches:
        reader.read(indices)
    return len(batches) * BATCH / (time.perf_counter() - started)


def measure(arguments: argparse.Namespace, task: str, rival: Rival) -> Outcome:
    """Build the data set if it is missing, then read, each in a fresh process."""
    store = store_of(arguments.work, task, rival)
    if not (store / "done").exists():
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        built = harness.run_fresh(rival, "bench.exact_reads", ["--task", task, "--build"], arguments.limit)
        if built.status != "ok":
            return built
    return harness.run_fresh(rival, "bench.exact_reads", ["--task", task], arguments.limit)


def store_of(work: Path, task: str, rival: Rival) -> Path:
    """Return the folder in which a library stores a data set."""
    return work / "exact" / task / rival.name.replace(", ", "-")


def table_of(task: str, outcomes: list[Outcome], rivals: Sequence[Rival]) -> str:
    """Tabulate the medians, then list the rivals that are faster than Brand, then failures."""

    def median(rival: Rival, key: str) -> float | None:
        return harness.median_of(outcomes, rival.name, lambda outcome: float(outcome.values[key]))

    rates = {rival.name: median(rival, "samples_per_s") for rival in rivals}
    brand = rates.get(BRAND.name)
    rows = []
    for rival in rivals:
        rate, failure = rates[rival.name], harness.first_failure(outcomes, rival.name)
        if rate is None:
            rows.append([rival.name, failure.status if failure else "", "", ""])
            continue
        ratio = f"x{rate / brand:.2f}" if brand else ""
        rows.append([rival.name, f"{rate:,.0f}", ratio, f"{(median(rival, 'disk_bytes') or 0) / 1e6:,.0f}"])
    shown = harness.table(["rival", "samples/s", "over Brand", "on disk MB"], rows)
    return f"\n{task}\n{shown}{harness.faster_than(BRAND.name, rates)}{harness.failures(outcomes)}"


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.exact_reads", __doc__)
    parser.add_argument("--passes", type=int, default=7, help="timed passes in each process (%(default)s)")
    parser.add_argument("--rebuild", action="store_true", help="write Brand's data sets again")
    parser.add_argument("--only", nargs="+", metavar="RIVAL")
    parser.add_argument("--task", choices=tuple(FIELDS), help="only this task")
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    arguments = _parse()
    if arguments.rival:
        harness.report(arguments.report, build_or_read(arguments))
        return
    rivals = [library.rival for library in LIBRARIES if not arguments.only or library.rival.name in arguments.only]
    if arguments.rebuild:
        for rival, task in itertools.product(rivals, FIELDS):
            if rival.module == BRAND.module:
                shutil.rmtree(store_of(arguments.work, task, rival), ignore_errors=True)
    results: dict[str, list[Outcome]] = {}
    for task in [arguments.task] if arguments.task else FIELDS:
        results[task] = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments, task))
        harness.show(table_of(task, results[task], rivals))
    if arguments.out:
        settings = {"batch": BATCH, "batches_a_pass": BATCHES_A_PASS, "passes": arguments.passes}
        harness.save(arguments.out, __doc__, settings, rivals, results)


if __name__ == "__main__":
    main()
