"""How many samples a second does one process get that asks for exactly these 256, again and again, in random order, warm?

    python -m bench.exact_reads --data DATA --work SCRATCH [--out bench/results/exact_reads.json]

Tasks: `records` (397,592 JSON lines, one bytes field each) and `images` (8,147 pictures and labels, nothing decoded). Equal work: the
same bytes go in, Python `bytes` come out, no worker processes. Each library uses its fastest official call (see readers.py).

1. Every library builds its data set once, in a fresh process; it stays in SCRATCH for later runs.
2. A fresh process reads all its files once (warm page cache), opens it, and reads one pass of batches that is not timed: the checksum
   of every sample must be the source's.
3. Then it times `--passes` passes over new random batches; the median pass counts, and over several processes the median of those.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness, system
from bench.harness import Outcome, Rival
from bench.readers import LIBRARIES, Library, Reader, Sample
from bench.sources import list_images, load_lines

BATCH: Final = 256
BATCHES_A_PASS: Final = {"records": 100, "images": 30}
FIELDS: Final = {"records": ("line",), "images": ("image", "label")}


def source_of(task: str, data: Path) -> list[Sample]:
    """All samples, in source order."""
    if task == "records":
        return [{"line": line} for line in load_lines(data / "text")]
    return [{"image": file.path.read_bytes(), "label": file.label} for file in list_images(data / "images")]


def checksum(sample: Sample) -> int:
    """One number for all fields of a sample."""
    content = sample.get("line") or sample["image"]
    return zlib.crc32(content, sample.get("label", 0))


def build_child(library: Library, task: str, data: Path, store: Path) -> dict[str, Any]:
    """Write the data set, and beside it the checksums of what went in."""
    samples = source_of(task, data)
    started = time.perf_counter()
    library.build(samples, store / "data")
    built_s = time.perf_counter() - started
    (store / "checksums").write_bytes(array("L", map(checksum, samples)).tobytes())
    (store / "done").touch()
    return {"build_s": built_s}


def read_child(library: Library, task: str, store: Path, passes: int) -> dict[str, Any]:
    """Open, check, time."""
    checksums = array("L", (store / "checksums").read_bytes())
    system.warm(store / "data")
    reader = library.open(store / "data", FIELDS[task])
    batches = random_batches(len(checksums))
    checked = sum(check(reader, next(batches), checksums) for _ in range(BATCHES_A_PASS[task]))
    rates = [rate_of_pass(reader, [next(batches) for _ in range(BATCHES_A_PASS[task])]) for _ in range(passes)]
    return {
        "samples_per_s": statistics.median(rates),
        "passes_samples_per_s": rates,
        "samples_checked": checked,
        "disk_bytes": system.disk_usage(store / "data")[1],
    }


def random_batches(samples: int) -> Iterator[list[int]]:
    """Endless permutations of all samples, cut into batches; the same for every library."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - BATCH + 1, BATCH):
            yield order[start : start + BATCH].tolist()


def check(reader: Reader, indices: list[int], checksums: Sequence[int]) -> int:
    """Read one batch and compare each sample with the source. Returns how many."""
    found = [checksum(sample) for sample in reader.samples(reader.read(indices))]
    if found != [checksums[i] for i in indices]:
        wrong = next(i for i, sum_ in zip(indices, found, strict=False) if checksums[i] != sum_)
        raise RuntimeError(f"sample {wrong} is not what was stored")
    return len(found)


def rate_of_pass(reader: Reader, batches: list[list[int]]) -> float:
    """Samples a second."""
    started = time.perf_counter()
    for indices in batches:
        reader.read(indices)
    return len(batches) * BATCH / (time.perf_counter() - started)


def measure(library: Library, task: str, arguments: argparse.Namespace) -> Outcome:
    """Build if need be, then read, each in a fresh process."""
    options = ["--data", str(arguments.data), "--work", str(arguments.work), "--task", task, "--passes", str(arguments.passes)]
    store = store_of(arguments.work, task, library.rival)
    if arguments.rebuild and library.rival.name.startswith("brand"):
        shutil.rmtree(store, ignore_errors=True)
    if not (store / "done").exists():
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        built = harness.run_fresh(library.rival, "bench.exact_reads", [*options, "--build"], arguments.limit)
        if built.status != "ok":
            return built
    return harness.run_fresh(library.rival, "bench.exact_reads", options, arguments.limit)


def store_of(work: Path, task: str, rival: Rival) -> Path:
    """Where one library keeps one data set."""
    return work / "exact" / task / rival.name.replace(", ", "-")


def table_of(task: str, outcomes: list[Outcome], rivals: Sequence[Rival]) -> str:
    """Medians, as a table and one sentence on who is faster than Brand."""
    rates = {r.name: harness.median_of(outcomes, r.name, lambda o: float(o.values["samples_per_s"])) for r in rivals}
    brand = rates.get("brand")
    rows, failures = [], []
    for name, rate in rates.items():
        if rate is None:
            status, _, reason = harness.failure_of(outcomes, name).partition(": ")
            rows.append([name, status, "", ""])
            failures.append(f"\n{name}: {status}: {reason}")
            continue
        disk_bytes = harness.median_of(outcomes, name, lambda o: float(o.values["disk_bytes"])) or 0.0
        rows.append([name, f"{rate:,.0f}", f"x{brand / rate:.2f}" if brand else "", f"{disk_bytes / 1e6:,.0f}"])
    faster = [f"{name} (x{rate / brand:.2f})" for name, rate in rates.items() if brand and rate and rate > brand]
    verdict = f"\nFaster than Brand: {', '.join(faster) or 'nobody'}." if brand else ""
    columns = ["rival", "samples/s", "Brand is faster by", "on disk MB"]
    return f"\n{task}\n{harness.table(columns, rows)}{verdict}{''.join(failures)}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.exact_reads", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with images/ and text/")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder; the data sets stay there")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--repeat", type=int, default=3, help="fresh processes for each library")
    parser.add_argument("--passes", type=int, default=7, help="timed passes in each process")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--rebuild", action="store_true", help="write Brand's data sets again")
    parser.add_argument("--only", nargs="+", metavar="RIVAL")
    parser.add_argument("--task", choices=tuple(FIELDS), help="only this one")
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Parent or child, by `--rival`."""
    arguments = _parse()
    libraries = {library.rival.name: library for library in LIBRARIES}
    if arguments.rival:
        library = libraries[arguments.rival]
        store = store_of(arguments.work, arguments.task, library.rival)
        if arguments.build:
            values = build_child(library, arguments.task, arguments.data, store)
        else:
            values = read_child(library, arguments.task, store, arguments.passes)
        harness.report(arguments.report, values)
        return
    rivals = [library.rival for library in LIBRARIES if not arguments.only or library.rival.name in arguments.only]
    results: dict[str, list[Outcome]] = {}
    for task in [arguments.task] if arguments.task else FIELDS:
        results[task] = harness.round_robin(
            rivals, arguments.repeat, lambda rival, task=task: measure(libraries[rival.name], task, arguments)
        )
        harness.show(table_of(task, results[task], rivals))
    if arguments.out:
        settings = {"batch": BATCH, "batches_a_pass": BATCHES_A_PASS, "passes": arguments.passes, "repeat": arguments.repeat}
        harness.save(arguments.out, "How fast are exact reads of random batches, warm?", settings, rivals, results)


if __name__ == "__main__":
    main()
