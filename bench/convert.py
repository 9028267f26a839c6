"""How long does each library take to convert an image folder, and 400,000 records in memory, with two processes?

    python -m bench.convert --data DATA --work SCRATCH [--out bench/results/convert.json] [--cold]

Tasks: `images` (DATA/images), `text` (DATA/text, loaded as a list of dicts before the clock starts) and the same with cold caches
where the source is read from files. Rivals: Brand, mosaicml-streaming, litdata, webdataset (see converters.py for the
configurations) and `cp -r`, of the folder and, for text, of the same records as one file each.

Columns: "call" is the conversion itself, imports excluded, and for Brand's images the whole command `brand convert`, because that
is what a user runs. "process" is the whole process, interpreter, imports and loading of the records included. "durable" is call
plus the time until everything is on the disk (`sync -f`); nobody but Brand waits for that by itself. CPU seconds are of the whole
process tree. Each output is counted before its time is believed.

Read with it: Brand alone shuffles all samples. The last lines of each table say who is faster than Brand.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import harness, system
from bench.converters import BRAND, CONVERTERS, Job, copy
from bench.harness import Outcome, Rival
from bench.sources import list_images, load_lines, load_records, text_files

COPY: Final = Rival("cp -r")
COPY_EACH: Final = Rival("cp -r, one file each")
TASKS: Final = ("images", "text")


@dataclass(frozen=True, slots=True)
class Work:
    """One job, ready to be timed."""

    job: Job
    samples: int
    """How many the output must hold."""
    count: Callable[[Path], int]


def rivals_of(task: str, *, cold: bool) -> list[Rival]:
    """Who takes part. Records in memory cannot be cold: there, only copying reads files."""
    libraries = [] if cold and task == "text" else [converter.rival for converter in CONVERTERS]
    return [*libraries, COPY] if task == "images" else [*libraries, COPY, COPY_EACH]


def prepare(task: str, name: str, data: Path, work: Path, out: Path) -> Work:
    """Everything that is not timed: loading, imports."""
    if name == COPY.name:
        source = data / task
        return Work(copy(source, out), _count_files(source), _count_files)
    if name == COPY_EACH.name:
        source = work / "text-files"
        return Work(copy(source, out), _count_files(source), _count_files)
    converter = next(c for c in CONVERTERS if c.rival.name == name)
    if task == "images":
        folder = data / "images"
        return Work(converter.images(folder, out), len(list_images(folder)), converter.count)
    records = load_records(data / "text")
    return Work(converter.records(records, out), len(records), converter.count)


def measure_child(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one conversion, in the fresh process."""
    out = _output_of(arguments.work)
    work = prepare(arguments.task, arguments.rival, arguments.data, arguments.work, out)
    checks_from = time.perf_counter()
    system.flush(arguments.work)
    if arguments.cold:
        system.drop_caches(*_modules_of(arguments.rival))
    started = time.perf_counter()
    work.job()
    ended = time.perf_counter()
    system.flush(arguments.work)
    durable = time.perf_counter()
    found = work.count(out)
    if found != work.samples:
        raise RuntimeError(f"{found:,} samples in the output, {work.samples:,} in the source")
    content_bytes, disk_bytes = system.disk_usage(out)
    checked = time.perf_counter()
    return {
        "call_s": ended - started,
        "durable_s": durable - started,
        "samples": found,
        "output_bytes": content_bytes,
        "output_disk_bytes": disk_bytes,
        "untimed_s": (started - checks_from) + (checked - ended),
    }


def measure(task: str, rival: Rival, arguments: argparse.Namespace) -> Outcome:
    """Run one rival once, into an empty folder."""
    shutil.rmtree(_output_of(arguments.work), ignore_errors=True)
    options = ["--data", str(arguments.data), "--work", str(arguments.work), "--task", task]
    try:
        return harness.run_fresh(rival, "bench.convert", options + ["--cold"] * arguments.cold, arguments.limit)
    finally:
        shutil.rmtree(_output_of(arguments.work), ignore_errors=True)


def table_of(task: str, outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """Medians, as a table and one sentence on who is faster than Brand."""
    brand = _median(outcomes, BRAND.name, "call_s")
    columns = ["rival", "call s", "over Brand", "process s", "durable s", "CPU s", "output MB", "on disk MB", "shuffled"]
    rows, faster, failures = [], [], []
    for rival in rivals:
        call = _median(outcomes, rival.name, "call_s")
        if call is None:
            status, _, reason = harness.failure_of(outcomes, rival.name).partition(": ")
            rows.append([rival.name, status, *[""] * (len(columns) - 2)])
            failures.append(f"\n{rival.name}: {status}: {reason}")
            continue
        if brand is not None and call < brand:
            faster.append(f"{rival.name} ({brand / call:.2f} times as fast)")
        wall = harness.median_of(outcomes, rival.name, lambda o: o.wall_s) or 0.0
        cpu = harness.median_of(outcomes, rival.name, lambda o: o.cpu_s) or 0.0
        durable = _median(outcomes, rival.name, "durable_s") or 0.0
        sizes = [(_median(outcomes, rival.name, key) or 0.0) / 1e6 for key in ("output_bytes", "output_disk_bytes")]
        ratio = f"x{call / brand:.2f}" if brand else ""
        shuffled = "yes" if rival is BRAND else "no"
        numbers = [f"{call:.2f}", ratio, f"{wall:.2f}", f"{durable:.2f}", f"{cpu:.1f}", *(f"{size:,.0f}" for size in sizes)]
        rows.append([rival.name, *numbers, shuffled])
    verdict = f"\nFaster than Brand: {', '.join(faster) or 'nobody'}." if brand is not None else ""
    return f"\n{task}\n{harness.table(columns, rows)}{verdict}{''.join(failures)}"


def _median(outcomes: list[Outcome], rival: str, key: str) -> float | None:
    return harness.median_of(outcomes, rival, lambda outcome: float(outcome.values[key]))


def _modules_of(name: str) -> list[str]:
    return [c.rival.module for c in CONVERTERS if c.rival.name == name and c.rival.module != "streaming"]


def _output_of(work: Path) -> Path:
    return work / "converted"


def _count_files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.convert", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with images/ and text/")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder; outputs in it are deleted")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run (root)")
    parser.add_argument("--only", nargs="+", metavar="RIVAL")
    parser.add_argument("--task", choices=TASKS, help="only this one")
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Parent or child, by `--rival`."""
    arguments = _parse()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.rival:
        harness.report(arguments.report, measure_child(arguments))
        return
    if arguments.cold and not system.can_drop_caches():
        raise SystemExit("--cold needs the right to write /proc/sys/vm/drop_caches")
    results: dict[str, list[Outcome]] = {}
    everybody: list[Rival] = []
    for task in [arguments.task] if arguments.task else TASKS:
        if task == "text":
            text_files(load_lines(arguments.data / "text"), arguments.work / "text-files")
        rivals = [r for r in rivals_of(task, cold=arguments.cold) if not arguments.only or r.name in arguments.only]
        everybody += rivals
        results[task] = harness.round_robin(rivals, arguments.repeat, lambda rival, task=task: measure(task, rival, arguments))
        harness.show(table_of(task, results[task], rivals))
    if arguments.out:
        settings = {"processes": 2, "repeat": arguments.repeat, "cold": arguments.cold}
        harness.save(arguments.out, "How long does converting take, with two processes?", settings, everybody, results)


if __name__ == "__main__":
    main()
